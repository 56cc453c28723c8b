"""Entries of a run, read from the tables: they were verified, opened and kept, so a fold needs neither log nor key."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veen.core import PayloadHdr, Unavailable, Unverified
from veen.overlays import Entry
from veen.pipeline.decoding.decoder import Kind
from veen.pipeline.tables.commit import FileRef, View
from veen.pipeline.tables.layout import Table

_EVENT = ("label", "epoch", "stream_seq", "hub_ts", "client_id", "auth_ref", "msg_id", "mmr_root", "header", "body")
_QUARANTINED = (*_EVENT, "kind")


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """Entries of one label without a gap."""

    epoch: int
    label: bytes
    first: int
    last: int

    def __str__(self) -> str:
        return f"label {self.label.hex()[:16]}…, entries {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Held:
    """A run, and the files of the tables that hold it: all that a worker needs to read it."""

    run: Run
    root: str
    paths: tuple[tuple[str, str], ...]  # table and path


def held(root: Path, view: View, run: Run) -> Held:
    files = [file for file in view.files.values() if _holds(file, run)]
    return Held(run, str(root), tuple(sorted((str(file.table), file.path) for file in files)))


def _holds(file: FileRef, run: Run) -> bool:
    of_log = file.table in (Table.EVENTS, Table.QUARANTINE)
    return of_log and file.label == run.label and file.first <= run.last and run.first <= file.last


def entries(given: Held) -> list[tuple[Entry, bytes]]:
    """The entries of a run in order, each with the root of the log up to it. Raises where one cannot be relied on."""
    run, rows = given.run, list(_rows(given))
    rows.sort(key=lambda row: row["stream_seq"])
    expected = range(run.first, run.last + 1)
    if [row["stream_seq"] for row in rows] != list(expected):
        have = {row["stream_seq"] for row in rows}
        lacking = next((seq for seq in expected if seq not in have), None)
        what = "an entry is there twice" if lacking is None else f"entry {lacking} is missing"
        raise Unverified(f"tables: {run}", f"{what}: veen pipeline verify says more")
    return [(_entry(row), row["mmr_root"]) for row in rows]


def _rows(given: Held) -> Iterator[dict[str, Any]]:
    import pyarrow.dataset as ds

    run = given.run
    for table, path in given.paths:
        names = list(_EVENT if table == Table.EVENTS else _QUARANTINED)
        within = (ds.field("stream_seq") >= run.first) & (ds.field("stream_seq") <= run.last)
        try:
            found = ds.dataset(f"{given.root}/{path}", format="parquet").to_table(columns=names, filter=within)
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {error}") from None
        yield from found.to_pylist()


def _entry(row: dict[str, Any]) -> Entry:
    if row.get("kind") == Kind.UNVERIFIED:
        place = f"label {row['label'].hex()[:16]}…, entry {row['stream_seq']}"
        raise Unverified(place, "it failed when it was read, and nothing can be folded over it")
    header = None if row["header"] is None else PayloadHdr.decode(row["header"])
    return Entry(
        row["label"],
        row["epoch"],
        row["stream_seq"],
        row["hub_ts"],
        row["client_id"],
        row["auth_ref"],
        row["msg_id"],
        header,
        row["body"] if header else None,
    )


def roots(root: Path, view: View, label: bytes, places: Sequence[int]) -> dict[int, bytes]:
    """The roots that the tables have for some places of a label."""
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
