"""Where an answer ends, and whether it is the one that was hoped for: HTTP/1.1, Redis and NATS, no more than is used.

The load generator shares the cores with what it measures, so the usual answer is known by comparing, not by parsing.
"""

from typing import Protocol

from veen.core import Malformed, Unavailable

_SHOWN_BYTES = 300
_LINE = b"\r\n"


class Framing(Protocol):
    """Knows one protocol's answers."""

    def whole(self, data: bytes) -> int:
        """The length of the answer that `data` starts with; 0 where that cannot be told yet.

        Raises `Unavailable` where the answer is a refusal, `Malformed` where it is none.
        """
        ...


class Http:
    """HTTP/1.1 with `content-length`; anything but 200 is a refusal."""

    __slots__ = ("_end", "_head", "_length", "_start")

    _OK = b"HTTP/1.1 200 "
    _LENGTH = b"\r\ncontent-length:"
    _HEAD_END = b"\r\n\r\n"

    def __init__(self) -> None:
        # The part of the last head that says how long the answer is, where it stood, and what it came to.
        self._head = b""
        self._start = self._end = self._length = 0

    def whole(self, data: bytes) -> int:
        if self._length and data[self._start : self._end] == self._head and data.startswith(self._OK):
            return self._length
        return self._parse(data)

    def _parse(self, data: bytes) -> int:
        end = data.find(self._HEAD_END)
        if end < 0:
            return 0
        head = data[:end].lower()
        if not data.startswith(b"HTTP/1.1 "):
            raise Malformed("answer", f"{data[:_SHOWN_BYTES]!r} is no HTTP/1.1")
        if not data.startswith(self._OK):
            raise Unavailable(f"the answer was {data[:_SHOWN_BYTES]!r}")
        start = head.find(self._LENGTH)
        stated = head[start + len(self._LENGTH) :].partition(_LINE)[0].strip()
        if start < 0 or not stated.isdigit() or head.count(self._LENGTH) > 1:
            raise Malformed("answer", f"{data[:end]!r} does not say once how long it is")
        self._start, self._end = start, end + len(self._HEAD_END)
        self._head = data[start : self._end]
        self._length = self._end + int(stated)
        return self._length


class Redis:
    """RESP bulk strings, which is how an id of a stream comes."""

    def whole(self, data: bytes) -> int:
        line, mark, _ = data.partition(_LINE)
        if not mark:
            return 0
        if not line.startswith(b"$") or not line[1:].isdigit():
            raise Unavailable(f"the answer was {data[:_SHOWN_BYTES]!r}")
        return len(line) + int(line[1:]) + 2 * len(_LINE)


class Nats:
    """One MSG on the connection's inbox: the acknowledgement of a publication. The server's PING may come around it."""

    _PING = b"PING\r\n"

    def whole(self, data: bytes) -> int:
        at = len(self._PING) if data.startswith(self._PING) else 0
        end = data.find(_LINE, at)
        if end < 0:
            return 0
        kind, *fields = data[at:end].split(b" ")
        if kind != b"MSG" or not fields or not fields[-1].isdigit():
            raise Unavailable(f"the answer was {data[:_SHOWN_BYTES]!r}")
        length = end + int(fields[-1]) + 2 * len(_LINE)
        if b'"error"' in data[end:length]:
            raise Unavailable(f"the answer was {data[:_SHOWN_BYTES]!r}")
        return length + (len(self._PING) if data[length:] == self._PING else 0)
