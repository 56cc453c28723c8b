"""Summaries of runs, made and merged by workers and kept in files, with the keys by which copies are found.

Runs are read from the tables, where entries are verified and opened. A fold needs neither log nor keys. For each run a
worker writes a file of key digests, then a draft summary. If a key occurs in an earlier run too, the parts it belongs
to are summarized again. Then the draft gets its final name, so a file `*.summary` accounts for all earlier entries.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

from veen.client.local_files import Disk
from veen.core import PayloadHdr, Unavailable, Unverified, cbor
from veen.overlays import AnyOverlay, At, EventFault, FaultKind, FoldEntry, ShippedSummary, Summary, receive, ship
from veen.overlays.fold import StepKeys, encode_parts, merge_all, summarise_piece
from veen.pipeline.decoding.decoder import QuarantineKind, overlays
from veen.pipeline.tables import commit as commits
from veen.pipeline.tables.commit import TablesView
from veen.pipeline.tables.layout import Table

_EVENT = ("stream_seq", "hub_ts", "client_id", "auth_ref", "msg_id", "header", "body")  # all have one label
_ROOT, _KIND = "mmr_root", "kind"
LAST_PLACE = At((1 << 64) - 1, 0)  # later than any place
_PLAIN_FILE = 0o644
_DIGEST_BYTES = 32


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

    @classmethod
    def of(cls, root: Path, view: TablesView, run: Run) -> "RunFiles":
        files = [
            (str(file.table), file.path)
            for file in view.files.values()
            if file.table in (Table.EVENTS, Table.QUARANTINE)
            and file.label == run.label
            and file.first <= run.last
            and run.first <= file.last
        ]
        return cls(run, str(root), tuple(sorted(files)))


@dataclass(frozen=True, slots=True)
class Node:
    """A summarized run, and the files of its summary."""

    run: Run
    root: bytes
    folder: str  # of the overlay

    def path(self, kind: str) -> Path:
        """The file of a kind: `summary`, `draft` or `keys`."""
        name = f"{self.run.first:012}-{self.run.last:012}-{self.root.hex()}.{kind}"
        return Path(self.folder, self.run.label.hex(), name)


def stored_nodes(folder: Path, epoch: int, label: bytes) -> Iterator[Node]:
    """The nodes of a label whose files are all there."""
    for path in sorted((folder / label.hex()).glob("*.summary")):
        first, last, root = path.stem.split("-")
        node = Node(Run(epoch, label, int(first), int(last)), bytes.fromhex(root), str(folder))
        if node.path("keys").exists():
            yield node


def overlay_of(name: str) -> AnyOverlay:
    """The overlay with this class name in this worker."""
    found = overlays().of_class(name)
    if found is None:
        raise Unavailable(f"no overlay of class {name} is installed here: install the distribution that provides it")
    return found


def name_of(overlay: AnyOverlay) -> str:
    """The name for stored results. It differs for other versions or settings of the overlay."""
    settings = overlay.settings()
    if overlay.VERSION == 1 and not settings:
        return overlay.CLASS
    return f"{overlay.CLASS}.{overlay.VERSION}.{sha256(settings).hexdigest()[:16]}"


def entries(given: RunFiles, places: Sequence[int] | None = None) -> tuple[list[FoldEntry], bytes]:
    """The entries of a run, or those at some places, in order, and the root at its end if that is among them.

    Raises if an entry is missing or unverified.
    """
    import pyarrow.dataset as ds

    run, found, root = given.run, list[FoldEntry](), b""
    seq, wanted = ds.field("stream_seq"), range(run.first, run.last + 1) if places is None else sorted(places)
    chosen = (seq >= run.first) & (seq <= run.last) if places is None else seq.isin(list(places))
    for table, path in given.paths:
        names = [*_EVENT, _ROOT] if table == Table.EVENTS else [*_EVENT, _ROOT, _KIND]
        try:
            rows = ds.dataset(f"{given.root}/{path}", format="parquet").to_table(columns=names, filter=chosen)
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {error}") from None
        last = rows.filter(seq == run.last)
        root = last[_ROOT][0].as_py() if last.num_rows else root
        found += _entries(run, rows)
    found.sort(key=lambda entry: entry.stream_seq)
    have = [entry.stream_seq for entry in found]
    if have != list(wanted):
        lacking = min(set(wanted) - set(have), default=None)
        what = "an entry occurs twice" if lacking is None else f"entry {lacking} is missing"
        raise Unverified(f"tables: {run}", f"{what}: run veen pipeline verify for details")
    return found, root


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


def summarize_run(overlay_class: str, folder: str, given: RunFiles) -> bytes:
    """Worker: read a run, write its keys, then its draft summary."""
    overlay = overlay_of(overlay_class)
    with gc_disabled():
        log, root = entries(given)
        node = Node(given.run, root, folder)
        summary, met = summarise_piece(overlay, log)
        disk = Disk()
        disk.write_file(node.path("keys"), _keys_file(met), _PLAIN_FILE)
        disk.write_file(node.path("draft"), ship(overlay, summary, log, root).encode(), _PLAIN_FILE)
        return commits.encode({"root": root, "entries": len(log)})


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the cycle collector: a run is many small values without cycles, and each collection visits all."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class CopyCorrection:
    """The job to correct a draft after keys of the run were found before it."""

    run_files: RunFiles
    node: Node
    known: tuple[tuple[bytes, At], ...]  # digest and first place of each key


def correct_copies(overlay_class: str, job: CopyCorrection) -> bytes:
    """Worker: summarize again only the parts that contain a copy of a step before the run."""
    overlay, draft = overlay_of(overlay_class), job.node.path("draft")
    shipped, earlier = ShippedSummary.decode(draft.read_bytes()), dict(job.known)
    parts, places = _touched(job.node, earlier)
    copies = [fault for fault in shipped.faults if fault.kind == FaultKind.COPY and fault.part in parts]
    log, _ = entries(job.run_files, sorted(places.union(fault.stream_seq for fault in copies)))
    summary, _ = summarise_piece(overlay, log, lambda part, key: earlier.get(digest(part, key)), parts)
    made = {one.part: one for one in shipped.parts if one.part not in parts}
    made |= {one.part: one for one in encode_parts(overlay, summary)}
    faults = [*(fault for fault in shipped.faults if fault not in copies), *summary.faults]
    corrected = replace(
        shipped,
        parts=tuple(made[part] for part in sorted(made)),
        faults=tuple(sorted(faults, key=lambda fault: fault.place)),
    )
    Disk().write_file(draft, corrected.encode(), _PLAIN_FILE)
    return b""


def select_touching(overlay_class: str, parts: Iterable[bytes], given: RunFiles) -> bytes:
    """Worker: the entries of a run that touch some parts."""
    overlay, wanted, found = overlay_of(overlay_class), frozenset(parts), []
    for entry in entries(given)[0]:
        steps = overlay.read(entry)
        if not isinstance(steps, EventFault) and any(step.part in wanted for step in steps):
            found.append(entry.encode())
    return cbor.encode(found)


@dataclass(frozen=True, slots=True)
class MergeJob:
    """The job to merge neighbouring summaries into one file: all parts, or one share of them."""

    paths: tuple[str, ...]
    out: str
    share: int = 0
    shares: int = 1


def merge_run(overlay_class: str, job: MergeJob) -> bytes:
    """Worker: merge summaries and return the path of the result."""
    overlay = overlay_of(overlay_class)
    with gc_disabled():
        shipped = [_share(ShippedSummary.decode(Path(path).read_bytes()), job) for path in job.paths]
        whole = merged(overlay, shipped)
        first, last = shipped[0], shipped[-1]
        made = replace(
            last,
            first_seq=min(first.first_seq, last.upto_seq),
            parts=encode_parts(overlay, whole),
            faults=whole.faults,
        )
        Disk().write_file(Path(job.out), made.encode(), _PLAIN_FILE)
        return job.out.encode()


def _share(shipped: ShippedSummary, job: MergeJob) -> ShippedSummary:
    parts = tuple(one for one in shipped.parts if crc32(one.part) % job.shares == job.share)
    return replace(shipped, parts=parts, faults=() if job.share else shipped.faults)


def merged(overlay: AnyOverlay, shipped: Iterable[ShippedSummary]) -> Summary[Any]:
    """Merge neighbouring summaries."""
    return merge_all(overlay, (receive(overlay, one) for one in shipped))


def digest(part: bytes, key: bytes) -> bytes:
    """The 32-byte digest of a key within a part."""
    return sha256(len(part).to_bytes(4, "big") + part + key).digest()


def _keys_file(met: StepKeys) -> bytes:
    """A Parquet file of the key digests with their first places, and of steps without keys."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[tuple[bytes | None, At, bytes]] = [
        (digest(part, key), at, part) for (part, key), at in met.firsts.items()
    ]
    rows += [(None, at, part) for part, at in met.without_key]
    arrays = [
        pa.array([key for key, _, _ in rows], type=pa.binary(_DIGEST_BYTES)),
        pa.array([at.epoch for _, at, _ in rows], type=pa.uint64()),
        pa.array([at.stream_seq for _, at, _ in rows], type=pa.uint64()),
        pa.array([part for _, _, part in rows], type=pa.binary()),
    ]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(arrays, names=["key", "epoch", "seq", "part"])
    pq.write_table(table, sink, row_group_size=65_536, use_dictionary=["part"], compression="none")
    return bytes(sink.getvalue())


def _keys(node: Node, *columns: str) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(node.path("keys")).read(columns=["key", "seq", *columns])


def _with_key(keys: Any, wanted: Iterable[bytes]) -> Any:
    """The rows of a keys file with one of these digests."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = wanted if isinstance(wanted, pa.Array) else pa.array(sorted(wanted), type=keys.schema.field("key").type)
    return keys.filter(pc.is_in(keys["key"], value_set=given))


def _touched(node: Node, keys: Iterable[bytes]) -> tuple[frozenset[bytes], frozenset[int]]:
    """The parts that these keys belong to, and the places in a run where those parts have steps."""
    import pyarrow.compute as pc

    found = _keys(node, "part")
    parts = _with_key(found, keys)["part"].unique()
    touching = found.filter(pc.is_in(found["part"], value_set=parts))
    return frozenset(parts.to_pylist()), frozenset(touching["seq"].to_pylist())


def repeated(before: Sequence[Node], new: Sequence[Node]) -> dict[bytes, At]:
    """The keys of new runs that occur more than once, in them or before them, with their first places.

    Memory holds only the keys of the new runs; the key files of earlier runs are read one by one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not new:
        return {}
    fresh = pa.concat_tables([_keys(node, "epoch") for node in new])
    fresh = fresh.filter(pc.is_valid(fresh["key"]))
    wanted = fresh["key"].combine_chunks()
    whole = pa.concat_tables([fresh, *(_with_key(_keys(node, "epoch"), wanted) for node in before)])
    counted = whole.group_by("key").aggregate([("seq", "count")])
    several = counted.filter(pc.greater(counted["seq_count"], 1))["key"].combine_chunks()
    places: dict[bytes, At] = {}
    for row in _with_key(whole, several).to_pylist():
        places[row["key"]] = min(places.get(row["key"], LAST_PLACE), At(row["epoch"], row["seq"]))
    return places


def copied_in(node: Node, places: Mapping[bytes, At]) -> tuple[tuple[bytes, At], ...]:
    """The keys of a run that occurred before it, with their first places."""
    if not places:
        return ()
    rows = _with_key(_keys(node, "epoch"), places).to_pylist()
    firsts = [(row["key"], places[row["key"]], At(row["epoch"], row["seq"])) for row in rows]
    return tuple((key, first) for key, first, at in firsts if first < at)
