"""Read runs of entries from the tables, where they are verified and opened. A fold needs neither log nor keys."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veen.core import PayloadHdr, Unavailable, Unverified
from veen.overlays import FoldEntry
from veen.pipeline.decoding.decoder import QuarantineKind
from veen.pipeline.tables.commit import FileRef, TablesView
from veen.pipeline.tables.layout import Table

_EVENT = ("stream_seq", "hub_ts", "client_id", "auth_ref", "msg_id", "header", "body")  # all have one label
_ROOT, _KIND = "mmr_root", "kind"


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """Consecutive entries of one label."""

    epoch: int
    label: bytes
    first: int
    last: int

    def __str__(self) -> str:
        return f"label {self.label.hex()[:16]}…, entries {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run and the table files that contain it: everything a worker needs to read it."""

    run: Run
    root: str
    paths: tuple[tuple[str, str], ...]  # table and path


def run_files(root: Path, view: TablesView, run: Run) -> RunFiles:
    files = [file for file in view.files.values() if _holds(file, run)]
    return RunFiles(run, str(root), tuple(sorted((str(file.table), file.path) for file in files)))


def _holds(file: FileRef, run: Run) -> bool:
    of_log = file.table in (Table.EVENTS, Table.QUARANTINE)
    return of_log and file.label == run.label and file.first <= run.last and run.first <= file.last


def entries(given: RunFiles) -> tuple[list[FoldEntry], bytes]:
    """The entries of a run in order, and the root at its end. Raises if an entry is missing or unverified."""
    import pyarrow.dataset as ds

    run, found, root = given.run, list[FoldEntry](), b""
    within = (ds.field("stream_seq") >= run.first) & (ds.field("stream_seq") <= run.last)
    for table in _tables(given, within):
        last = table.filter(ds.field("stream_seq") == run.last)
        root = last[_ROOT][0].as_py() if last.num_rows else root
        found += _entries(run, table)
    return _in_order(run, found, range(run.first, run.last + 1)), root


def entries_at(given: RunFiles, places: Sequence[int]) -> list[FoldEntry]:
    """The entries at some places of a run, in order."""
    import pyarrow.dataset as ds

    found: list[FoldEntry] = []
    for table in _tables(given, ds.field("stream_seq").isin(list(places))):
        found += _entries(given.run, table)
    return _in_order(given.run, found, sorted(places))


def _in_order(run: Run, found: list[FoldEntry], expected: Iterable[int]) -> list[FoldEntry]:
    found.sort(key=lambda entry: entry.stream_seq)
    wanted, have = list(expected), [entry.stream_seq for entry in found]
    if have != wanted:
        lacking = next(iter(sorted(set(wanted) - set(have))), None)
        what = "an entry occurs twice" if lacking is None else f"entry {lacking} is missing"
        raise Unverified(f"tables: {run}", f"{what}: run veen pipeline verify for details")
    return found


def _tables(given: RunFiles, wanted: Any) -> Iterator[Any]:
    import pyarrow.dataset as ds

    for table, path in given.paths:
        names = [*_EVENT, _ROOT] if table == Table.EVENTS else [*_EVENT, _ROOT, _KIND]
        try:
            yield ds.dataset(f"{given.root}/{path}", format="parquet").to_table(columns=names, filter=wanted)
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {error}") from None


def _entries(run: Run, table: Any) -> Iterator[FoldEntry]:
    """Rows as entries. Most headers are equal, so each distinct one is decoded once."""
    if _KIND in table.schema.names and QuarantineKind.UNVERIFIED in (kinds := table[_KIND].to_pylist()):
        seq = table["stream_seq"][kinds.index(QuarantineKind.UNVERIFIED)].as_py()
        place = f"label {run.label.hex()[:16]}…, entry {seq}"
        raise Unverified(place, "it failed verification when it was loaded; no state can be computed past it")
    headers: dict[bytes | None, PayloadHdr | None] = {None: None}
    for seq, hub_ts, client_id, auth_ref, msg_id, header, body in zip(
        *(table[name].to_pylist() for name in _EVENT), strict=True
    ):
        if header not in headers:
            headers[header] = PayloadHdr.decode(header)
        read = headers[header]
        yield FoldEntry(run.label, run.epoch, seq, hub_ts, client_id, auth_ref, msg_id, read, body if read else None)


def roots(root: Path, view: TablesView, label: bytes, places: Sequence[int]) -> dict[int, bytes]:
    """The stored roots at some places of a label."""
    import pyarrow.dataset as ds

    found: dict[int, bytes] = {}
    for file in view.of(Table.ENTRIES):
        wanted = [seq for seq in places if file.label == label and file.first <= seq <= file.last]
        if wanted:
            table = ds.dataset(str(root / file.path), format="parquet").to_table(
                columns=["stream_seq", "mmr_root"], filter=ds.field("stream_seq").isin(wanted)
            )
            found |= {row["stream_seq"]: row["mmr_root"] for row in table.to_pylist()}
    return found
