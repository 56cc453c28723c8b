"""Runs summed up, and kept: a summary and the keys that its steps are known by, each in a file of its own.

    FOLDS/OVERLAY/LABEL/FIRST-LAST-ROOT.summary    a shipped summary
    FOLDS/OVERLAY/LABEL/FIRST-LAST-ROOT.keys       digests of (part, key), each with where it is met first in the run

Under another root of the log neither means anything, and neither is found. A worker writes a `.draft`; it becomes a
`.summary` once it is known that nothing in it is a copy of something before it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from veen.client.durable import Disk
from veen.core import Unavailable
from veen.overlays import AnyOverlay, At, Entry, ShippedSummary, Summary, firsts, merge, receive, ship, summarise
from veen.pipeline.decoding.decoder import overlays
from veen.pipeline.folding.runs import Held, Run, entries
from veen.pipeline.tables import commit as commits

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
    """A run to be summed up by a worker. With `known`, copies of what came before it are told."""

    held: Held
    overlay: str
    folder: str
    known: tuple[tuple[bytes, int, int], ...] | None = None  # digest, and the place it is met first


class _ReadOnce:
    """An overlay that reads each entry of a run once: decoding is most of the work."""

    def __init__(self, overlay: AnyOverlay) -> None:
        self._overlay = overlay
        self._read: dict[int, Any] = {}

    def read(self, entry: Entry) -> Any:
        if entry.stream_seq not in self._read:
            self._read[entry.stream_seq] = self._overlay.read(entry)
        return self._read[entry.stream_seq]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._overlay, name)


def sum_run(job: SumUp) -> bytes:
    """What a worker does: read a run, note its keys, and sum it up."""
    overlay = overlay_of(job.overlay)
    once: Any = _ReadOnce(overlay)
    found = entries(job.held)
    log, root = [entry for entry, _ in found], found[-1][1]
    node = Node(job.held.run, root, job.folder)
    disk = Disk()
    met = firsts(once, log)
    if job.known is None:
        disk.write_file(node.keys, _keys_file(met), _PLAIN_FILE)
        known: Mapping[tuple[bytes, bytes], At] = met
    else:
        earlier = {key: At(epoch, seq) for key, epoch, seq in job.known}
        known = {key: min(at, earlier.get(digest(*key), NEVER)) for key, at in met.items()}
    shipped = ship(overlay, summarise(once, log, known), log, root)
    disk.write_file(node.draft, shipped.encode(), _PLAIN_FILE)
    return commits.encode({"root": root, "entries": len(log)})


def _keys_file(met: Mapping[tuple[bytes, bytes], At]) -> bytes:
    """Digests in order, each with its place."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = sorted((digest(*key), at.epoch, at.stream_seq) for key, at in met.items())
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = (pa.binary(_DIGEST_BYTES), pa.uint64(), pa.uint64())
    arrays = [pa.array(values, type=kind) for values, kind in zip(columns, kinds, strict=True)]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(arrays, names=["key", "epoch", "seq"])
    pq.write_table(table, sink, row_group_size=65_536, use_dictionary=False, compression="none")
    return bytes(sink.getvalue())


def digest(part: bytes, key: bytes) -> bytes:
    """A key of a part, in 32 bytes."""
    return sha256(len(part).to_bytes(4, "big") + part + key).digest()


@dataclass(frozen=True, slots=True)
class MergeUp:
    """Neighbours to be merged by a worker into one file."""

    overlay: str
    paths: tuple[str, ...]
    out: str


def merge_run(job: MergeUp) -> bytes:
    overlay = overlay_of(job.overlay)
    shipped = [ShippedSummary.decode(Path(path).read_bytes()) for path in job.paths]
    whole = merged(overlay, shipped)
    first, last = shipped[0], shipped[-1]
    made = ShippedSummary(
        overlay.CLASS,
        overlay.VERSION,
        overlay.settings(),
        last.label,
        last.epoch,
        min(first.first_seq, last.upto_seq),
        last.upto_seq,
        last.mmr_root,
        shipped_parts(overlay, whole),
        whole.faults,
    )
    Disk().write_file(Path(job.out), made.encode(), _PLAIN_FILE)
    return job.out.encode()


def merged(overlay: AnyOverlay, shipped: list[ShippedSummary]) -> Summary[Any]:
    """Neighbouring summaries as one."""
    whole: Summary[Any] = Summary({})
    for one in shipped:
        whole = merge(overlay, whole, receive(overlay, one))
    return whole


def shipped_parts(overlay: AnyOverlay, whole: Summary[Any]) -> Any:
    from veen.overlays.summary import SummaryPart

    return tuple(SummaryPart(part, overlay.encode_summary(whole.parts[part])) for part in sorted(whole.parts))
