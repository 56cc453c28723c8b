"""The background scrubber: re-reads the files of a running hub at a bounded rate and reports damaged ones.

A pass checks every place once. The next one begins after a pause. Damaged places are checked again in between, so that
a restored file ends the bad state soon. Position and damaged places are stored in `scrub.json` for the next start,
because a pass over a large log takes days. The file is disposable: without it scrubbing starts over.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plumbing.durable import Disk
from plumbing.json_log import JsonLog
from veen.core import Malformed, strict_json
from veen.core.hashing import HASH_BYTES
from veen.core.strict_json import Json
from veen.hub.conditions import Conditions, Reason
from veen.storage import safe_open, scrub
from veen.storage.fsck_report import Finding
from veen.storage.scrub import DirectoryScrub, Scrubbed, ScrubPart, ScrubPlace, ScrubStep

START_DELAY_S = 60.0  # a hub that starts has better things to do
RECHECK_S = 600.0  # interval for checking damaged places again
SAVE_S = 60.0
RETRY_S = 60.0  # after an error that is not damage, such as too many open files
MAX_DAMAGED = 4096  # places that are remembered; a later pass finds the others again
_SOURCE = "scrub"
NEXT_STEP = "stop the hub and run `veen fsck DIR` to see what can be repaired"


@dataclass(frozen=True, slots=True)
class ScrubOutcome:
    """The findings of one step, and the wait before the next."""

    wait_s: float
    found: tuple[Finding, ...] = ()
    ended: tuple[Finding, ...] = ()


@dataclass(eq=False, slots=True)
class Scrubber:
    """Checks a data directory in steps, for ever. One step at a time, on any thread; others may read the figures."""

    directory: DirectoryScrub
    memory: Path
    bytes_per_s: int
    pause_s: float
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    checked_bytes: int = 0  # since the start
    passes: int = 0  # since the start
    pass_entries: int = 0  # entries that this pass has checked
    since: int = 0  # end of the last full pass, or when scrubbing first began
    finished: bool = False  # `since` is the end of a full pass
    damaged: dict[ScrubPlace, tuple[Finding, ...]] = field(default_factory=dict)
    _place: ScrubPlace | None = None  # the last place that this pass has checked
    _suspects: tuple[ScrubPlace, ...] = ()  # damaged at the last start
    _checked_again: float = 0.0
    _saved: float = 0.0
    _work: Iterator[ScrubStep | float] = field(init=False)

    def __post_init__(self) -> None:
        self.since = int(self.now())
        self._checked_again = self._saved = self.clock()
        with suppress(OSError, Malformed, ValueError, KeyError, TypeError):
            self._load()
        self._work = self._steps()

    def step(self) -> ScrubOutcome:
        """Check up to about 64 KiB. After an error the next step begins a new attempt."""
        try:
            done = next(self._work)
        except BaseException:
            self._work = self._steps()
            raise
        if isinstance(done, float):
            return ScrubOutcome(done)
        self.checked_bytes += done.read_bytes
        wait_s = done.read_bytes / self.bytes_per_s  # unused time is not saved up, so no burst follows a pause
        return self._record(done.result, wait_s) if done.result else ScrubOutcome(wait_s)

    def damaged_by_kind(self) -> dict[str, int]:
        """The number of damaged files of each kind."""
        artifacts = {one.artifact for some in list(self.damaged.values()) for one in some}
        found = Counter(map(scrub.kind_of, artifacts))
        return {kind: found[kind] for kind in scrub.KINDS}

    def age_s(self) -> int:
        """Seconds since the last full pass, or since scrubbing first began."""
        return max(0, int(self.now()) - self.since)

    def as_json(self) -> Json:
        return {
            "bytes_per_s": self.bytes_per_s,
            "checked_bytes": self.checked_bytes,
            "passes": self.passes,
            "pass_entries": self.pass_entries,
            "last_pass_age_s": self.age_s() if self.finished else None,
            "damaged": dict(self.damaged_by_kind()),
        }

    def save(self) -> None:
        """Store the position. A disk that refuses it only costs a repetition."""
        place = self._place
        row: Json = {
            "place": _row(place) if place else None,
            "pass_entries": self.pass_entries,
            "since": self.since,
            "finished": self.finished,
            "damaged": list(map(_row, (*self.damaged, *self._suspects))),
        }
        self._saved = self.clock()
        with suppress(OSError):
            Disk().write_file(self.memory, strict_json.encode(row))

    def _steps(self) -> Iterator[ScrubStep | float]:
        """All steps, and the pauses between them in seconds."""
        for place in self._suspects:
            yield from self.directory.check(place)
        self._suspects = ()
        yield min(START_DELAY_S, self.pause_s)
        while True:
            for step in self.directory.walk(self._place):
                yield step
                if step.result:
                    self._place = step.result.place
                    self.pass_entries += step.result.entries
                    if self.clock() - self._saved >= SAVE_S:
                        self.save()
                    yield from self._check_again()
            self._place, self.pass_entries = None, 0
            self.passes, self.finished, self.since = self.passes + 1, True, int(self.now())
            self.save()
            until = self.clock() + self.pause_s
            while True:
                yield max(0.0, min(until - self.clock(), RECHECK_S))
                if self.clock() >= until:
                    break
                yield from self._check_again()

    def _check_again(self) -> Iterator[ScrubStep]:
        if self.damaged and self.clock() - self._checked_again >= RECHECK_S:
            for place in tuple(self.damaged):
                yield from self.directory.check(place)
            self._checked_again = self.clock()

    def _record(self, result: Scrubbed, wait_s: float) -> ScrubOutcome:
        before = self.damaged.pop(result.place, ())
        if result.findings and len(self.damaged) < MAX_DAMAGED:
            self.damaged[result.place] = result.findings
        known, still = {one.artifact for one in before}, {one.artifact for one in result.findings}
        found = tuple(one for one in result.findings if one.artifact not in known)
        return ScrubOutcome(wait_s, found, tuple(one for one in before if one.artifact not in still))

    def _load(self) -> None:
        found: Any = strict_json.decode(safe_open.read(self.memory), self.memory.name)
        place = _place(found["place"]) if found["place"] else None
        suspects = tuple(map(_place, found["damaged"][:MAX_DAMAGED]))
        numbers = [int(found["pass_entries"]), int(found["since"])]
        if place is None or self.directory.exists(place):
            self._place, self.pass_entries = place, numbers[0] if place else 0
        self.since, self.finished = min(numbers[1], self.since), bool(found["finished"])
        self._suspects = tuple(one for one in suspects if self.directory.exists(one))


def _row(place: ScrubPlace) -> list[Json]:
    return [place.part.name, place.name.hex(), place.start_seq]


def _place(row: Any) -> ScrubPlace:
    part, name, start_seq = row
    place = ScrubPlace(ScrubPart[part], bytes.fromhex(name), int(start_seq))
    named = HASH_BYTES if place.part in (ScrubPart.LOG, ScrubPart.ATTACHMENTS, ScrubPart.UPLOADS) else 0
    if len(place.name) != named or (place.start_seq > 0) != (place.part is ScrubPart.LOG):
        raise ValueError("not a place")
    return place


@dataclass(eq=False)
class ScrubTask:
    """Runs a scrubber on a thread of its own, one step at a time, and reports damage. Owned by the loop's thread."""

    loop: asyncio.AbstractEventLoop
    scrubber: Scrubber
    conditions: Conditions
    log: JsonLog
    thread: Executor  # of one thread; it is closed with this object
    record_error: Callable[[Exception, str], None]
    index_damaged: Callable[[Malformed], None]
    _timer: asyncio.TimerHandle | None = None
    _closed: bool = False

    def __post_init__(self) -> None:
        self._begin()

    def close(self) -> None:
        """Wait for the running step, and store the position."""
        if self._closed:
            return
        self._closed = True
        if self._timer:
            self._timer.cancel()
        self.thread.shutdown()
        self.scrubber.save()

    def _begin(self) -> None:
        if not self._closed:
            self.thread.submit(self.scrubber.step).add_done_callback(self._done)

    def _done(self, step: "Future[ScrubOutcome]") -> None:
        """On the scrubber's thread."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._ended, step)

    def _ended(self, step: "Future[ScrubOutcome]") -> None:
        if self._closed:
            return
        error = step.exception()
        if error is None:
            self.conditions.leave(Reason.STORAGE, _SOURCE)
            outcome = step.result()
            self._report(outcome)
            wait_s = outcome.wait_s
        else:
            if not isinstance(error, Exception):
                raise error
            self.record_error(error, _SOURCE)
            wait_s = RETRY_S
        self._timer = self.loop.call_later(wait_s, self._begin)

    def _report(self, outcome: ScrubOutcome) -> None:
        """One bad state for all damaged files, and one log line for each file."""
        for finding in outcome.found:
            where: dict[str, Any] = {"artifact": finding.artifact, "next": NEXT_STEP}
            if finding.label is not None:
                where["label"] = finding.label.hex()
            damage = Malformed(finding.artifact, finding.what)
            if not self.conditions.holds(Reason.DAMAGE, _SOURCE):
                self.conditions.enter(Reason.DAMAGE, damage, source=_SOURCE, refused=0, **where)
            elif self.log.may_log("damage_found"):
                self.log.event("error", "damage_found", error=str(damage), **where)
            if scrub.kind_of(finding.artifact) in ("nodes", "index"):
                self.index_damaged(damage)
        if not self.scrubber.damaged:
            self.conditions.leave(Reason.DAMAGE, _SOURCE)
            return
        for finding in outcome.ended:
            if self.log.may_log("damage_ended"):
                self.log.event("info", "damage_ended", artifact=finding.artifact)
