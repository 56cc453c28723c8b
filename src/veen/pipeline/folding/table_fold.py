"""Fold over tables: workers summarize new runs, a tree merges the summaries, and the result extends the last state.

The result has the same bytes as a fold entry by entry. If a part refuses a step, its summary cannot be applied. Such
parts are folded entry by entry, from those entries of the new runs that change them. The table `state` has the parts of
the final state, with the log position and root that they were computed from.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from veen.client.local_files import DISK
from veen.core import Malformed, Unavailable, Unverified, cbor
from veen.overlays import AnyOverlay, At, Fold, FoldEntry, ShippedSummary, Summary, run, state_hash
from veen.pipeline.decoding.decoder import plain, to_json
from veen.pipeline.folding.run_summaries import (
    CopyCorrection,
    MergeJob,
    Node,
    Run,
    RunFiles,
    copied_in,
    correct_copies,
    digest,
    merge_run,
    merged,
    name_of,
    overlay_of,
    repeated,
    roots,
    select_touching,
    stored_nodes,
    summarize_run,
)
from veen.pipeline.jobs import Progress, Runner, no_progress, run_inline
from veen.pipeline.tables import commit as commits
from veen.pipeline.tables import layout
from veen.pipeline.tables.commit import Commit, FileRef, TablesView
from veen.pipeline.tables.layout import Table
from veen.pipeline.tables.store import FOLDS, Tables

CHUNK_ENTRIES = 50_000  # equals the rows of a table file, so no file is read for two runs
FAN_IN = 6
SHARES = 4  # each worker merges one share of the parts
SMALL_BYTES = 1 << 21  # summaries below this total are merged in this process
_META = b"veen"
_PLAIN_FILE = 0o644


@dataclass(slots=True)
class Read:
    """Counters of one fold."""

    chunks: int = 0
    entries: int = 0
    reused: int = 0  # runs with a stored summary


@dataclass(frozen=True, slots=True)
class TableBound:
    """The last folded entry of a label, and the root of the log there."""

    epoch: int
    label: bytes
    upto_seq: int
    mmr_root: bytes


@dataclass(frozen=True, slots=True)
class Folded:
    """The states of a stream and the ends of the labels they cover."""

    overlay: AnyOverlay
    stream: str
    bounds: tuple[TableBound, ...]
    states: Mapping[bytes, Any]
    read: Read = field(default_factory=Read)

    @property
    def state_hash(self) -> bytes:
        return state_hash(self.overlay, self.states)


def fold(
    tables: Tables,
    overlay: str,
    stream: str,
    do: Runner = run_inline,
    *,
    at: At | None = None,
    progress: Progress = no_progress,
) -> Folded:
    """The state of a stream after a place, or after all entries in the tables; the latter becomes table `state`."""
    work = _Work(tables, overlay_of(overlay), stream, do, progress)
    bounds = work.bounds(at)
    base = work.usable(work.stored(), bounds)
    new = [node for node in work.cover(bounds, base.bounds) if not _within(node.run, base.bounds)]
    states, stuck = run(work.overlay, base.states, work.merged(new))
    # A part that met only refusals has no state, but its summary looks like one that folded to INITIAL.
    stuck += tuple(part for part in states if part not in base.states and states[part] == work.overlay.INITIAL)
    if stuck:
        folded = Fold(work.overlay, _Base(base.states, work.overlay, work.places))
        folded.extend(work.touching(new, stuck))
        states = {part: state for part, state in states.items() if part not in stuck}
        states |= {part: folded.state(part) for part in stuck if part in folded.states or part in base.states}
    result = replace(base, bounds=bounds, states=states, read=work.read)
    if at is None and (not base.bounds or base.bounds != bounds):
        work.store(result)
    return result


def summarize(
    tables: Tables,
    overlay: str,
    stream: str,
    first: At,
    last: At,
    do: Runner = run_inline,
    *,
    progress: Progress = no_progress,
) -> Summary[Any]:
    """The summary of a range, both ends included. It can be applied to any state."""
    work = _Work(tables, overlay_of(overlay), stream, do, progress)
    bounds = work.bounds(last)
    before = tuple(
        replace(one, upto_seq=first.stream_seq - 1 if one.epoch == first.epoch else one.upto_seq)
        for one in bounds
        if one.epoch < first.epoch or (one.epoch == first.epoch and first.stream_seq > 1)
    )
    return work.merged([node for node in work.cover(bounds, before) if not _within(node.run, before)])


def _within(run_of: Run, bounds: Sequence[TableBound]) -> bool:
    return any(one.label == run_of.label and run_of.last <= one.upto_seq for one in bounds)


class _Base:
    """The state before the new runs, and the keys known from earlier entries."""

    def __init__(self, states: Mapping[bytes, Any], overlay: AnyOverlay, places: Mapping[bytes, At]) -> None:
        self._states, self._overlay, self._places = states, overlay, places

    def state(self, part: bytes) -> Any:
        return self._states.get(part, self._overlay.INITIAL)

    def known(self, part: bytes, key: bytes) -> At | None:
        return self._places.get(digest(part, key))


class _Work:
    """One fold in progress."""

    def __init__(self, tables: Tables, overlay: AnyOverlay, stream: str, do: Runner, progress: Progress) -> None:
        self.tables, self.view, self.overlay, self.stream = tables, tables.view(), overlay, stream
        self.read, self.places = Read(), dict[bytes, At]()
        self._do, self._progress = do, progress
        self._folder = (tables.own / FOLDS / name_of(overlay)).resolve()

    def bounds(self, at: At | None) -> tuple[TableBound, ...]:
        """The end of the fold for each label of the stream."""
        stream = self.stream
        spans = sorted((one for one in self.view.spans.values() if one.stream == stream), key=lambda one: one.epoch)
        if not spans:
            raise Unavailable(f"the tables have no stream {stream!r}; load it with veen pipeline run")
        made = []
        for span in spans:
            upto = span.last if at is None or span.epoch < at.epoch else at.stream_seq
            if at is not None and span.epoch > at.epoch:
                break
            if upto > span.last:
                raise Unavailable(f"the tables have {stream!r} up to entry {span.last}, not {upto}")
            root = self._roots(span.label, [upto]).get(upto)
            if root is None:
                raise Unavailable(f"entry {upto} of {stream!r} failed verification; no state can be computed there")
            made.append(TableBound(span.epoch, span.label, upto, root))
        return tuple(made)

    def _roots(self, label: bytes, places: Sequence[int]) -> dict[int, bytes]:
        return roots(self.tables.root, self.view, label, places)

    def cover(self, bounds: Sequence[TableBound], cuts: Sequence[TableBound]) -> list[Node]:
        """Nodes from the first entry on; runs without a stored summary are summarized now."""
        whole: list[Node | Run] = []
        for bound in bounds:
            cut = next((one.upto_seq for one in cuts if one.label == bound.label), 0)
            known = self._known(bound)
            whole += _tiles(bound, 1, cut, known)
            whole += _tiles(bound, cut + 1, bound.upto_seq, known)
        missing = [one for one in whole if isinstance(one, Run)]
        made = dict(zip(missing, self._summed(missing), strict=True))
        before = [one for one in whole if isinstance(one, Node)]
        self.read.reused += len(before)
        self.places = repeated(before, list(made.values()))
        self._correct_copies(list(made.values()))
        return [made[one] if isinstance(one, Run) else one for one in whole]

    def _known(self, bound: TableBound) -> dict[int, list[Node]]:
        """The stored nodes of a label that match this log, by their first entry."""
        stored = stored_nodes(self._folder, bound.epoch, bound.label)
        found = [node for node in stored if node.run.last <= bound.upto_seq]
        true = self._roots(bound.label, [node.run.last for node in found])
        known: dict[int, list[Node]] = {}
        for node in found:
            if true.get(node.run.last) == node.root:
                known.setdefault(node.run.first, []).append(node)
        return known

    def _summed(self, missing: Sequence[Run]) -> list[Node]:
        for label in {one.label for one in missing}:
            (self._folder / label.hex()).mkdir(parents=True, exist_ok=True)
        work = partial(summarize_run, self.overlay.CLASS, str(self._folder))
        nodes = []
        for one, result in zip(missing, self._do(work, self._files(missing), self._progress), strict=True):
            summarized = commits.decode(result)
            self.read.chunks += 1
            self.read.entries += summarized["entries"]
            nodes.append(Node(one, bytes.fromhex(summarized["root"]), str(self._folder)))
        return nodes

    def _correct_copies(self, new: Sequence[Node]) -> None:
        """Correct drafts that contain copies of earlier steps, then publish all drafts under their final names."""
        found = ((node, copied_in(node, self.places)) for node in new)
        jobs = [CopyCorrection(self._files([node.run])[0], node, copied) for node, copied in found if copied]
        self._do(partial(correct_copies, self.overlay.CLASS), jobs)
        for node in new:
            DISK.replace(node.path("draft"), node.path("summary"))

    def _files(self, runs: Sequence[Run]) -> list[RunFiles]:
        root = self.tables.root.resolve()
        return [RunFiles.of(root, self.view, one) for one in runs]

    def merged(self, nodes: Sequence[Node]) -> Summary[Any]:
        """Merge neighbours in workers, level by level, until few remain; then merge those by shares of the parts."""
        paths = [str(node.path("summary")) for node in nodes]
        with TemporaryDirectory(prefix="merging-", dir=self._folder if paths else None) as folder:
            level = 0
            while len(paths) > FAN_IN:
                count = -(-len(paths) // FAN_IN)
                cuts = [len(paths) * number // count for number in range(count + 1)]
                groups = [tuple(paths[start:end]) for start, end in pairwise(cuts)]
                level += 1
                paths = self._merge_runs(
                    [MergeJob(group, f"{folder}/{level}-{number}.summary") for number, group in enumerate(groups)]
                )
            if len(paths) > 1 and sum(Path(path).stat().st_size for path in paths) > SMALL_BYTES:
                whole = tuple(paths)
                paths = self._merge_runs(
                    [MergeJob(whole, f"{folder}/share-{share}.summary", share, SHARES) for share in range(SHARES)]
                )
            return merged(self.overlay, [ShippedSummary.decode(Path(path).read_bytes()) for path in paths])

    def _merge_runs(self, jobs: Sequence[MergeJob]) -> list[str]:
        return [path.decode() for path in self._do(partial(merge_run, self.overlay.CLASS), jobs)]

    def touching(self, nodes: Sequence[Node], parts: Sequence[bytes]) -> Iterator[FoldEntry]:
        """The entries of these runs that touch some parts, in order."""
        work = partial(select_touching, self.overlay.CLASS, tuple(parts))
        for found in self._do(work, self._files([node.run for node in nodes])):
            listed = cbor.decode(found, "entries")
            assert isinstance(listed, tuple)
            yield from (FoldEntry.decode(one) for one in listed if isinstance(one, bytes))

    def _state_files(self, view: TablesView) -> list[FileRef]:
        """The state files of this stream under this overlay."""
        return [one for one in view.of(Table.STATE, [self.stream]) if one.overlay == name_of(self.overlay)]

    def store(self, made: Folded) -> None:
        """Write the table `state`, which replaces the previous state of the stream."""
        overlay, states, stream = self.overlay, made.states, self.stream
        last, name, hashed = made.bounds[-1], name_of(overlay), made.state_hash
        place = (last.label, last.epoch, last.upto_seq, last.mmr_root, overlay.CLASS)
        rows = [
            (*place, part, overlay.encode_state(states[part]), to_json(plain(overlay.plain(part, states[part]))))
            for part in sorted(states)
        ]
        bound = [[one.epoch, one.label.hex(), one.upto_seq, one.mmr_root.hex()] for one in made.bounds]
        meta = json.dumps({"bounds": bound, "state_hash": hashed.hex(), "overlay": name}, sort_keys=True)
        data = layout.parquet(Table.STATE, layout.arrow(Table.STATE, rows).replace_schema_metadata({_META: meta}))
        folder = f"{Table.STATE}/stream={layout.escaped(stream)}/overlay={layout.escaped(name)}"
        path, checksum = f"{folder}/{last.label.hex()}-{last.upto_seq:012}.parquet", sha256(data).digest()
        sizes = (1, last.upto_seq, len(rows), len(data))
        file = FileRef(Table.STATE, path, stream, "", last.label, *sizes, checksum, overlay=name, state_hash=hashed)
        with self.tables.writing() as view, self.tables.staging() as staging:
            if view.files.get(path) == file:
                return
            DISK.write_file(staging / "state.parquet", data, _PLAIN_FILE)
            gone = tuple(one.path for one in self._state_files(view) if one.path != path)
            self.tables.publish(Commit(view.number + 1, "state", (), (file,), gone), {path: staging / "state.parquet"})

    def stored(self) -> Folded:
        """The stored state; empty if there is none. Raises `Unverified` if the file is not the one that was written."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for file in self._state_files(self.view):
            data = _bytes(self.tables.root / file.path)
            if sha256(data).digest() != file.sha256:
                what = "its bytes differ from those committed; run veen pipeline verify for details"
                raise Unverified(file.path, what)
            table = pq.read_table(pa.BufferReader(data))
            try:
                bounds = [
                    TableBound(epoch, bytes.fromhex(label), upto, bytes.fromhex(root))
                    for epoch, label, upto, root in json.loads(table.schema.metadata[_META])["bounds"]
                ]
            except (KeyError, TypeError, ValueError):
                raise Malformed(file.path, "it has no valid bounds") from None
            rows = zip(table["part"].to_pylist(), table["state"].to_pylist(), strict=True)
            states = {part: self.overlay.decode_state(part, state) for part, state in rows}
            return Folded(self.overlay, self.stream, tuple(bounds), states)
        return self._nothing()

    def _nothing(self) -> Folded:
        return Folded(self.overlay, self.stream, (), {})

    def usable(self, base: Folded, bounds: Sequence[TableBound]) -> Folded:
        """The stored state if the log still has its roots and it is not ahead of `bounds`; else an empty one."""
        if len(base.bounds) > len(bounds):
            return self._nothing()
        for number, (stored, now) in enumerate(zip(base.bounds, bounds, strict=False)):
            ended = number < len(base.bounds) - 1
            if stored.label != now.label or stored.upto_seq > now.upto_seq or (ended and stored != now):
                return self._nothing()
            if self._roots(now.label, [stored.upto_seq]).get(stored.upto_seq) != stored.mmr_root:
                return self._nothing()
        return base


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unverified(str(path), f"the state file cannot be read: {error.strerror}") from None


def _tiles(bound: TableBound, first: int, last: int, known: Mapping[int, list[Node]]) -> Iterator[Node | Run]:
    """Split a range into stored nodes and runs still to summarize."""
    at = first
    while at <= last:
        fitting = [node for node in known.get(at, ()) if node.run.last <= last]
        if fitting:
            node = max(fitting, key=lambda one: one.run.last)
            yield node
            at = node.run.last + 1
        else:
            starts = [start for start, nodes in known.items() if start > at and any(n.run.last <= last for n in nodes)]
            end = min(at + CHUNK_ENTRIES - 1, last, min(starts, default=last + 1) - 1)
            yield Run(bound.epoch, bound.label, at, end)
            at = end + 1
