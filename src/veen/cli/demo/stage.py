"""Where the demo is shown: what was typed, what came of it, what that shows and how long it took."""

import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from terminalface import signs
from terminalface.command import is_colourful
from veen.cli import output

_WIDTH = 100
_INDENT = "   "
_BOLD, _GREEN, _CYAN, _DIM, _PLAIN = "\x1b[1m", "\x1b[32m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Shown:
    """One scene that went as it should."""

    title: str
    claim: str
    seconds: float


class Stage:
    """Standard output, in colour where people look; with `as_json` nothing until the end."""

    def __init__(self, as_json: bool) -> None:
        self.shown: list[Shown] = []
        self._as_json = as_json
        self._colour = is_colourful(sys.stdout)
        self._width = min(shutil.get_terminal_size().columns, _WIDTH) if sys.stdout.isatty() else _WIDTH
        self._began = time.monotonic()

    def open(self, folder: Path) -> None:
        self._line(f"{self._paint('veen demo', _BOLD)}: a hub, three people and a stranger, in {folder}")

    @contextmanager
    def scene(self, title: str, claim: str) -> Iterator[None]:
        """What happens in the block shows the claim, unless it raises."""
        self._line()
        self._line(self._paint(f"{len(self.shown) + 1}  {title}", _BOLD))
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self.shown.append(Shown(title, claim, seconds))
        self._claim(claim, seconds)

    def typed(self, person: str, command: str) -> None:
        """A command as someone types it, at their own prompt."""
        prompt = f"{person}$ "
        room = self._width - len(_INDENT) - 2
        first, *rest = _broken(prompt + command, room)
        lines = [self._paint(prompt, _CYAN) + first[len(prompt) :], *(_INDENT + line for line in rest)]
        self._line(_INDENT + f" \\\n{_INDENT}".join(lines))

    def said(self, *lines: str) -> None:
        """What a command answered, or as much of it as matters."""
        for line in lines:
            for part in textwrap.wrap(line, self._width - 2 * len(_INDENT), subsequent_indent="  ") or [""]:
                self._line(_INDENT * 2 + self._paint(part, _DIM))

    def close(self, kept: Path | None) -> None:
        """What was shown, with times."""
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
        left = f"everything is still in {kept}" if kept else "nothing is left behind"
        self._line(f"{_INDENT}{self._timed(left, total, used=len(_INDENT))}")

    def _claim(self, claim: str, seconds: float) -> None:
        mark = signs.shown("✓")
        told = self._timed(claim, seconds, used=len(_INDENT) + len(mark) + 1)
        self._line(f"{_INDENT}{self._paint(mark, _GREEN)} {told}")

    def _timed(self, text: str, seconds: float, used: int = 0) -> str:
        took = f"{seconds:.2f} s"
        room = self._width - used - len(took) - 1
        *before, last = textwrap.wrap(text, room)
        return f"\n{' ' * used}".join([*before, f"{last:<{room}} {self._paint(took, _DIM)}"])

    def _paint(self, text: str, code: str) -> str:
        return f"{code}{text}{_PLAIN}" if self._colour else text

    def _line(self, text: str = "") -> None:
        if not self._as_json:
            sys.stdout.write(signs.shown(text) + "\n")
            sys.stdout.flush()


def _broken(command: str, room: int) -> list[str]:
    """A command over as many lines as it needs, broken where an option begins."""
    lines: list[str] = []
    for part in re.split(r" (?=--)", command):
        if lines and len(lines[-1]) + 1 + len(part) <= room:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines
