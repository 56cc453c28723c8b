"""The output of the demo: commands, their results, claims and times; and its handling of signals."""

import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from plumbing.cli import ascii_fallback
from plumbing.cli.command import is_colourful
from veen.cli.kit import output

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TERMINATED_STATUS = 143


class _Interrupted(BaseException):
    """A signal arrived. A BaseException of its own, because the demo handles the SystemExit of commands."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise in the main thread on SIGINT and SIGTERM, so the processes of the demo are stopped too."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise _Interrupted(number)

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    except _Interrupted as ended:
        if ended.number == signal.SIGTERM:
            sys.exit(_TERMINATED_STATUS)
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer signals until the block ends: a process started in it must be registered before the demo can stop."""
    pending: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: pending.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if pending:
        signal.raise_signal(pending[0])


@contextmanager
def environment(env: Mapping[str, str]) -> Iterator[None]:
    """Replace the whole environment."""
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
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


_WIDTH = 100
_INDENT = "   "
_BOLD, _GREEN, _CYAN, _DIM, _PLAIN = "\x1b[1m", "\x1b[32m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class DemoOutput:
    """A scene whose claim was shown."""

    title: str
    claim: str
    seconds: float


class DemoStage:
    """Writes the demo to standard output. With `as_json` it writes one document at the end."""

    def __init__(self, as_json: bool) -> None:
        self.shown: list[DemoOutput] = []
        self._as_json = as_json
        self._colour = is_colourful(sys.stdout)
        self._width = min(shutil.get_terminal_size().columns, _WIDTH) if sys.stdout.isatty() else _WIDTH
        self._began = time.monotonic()

    def open(self, folder: Path) -> None:
        self._line(f"{self._paint('veen demo', _BOLD)}: a hub, three people and a stranger, in {folder}")

    @contextmanager
    def scene(self, title: str, claim: str) -> Iterator[None]:
        """Print a scene; the claim is shown if the block does not raise."""
        self._line()
        self._line(self._paint(f"{len(self.shown) + 1}  {title}", _BOLD))
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self.shown.append(DemoOutput(title, claim, seconds))
        self._claim(claim, seconds)

    def typed(self, person: str, command: str) -> None:
        """Print a command at a person's prompt."""
        prompt = f"{person}$ "
        room = self._width - len(_INDENT) - 2
        first, *rest = _wrapped(prompt + command, room)
        lines = [self._paint(prompt, _CYAN) + first[len(prompt) :], *(_INDENT + line for line in rest)]
        self._line(_INDENT + f" \\\n{_INDENT}".join(lines))

    def said(self, *lines: str) -> None:
        """Print the important part of a command's output."""
        for line in lines:
            for part in textwrap.wrap(line, self._width - 2 * len(_INDENT), subsequent_indent="  ") or [""]:
                self._line(_INDENT * 2 + self._paint(part, _DIM))

    def close(self, kept: Path | None) -> None:
        """Print the summary with times."""
        total = time.monotonic() - self._began
        if self._as_json:
            scenes = [{"title": one.title, "claim": one.claim, "seconds": round(one.seconds, 3)} for one in self.shown]
            output.document({"shown": scenes, "seconds": round(total, 3), "folder": str(kept) if kept else None})
            return
        self._line()
        self._line(self._paint("shown", _BOLD))
        for one in self.shown:
            self._claim(one.claim, one.seconds)
        self._line()
        folder = f"the files are in {kept}" if kept else "the folder of the demo is removed"
        self._line(f"{_INDENT}{self._timed(folder, total, used=len(_INDENT))}")

    def _claim(self, claim: str, seconds: float) -> None:
        mark = ascii_fallback.for_stream("✓")
        text = self._timed(claim, seconds, used=len(_INDENT) + len(mark) + 1)
        self._line(f"{_INDENT}{self._paint(mark, _GREEN)} {text}")

    def _timed(self, text: str, seconds: float, used: int = 0) -> str:
        took = f"{seconds:.2f} s"
        room = self._width - used - len(took) - 1
        *before, last = textwrap.wrap(text, room)
        return f"\n{' ' * used}".join([*before, f"{last:<{room}} {self._paint(took, _DIM)}"])

    def _paint(self, text: str, code: str) -> str:
        return f"{code}{text}{_PLAIN}" if self._colour else text

    def _line(self, text: str = "") -> None:
        if not self._as_json:
            sys.stdout.write(ascii_fallback.for_stream(text) + "\n")
            sys.stdout.flush()


def _wrapped(command: str, room: int) -> list[str]:
    """A command split into lines before options."""
    lines: list[str] = []
    for part in re.split(r" (?=--)", command):
        if lines and len(lines[-1]) + 1 + len(part) <= room:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines
