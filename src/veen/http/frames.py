"""HTTP/2 frames, seen before h2 sees them: it would gather 16 MiB and only then complain, and take all at once."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_BYTES = 16384  # what RFC 9113 4.2 lets every peer send; we offer no more and send no more
_HEADER_BYTES = 9
_LENGTH_BYTES = 3
_HEADERS, _RST_STREAM = 1, 3
_REQUEST_UNITS = 4  # a head is decoded, and the app is asked


class FrameMeter:
    """Follows the frames of one direction from the preface on, and keeps nothing but a header that was cut in two."""

    __slots__ = ("_header", "_skip")

    def __init__(self) -> None:
        self._skip = len(PREFACE)
        self._header = b""

    def portion(self, data: bytes, at: int, most: int) -> int | None:
        """Where the frames of `data` end that are as much work as `most` small ones, from `at` on; one is taken anyway.

        None where a frame among them is longer than was offered.
        """
        place, units = at + self._skip, 0
        while place < len(data):
            header = self._header + data[place : place + _HEADER_BYTES - len(self._header)]
            if len(header) < _HEADER_BYTES:
                if units < most:
                    self._header, self._skip = header, 0
                    return len(data)
                break
            kind = header[_LENGTH_BYTES]
            # A request that is taken back at once is seen together with that, and then it is no work for the app.
            if units >= most and (kind != _RST_STREAM or units >= 2 * most):
                break
            length = int.from_bytes(header[:_LENGTH_BYTES])
            if length > MAX_FRAME_BYTES:
                return None
            place += _HEADER_BYTES - len(self._header) + length
            self._header = b""
            units += _REQUEST_UNITS if kind == _HEADERS else 1
        self._skip = max(0, place - len(data))
        return min(place, len(data))
