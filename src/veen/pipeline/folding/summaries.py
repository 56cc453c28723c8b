"""Which steps are copies of earlier ones: found from the digests of their keys alone, whichever runs they are in."""

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

from veen.client.durable import Disk
from veen.core import Unavailable
from veen.overlays import AnyOverlay, At, EventFault, FaultKind, FoldEntry, ShippedSummary, Summary, receive, ship
from veen.overlays.fold import copy_reason
from veen.overlays.summary import SummaryPart
from veen.pipeline.decoding.decoder import overlays
from veen.pipeline.folding.runs import HeldRuns, Run, entries, some
from veen.pipeline.tables import commit as commits

Earlier = Callable[[bytes, bytes], At | None]  # part, key -> where it was met before the run


@dataclass(slots=True)
class Met:
    """What the steps of a run are known by."""

    firsts: dict[tuple[bytes, bytes], At] = field(default_factory=dict)  # (part, key) -> where it is met first
    nameless: list[tuple[bytes, At]] = field(default_factory=list)  # steps without a key


def never(part: bytes, key: bytes) -> At | None:
    """Nothing was met before."""
    return None


def sum_entries(
    overlay: AnyOverlay, log: Iterable[FoldEntry], earlier: Earlier = never, within: Collection[bytes] | None = None
) -> tuple[Summary[Any], Met]:
    """The same as `firsts`, then `summarise` with them. With `within`, of these parts only."""
    parts: dict[bytes, Any] = {}
    faults: list[EventFault] = []
    met = Met()
    for entry in log:
        found = overlay.read(entry)
        if isinstance(found, EventFault):
            if within is None:
                faults.append(found)
            continue
        at = entry.at
        for step in found:
            part = step.part
            if within is not None and part not in within:
                continue
            keys = overlay.keys(step)
            first = at
            for key in keys:
                known = met.firsts.get((part, key))
                if known is None:
                    known = met.firsts[part, key] = earlier(part, key) or at
                first = min(first, known)
            if not keys:
                met.nameless.append((part, at))
            if first < at:
                faults.append(EventFault.at(at, FaultKind.COPY, copy_reason(at, first), part))
            else:
                parts[part] = overlay.merge(parts.get(part, overlay.EMPTY), overlay.lift(step))
    return Summary(parts, tuple(faults)), met


NEVER = At((1 << 64) - 1, 0)  # later than any place: what is not known to be a copy is none
_PLAIN_FILE = 0o644
_DIGEST_BYTES = 32


def overlay_of(name: str) -> AnyOverlay:
    """An overlay of this worker's, by class."""
    found = overlays().of_class(name)
    if found is None:
        raise Unavailable(f"there is no overlay of class {name} here: install the distribution that brings it")
    return found


def name_of(overlay: AnyOverlay) -> str:
    """What an overlay's results are kept under: those of other rules or settings are others'."""
    settings = overlay.settings()
    if overlay.VERSION == 1 and not settings:
        return overlay.CLASS
    return f"{overlay.CLASS}.{overlay.VERSION}.{sha256(settings).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Node:
    """A run that is summed up."""

    run: Run
    root: bytes
    folder: str  # of the label

    @property
    def _stem(self) -> str:
        return f"{self.folder}/{self.run.first:012}-{self.run.last:012}-{self.root.hex()}"

    @property
    def summary(self) -> Path:
        return Path(f"{self._stem}.summary")

    @property
    def draft(self) -> Path:
        return Path(f"{self._stem}.draft")

    @property
    def keys(self) -> Path:
        return Path(f"{self._stem}.keys")


def kept(folder: Path, epoch: int, label: bytes) -> Iterator[Node]:
    """The nodes of a label whose files are whole."""
    for path in sorted(folder.glob("*.summary")) if folder.is_dir() else ():
        first, last, root = path.stem.split("-")
        node = Node(Run(epoch, label, int(first), int(last)), bytes.fromhex(root), str(folder))
        if node.keys.exists():
            yield node


@dataclass(frozen=True, slots=True)
class SumUp:
    """A run to be summed up by a worker."""

    held: HeldRuns
    overlay: str
    folder: str


def sum_run(job: SumUp) -> bytes:
    """What a worker does: read a run, note its keys, and sum it up."""
    overlay = overlay_of(job.overlay)
    with unwatched():
        log, root = entries(job.held)
        node = Node(job.held.run, root, job.folder)
        summary, met = sum_entries(overlay, log)
        disk = Disk()
        disk.write_file(node.keys, _keys_file(met), _PLAIN_FILE)
        disk.write_file(node.draft, ship(overlay, summary, log, root).encode(), _PLAIN_FILE)
        return commits.encode({"root": root, "entries": len(log)})


@contextmanager
def unwatched() -> Iterator[None]:
    """Without looking for cycles: a run is many small values and has none, and the search goes through all of them."""
    watching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if watching:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Mend:
    """A draft to be mended by a worker: some of its keys were met before the run."""

    held: HeldRuns
    overlay: str
    node: Node
    known: tuple[tuple[bytes, int, int], ...]  # digest, and the place it is met first


def mend_run(job: Mend) -> bytes:
    """Sum up again the parts that have a copy of something before the run, and no others."""
    overlay, shipped = overlay_of(job.overlay), ShippedSummary.decode(job.node.draft.read_bytes())
    earlier = {key: At(epoch, seq) for key, epoch, seq in job.known}
    parts, places = _touched(job.node, earlier)
    copies = [fault for fault in shipped.faults if fault.kind == FaultKind.COPY and fault.part in parts]
    log = some(job.held, sorted(places.union(fault.stream_seq for fault in copies)))
    summary, _ = sum_entries(overlay, log, lambda part, key: earlier.get(digest(part, key)), parts)
    made = {one.part: one for one in shipped.parts if one.part not in parts}
    made |= {one.part: one for one in shipped_parts(overlay, summary)}
    faults = [*(fault for fault in shipped.faults if fault not in copies), *summary.faults]
    mended = replace(
        shipped,
        parts=tuple(made[part] for part in sorted(made)),
        faults=tuple(sorted(faults, key=lambda fault: fault.place)),
    )
    Disk().write_file(job.node.draft, mended.encode(), _PLAIN_FILE)
    return b""


def _touched(node: Node, keys: Iterable[bytes]) -> tuple[frozenset[bytes], frozenset[int]]:
    """The parts that some keys are of, and the places of a run at which these parts met something."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    met = pq.ParquetFile(node.keys).read(columns=["key", "seq", "part"])
    wanted = pa.array(sorted(keys), type=met.schema.field("key").type)
    parts = met.filter(pc.is_in(met["key"], value_set=wanted))["part"].unique()
    found = met.filter(pc.is_in(met["part"], value_set=parts))
    return frozenset(parts.to_pylist()), frozenset(found["seq"].to_pylist())


def _keys_file(met: Met) -> bytes:
    """Digests as they were met, each with its place; and the steps that have none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    places = [*met.firsts.values(), *(at for _, at in met.nameless)]
    arrays = [
        pa.array([*(digest(*key) for key in met.firsts), *(None for _ in met.nameless)], type=pa.binary(_DIGEST_BYTES)),
        pa.array([at.epoch for at in places], type=pa.uint64()),
        pa.array([at.stream_seq for at in places], type=pa.uint64()),
        pa.array([*(part for part, _ in met.firsts), *(part for part, _ in met.nameless)], type=pa.binary()),
    ]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(arrays, names=["key", "epoch", "seq", "part"])
    pq.write_table(table, sink, row_group_size=65_536, use_dictionary=["part"], compression="none")
    return bytes(sink.getvalue())


def digest(part: bytes, key: bytes) -> bytes:
    """A key of a part, in 32 bytes."""
    return sha256(len(part).to_bytes(4, "big") + part + key).digest()


@dataclass(frozen=True, slots=True)
class MergeUp:
    """Neighbours to be merged by a worker into one file: all parts, or one share of several."""

    overlay: str
    paths: tuple[str, ...]
    out: str
    share: int = 0
    shares: int = 1


def merge_run(job: MergeUp) -> bytes:
    overlay = overlay_of(job.overlay)
    with unwatched():
        return _merge_run(job, overlay)


def _merge_run(job: MergeUp, overlay: AnyOverlay) -> bytes:
    shipped = [_share(ShippedSummary.decode(Path(path).read_bytes()), job) for path in job.paths]
    whole = merged(overlay, shipped)
    first, last = shipped[0], shipped[-1]
    made = replace(
        last,
        first_seq=min(first.first_seq, last.upto_seq),
        parts=shipped_parts(overlay, whole),
        faults=whole.faults,
    )
    Disk().write_file(Path(job.out), made.encode(), _PLAIN_FILE)
    return job.out.encode()


def _share(shipped: ShippedSummary, job: MergeUp) -> ShippedSummary:
    parts = tuple(one for one in shipped.parts if crc32(one.part) % job.shares == job.share)
    return replace(shipped, parts=parts, faults=() if job.share else shipped.faults)


def merged(overlay: AnyOverlay, shipped: Iterable[ShippedSummary]) -> Summary[Any]:
    """Neighbouring summaries as one."""
    parts: dict[bytes, Any] = {}
    faults: list[EventFault] = []
    for one in shipped:
        received = receive(overlay, one)
        for part, later in received.parts.items():
            parts[part] = overlay.merge(parts[part], later) if part in parts else later
        faults += received.faults
    return Summary(parts, tuple(faults))


def shipped_parts(overlay: AnyOverlay, whole: Summary[Any]) -> tuple[SummaryPart, ...]:
    return tuple(SummaryPart(part, overlay.encode_summary(whole.parts[part])) for part in sorted(whole.parts))


def repeated(before: Sequence[Node], new: Sequence[Node]) -> dict[bytes, At]:
    """The keys of new runs that are met more than once, in them or before them, each with its first place.

    Only those are held in memory that the new runs have; the runs before them are gone through file by file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not new:
        return {}
    fresh = pa.concat_tables([_keys(node) for node in new])
    wanted = fresh["key"].combine_chunks()
    found = [fresh]
    for node in before:
        keys = _keys(node)
        found.append(keys.filter(pc.is_in(keys["key"], value_set=wanted)))
    whole = pa.concat_tables(found)
    counted = whole.group_by("key").aggregate([("seq", "count")])
    several = counted.filter(pc.greater(counted["seq_count"], 1))["key"].combine_chunks()
    places: dict[bytes, At] = {}
    for row in whole.filter(pc.is_in(whole["key"], value_set=several)).to_pylist():
        places[row["key"]] = min(places.get(row["key"], NEVER), At(row["epoch"], row["seq"]))
    return places


def copied_in(node: Node, places: Mapping[bytes, At]) -> tuple[tuple[bytes, int, int], ...]:
    """The keys of a run that were met before it, with where."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not places:
        return ()
    keys = _keys(node)
    among = keys.filter(pc.is_in(keys["key"], value_set=pa.array(sorted(places), type=keys.schema.field("key").type)))
    found = []
    for row in among.to_pylist():
        first = places[row["key"]]
        if first < At(row["epoch"], row["seq"]):
            found.append((row["key"], first.epoch, first.stream_seq))
    return tuple(found)


def _keys(node: Node) -> Any:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    keys = pq.ParquetFile(node.keys).read(columns=["key", "epoch", "seq"])
    return keys.filter(pc.is_valid(keys["key"]))
