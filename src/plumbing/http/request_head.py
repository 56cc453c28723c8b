"""The checks of a request's head that HTTP/1.1 and HTTP/2 share, and those against request smuggling. RFC 9112 6.3."""

from collections.abc import Mapping, Sequence

from plumbing.http.message import Request

# Two of these are two opinions on where the message goes or ends.
_SINGLE = frozenset({b"content-length", b"host", b"transfer-encoding", b"content-type", b"authorization", b"expect"})

_MOST_DIGITS = 20  # of the largest length that has 64 bits
_FIELD_OVERHEAD = 4  # the colon, a space and the line's end


class BadHead(Exception):
    """The head is refused before the app hears of it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def join_fields(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Fields as a mapping; lists are joined, what may be said once is refused twice."""
    headers = dict(fields)
    if len(headers) != len(fields):
        headers.clear()
        for name, value in fields:
            if name not in headers:
                headers[name] = value
            elif name in _SINGLE:
                raise BadHead(400, f"{name.decode('ascii')} is given twice")
            else:
                headers[name] += (b"; " if name == b"cookie" else b", ") + value
    return headers


def check_size(target: bytes, fields: Sequence[tuple[bytes, bytes]], max_bytes: int) -> None:
    """Refuse a head that is too large as it came over the wire."""
    if len(target) + sum(len(name) + len(value) + _FIELD_OVERHEAD for name, value in fields) > max_bytes:
        raise BadHead(431, "the head is too large")


def split_target(target: bytes) -> tuple[str, str]:
    """Path and query of an origin-form or absolute-form target. RFC 9112 3.2."""
    if not target.startswith(b"/"):
        target = _path_of(target)
    try:
        text = target.decode("ascii")
    except UnicodeDecodeError:
        raise BadHead(400, "the target is not ASCII") from None
    if "#" in text:
        raise BadHead(400, "the target has a fragment")
    path, _, query = text.partition("?")
    return path, query


def glimpse(target: bytes, fields: Sequence[tuple[bytes, bytes]], peer: str) -> Request:
    """What is known of a head that is refused: enough to choose the form of the answer."""
    try:
        path, query = split_target(target) if target else ("", "")
    except BadHead:
        path = query = ""
    return Request("", path, query, dict(fields), b"", peer, "")


def check_framing(headers: Mapping[bytes, bytes], http_version: str) -> bool:
    """Whether the body comes in chunks; a head that two readers could frame differently is refused."""
    if http_version not in ("1.1", "1.0"):
        raise BadHead(505, "HTTP/1.1 and HTTP/2 are spoken here")
    if http_version == "1.1" and b"host" not in headers:
        raise BadHead(400, "no host")
    if len(headers.get(b"content-length", b"")) > _MOST_DIGITS:
        raise BadHead(400, "content-length has too many digits")
    coding = headers.get(b"transfer-encoding")
    if coding is None:
        return False
    if http_version != "1.1" or b"content-length" in headers:
        raise BadHead(400, "the length is given twice")
    if coding.lower() != b"chunked":
        raise BadHead(501, "the only transfer coding is chunked")
    return True


def _path_of(target: bytes) -> bytes:
    if target == b"*":
        return target
    scheme, mark, rest = target.partition(b"://")
    if not mark or scheme.lower() not in (b"http", b"https"):
        raise BadHead(400, "the target is not a path")
    cut = min((place for place in (rest.find(b"/"), rest.find(b"?")) if place >= 0), default=len(rest))
    path = rest[cut:]
    return path if path.startswith(b"/") else b"/" + path
