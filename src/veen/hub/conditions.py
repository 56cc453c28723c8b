"""Bad states of a running hub: one log line when a state begins, one when it ends, and a metric in between.

A state is a `Reason` with a source, such as one worker or one file. Requests that a state refuses are counted in it and
have no log line of their own. The log has the full error with its path. Clients get `public_text`, which never names a
file of the data directory.
"""

import asyncio
import errno
import os
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from plumbing.json_log import JsonLog
from veen.core import Malformed

# Interval for checking states that no request ends.
RECHECK_S = 1.0
# Further sources of one reason share one state: damage in a thousand files must not fill memory or the log.
MAX_SOURCES = 64
# A state that only an operator can judge is shown for this long after it was last seen.
SHOWN_S = 600.0


class Reason(StrEnum):
    """The kind of a bad state. The values are labels of `veen_hub_bad_state`, and occur in logs and answers."""

    DATA_DIRECTORY = "data_directory"
    DISK_FULL = "disk_full"
    JOURNAL_WRITE = "journal_write"
    LOG_WRITE = "log_write"
    SIGNING_KEY = "signing_key"
    SIGNER = "signer"
    ATTACHMENT_WRITE = "attachment_write"
    ATTACHMENT_ROOM = "attachment_room"
    STORAGE = "storage"
    DAMAGE = "damage"
    LOST_ENTRIES = "lost_entries"
    PREV_ACK_AHEAD = "prev_ack_ahead"
    VERIFIER = "verifier"
    SUBMIT_OVERLOAD = "submit_overload"
    READ_OVERLOAD = "read_overload"
    CONNECTION_OVERLOAD = "connection_overload"
    WITNESS = "witness"
    CLOCK_STEP = "clock_step"
    CLOCK_AHEAD = "clock_ahead"


@dataclass(frozen=True, slots=True)
class _Kind:
    text: str  # for clients
    file: str | None = None  # which kind of file, for the log
    blocks: bool = False  # while in it the hub is not ready
    level: str = "error"


_KINDS = {
    Reason.DATA_DIRECTORY: _Kind("the data directory cannot be reached or written", "data directory", blocks=True),
    Reason.DISK_FULL: _Kind("the disk is full", "data directory", blocks=True),
    Reason.JOURNAL_WRITE: _Kind("the journal cannot be written", "journal", blocks=True),
    Reason.LOG_WRITE: _Kind("the log or its index cannot be written", "log and index", blocks=True),
    Reason.SIGNING_KEY: _Kind("the hub has no signing key that it can use now", "signing key", blocks=True),
    Reason.SIGNER: _Kind("the signer process ended and is being replaced", level="warn"),
    Reason.ATTACHMENT_WRITE: _Kind("the attachment cannot be written", "attachment"),
    Reason.ATTACHMENT_ROOM: _Kind("the hub's disk has no room for the attachment", "attachment"),
    Reason.STORAGE: _Kind("the hub cannot read or write one of its files", "data directory"),
    Reason.DAMAGE: _Kind("stored data of the hub is damaged", "data directory"),
    Reason.LOST_ENTRIES: _Kind("this hub signed entries that it no longer has", "journal and log"),
    Reason.PREV_ACK_AHEAD: _Kind("a client acknowledged entries that this hub does not have", level="warn"),
    Reason.VERIFIER: _Kind("a verification worker ended and is being replaced", level="warn"),
    Reason.SUBMIT_OVERLOAD: _Kind("the hub has more messages than it can queue", level="warn"),
    Reason.READ_OVERLOAD: _Kind("the hub has more requests than it can queue", level="warn"),
    Reason.CONNECTION_OVERLOAD: _Kind("the hub refuses connections beyond its limits", level="warn"),
    Reason.WITNESS: _Kind("a witness does not cosign the checkpoints of this hub", level="warn"),
    Reason.CLOCK_STEP: _Kind(
        "the wall clock jumped; the hub continues at its own time until the operator accepts the new time"
    ),
    Reason.CLOCK_AHEAD: _Kind(
        "the time of the hub is ahead of the wall clock and runs at half speed until both agree", level="warn"
    ),
}


@dataclass(slots=True)
class _State:
    text: str
    since: float
    logged: bool
    refused: int = 0
    recheck: Callable[[], bool] | None = None


@dataclass(slots=True)
class Conditions:
    """The current bad states of a hub. Used on the loop's thread."""

    loop: asyncio.AbstractEventLoop
    log: JsonLog
    clock: Callable[[], float] = time.monotonic
    entered: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Reason), 0))
    states: dict[Reason, dict[Hashable, _State]] = field(default_factory=dict)  # those that hold, by source
    _timer: asyncio.TimerHandle | None = None

    def enter(
        self,
        reason: Reason,
        error: BaseException | None = None,
        *,
        source: Hashable = None,
        refused: int = 1,
        recheck: Callable[[], bool] | None = None,
        **fields: object,
    ) -> str:
        """Record that the state holds and rejected `refused` requests. Returns the text for clients.

        `recheck` is called every `RECHECK_S` while the state holds, and returns whether it still does.
        """
        sources = self.states.setdefault(reason, {})
        if source not in sources and len(sources) >= MAX_SOURCES:
            source = None
        state = sources.get(source)
        text = public_text(reason, error)
        if state is None:
            logged = self.log.may_log(f"bad_state {reason}")
            state = sources[source] = _State(text, self.clock(), logged)
            self.entered[reason] += 1
            if logged:
                self.log.event(_KINDS[reason].level, "bad_state_entered", **_described(reason, error), **fields)
        state.text, state.recheck = text, recheck
        state.refused += refused
        self._arm()
        return text

    def for_a_while(self) -> Callable[[], bool]:
        """A `recheck` that ends a state `SHOWN_S` from now, for an event that is no state but must be seen."""
        until = self.clock() + SHOWN_S
        return lambda: self.clock() < until

    def count(self, reason: Reason, refused: int) -> None:
        """Add refused requests to a state that holds."""
        for state in self.states.get(reason, {}).values():
            state.refused += refused
            return

    def leave(self, reason: Reason, source: Hashable = None) -> None:
        """Record that the state ended. Does nothing if it did not hold."""
        sources = self.states.get(reason)
        state = sources.pop(source, None) if sources else None
        if state is None:
            return
        if not sources:
            del self.states[reason]
        self._log_end("info", "bad_state_left", reason, state)

    def holds(self, reason: Reason, source: Hashable = None) -> bool:
        return source in self.states.get(reason, ())

    @property
    def active(self) -> dict[Reason, str]:
        """The current reasons, most severe first, each with its text for clients."""
        return {one: next(iter(self.states[one].values())).text for one in Reason if self.states.get(one)}

    @property
    def blocking(self) -> str:
        """Why no message can be accepted; empty if messages can be."""
        return next((text for reason, text in self.active.items() if _KINDS[reason].blocks), "")

    def refused(self, reason: Reason) -> int:
        """The number of requests that the current states of a reason rejected."""
        return sum(state.refused for state in self.states.get(reason, {}).values())

    def close(self) -> None:
        """Log the states that still hold when the hub stops, so that their counts are not lost."""
        if self._timer is not None:
            self._timer.cancel()
        for reason, sources in self.states.items():
            for state in sources.values():
                self._log_end("warn", "bad_state_at_stop", reason, state)
        self.states.clear()

    def _arm(self) -> None:
        if self._timer is None and any(state.recheck for found in self.states.values() for state in found.values()):
            self._timer = self.loop.call_later(RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        self._timer = None
        held = [(reason, *one) for reason, found in self.states.items() for one in found.items()]
        for reason, source, state in held:
            if state.recheck is not None and not state.recheck():
                self.leave(reason, source)
        self._arm()

    def _log_end(self, level: str, event: str, reason: Reason, state: _State) -> None:
        if state.logged:
            seconds = round(self.clock() - state.since, 3)
            row = {"reason": str(reason), "file": _KINDS[reason].file, "refused": state.refused, "seconds": seconds}
            self.log.event(level, event, **row)


def public_text(reason: Reason, error: BaseException | None = None) -> str:
    """The text for clients: the state and the system's error text, never a path or file name."""
    text, found = _KINDS[reason].text, system_error(error)
    # Not `found.strerror`: some of our own errors contain a file name there.
    return text if found is None or found.errno is None else f"{text}: {os.strerror(found.errno)}"


def system_error(error: BaseException | None) -> OSError | None:
    """The `OSError` behind an error. None for damage, even if an `OSError` revealed it."""
    while error is not None and not isinstance(error, OSError):
        error = None if isinstance(error, Malformed) else error.__cause__ or error.__context__
    return error


def _described(reason: Reason, error: BaseException | None) -> dict[str, object]:
    found = system_error(error)
    name = None if found is None or found.errno is None else errno.errorcode.get(found.errno, str(found.errno))
    words = None if error is None else str(error) or type(error).__name__
    if found is not None and found.filename is not None and words is not None and str(found.filename) not in words:
        words = f"{words} ({found.filename})"
    return {"reason": str(reason), "file": _KINDS[reason].file, "errno": name, "error": words}
