"""What is around the demo while it runs, and as it was afterwards: folder, environment, signals."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TERMINATED_STATUS = 143


class _Ended(BaseException):
    """Someone wants it to end. Not what a command ends with by itself, which the demo looks at."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Whoever ends the demo ends what it started, too."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise _Ended(number)

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    except _Ended as ended:
        if ended.number == signal.SIGTERM:
            sys.exit(_TERMINATED_STATUS)
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off what would end the demo until the block is through: nothing starts that nobody knows how to end."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def environment(env: Mapping[str, str]) -> Iterator[None]:
    """These variables and no others."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Names on the stage are those of files in the folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
