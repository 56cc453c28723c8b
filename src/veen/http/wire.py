"""An HTTP/1.1 answer as bytes."""

from http import HTTPStatus

from veen.http.message import NO_CONTENT, Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


def encode(response: Response, date: bytes, bodiless: bool, last: bool) -> bytes:
    """Head and body in one piece; `bodiless` answers a HEAD, `last` tells the peer that the connection ends."""
    status = response.status
    if status == HTTPStatus.OK and not response.headers and not last and not bodiless:
        body = response.body
        return _usual_head(response.content_type, len(body), date) + body[:]
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    extra = b"connection: close\r\n" if last else b""
    if response.headers:
        extra += b"".join([b"%b: %b\r\n" % field for field in response.headers])
    if status in NO_CONTENT:
        return b"%bdate: %b\r\n%b\r\n" % (line, date, extra)
    body = response.body
    return b"%bdate: %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b" % (
        line,
        date,
        response.content_type,
        len(body),
        extra,
        b"" if bodiless else body[:],
    )


_MAX_USUAL_HEADS = 64
_usual_heads: dict[tuple[bytes, int], bytes] = {}
_usual_date = b""


def _usual_head(content_type: bytes, length: int, date: bytes) -> bytes:
    """The head of a plain answer. Answers of one kind and length follow each other, and the date is a second old."""
    global _usual_date
    if date is not _usual_date:
        _usual_heads.clear()
        _usual_date = date
    found = _usual_heads.get((content_type, length))
    if found is None:
        found = b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (
            date,
            content_type,
            length,
        )
        if len(_usual_heads) < _MAX_USUAL_HEADS:
            _usual_heads[content_type, length] = found
    return found
