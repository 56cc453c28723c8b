"""An HTTP/1.1 answer as bytes."""

from http import HTTPStatus

from veen.hub.http.message import NO_CONTENT, Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


def encode(response: Response, date: bytes, bodiless: bool, last: bool) -> bytes:
    """Head and body in one piece; `bodiless` answers a HEAD, `last` tells the peer that the connection ends."""
    status = response.status
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
        b"" if bodiless else body,
    )
