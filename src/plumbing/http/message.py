"""What the front and the app say to each other."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from mmap import mmap
from typing import Protocol

NO_CONTENT = frozenset({204, 304})  # their answers have neither a body nor a length
TEXT = b"text/plain; charset=utf-8"

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
# The front frames the message and ends the connection: an app that wrote these could contradict it.
_OURS = frozenset({b"connection", b"content-length", b"content-type", b"date", b"transfer-encoding", b"upgrade"})
_FIRST_FINAL, _LAST_FINAL = 200, 599


def _waits() -> bool:
    return False


@dataclass(slots=True)  # not frozen: one is made for every message, and freezing triples its cost
class Request:
    """A request that is complete, or its head where the body was not read."""

    method: str
    path: str  # as sent, percent-encoding and all
    query: str  # what follows the first `?`
    headers: Mapping[bytes, bytes]  # names in lower case
    body: bytes
    peer: str  # the address, without the port
    http_version: str  # "1.0", "1.1" or "2"
    certificate: bytes | None = None  # of the peer, in DER: one that TLS has verified
    connection: object = None  # the same for every request of one, and for no other
    is_lost: Callable[[], bool] = _waits  # whether nobody waits for the answer any more
    caller: bytes | None = None  # as whose its connection is counted; None for a proxy's, where many share an address

    @property
    def owner(self) -> object:
        """For whom the work is done, where all take turns."""
        return self.connection if self.caller is None else self.caller


@dataclass(slots=True)  # as a request
class Response:
    """An answer. What could break its framing raises `ValueError` here, where the mistake was made."""

    status: int
    body: bytes | mmap = b""  # a file that is mapped leaves as the peer takes it
    content_type: bytes = TEXT
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __post_init__(self) -> None:
        if not _FIRST_FINAL <= self.status <= _LAST_FINAL:
            raise ValueError(f"{self.status} is not a final status")
        if self.content_type not in _checked_types:
            _check_value(self.content_type)
            # Content types are few; the set is bounded for an app that makes them up.
            if len(_checked_types) < _MAX_CHECKED_TYPES:
                _checked_types.add(self.content_type)
        for name, value in self.headers:
            if not _TOKEN.fullmatch(name) or name in _OURS:
                raise ValueError(f"header name {name!r}")
            _check_value(value)


_MAX_CHECKED_TYPES = 64
_checked_types: set[bytes] = {TEXT}

Respond = Callable[[Response], None]
Report = Callable[[str, BaseException], None]


class WebSocketHandler(Protocol):
    """The app's end of one WebSocket. Called on the loop's thread, never after `on_close`."""

    def on_open(self, send: Callable[[bytes], bool], close: Callable[[int], None]) -> None:
        """Keep `send` and `close`. `send` is False, and sends nothing, where the peer is too slow or gone."""

    def on_message(self, data: bytes) -> None: ...

    def on_full(self) -> None:
        """The peer does not keep up: `send` is False until it does."""

    def on_drain(self) -> None:
        """The peer has caught up after `on_full`, or after `send` was False."""

    def on_close(self) -> None: ...


class Upload(Protocol):
    """A body that the app takes as it comes, whatever its size. Called on the loop's thread.

    After `on_start` comes one of three ends: `on_end`, `on_abort`, or the app's own answer before the body is complete,
    after which no more of it is read.
    """

    def on_start(self, respond: Respond, pause: Callable[[bool], None]) -> None:
        """Keep both. `pause(True)` stops the peer until `pause(False)`; a little may still be on its way."""

    def on_data(self, data: bytes) -> None: ...

    def on_end(self) -> None:
        """The body is complete: answer now or later."""

    def on_abort(self) -> None:
        """It will never be, and nobody waits for an answer."""


class App(Protocol):
    """What stands behind the front. All calls are made on the loop's thread and must not block."""

    def body_limit(self, method: str, path: str) -> int | None:
        """How many bytes of body are read; None reads none and hands `handle` an empty one."""

    def too_large(self, head: Request) -> Response:
        """The answer (413) to a body over the limit, of which nothing more is read."""

    def refused(self, status: int, reason: str, head: Request) -> Response:
        """The answer to what the front refuses by itself. `head` holds what was understood of it, maybe nothing."""

    def upload(self, head: Request) -> Upload | Response | None:
        """How the body of a PUT is taken: as it comes, not at all because of this answer, or whole (None)."""

    def handle(self, request: Request, respond: Respond) -> None:
        """Call `respond` exactly once, now or later, on the loop's thread."""

    def shortcut(self, head: Request) -> "Callable[[bytes, Respond], None] | None":
        """What `handle` would do with the body of any request that has this head, where the head alone decides it."""

    def websocket(self, head: Request) -> WebSocketHandler | Response: ...


def _check_value(value: bytes) -> None:
    if not _VALUE.fullmatch(value):
        raise ValueError(f"header value {value!r}")


Answer = Callable[[Response, bool], None]  # the second says that the body is not complete yet


class UploadBody:
    """Stands between a connection and an upload: each end is told once, and a late word reaches nobody."""

    __slots__ = ("_answer", "_pause", "_paused", "_report", "_silenced", "_upload", "open")

    def __init__(self, upload: Upload, answer: Answer, pause: Callable[[bool], None], report: Report) -> None:
        self.open = True  # the body goes on, and the app wants it
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
        """The peer has left, or the front answers in the app's place: what the app still says is not heard."""
        self._silenced = True
        if self.open:
            self._close()
            try:
                self._upload.on_abort()
            except Exception as error:  # noqa: BLE001  the connection has its own end to see to
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
