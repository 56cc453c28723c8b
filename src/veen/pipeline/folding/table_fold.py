"""Fold over tables: workers summarize new runs, a tree merges the summaries, and the result extends the last state.

The result is byte for byte that of folding entry by entry. If a step of a part is refused, its summary cannot be
applied. Such parts are folded entry by entry, from the entries of the new runs that touch them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from veen.client.local_files import DISK
from veen.core import Unavailable, cbor
from veen.overlays import AnyOverlay, At, EventFault, Fold, FoldEntry, ShippedSummary, Summary, run, state_hash
from veen.pipeline.folding import state_table
from veen.pipeline.folding.runs import Run, RunFiles, entries, roots, run_files
from veen.pipeline.folding.state_table import NOTHING, StateTable, TableBound
from veen.pipeline.folding.summaries import (
    CopyCorrection,
    MergeJob,
    Node,
    SummaryJob,
    copied_in,
    correct_copies,
    digest,
    merge_run,
    merged,
    name_of,
    overlay_of,
    repeated,
    stored_nodes,
    summarize_run,
)
from veen.pipeline.jobs import Progress, Runner, no_progress, run_inline
from veen.pipeline.tables import commit as commits
from veen.pipeline.tables.commit import TablesView
from veen.pipeline.tables.store import FOLDS, Tables

CHUNK_ENTRIES = 50_000  # equals the rows of a table file, so no file is read for two runs
FAN_IN = 6
SHARES = 4  # each worker merges one share of the parts
SMALL_BYTES = 1 << 21  # summaries below this total are merged in this process


@dataclass(slots=True)
class Read:
    """Counters of one fold."""

    chunks: int = 0
    entries: int = 0
    reused: int = 0  # runs with a stored summary


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
    found = overlay_of(overlay)
    view = tables.view()
    work = _Work(tables, view, found, do, progress)
    bounds = work.bounds(stream, at)
    base = _usable(state_table.read(tables, view, found, stream), bounds, work)
    cover = work.cover(bounds, base.bounds)
    new = [node for node in cover if not _within(node.run, base.bounds)]
    whole = work.merged(new)
    states, stuck = run(found, base.states, whole)
    # A part that met only refusals has no state, but its summary looks like one that folded to INITIAL.
    stuck += tuple(part for part in states if part not in base.states and states[part] == found.INITIAL)
    if stuck:
        folded = Fold(found, _Base(base.states, found, work.places))
        folded.extend(work.touching(new, stuck))
        states = {part: state for part, state in states.items() if part not in stuck}
        states |= {part: folded.state(part) for part in stuck if part in folded.states or part in base.states}
    if at is None and (not base.bounds or base.bounds != bounds):
        state_table.write(tables, found, stream, bounds, states)
    return Folded(found, stream, bounds, states, work.read)


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
    found = overlay_of(overlay)
    work = _Work(tables, tables.view(), found, do, progress)
    bounds = work.bounds(stream, last)
    before = tuple(
        replace(one, upto_seq=first.stream_seq - 1 if one.epoch == first.epoch else one.upto_seq)
        for one in bounds
        if one.epoch < first.epoch or (one.epoch == first.epoch and first.stream_seq > 1)
    )
    return work.merged([node for node in work.cover(bounds, before) if not _within(node.run, before)])


def _within(run_of: Run, bounds: Sequence[TableBound]) -> bool:
    return any(one.label == run_of.label and run_of.last <= one.upto_seq for one in bounds)


def _usable(base: StateTable, bounds: Sequence[TableBound], work: "_Work") -> StateTable:
    """The stored state if the log still has its roots and it is not ahead of `bounds`; else `NOTHING`."""
    if len(base.bounds) > len(bounds):
        return NOTHING
    for number, (stored, now) in enumerate(zip(base.bounds, bounds, strict=False)):
        ended = number < len(base.bounds) - 1
        if stored.label != now.label or stored.upto_seq > now.upto_seq or (ended and stored != now):
            return NOTHING
        if roots(work.tables.root, work.view, now.label, [stored.upto_seq]).get(stored.upto_seq) != stored.mmr_root:
            return NOTHING
    return base


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

    def __init__(self, tables: Tables, view: TablesView, overlay: AnyOverlay, do: Runner, progress: Progress) -> None:
        self.tables, self.view, self.overlay = tables, view, overlay
        self.read, self.places = Read(), dict[bytes, At]()
        self._do, self._progress = do, progress
        self._folder = (tables.own / FOLDS / name_of(overlay)).resolve()

    def bounds(self, stream: str, at: At | None) -> tuple[TableBound, ...]:
        """The end of the fold for each label of the stream."""
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
            root = roots(self.tables.root, self.view, span.label, [upto]).get(upto)
            if root is None:
                raise Unavailable(f"entry {upto} of {stream!r} failed verification; no state can be computed there")
            made.append(TableBound(span.epoch, span.label, upto, root))
        return tuple(made)

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
        found = [
            node
            for node in stored_nodes(self._folder / bound.label.hex(), bound.epoch, bound.label)
            if node.run.last <= bound.upto_seq
        ]
        true = roots(self.tables.root, self.view, bound.label, [node.run.last for node in found])
        known: dict[int, list[Node]] = {}
        for node in found:
            if true.get(node.run.last) == node.root:
                known.setdefault(node.run.first, []).append(node)
        return known

    def _summed(self, missing: Sequence[Run]) -> list[Node]:
        for label in {one.label for one in missing}:
            (self._folder / label.hex()).mkdir(parents=True, exist_ok=True)
        jobs = [
            SummaryJob(self._run_files(one), self.overlay.CLASS, str(self._folder / one.label.hex())) for one in missing
        ]
        nodes = []
        for job, result in zip(jobs, self._do(summarize_run, jobs, self._progress), strict=True):
            summarized = commits.decode(result)
            self.read.chunks += 1
            self.read.entries += summarized["entries"]
            nodes.append(Node(job.run_files.run, bytes.fromhex(summarized["root"]), job.folder))
        return nodes

    def _correct_copies(self, new: Sequence[Node]) -> None:
        """Correct drafts that contain copies of earlier steps, then publish all drafts under their final names."""
        corrections = []
        for node in new:
            copied = copied_in(node, self.places)
            if copied:
                corrections.append(CopyCorrection(self._run_files(node.run), self.overlay.CLASS, node, copied))
        self._do(correct_copies, corrections, no_progress)
        for node in new:
            DISK.replace(node.draft, node.summary)

    def _run_files(self, one: Run) -> RunFiles:
        return run_files(self.tables.root.resolve(), self.view, one)

    def merged(self, nodes: Sequence[Node]) -> Summary[Any]:
        """Merge neighbours in workers, level by level, until few remain; then merge those by shares of the parts."""
        paths = [str(node.summary) for node in nodes]
        with TemporaryDirectory(prefix="merging-", dir=self._folder if paths else None) as folder:
            level = 0
            while len(paths) > FAN_IN:
                count = -(-len(paths) // FAN_IN)
                cuts = [len(paths) * number // count for number in range(count + 1)]
                groups = [tuple(paths[start:end]) for start, end in pairwise(cuts)]
                level += 1
                jobs = [
                    MergeJob(self.overlay.CLASS, group, f"{folder}/{level}-{number}.summary")
                    for number, group in enumerate(groups)
                ]
                paths = [path.decode() for path in self._do(merge_run, jobs, no_progress)]
            if len(paths) > 1 and sum(Path(path).stat().st_size for path in paths) > SMALL_BYTES:
                jobs = [
                    MergeJob(self.overlay.CLASS, tuple(paths), f"{folder}/share-{share}.summary", share, SHARES)
                    for share in range(SHARES)
                ]
                paths = [path.decode() for path in self._do(merge_run, jobs, no_progress)]
            return merged(self.overlay, [ShippedSummary.decode(Path(path).read_bytes()) for path in paths])

    def touching(self, nodes: Sequence[Node], parts: Sequence[bytes]) -> Iterator[FoldEntry]:
        """The entries of these runs that touch some parts, in order."""
        jobs = [TouchingJob(self._run_files(node.run), self.overlay.CLASS, tuple(parts)) for node in nodes]
        for found in self._do(select_touching, jobs, no_progress):
            listed = cbor.decode(found, "entries")
            assert isinstance(listed, tuple)
            yield from (FoldEntry.decode(one) for one in listed if isinstance(one, bytes))


@dataclass(frozen=True, slots=True)
class TouchingJob:
    """The job to find the entries of a run that touch some parts."""

    run_files: RunFiles
    overlay: str
    parts: tuple[bytes, ...]


def select_touching(job: TouchingJob) -> bytes:
    overlay, wanted = overlay_of(job.overlay), frozenset(job.parts)
    found = []
    for entry in entries(job.run_files)[0]:
        steps = overlay.read(entry)
        if not isinstance(steps, EventFault) and any(step.part in wanted for step in steps):
            found.append(entry.encode())
    return cbor.encode(found)


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
