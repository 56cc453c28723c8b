"""Summaries of runs, and the search for copies of steps across runs by the digests of their keys."""

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

from veen.client.local_files import Disk
from veen.core import Unavailable
from veen.overlays import AnyOverlay, At, EventFault, FaultKind, FoldEntry, ShippedSummary, Summary, receive, ship
from veen.overlays.fold import SummaryPart, copy_reason
from veen.pipeline.decoding.decoder import overlays
from veen.pipeline.folding.runs import Run, RunFiles, entries, entries_at
from veen.pipeline.tables import commit as commits

Earlier = Callable[[bytes, bytes], At | None]  # (part, key) -> first place before the run


@dataclass(slots=True)
class StepKeys:
    """The keys of the steps in a run."""

    firsts: dict[tuple[bytes, bytes], At] = field(default_factory=dict)  # (part, key) -> first place
    without_key: list[tuple[bytes, At]] = field(default_factory=list)  # steps without a key


def no_earlier(part: bytes, key: bytes) -> At | None:
    """No step occurred before the run."""
    return None


def summarize_entries(
    overlay: AnyOverlay,
    log: Iterable[FoldEntry],
    earlier: Earlier = no_earlier,
    within: Collection[bytes] | None = None,
) -> tuple[Summary[Any], StepKeys]:
    """Summarize a log and collect the keys of its steps. With `within`, cover only these parts."""
    parts: dict[bytes, Any] = {}
    faults: list[EventFault] = []
    found_keys = StepKeys()
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
                known = found_keys.firsts.get((part, key))
                if known is None:
                    known = found_keys.firsts[part, key] = earlier(part, key) or at
                first = min(first, known)
            if not keys:
                found_keys.without_key.append((part, at))
            if first < at:
                faults.append(EventFault.at(at, FaultKind.COPY, copy_reason(at, first), part))
            else:
                parts[part] = overlay.merge(parts.get(part, overlay.EMPTY), overlay.lift(step))
    return Summary(parts, tuple(faults)), found_keys


LAST_PLACE = At((1 << 64) - 1, 0)  # later than any place
_PLAIN_FILE = 0o644
_DIGEST_BYTES = 32


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


@dataclass(frozen=True, slots=True)
class Node:
    """A summarized run."""

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


def stored_nodes(folder: Path, epoch: int, label: bytes) -> Iterator[Node]:
    """The nodes of a label whose files are all there."""
    for path in sorted(folder.glob("*.summary")) if folder.is_dir() else ():
        first, last, root = path.stem.split("-")
        node = Node(Run(epoch, label, int(first), int(last)), bytes.fromhex(root), str(folder))
        if node.keys.exists():
            yield node


@dataclass(frozen=True, slots=True)
class SummaryJob:
    """The job to summarize one run."""

    run_files: RunFiles
    overlay: str
    folder: str


def summarize_run(job: SummaryJob) -> bytes:
    """Worker: read a run, write its keys, then its draft summary."""
    overlay = overlay_of(job.overlay)
    with gc_disabled():
        log, root = entries(job.run_files)
        node = Node(job.run_files.run, root, job.folder)
        summary, found_keys = summarize_entries(overlay, log)
        disk = Disk()
        disk.write_file(node.keys, _keys_file(found_keys), _PLAIN_FILE)
        disk.write_file(node.draft, ship(overlay, summary, log, root).encode(), _PLAIN_FILE)
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
    overlay: str
    node: Node
    known: tuple[tuple[bytes, int, int], ...]  # digest and first place of each key


def correct_copies(job: CopyCorrection) -> bytes:
    """Summarize again only the parts that contain a copy of a step before the run."""
    overlay, shipped = overlay_of(job.overlay), ShippedSummary.decode(job.node.draft.read_bytes())
    earlier = {key: At(epoch, seq) for key, epoch, seq in job.known}
    parts, places = _touched(job.node, earlier)
    copies = [fault for fault in shipped.faults if fault.kind == FaultKind.COPY and fault.part in parts]
    log = entries_at(job.run_files, sorted(places.union(fault.stream_seq for fault in copies)))
    summary, _ = summarize_entries(overlay, log, lambda part, key: earlier.get(digest(part, key)), parts)
    made = {one.part: one for one in shipped.parts if one.part not in parts}
    made |= {one.part: one for one in shipped_parts(overlay, summary)}
    faults = [*(fault for fault in shipped.faults if fault not in copies), *summary.faults]
    corrected = replace(
        shipped,
        parts=tuple(made[part] for part in sorted(made)),
        faults=tuple(sorted(faults, key=lambda fault: fault.place)),
    )
    Disk().write_file(job.node.draft, corrected.encode(), _PLAIN_FILE)
    return b""


def _touched(node: Node, keys: Iterable[bytes]) -> tuple[frozenset[bytes], frozenset[int]]:
    """The parts that these keys belong to, and the places in a run where those parts have steps."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found_keys = pq.ParquetFile(node.keys).read(columns=["key", "seq", "part"])
    wanted = pa.array(sorted(keys), type=found_keys.schema.field("key").type)
    parts = found_keys.filter(pc.is_in(found_keys["key"], value_set=wanted))["part"].unique()
    found = found_keys.filter(pc.is_in(found_keys["part"], value_set=parts))
    return frozenset(parts.to_pylist()), frozenset(found["seq"].to_pylist())


def _keys_file(found_keys: StepKeys) -> bytes:
    """A Parquet file of the key digests with their first places, and of steps without keys."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    places = [*found_keys.firsts.values(), *(at for _, at in found_keys.without_key)]
    arrays = [
        pa.array(
            [*(digest(*key) for key in found_keys.firsts), *(None for _ in found_keys.without_key)],
            type=pa.binary(_DIGEST_BYTES),
        ),
        pa.array([at.epoch for at in places], type=pa.uint64()),
        pa.array([at.stream_seq for at in places], type=pa.uint64()),
        pa.array(
            [*(part for part, _ in found_keys.firsts), *(part for part, _ in found_keys.without_key)], type=pa.binary()
        ),
    ]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(arrays, names=["key", "epoch", "seq", "part"])
    pq.write_table(table, sink, row_group_size=65_536, use_dictionary=["part"], compression="none")
    return bytes(sink.getvalue())


def digest(part: bytes, key: bytes) -> bytes:
    """The 32-byte digest of a key within a part."""
    return sha256(len(part).to_bytes(4, "big") + part + key).digest()


@dataclass(frozen=True, slots=True)
class MergeJob:
    """The job to merge neighbouring summaries into one file: all parts, or one share of them."""

    overlay: str
    paths: tuple[str, ...]
    out: str
    share: int = 0
    shares: int = 1


def merge_run(job: MergeJob) -> bytes:
    overlay = overlay_of(job.overlay)
    with gc_disabled():
        return _merge_run(job, overlay)


def _merge_run(job: MergeJob, overlay: AnyOverlay) -> bytes:
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


def _share(shipped: ShippedSummary, job: MergeJob) -> ShippedSummary:
    parts = tuple(one for one in shipped.parts if crc32(one.part) % job.shares == job.share)
    return replace(shipped, parts=parts, faults=() if job.share else shipped.faults)


def merged(overlay: AnyOverlay, shipped: Iterable[ShippedSummary]) -> Summary[Any]:
    """Merge neighbouring summaries."""
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
    """The keys of new runs that occur more than once, in them or before them, with their first places.

    Memory holds only the keys of the new runs; the key files of earlier runs are read one by one.
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
        places[row["key"]] = min(places.get(row["key"], LAST_PLACE), At(row["epoch"], row["seq"]))
    return places


def copied_in(node: Node, places: Mapping[bytes, At]) -> tuple[tuple[bytes, int, int], ...]:
    """The keys of a run that occurred before it, with their first places."""
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
