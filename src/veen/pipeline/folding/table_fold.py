"""A fold over tables: what is new is summed up where there is room, merged in a tree, and run on the state before it.

The result is, byte for byte, that of folding entry by entry. Parts that a summary does not run on, because some step
of theirs is refused, are walked: with the entries of the new runs that touch them, and no others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from veen.client.durable import DISK
from veen.core import Unavailable, cbor
from veen.overlays import AnyOverlay, At, EventFault, Fold, FoldEntry, ShippedSummary, Summary, run, state_hash
from veen.pipeline.folding import state_table
from veen.pipeline.folding.runs import HeldRuns, Run, entries, held, roots
from veen.pipeline.folding.state_table import NOTHING, StateTable, TableBound
from veen.pipeline.folding.summaries import (
    Mend,
    MergeUp,
    Node,
    SumUp,
    copied_in,
    digest,
    kept,
    mend_run,
    merge_run,
    merged,
    name_of,
    overlay_of,
    repeated,
    sum_run,
)
from veen.pipeline.jobs import Runner, Tell, here, silent
from veen.pipeline.tables import commit as commits
from veen.pipeline.tables.commit import TablesView
from veen.pipeline.tables.store import FOLDS, Tables

CHUNK_ENTRIES = 50_000  # as many as a file of the tables has: none is read for two runs
FAN_IN = 6
SHARES = 4  # of the parts, each merged by a worker
SMALL_BYTES = 1 << 21  # of summaries: less is merged here


@dataclass(slots=True)
class Read:
    """What a fold went through."""

    chunks: int = 0
    entries: int = 0
    reused: int = 0  # runs whose summaries were there


@dataclass(frozen=True, slots=True)
class Folded:
    """The states of a stream, and what they are the states of."""

    overlay: AnyOverlay
    stream: str
    bounds: tuple[TableBound, ...]
    states: Mapping[bytes, Any]
    read: Read = field(default_factory=Read)

    @property
    def state_hash(self) -> bytes:
        return state_hash(self.overlay, self.states)


def fold(
    tables: Tables, overlay: str, stream: str, do: Runner = here, *, at: At | None = None, tell: Tell = silent
) -> Folded:
    """The state of a stream after a place, or after all that the tables have: then it is kept as the table `state`."""
    found = overlay_of(overlay)
    view = tables.view()
    work = _Work(tables, view, found, do, tell)
    bounds = work.bounds(stream, at)
    base = _usable(state_table.read(tables, view, found, stream), bounds, work)
    cover = work.cover(bounds, base.bounds)
    new = [node for node in cover if not _within(node.run, base.bounds)]
    whole = work.merged(new)
    states, stuck = run(found, base.states, whole)
    # A part that met nothing but refusals has no state, and a summary may not tell it from one that came to nothing.
    stuck += tuple(part for part in states if part not in base.states and states[part] == found.INITIAL)
    if stuck:
        walked = Fold(found, _Base(base.states, found, work.places))
        walked.extend(work.touching(new, stuck))
        states = {part: state for part, state in states.items() if part not in stuck}
        states |= {part: walked.state(part) for part in stuck if part in walked.states or part in base.states}
    if at is None and (not base.bounds or base.bounds != bounds):
        state_table.write(tables, found, stream, bounds, states)
    return Folded(found, stream, bounds, states, work.read)


def sum_up(
    tables: Tables, overlay: str, stream: str, first: At, last: At, do: Runner = here, *, tell: Tell = silent
) -> Summary[Any]:
    """The summary of a range, both ends included: what it does to whatever state it meets."""
    found = overlay_of(overlay)
    work = _Work(tables, tables.view(), found, do, tell)
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
    """A kept state, where the log still is what it was the state of, and it is not of a later place."""
    if len(base.bounds) > len(bounds):
        return NOTHING
    for number, (kept_at, now) in enumerate(zip(base.bounds, bounds, strict=False)):
        ended = number < len(base.bounds) - 1
        if kept_at.label != now.label or kept_at.upto_seq > now.upto_seq or (ended and kept_at != now):
            return NOTHING
        if roots(work.tables.root, work.view, now.label, [kept_at.upto_seq]).get(kept_at.upto_seq) != kept_at.mmr_root:
            return NOTHING
    return base


class _Base:
    """What is known before the new runs: the states, and which of their keys were met before."""

    def __init__(self, states: Mapping[bytes, Any], overlay: AnyOverlay, places: Mapping[bytes, At]) -> None:
        self._states, self._overlay, self._places = states, overlay, places

    def state(self, part: bytes) -> Any:
        return self._states.get(part, self._overlay.INITIAL)

    def known(self, part: bytes, key: bytes) -> At | None:
        return self._places.get(digest(part, key))


class _Work:
    """One fold under way."""

    def __init__(self, tables: Tables, view: TablesView, overlay: AnyOverlay, do: Runner, tell: Tell) -> None:
        self.tables, self.view, self.overlay = tables, view, overlay
        self.read, self.places = Read(), dict[bytes, At]()
        self._do, self._tell = do, tell
        self._folder = (tables.own / FOLDS / name_of(overlay)).resolve()

    def bounds(self, stream: str, at: At | None) -> tuple[TableBound, ...]:
        """Where each label of the stream is folded to."""
        spans = sorted((one for one in self.view.spans.values() if one.stream == stream), key=lambda one: one.epoch)
        if not spans:
            raise Unavailable(f"the tables have no stream {stream!r}")
        made = []
        for span in spans:
            upto = span.last if at is None or span.epoch < at.epoch else at.stream_seq
            if at is not None and span.epoch > at.epoch:
                break
            if upto > span.last:
                raise Unavailable(f"the tables have {stream!r} up to entry {span.last}, not {upto}")
            root = roots(self.tables.root, self.view, span.label, [upto]).get(upto)
            if root is None:
                raise Unavailable(f"entry {upto} of {stream!r} did not hold: no state can be told there")
            made.append(TableBound(span.epoch, span.label, upto, root))
        return tuple(made)

    def cover(self, bounds: Sequence[TableBound], cuts: Sequence[TableBound]) -> list[Node]:
        """Runs that are summed up, from the first entry on: those that were, and those that are now."""
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
        self._mend(list(made.values()))
        return [made[one] if isinstance(one, Run) else one for one in whole]

    def _known(self, bound: TableBound) -> dict[int, list[Node]]:
        """The runs of a label that are kept and are of this log, by where they begin."""
        found = [
            node
            for node in kept(self._folder / bound.label.hex(), bound.epoch, bound.label)
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
        jobs = [SumUp(self._held(one), self.overlay.CLASS, str(self._folder / one.label.hex())) for one in missing]
        nodes = []
        for job, result in zip(jobs, self._do(sum_run, jobs, self._tell), strict=True):
            told = commits.decode(result)
            self.read.chunks += 1
            self.read.entries += told["entries"]
            nodes.append(Node(job.held.run, bytes.fromhex(told["root"]), job.folder))
        return nodes

    def _mend(self, new: Sequence[Node]) -> None:
        """Sum up again what has copies of something before it; then all of them are as they will stay."""
        again = []
        for node in new:
            copied = copied_in(node, self.places)
            if copied:
                again.append(Mend(self._held(node.run), self.overlay.CLASS, node, copied))
        self._do(mend_run, again, silent)
        for node in new:
            DISK.replace(node.draft, node.summary)

    def _held(self, one: Run) -> HeldRuns:
        return held(self.tables.root.resolve(), self.view, one)

    def merged(self, nodes: Sequence[Node]) -> Summary[Any]:
        """Neighbours merged by workers, level by level, until there are few; then those, each worker a share."""
        paths = [str(node.summary) for node in nodes]
        with TemporaryDirectory(prefix="merging-", dir=self._folder if paths else None) as aside:
            level = 0
            while len(paths) > FAN_IN:
                count = -(-len(paths) // FAN_IN)
                cuts = [len(paths) * number // count for number in range(count + 1)]
                groups = [tuple(paths[start:end]) for start, end in pairwise(cuts)]
                level += 1
                jobs = [
                    MergeUp(self.overlay.CLASS, group, f"{aside}/{level}-{number}.summary")
                    for number, group in enumerate(groups)
                ]
                paths = [path.decode() for path in self._do(merge_run, jobs, silent)]
            if len(paths) > 1 and sum(Path(path).stat().st_size for path in paths) > SMALL_BYTES:
                jobs = [
                    MergeUp(self.overlay.CLASS, tuple(paths), f"{aside}/share-{share}.summary", share, SHARES)
                    for share in range(SHARES)
                ]
                paths = [path.decode() for path in self._do(merge_run, jobs, silent)]
            return merged(self.overlay, [ShippedSummary.decode(Path(path).read_bytes()) for path in paths])

    def touching(self, nodes: Sequence[Node], parts: Sequence[bytes]) -> Iterator[FoldEntry]:
        """The entries of these runs that touch some parts, in order."""
        jobs = [Touching(self._held(node.run), self.overlay.CLASS, tuple(parts)) for node in nodes]
        for found in self._do(touch, jobs, silent):
            listed = cbor.decode(found, "entries")
            assert isinstance(listed, tuple)
            yield from (FoldEntry.decode(one) for one in listed if isinstance(one, bytes))


@dataclass(frozen=True, slots=True)
class Touching:
    """A run whose entries are wanted, those that touch some parts."""

    held: HeldRuns
    overlay: str
    parts: tuple[bytes, ...]


def touch(job: Touching) -> bytes:
    overlay, wanted = overlay_of(job.overlay), frozenset(job.parts)
    found = []
    for entry in entries(job.held)[0]:
        steps = overlay.read(entry)
        if not isinstance(steps, EventFault) and any(step.part in wanted for step in steps):
            found.append(entry.encode())
    return cbor.encode(found)


def _tiles(bound: TableBound, first: int, last: int, known: Mapping[int, list[Node]]) -> Iterator[Node | Run]:
    """A range as runs that are known and runs that are not."""
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
