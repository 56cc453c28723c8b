"""The interface between the HTTP server and the app."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from mmap import mmap
from typing import Protocol

NO_CONTENT = frozenset({204, 304})  # responses without body and length
TEXT = b"text/plain; charset=utf-8"

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
# The server frames the message and closes the connection: an app that set these could contradict it.
_SERVER_HEADERS = frozenset(
    {b"connection", b"content-length", b"content-type", b"date", b"transfer-encoding", b"upgrade"}
)
_FIRST_FINAL, _LAST_FINAL = 200, 599


def _never_lost() -> bool:
    return False


@dataclass(slots=True)  # not frozen: one is made for every message, and freezing triples its cost
class Request:
    """A complete request, or its head if the body was not read."""

    method: str
    path: str  # as sent, percent-encoding and all
    query: str  # what follows the first `?`
    headers: Mapping[bytes, bytes]  # names in lower case
    body: bytes
    peer: str  # the address, without the port
    http_version: str  # "1.0", "1.1" or "2"
    certificate: bytes | None = None  # the peer's certificate in DER, verified by TLS
    connection: object = None  # identifies the connection
    is_lost: Callable[[], bool] = _never_lost  # whether the client is gone
    caller: bytes | None = None  # the key its connection is counted under; None behind a proxy

    @property
    def owner(self) -> object:
        """The owner of the work in fair queues."""
        return self.connection if self.caller is None else self.caller


@dataclass(slots=True)  # as a request
class Response:
    """A response. Values that could break its framing raise `ValueError` here, where the bug is."""

    status: int
    body: bytes | mmap = b""  # a mapped file is sent while the peer reads
    content_type: bytes = TEXT
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __post_init__(self) -> None:
        if not _FIRST_FINAL <= self.status <= _LAST_FINAL:
            raise ValueError(f"{self.status} is not a final status")
        if self.content_type not in _checked_types:
            _check_value(self.content_type)
            # There are few content types; the set is bounded in case an app makes them up.
            if len(_checked_types) < _MAX_CHECKED_TYPES:
                _checked_types.add(self.content_type)
        for name, value in self.headers:
            if not _TOKEN.fullmatch(name) or name in _SERVER_HEADERS:
                raise ValueError(f"header name {name!r}")
            _check_value(value)


_MAX_CHECKED_TYPES = 64
_checked_types: set[bytes] = {TEXT}

Respond = Callable[[Response], None]
Report = Callable[[str, BaseException], None]


class WebSocketHandler(Protocol):
    """The app's side of one WebSocket. Called on the loop's thread, never after `on_close`.

    It may have an attribute `subprotocol`: the name to confirm to the peer.
    """

    def on_open(self, send: Callable[[bytes | str], bool], close: Callable[[int], None]) -> None:
        """Store `send` and `close`. `send` returns False, and sends nothing, if the peer is too slow or gone."""

    def on_message(self, data: bytes) -> None: ...

    def on_full(self) -> None:
        """The peer does not keep up: `send` returns False until `on_drain`."""

    def on_drain(self) -> None:
        """The peer has caught up after `on_full`, or after `send` returned False."""

    def on_close(self) -> None: ...


class Upload(Protocol):
    """A body that the app receives in pieces, whatever its size. Called on the loop's thread.

    `on_start` is followed by one of three ends: `on_end`, `on_abort`, or a response of the app before the body is
    complete, after which no more of it is read.
    """

    def on_start(self, respond: Respond, pause: Callable[[bool], None]) -> None:
        """Store both. `pause(True)` stops the peer until `pause(False)`; some data may still arrive."""

    def on_data(self, data: bytes) -> None: ...

    def on_end(self) -> None:
        """The body is complete: respond now or later."""

    def on_abort(self) -> None:
        """The body will not be completed, and no response is needed."""


class App(Protocol):
    """The application. All calls are on the loop's thread and must not block."""

    def body_limit(self, method: str, path: str) -> int | None:
        """The maximum size of the body. With None the body is not read, and `handle` gets an empty one."""

    def too_large(self, head: Request) -> Response:
        """The response (413) to a body above the limit. The rest of it is not read."""

    def refused(self, status: int, reason: str, head: Request) -> Response | None:
        """The response to a request that the server rejects. `head` has the parsed part, possibly nothing.

        With None the connection, or the HTTP/2 stream, is closed without a response.
        """

    def upload(self, head: Request) -> Upload | Response | None:
        """How to read the body of a PUT: in pieces (Upload), not at all (Response), or as a whole (None)."""
        return None

    def handle(self, request: Request, respond: Respond) -> None:
        """Call `respond` exactly once, now or later, on the loop's thread."""

    def shortcut(self, head: Request) -> "Callable[[bytes, Respond], None] | None":
        """A handler for the bodies of all requests with this head, if the head alone decides how they are handled.

        Their content-length may differ from that in `head`; the body never exceeds `body_limit`.
        """
        return None

    def websocket(self, head: Request) -> WebSocketHandler | Response: ...


def _check_value(value: bytes) -> None:
    if not _VALUE.fullmatch(value):
        raise ValueError(f"header value {value!r}")


Answer = Callable[[Response, bool], None]  # the flag is True if the body is not complete yet


class UploadBody:
    """Connects a connection and an upload: each end is reported once, and late responses are dropped."""

    def __init__(self, upload: Upload, answer: Answer, pause: Callable[[bool], None], report: Report) -> None:
        self.open = True  # the body continues, and the app reads it
        self._upload = upload
        self._answer = answer
        self._pause = pause
        self._report = report
        self._paused = False
        self._silenced = False

    def begin(self) -> None:
        self._upload.on_start(self._respond, self._set_paused)

    def data(self, piece: bytes) -> None:
        if self.open:
            self._upload.on_data(piece)

    def end(self) -> None:
        """The body is complete."""
        if self.open:
            self._close()
            self._upload.on_end()

    def abandon(self) -> None:
        """The peer is gone, or the server responds instead of the app: later responses of the app are dropped."""
        self._silenced = True
        if self.open:
            self._close()
            try:
                self._upload.on_abort()
            except Exception as error:  # noqa: BLE001  closing the connection must continue
                self._report("upload", error)

    def _respond(self, response: Response) -> None:
        if self._silenced:
            return
        early = self.open
        self._close()
        self._answer(response, early)

    def _set_paused(self, paused: bool) -> None:
        if self.open and paused != self._paused:
            self._paused = paused
            self._pause(paused)

    def _close(self) -> None:
        self.open = False
        if self._paused:
            self._paused = False
            self._pause(False)
