"""Planted bugs: small changes of the real code that the lab must notice. They test the lab itself.

Each bug replaces one method while a seed runs. A bug that no seed of its scenario finds shows what the lab does not
exercise.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab import hostile, scenario, stage
from veen.client import hub_session
from veen.client.reader import LabelReader
from veen.client.tree_follower import Follower
from veen.core import Receipt, Unavailable
from veen.hub.admission_state import Placed
from veen.hub.hub_time import HubTime
from veen.hub.service import HubService
from veen.hub.submit import SubmitPipeline
from veen.hub.verifier import ThreadVerifier
from veen.storage import rotation
from veen.storage.journal import Journal
from veen.storage.journal_mark import MarkFile
from veen.storage.log_writer import LogWriter

Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Plant:
    """A method, and what replaces it."""

    owner: Any
    name: str
    make: Callable[[Method], Method]  # from the sound method


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug, the scenario that must find it, and the seed that is known to do so."""

    name: str
    plants: tuple[Plant, ...]
    scenario: str
    seed: int

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The code has the bug while the block runs."""
        sound = [(plant, getattr(plant.owner, plant.name)) for plant in self.plants]
        try:
            for plant, method in sound:
                made = plant.make(method)
                _check_parameters(made, method)
                setattr(plant.owner, plant.name, made)
            yield
        finally:
            for plant, method in sound:
                setattr(plant.owner, plant.name, method)

    def violation(self, seed: int, scratch: Path) -> str | None:
        """What a seed finds."""
        with self.planted():
            found = PLAYS[self.scenario](seed, scratch)
        return found.violations[0] if found.violations else None


def _check_parameters(made: Method, sound: Method) -> None:
    """A bug with other parameters than the code fails for that reason, which would look like a finding."""
    given, expected = (inspect.signature(one).parameters for one in (made, sound))
    kinds = {one.kind for one in given.values()}
    if inspect.Parameter.VAR_POSITIONAL not in kinds and inspect.Parameter.VAR_KEYWORD not in kinds:
        assert len(given) == len(expected), f"{sound.__qualname__} has other parameters: {list(expected)}"


PLAYS: dict[str, Callable[[int, Path], Any]] = {
    "mixed": scenario.play,
    **{name: partial(stage.play, scripts={name: script}) for name, script in hostile.SCRIPTS.items()},
}


def first_seed(bug: PlantedBug, seeds: range, scratch: Path) -> tuple[int, str] | None:
    """The first seed that finds a bug, and what it says."""
    for seed in seeds:
        text = bug.violation(seed, scratch)
        if text is not None:
            return seed, text
    return None


# Bugs of the hub.


class _Deferred:
    """Files whose changes are made later."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.calls: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        method = getattr(self._files, name)
        return lambda *args, **kwargs: self.calls.append(partial(method, *args, **kwargs))


def _index_first(sound: Method) -> Method:
    """The index commits before the chunks that it describes are written."""

    def apply(self: Any, batch: Any, group: int) -> None:
        files = self._files
        self._files = deferred = _Deferred(files)
        try:
            sound(self, batch, group)
        finally:
            self._files = files
        for call in deferred.calls:
            call()

    return apply


def _nothing(sound: Method) -> Method:
    return lambda *args, **kwargs: None


def _marks_in_memory(sound: Method) -> Method:
    def change(self: Any, **fields: int) -> None:
        write, self._write = self._write, lambda block, data: None
        sync, self._disk = self._disk, _NoDisk()
        try:
            sound(self, **fields)
        finally:
            self._write, self._disk = write, sync

    return change


class _NoDisk:
    def sync(self, fd: int) -> None:
        """Nothing happens."""

    def sync_folder(self, path: Path) -> None:
        """Nothing happens."""


def _goes_on_after_failed_sync(sound: Method) -> Method:
    """A group that could not be synced counts as not written: its number and its places are given to the next one."""

    def append(self: Any, entries: bytes, count: int) -> int:
        sync, disk = self._sync, self._disk

        def failing_sync() -> None:
            try:
                disk.sync(self._fd)
            except OSError as error:
                self._size += len(entries) + 28  # behind the group that failed
                raise Unavailable(f"the journal cannot be synced: {error.strerror}") from error

        self._sync = failing_sync
        try:
            return int(sound(self, entries, count))
        finally:
            self._sync = sync

    return append


def _answers_when_signed(sound: Method) -> Method:
    """Receipts leave when they are signed. The group may still be rejected, or never be written."""

    def signed(self: Any, group: Any, receipts: list[bytes], signatures: list[bytes]) -> None:
        known = {id(one): made + sig for one, made, sig in zip(group.placed, receipts, signatures, strict=True)}
        for item, outcome in group.outcomes:
            if isinstance(outcome, Placed) and id(outcome) in known:
                item.done(known[id(outcome)])
                item.done = lambda outcome: None
        sound(self, group, receipts, signatures)

    return signed


def _without_first_label(sound: Method) -> Method:
    return lambda place: sound(place)[1:]


def _accepts_step_twice(sound: Method) -> Method:
    def accept(self: Any) -> None:
        self.now()
        step = self.step
        sound(self)
        self._followed, self._now = self._followed + step, self._now + step

    return accept


def _marked_but_not_logged(sound: Method) -> Method:
    """A hand-over counts as logged, and is not on the control stream."""

    def log(self: Any) -> None:
        for made in rotation.unlogged_handovers(self.folders, self.hub_metadata.identity):
            rotation.mark_logged(self._disk, self.folders, made)

    return log


def _prunes_without_event(sound: Method) -> Method:
    """A prune is not logged. Its tombstones name an entry of the control stream that is something else."""

    def log(self: Any, event: Any, done: Method, check: Method) -> None:
        receipt = Receipt(event.label, 1, bytes(32), bytes(32), self.sequencer.hub_ts, bytes(64))
        done(receipt.encode())

    return log


def _answers_of_the_next(sound: Method) -> Method:
    """The answers of a batch of signature checks belong to the messages after them."""

    def check(self: Any, batch: list[Any]) -> None:
        signed = [one for one, _ in batch]
        answers = [answer for _, answer in batch]
        sound(self, list(zip(signed, answers[1:] + answers[:1], strict=True)))

    return check


# Bugs of the client.


def _accepts_shorter_log(sound: Method) -> Method:
    async def passes(self: Any, *args: Any) -> None:
        return None

    return passes


def _skips_gaps(sound: Method) -> Method:
    """A reader takes whatever comes next."""

    async def take(self: Any, items: Any, page: Any = None) -> list[Any]:
        tree = self._tree.copy()
        tree.size = items[-1].stream_seq
        self._tree = tree
        return [self._opener.entry(self._epoch, item.msg, item.receipt) for item in items]

    return take


BUGS = (
    PlantedBug("swapped write order", (Plant(LogWriter, "apply", _index_first),), "mixed", 0),
    PlantedBug("skipped sync", (Plant(Journal, "_sync", _nothing),), "mixed", 0),
    PlantedBug("mark not written", (Plant(MarkFile, "change", _marks_in_memory),), "mixed", 0),
    PlantedBug(
        "sequence reused after a failed commit", (Plant(Journal, "append", _goes_on_after_failed_sync),), "mixed", 97
    ),
    PlantedBug(
        "receipt sent before the decision is final",
        (Plant(SubmitPipeline, "_signed", _answers_when_signed),),
        "mixed",
        9,
    ),
    PlantedBug(
        "rollback accepted",
        (
            Plant(LabelReader, "_check_complete", _accepts_shorter_log),
            Plant(Follower, "_check_behind", _accepts_shorter_log),
        ),
        "rollback",
        0,
    ),
    PlantedBug(
        "hand-over without a label",
        (
            Plant(rotation, "last_entries", _without_first_label),
            Plant(rotation, "current_entries", _without_first_label),
        ),
        "hand-over",
        0,
    ),
    PlantedBug("clock accepted twice", (Plant(HubTime, "accept", _accepts_step_twice),), "clock", 2),
    PlantedBug("reader skipping a gap", (Plant(LabelReader, "take", _skips_gaps),), "deceit", 1),
    PlantedBug("tombstone without log entry", (Plant(HubService, "_log_on_loop", _prunes_without_event),), "mixed", 3),
    PlantedBug(
        "hand-over marked as logged, but not logged",
        (Plant(HubService, "_log_handovers", _marked_but_not_logged),),
        "hand-over",
        0,
    ),
    PlantedBug("evidence dropped", (Plant(hub_session, "keep_contradiction", _nothing),), "fork", 0),
    PlantedBug("verifier answer swapped", (Plant(ThreadVerifier, "_check", _answers_of_the_next),), "bad client", 0),
)
