"""Hub time: how `hub_ts` advances, and what the hub does when the wall clock jumps.

`hub_ts` never decreases. Rates and lifetimes are judged by it alone, and it is recorded in the log, so a replay makes
the same decisions. It follows the wall clock as long as the wall clock agrees with CLOCK_BOOTTIME, which cannot be set
and counts suspended time. After a larger step, hub time continues with the boot clock until an operator accepts the
new time, or the wall clock returns.

While hub time is ahead of the time that it follows, it runs at half speed. It never stands still: whatever the wall
clock does, a rate budget refills at half its rate at least, and a capability lives at most twice its ttl.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import copysign
from threading import Lock, RLock
from typing import NamedTuple

from plumbing.durable import Disk
from veen.core import Malformed, Refused, Unavailable, strict_json
from veen.core.strict_json import Json
from veen.hub.conditions import Conditions, Reason, public_text
from veen.storage import safe_open
from veen.storage.paths import Folders

# Smaller steps add up to a step: all of them within this time may move the clock by `max_clock_step`.
DRIFT_WINDOW_S = 3600.0
# The two clocks are read again if the process was paused for longer than this between them.
_SAME_MOMENT_S = 0.01
_SLOW_SPEED = 0.5
# A smaller lead is not shown: each correction of the clock by some milliseconds causes one.
_SHOWN_LEAD_S = 1.0
# Between the operator's look at the clock and the acceptance.
ACCEPT_TOLERANCE_S = 60.0
_DAY_S = 86_400
# How often a running hub records that it trusts the wall clock.
MARK_INTERVAL_S = _DAY_S
# If no hub watched the clock for longer than this, an operator must accept it before anything is pruned by age.
MAX_UNWATCHED_S = 2 * _DAY_S


class ClockReading(NamedTuple):
    """Both clocks at one moment, in seconds."""

    wall: float  # since 1970; can be set to any time
    boot: float  # since the machine started, suspended time included


def system_clocks() -> ClockReading:
    """The clocks of this machine. A pause between the two reads would look like a step of the wall clock."""
    while True:
        boot, wall = time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        if time.clock_gettime(time.CLOCK_BOOTTIME) - boot < _SAME_MOMENT_S:
            return ClockReading(wall, boot)


@dataclass(eq=False)
class HubTime:
    """The time of a running hub. It depends on nothing but the readings.

    Any thread may call the methods. `wall`, `step` and `lead` are those of the last call, which another thread may have
    made since: two of them together are no snapshot.
    """

    _read: Callable[[], ClockReading]
    last_hub_ts: int  # of the log; 0 if it is empty
    max_step_s: int
    wall: float = field(init=False)  # of the last reading
    step: float = field(init=False, default=0.0)  # from the time that is followed to the wall clock; 0 if it is trusted
    _boot: float = field(init=False)
    _followed: float = field(init=False)  # the wall clock, or while it is not trusted its continuation
    _now: float = field(init=False)
    _drift: float = field(init=False, default=0.0)  # by small steps that were followed; forgotten over the window
    _lock: RLock = field(init=False, default_factory=RLock)  # two readings at once would count the same seconds twice

    def __post_init__(self) -> None:
        self.wall, self._boot = self._read()
        self._followed = self.wall
        self._now = max(self.wall, self.last_hub_ts)

    def now(self) -> float:
        """Read the clocks and return the hub time. Call it often: a step is noticed here."""
        with self._lock:
            self.wall, boot = self._read()
            elapsed, self._boot = max(0.0, boot - self._boot), boot
            forgotten = min(abs(self._drift), elapsed * self.max_step_s / DRIFT_WINDOW_S)
            self._drift -= copysign(forgotten, self._drift)
            self._followed += elapsed
            difference = self.wall - self._followed
            if abs(self._drift + difference) <= self.max_step_s:
                self._drift += difference
                self._followed, self.step = self.wall, 0.0
            else:
                self.step = difference
            self._now = max(self._followed, self._now + elapsed * _SLOW_SPEED)
            return self._now

    def advance(self, hub_ts: int) -> None:
        """Continue from `hub_ts` if the hub time is before it."""
        with self._lock:
            self._now = max(self._now, hub_ts)

    def accept(self) -> None:
        """Follow the wall clock from now on. If it is behind the hub time, that continues at half speed."""
        with self._lock:
            self.now()
            self._followed, self._drift, self.step = self.wall, 0.0, 0.0
            self._now = max(self.wall, self._now)

    @property
    def lead(self) -> float:
        """How far the hub time is ahead of the time that it follows. Above 0 it runs at half speed."""
        return self._now - self._followed


class ClockGap(Unavailable):
    """The wall clock is too far from the log to start a hub."""


def check_start(folders: Folders, wall: float, last_hub_ts: int, max_gap_s: int) -> None:
    """Raise `ClockGap` unless the wall clock is near the end of the log, or near a time that was trusted.

    An empty log has no end, so any time is accepted.
    """
    known = [one for one in (last_hub_ts, read_mark(folders)) if one]
    if last_hub_ts and all(abs(wall - one) > max_gap_s for one in known):
        gap = wall - last_hub_ts
        raise ClockGap(
            f"the wall clock ({int(wall)}) is {abs(gap) / _DAY_S:.1f} days {'after' if gap > 0 else 'before'} "
            f"the last entry of the log ({last_hub_ts}); max_start_gap is {max_gap_s / _DAY_S:g} days"
        )


def read_mark(folders: Folders) -> int:
    """The last wall clock time that the hub or its operator trusted. 0 if none is recorded, or the file is damaged.

    Without the mark, a start only compares the wall clock with the log.
    """
    return _marked(folders, "trusted_ts")


def _marked(folders: Folders, name: str) -> int:
    try:
        found = strict_json.decode(safe_open.read(folders.clock), folders.clock.name)
    except (OSError, Malformed):
        return 0
    number = found.get(name) if isinstance(found, dict) else None
    return number if isinstance(number, int) and number > 0 else 0


def write_mark(disk: Disk, folders: Folders, wall_ts: int, unwatched_sec: int = 0) -> None:
    """Record that `wall_ts` is trusted, durably. A crash leaves the old mark or the new one."""
    mark: dict[str, Json] = {"trusted_ts": wall_ts}
    if unwatched_sec:
        mark["unwatched_sec"] = unwatched_sec
    disk.write_file(folders.clock, strict_json.encode(mark))
    disk.sync_folder(folders.root)


@dataclass(eq=False)
class ClockWatch:
    """Shows the clock to operators: bad states, status, acceptance and the mark. Used on the loop's thread."""

    time: HubTime
    max_start_gap: int
    _conditions: Conditions
    _folders: Folders
    _disk: Disk
    _run: Callable[[Callable[[], None]], None]  # on the thread pool
    _marked: float = field(init=False)
    _unwatched: int = field(init=False)  # seconds that the clock moved before this start; 0 if accepted or few
    _writing: Lock = field(init=False, default_factory=Lock)  # a file has one writer at a time

    def __post_init__(self) -> None:
        known = max(read_mark(self._folders), self.time.last_hub_ts)
        moved = int(self.time.wall - known) if known else 0
        self._unwatched = max(_marked(self._folders, "unwatched_sec"), moved if moved > MAX_UNWATCHED_S else 0)
        self._marked = read_mark(self._folders) or known or self.time.wall
        if self._unwatched:  # before the first entry, whose time would hide it from the next start
            self._marked = self.time.wall
            self._renew_mark()

    def check(self) -> None:
        """Enter or leave the bad states of the clock, and renew the mark. Called while the hub is idle, too."""
        clock, conditions = self.time, self._conditions
        hub_ts = int(clock.now())
        if clock.step:
            wall_ts, step_sec = int(clock.wall), round(clock.step)
            conditions.enter(Reason.CLOCK_STEP, refused=0, hub_ts=hub_ts, wall_ts=wall_ts, step_sec=step_sec)
        else:
            conditions.leave(Reason.CLOCK_STEP)
            if abs(clock.wall - self._marked) >= MARK_INTERVAL_S:
                self._marked = clock.wall
                self._run(self._renew_mark)
        if clock.lead > clock.max_step_s:
            conditions.enter(Reason.CLOCK_AHEAD, refused=0, hub_ts=hub_ts, lead_sec=round(clock.lead))
        elif clock.lead < _SHOWN_LEAD_S:
            conditions.leave(Reason.CLOCK_AHEAD)

    def check_accepted(self, wall_ts: int) -> None:
        """Raise unless the wall clock still shows about the time that the operator saw."""
        self.time.now()
        if abs(self.time.wall - wall_ts) > ACCEPT_TOLERANCE_S:
            text = f"the wall clock of the hub shows {int(self.time.wall)}, not {wall_ts}: compare the clocks again"
            raise Refused("E.CONFLICT", text, detail={"wall_ts": max(0, int(self.time.wall))})

    def mark_accepted(self, wall_ts: int) -> None:
        """On any thread: make the acceptance durable. `accept` follows."""
        try:
            self._mark(wall_ts)
        except OSError as error:
            raise Refused("E.UNAVAILABLE", public_text(Reason.STORAGE, error), retry_after=1) from None

    def accept(self, wall_ts: int) -> None:
        """Follow the wall clock, unless it has jumped again."""
        self.check_accepted(wall_ts)
        self.time.accept()
        self._marked, self._unwatched = self.time.wall, 0
        self.check()

    def pruning_time(self) -> int:
        """The time by which a run judges ages. Raises `Refused` while the clock is not trusted.

        Pruning too early loses data, so this returns the earlier of hub time and the clock that hub time follows.
        """
        hub_ts = self.time.now()
        if self.time.step or self._unwatched:
            moved = f"jumped by {round(self.time.step)} s" if self.time.step else f"moved by {self._unwatched} s"
            why = "" if self.time.step else " while no hub was running"
            text = f"nothing is pruned by age: the wall clock {moved}{why}; if it is right, run `veen hub clock accept`"
            raise Refused("E.CONFLICT", text, detail={"hub_ts": int(hub_ts), "wall_ts": max(0, int(self.time.wall))})
        return int(min(hub_ts, hub_ts - self.time.lead))

    def _renew_mark(self) -> None:
        with suppress(OSError):  # a failing disk has bad states of its own, and the mark is renewed every day
            self._mark(self._marked, self._unwatched)

    def _mark(self, wall: float, unwatched_sec: int = 0) -> None:
        with self._writing:
            write_mark(self._disk, self._folders, max(0, int(wall)), unwatched_sec)

    def as_json(self) -> dict[str, Json]:
        """The clock in the hub's status."""
        clock, hub_ts = self.time, int(self.time.now())
        ahead = "ahead" if clock.lead >= _SHOWN_LEAD_S else "following"
        return {
            "state": "holding" if clock.step else ahead,
            "hub_ts": hub_ts,
            "wall_ts": max(0, int(clock.wall)),
            "max_clock_step": clock.max_step_s,
            "max_start_gap": self.max_start_gap,
            "unwatched_sec": self._unwatched,
        }
