"""The lengths of HTTP/2 frames, seen before h2 sees them: it would gather 16 MiB and only then complain."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_BYTES = 16384  # what RFC 9113 4.2 lets every peer send; we offer no more and send no more
_HEADER_BYTES = 9
_LENGTH_BYTES = 3


class FrameMeter:
    """Follows the frames of one direction from the preface on, and keeps nothing but a header that was cut in two."""

    __slots__ = ("_header", "_skip")

    def __init__(self) -> None:
        self._skip = len(PREFACE)
        self._header = b""

    def finds_overlong(self, data: bytes) -> bool:
        """Whether `data` begins a frame that is longer than was offered."""
        place = self._skip
        while place < len(data):
            header = self._header + data[place : place + _HEADER_BYTES - len(self._header)]
            if len(header) < _HEADER_BYTES:
                self._header, self._skip = header, 0
                return False
            length = int.from_bytes(header[:_LENGTH_BYTES])
            if length > MAX_FRAME_BYTES:
                return True
            place += _HEADER_BYTES - len(self._header) + length
            self._header = b""
        self._skip = place - len(data)
        return False
