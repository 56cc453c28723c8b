"""One exchange on an HTTP/2 connection: the request as it arrives and the answer as it leaves."""

from collections.abc import Callable
from dataclasses import replace
from mmap import mmap

from veen.http.head import BadHead, check_size, glimpse, join_fields, split_target
from veen.http.intake import Intake
from veen.http.message import NO_CONTENT, Request, Response


class Stream:
    """A request being read, then an answer being written."""

    __slots__ = (
        "_send",
        "answered",
        "body",
        "body_bytes",
        "handed_over",
        "head",
        "intake",
        "limit",
        "lost",
        "paused",
        "request_ended",
        "reserved",
        "sent_bytes",
        "since",
        "stream_id",
        "unacknowledged",
        "unsent",
    )

    def __init__(self, stream_id: int, head: Request, now: float, send: "Callable[[Stream, Response], None]") -> None:
        self.stream_id = stream_id
        self.head = head
        self.since = now  # of the head; once answered, of the answer
        self.limit = 0
        self.body = bytearray()  # not the pieces: they may be many and tiny
        self.body_bytes = 0
        self.intake: Intake | None = None  # where the app takes the body piece by piece
        self.paused = False  # the app does not keep up with it
        self.unacknowledged = 0  # what the peer may not send anew meanwhile
        self.reserved = 0  # of the room for unfinished bodies
        self.request_ended = False
        self.handed_over = False
        self.answered = False
        self.lost = False  # taken back by the peer, or done with
        self.unsent: bytes | mmap = b""
        self.sent_bytes = 0
        self._send = send

    def respond(self, response: Response) -> None:
        if self.answered:
            raise RuntimeError("a request is answered once")
        self.answered = True
        self._send(self, response)

    @property
    def reading(self) -> bool:
        return not (self.request_ended or self.handed_over or self.answered)

    def is_lost(self) -> bool:
        return self.lost

    def request(self) -> Request:
        """The request with the body that has come."""
        made = replace(self.head, body=bytes(self.body), is_lost=self.is_lost)
        self.body.clear()
        return made


def read_head(fields: list[tuple[bytes, bytes]], peer: str, max_header_bytes: int, max_headers: int) -> Request:
    """The head of a request from its fields, which h2 has checked against RFC 9113 8.2 and 8.3."""
    if len(fields) > max_headers:
        raise BadHead(431, "too many headers")
    check_size(b"", fields, max_header_bytes)
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    headers = join_fields([(name, value) for name, value in fields if not name.startswith(b":")])
    if b":authority" in pseudo:
        headers.setdefault(b"host", pseudo[b":authority"])
    method = pseudo[b":method"].decode("ascii", "replace")
    if b":path" not in pseudo or b":protocol" in pseudo:
        raise BadHead(400, "no tunnels here")
    path, query = split_target(pseudo[b":path"])
    return Request(method, path, query, headers, b"", peer, "2")


def head_of(fields: list[tuple[bytes, bytes]], peer: str) -> Request:
    """A stand-in for a head that was refused: enough to answer it."""
    known = dict(fields)
    head = glimpse(known.get(b":path", b""), fields, peer)
    head.method = known.get(b":method", b"").decode("ascii", "replace")
    return head


def length_of(head: Request) -> int:
    """The length a head announces; h2 has checked that it is a number, where there is one."""
    length = head.headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


def answer_fields(response: Response, date: bytes) -> list[tuple[bytes, bytes]]:
    fields = [(b":status", b"%d" % response.status), (b"date", date)]
    if response.status not in NO_CONTENT:
        fields += [(b"content-type", response.content_type), (b"content-length", b"%d" % len(response.body))]
    return [*fields, *response.headers]
