"""Looks at a hub again and again, and shows what happened between two looks."""

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
from veen.cli.top.frame import Frame, Sample, TopFrame
from veen.core import Unavailable

_HISTORY = 512
_KEYS = "q or ctrl-c leaves"
_LEAVE = frozenset(b"qQ")
_KEY_BYTES = 64
_TOO_LATE = 3  # looks in a row that find no hub


def watch(api: HubApi, interval_s: float, *, once: bool, as_json: bool) -> None:
    """Until the user leaves, or once."""
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
    """Waits for the next look."""

    def __call__(self, seconds: float) -> bool:
        """False where the user wants to leave."""
        time.sleep(seconds)
        return True


class _Keys(_Sleep):
    """Waits for the next look or for a key."""

    def __call__(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([sys.stdin], [], [], left)
            if not ready:
                continue
            # Past Python's own buffer, in which a key would wait unseen.
            pressed = os.read(sys.stdin.fileno(), _KEY_BYTES)
            if not pressed or _LEAVE & set(pressed):
                return False
        return True


@contextmanager
def _keys() -> Iterator[_Sleep]:
    """Keys as they are pressed, where there is a keyboard; the terminal is left as it was found."""
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
    """What happened in each interval. A hub that is away for a moment, as in a restart, is waited for."""
    rates: deque[float] = deque(maxlen=_HISTORY)
    before = _look(api)
    missed = 0
    while wait(interval_s):
        try:
            now, told = _look(api), _told(api)
        except Unavailable:
            missed += 1
            if missed == _TOO_LATE:
                raise
            continue
        missed = 0
        seen = frame.between(before, now)
        if seen.rate is not None:
            rates.append(seen.rate)
        yield Frame(told, now, seen, tuple(rates))
        before = now


def _look(api: HubApi) -> Sample:
    return frame.read(api.metrics(), time.monotonic())


def _told(api: HubApi) -> TopFrame:
    status = api.status()
    ready, reason, _ = api.readiness()
    return TopFrame(
        api.url,
        str(status["hub_id"]),
        str(status.get("admission", "")),
        str(status.get("server_version", "")),
        int(status["labels"]),
        int(status["entries"]),
        ready,
        reason,
    )
