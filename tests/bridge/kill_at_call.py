"""Kills the own process with SIGKILL at a chosen function call, for crash tests."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class KillAtCall:
    """Counts calls of functions below `folder` and kills the process at one of them.

    `moment` is the number of the call or the name of the function. With "0" the process runs to its end. The number of
    calls depends on how answers arrive, so a number may lie beyond the last call: the process is then killed at the end
    of the block. `since` names the function at whose first call counting starts.
    """

    def __init__(self, moment: str, folder: Path, since: str | None = None) -> None:
        self.seen = 0
        self._calls = int(moment) if moment.isdecimal() else None
        self._name = None if moment.isdecimal() else moment
        self._folder = f"{folder}{os.sep}"
        self._since = since

    @contextmanager
    def armed(self) -> Iterator[None]:
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
        if self._calls != 0:
            _kill()

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self._folder):
            return
        if self._since == code.co_name:
            self._since = None
        if self._since is not None:
            return
        self.seen += 1
        if self.seen == self._calls or code.co_name == self._name:
            _kill()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
