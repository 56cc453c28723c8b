"""An append-only file as a backend: one line for each statement, chained, so that no line before can be changed.

    number, digest of the statement, hash of the line before, hash of this line; then the time it was written

Whoever keeps a copy of the last line can tell that nothing before it was changed. A line that a crash cut short was
never answered for, and is taken off before the next is written.
"""

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from veen.bridge.anchors.statement import AnchorStatement
from veen.core import Malformed, Unavailable, Unverified, cbor
from veen.core.hashing import HASH_BYTES, ht, u64be

_FIELDS = 5


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    digest: bytes
    before: bytes
    ts: int

    @property
    def hash(self) -> bytes:
        return ht("veen/anchor-line", u64be(self.number) + self.digest + self.before + u64be(self.ts))

    def text(self) -> bytes:
        return f"{self.number} {self.digest.hex()} {self.before.hex()} {self.hash.hex()} {self.ts}\n".encode()


class FileLog:
    """One file."""

    kind = "file"

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def place(self) -> str:
        return str(self.path)

    async def publish(self, statement: AnchorStatement) -> bytes:
        # A write to a file that is opened so is on disk when it returns.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_DSYNC | os.O_CLOEXEC
        try:
            with open(os.open(self.path, flags, 0o644), "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                data = file.read()
                whole = data.rfind(b"\n") + 1
                if whole != len(data):
                    file.truncate(whole)
                lines = _read(data[:whole])
                before = lines[-1].hash if lines else bytes(HASH_BYTES)
                line = _Line(len(lines) + 1, _digest(statement), before, int(time.time()))
                _append(file, line.text(), whole)
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}") from None
        return cbor.encode([line.number, line.hash])

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        number, wanted = _place(proof)
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}") from None
        lines = _read(data[: data.rfind(b"\n") + 1])
        if number > len(lines):
            raise Unverified("anchor file", f"it has {len(lines)} lines, and line {number} was written")
        line = lines[number - 1]
        if line.hash != wanted or line.digest != _digest(statement):
            raise Unverified("anchor file", f"line {number} is another than was written")
        return line.ts


def _append(file: FileIO, text: bytes, size: int) -> None:
    """All of it, or the file is as it was: a full disk takes the beginning of a line."""
    try:
        view = memoryview(text)
        while view:
            view = view[os.write(file.fileno(), view) :]
    except OSError:
        with suppress(OSError):  # the next line takes it off where this does not
            file.truncate(size)
        raise


def _digest(statement: AnchorStatement) -> bytes:
    return ht("veen/anchor", statement.encode())


def _place(proof: bytes) -> tuple[int, bytes]:
    match cbor.decode(proof, "anchor proof"):
        case (int() as number, bytes() as wanted) if number >= 1:
            return number, wanted
    raise Malformed("anchor proof", "no line of an anchor file")


def _read(data: bytes) -> list[_Line]:
    """The lines, each chained to the one before. Raises `Unverified` at the first that is not."""
    lines: list[_Line] = []
    for text in data.splitlines():
        before = lines[-1].hash if lines else bytes(HASH_BYTES)
        parts = text.decode("ascii", "replace").split(" ")
        number = len(lines) + 1
        try:
            if len(parts) != _FIELDS:
                raise ValueError
            line = _Line(int(parts[0]), bytes.fromhex(parts[1]), bytes.fromhex(parts[2]), int(parts[4]))
            right = line.text() == text + b"\n" and line.number == number and line.before == before
        except (ValueError, OverflowError):
            right = False
        if not right:
            raise Unverified("anchor file", f"line {number} does not follow on the one before it")
        lines.append(line)
    return lines
