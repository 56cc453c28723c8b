"""Samples a hub at intervals and shows what happened between two samples."""

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from veen.cli.kit import output
from veen.cli.kit.hub_api import HubApi
from veen.cli.top import frame
from veen.cli.top.frame import Frame, HubStatus, Sample
from veen.core import Unavailable

_HISTORY = 512
_KEYS = "q or ctrl-c quits"
_QUIT = frozenset(b"qQ")
_KEY_BYTES = 64
_MAX_MISSED = 3  # failed samples in a row before giving up


def watch(api: HubApi, interval_s: float, *, once: bool, as_json: bool) -> None:
    """Show intervals until the user quits, or one interval."""
    if once or as_json or not sys.stdout.isatty():
        frames = _frames(api, interval_s, _Sleep())
        for shown in frames:
            if as_json:
                output.document(shown.data())
            elif sys.stdout.isatty():
                console = output.console()
                console.print(frame.render(shown, console.width))
            else:
                output.facts(shown.rows(), as_json)
            sys.stdout.flush()
            if once:
                return
        return
    from rich.live import Live

    with _keys() as keys, Live(console=output.console(), screen=True, auto_refresh=False) as live:
        try:
            for shown in _frames(api, interval_s, keys):
                live.update(frame.render(shown, live.console.width, _KEYS), refresh=True)
        except KeyboardInterrupt:
            return


class _Sleep:
    """Waits for the next sample."""

    def __call__(self, seconds: float) -> bool:
        """False if the user wants to quit."""
        time.sleep(seconds)
        return True


class _Keys(_Sleep):
    """Waits for the next sample or a key."""

    def __call__(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([sys.stdin], [], [], left)
            if not ready:
                continue
            # Read the descriptor: Python's buffer would hide a key from select.
            pressed = os.read(sys.stdin.fileno(), _KEY_BYTES)
            if not pressed or _QUIT & set(pressed):
                return False
        return True


@contextmanager
def _keys() -> Iterator[_Sleep]:
    """Read single keys if standard input is a terminal. Restores the terminal afterwards."""
    if not sys.stdin.isatty():
        yield _Sleep()
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _Keys()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _frames(api: HubApi, interval_s: float, wait: _Sleep) -> Iterator[Frame]:
    """One frame per interval. A hub that does not answer for a moment, as in a restart, is retried."""
    rates: deque[float] = deque(maxlen=_HISTORY)
    before = _sample(api)
    missed = 0
    while wait(interval_s):
        try:
            now, status = _sample(api), _status(api)
        except Unavailable:
            missed += 1
            if missed == _MAX_MISSED:
                raise
            continue
        missed = 0
        interval = frame.between(before, now)
        if interval.rate is not None:
            rates.append(interval.rate)
        yield Frame(status, now, interval, tuple(rates))
        before = now


def _sample(api: HubApi) -> Sample:
    return frame.read(api.metrics(), time.monotonic())


def _status(api: HubApi) -> HubStatus:
    status = api.status()
    ready, reason, _ = api.readiness()
    return HubStatus(
        api.url,
        str(status["hub_id"]),
        str(status.get("admission", "")),
        str(status.get("server_version", "")),
        int(status["labels"]),
        int(status["entries"]),
        ready,
        reason,
    )
