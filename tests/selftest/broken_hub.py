"""A real hub behind a real HTTP proxy that breaks exactly one behaviour."""

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, TypeAlias, TypeVar

from tests.hub.client import PATIENCE_S, Hub
from veen.core import Receipt, checkpoint, strict_json, wire_json
from veen.core import receipt as receipts
from veen.core.admission import STATUS
from veen.core.cbor import Wire
from veen.core.checkpoint import Checkpoint
from veen.core.envelopes import ErrorEnvelope
from veen.storage import metadata
from veen.storage.paths import Folders

W = TypeVar("W", bound=Wire)
CBOR, JSON = "application/cbor", "application/json"
_REQUEST_HEADERS = ("content-type", "accept", "authorization", "content-length")
_ANSWER_HEADERS = ("content-type", "retry-after")


@dataclass(frozen=True)
class Answer:
    """An answer of the hub, which a breakage may change."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def is_json(self) -> bool:
        return self.headers.get("content-type", CBOR) == JSON

    def read(self, cls: type[W]) -> W:
        return wire_json.decode(cls, self.body) if self.is_json else cls.decode(self.body)

    def write(self, wire: Wire, status: int | None = None) -> "Answer":
        body = wire_json.encode(wire) if self.is_json else wire.encode()
        return replace(self, body=body, status=status or self.status)

    def row(self) -> str | None:
        """The detail_enum of a rejection, or its code."""
        if self.status < 400:
            return None
        refused = self.read(ErrorEnvelope).refused()
        return refused.detail_enum or refused.code

    def error(self, code: str, **detail: int | str) -> "Answer":
        return self.write(ErrorEnvelope(code, "broken", detail or None), STATUS[code])


@dataclass(frozen=True)
class Call:
    """A request to the hub, which a breakage may change."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    forward: Callable[[bytes], Answer]

    @property
    def is_json(self) -> bool:
        return self.headers.get("content-type") == JSON

    def read(self, cls: type[W]) -> W:
        return wire_json.decode(cls, self.body) if self.is_json else cls.decode(self.body)

    def ask(self, changed: Wire | None = None) -> Answer:
        """Forward this request, or another in its place, and return the hub's answer."""
        if changed is None:
            return self.forward(self.body)
        return self.forward(wire_json.encode(changed) if self.is_json else changed.encode())


class Forger:
    """Signs false receipts and checkpoints with the hub's own key."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.key = metadata.read_signing_key(Folders(hub.data_dir), hub.service.hub_metadata.identity.newest.key_id)

    def receipt(self, true: Receipt, **changed: Any) -> Receipt:
        other = replace(true, **changed)
        return receipts.sign(
            self.key,
            label=other.label,
            stream_seq=other.stream_seq,
            leaf_hash=other.leaf_hash,
            mmr_root=other.mmr_root,
            hub_ts=other.hub_ts,
        )

    def checkpoint(self, true: Checkpoint, **changed: Any) -> Checkpoint:
        other = replace(true, **changed)
        return checkpoint.sign(
            self.key,
            label_prev=other.label_prev,
            label_curr=other.label_curr,
            upto_seq=other.upto_seq,
            mmr_root=other.mmr_root,
            epoch=other.epoch,
        )


class HangUp(Exception):
    """Close the connection without an answer."""


Handle: TypeAlias = Callable[[Call], Answer]
Breakage: TypeAlias = Callable[[Forger], Handle]  # created per test, because some count calls


def honest(forger: Forger) -> Handle:
    """Forward everything unchanged."""
    return lambda call: call.ask()


class BrokenHub:
    """The proxy. `alter` changes bytes that the hub sends over a WebSocket."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.forger = Forger(hub)
        self.handle = honest(self.forger)
        self.alter: Callable[[bytes], bytes] = lambda data: data
        self._lock = Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, name="broken hub")
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def broken(self, breakage: Breakage) -> Iterator[None]:
        self.handle = breakage(self.forger)
        try:
            yield
        finally:
            self.handle = honest(self.forger)

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(PATIENCE_S)
        self._server.server_close()

    def _forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.hub.port, timeout=PATIENCE_S)
        try:
            sent = {
                name: text for name, text in headers.items() if name in _REQUEST_HEADERS and name != "content-length"
            }
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            given = {name.lower(): text for name, text in answer.getheaders() if name.lower() in _ANSWER_HEADERS}
            return Answer(answer.status, answer.read(), given)
        finally:
            connection.close()

    def _tunnel(self, peer: socket.socket, head: bytes) -> None:
        """Forward a WebSocket in both directions until either side closes."""
        with socket.create_connection(("127.0.0.1", self.hub.port), PATIENCE_S) as hub:
            hub.sendall(head)
            back = Thread(target=_pump, args=(hub, peer, self.alter))
            back.start()
            _pump(peer, hub, lambda data: data)
            back.join(PATIENCE_S)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # send head and body together; otherwise delayed ACKs slow every answer

            def _serve(self) -> None:
                headers = {name.lower(): text for name, text in self.headers.items()}
                if "upgrade" in headers:
                    lines = [f"{self.command} {self.path} HTTP/1.1", *(f"{n}: {t}" for n, t in headers.items())]
                    outer._tunnel(self.connection, ("\r\n".join(lines) + "\r\n\r\n").encode())
                    self.close_connection = True
                    return
                body = self.rfile.read(int(headers.get("content-length", "0")))

                def forward(sent: bytes) -> Answer:
                    return outer._forward(self.command, self.path, headers, sent)

                call = Call(self.command, self.path, headers, body, forward)
                try:
                    with outer._lock:  # breakages may count calls
                        answer = outer.handle(call)
                except HangUp:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, text in answer.headers.items():
                    self.send_header(name, text)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            do_GET = do_POST = do_PUT = _serve  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@contextmanager
def proxied(hub: Hub) -> Iterator[BrokenHub]:
    """A proxy in front of a hub."""
    proxy = BrokenHub(hub)
    try:
        yield proxy
    finally:
        proxy.stop()


def _pump(source: socket.socket, sink: socket.socket, alter: Callable[[bytes], bytes]) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(alter(data))
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


# Building blocks of breakages.


def alter_answer(path: str, cls: type[W], change: Callable[[Forger, W], Wire]) -> Breakage:
    """Change successful answers of `path`."""

    def make(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            answer = call.ask()
            if call.path.partition("?")[0] != path or answer.status != 200:
                return answer
            return answer.write(change(forger, answer.read(cls)))

        return handle

    return make


def alter_request(path: str, cls: type[W], change: Callable[[W], W]) -> Breakage:
    """Change requests to `path` before they reach the hub."""

    def make(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            if call.path != path:
                return call.ask()
            return call.ask(change(call.read(cls)))

        return handle

    return make


def status_says(change: Callable[[dict[str, Any]], object]) -> Breakage:
    """Change the status in place."""

    def make(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            answer = call.ask()
            if call.path != "/tooling/status":
                return answer
            shown = strict_json.decode(answer.body, "status")
            assert isinstance(shown, dict)
            change(shown)
            return replace(answer, body=strict_json.encode(shown))

        return handle

    return make


def refusals(
    row: str, change: Callable[[Answer], Answer], path: str | None = None, *, only_json: bool = False
) -> Breakage:
    """Change rejections by that row or code."""

    def make(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            answer = call.ask()
            applies = (path is None or call.path == path) and (call.is_json or not only_json)
            return change(answer) if applies and answer.row() == row else answer

        return handle

    return make
