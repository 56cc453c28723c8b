"""Checks of a request head for HTTP/1.1 and HTTP/2, including those against request smuggling. RFC 9112 6.3."""

from collections.abc import Mapping, Sequence

from plumbing.http.message import Request

# Headers that must not be repeated: two values could be understood differently by a proxy.
_SINGLE = frozenset({b"content-length", b"host", b"transfer-encoding", b"content-type", b"authorization", b"expect"})

_MAX_DIGITS = 20  # digits of the largest 64-bit length
_FIELD_OVERHEAD = 4  # colon, space and end of line


class BadHead(Exception):
    """The head is rejected before it reaches the app."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def join_fields(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Fields as a mapping. Lists are joined; a repeated single-value header is rejected."""
    headers = dict(fields)
    if len(headers) != len(fields):
        headers.clear()
        for name, value in fields:
            if name not in headers:
                headers[name] = value
            elif name in _SINGLE:
                raise BadHead(400, f"{name.decode('ascii')} occurs twice")
            else:
                headers[name] += (b"; " if name == b"cookie" else b", ") + value
    return headers


def check_size(target: bytes, fields: Sequence[tuple[bytes, bytes]], max_bytes: int) -> None:
    """Reject a head that is too large on the wire."""
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


def partial_request(target: bytes, fields: Sequence[tuple[bytes, bytes]], peer: str) -> Request:
    """The known parts of a rejected head: enough to choose the format of the response."""
    try:
        path, query = split_target(target) if target else ("", "")
    except BadHead:
        path = query = ""
    return Request("", path, query, dict(fields), b"", peer, "")


def check_framing(headers: Mapping[bytes, bytes], http_version: str) -> bool:
    """Whether the body is chunked. Rejects a head that two readers could frame differently."""
    if http_version not in ("1.1", "1.0"):
        raise BadHead(505, "only HTTP/1.0, HTTP/1.1 and HTTP/2 are supported")
    if http_version == "1.1" and b"host" not in headers:
        raise BadHead(400, "the Host header is missing")
    if len(headers.get(b"content-length", b"")) > _MAX_DIGITS:
        raise BadHead(400, "content-length has too many digits")
    coding = headers.get(b"transfer-encoding")
    if coding is None:
        return False
    if http_version != "1.1" or b"content-length" in headers:
        raise BadHead(400, "both content-length and transfer-encoding are given")
    if coding.lower() != b"chunked":
        raise BadHead(501, "chunked is the only supported transfer coding")
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
