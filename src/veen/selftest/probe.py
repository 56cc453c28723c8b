"""Raw requests to a hub, and strict parsing of its answers."""

import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Self, TypeVar
from urllib.parse import urlsplit

import httpx
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, RejectConnection, Request
from wsproto.utilities import ProtocolError

from veen.client.exchange import BlockingExchange, no_answer
from veen.client.read_access import trusting
from veen.core import Malformed, Refused, Unavailable, strict_json, wire_json
from veen.core.admission import BY_DETAIL, STATUS
from veen.core.cbor import Wire
from veen.core.envelopes import ErrorEnvelope, StreamItem
from veen.core.limits import MAX_MSG_BYTES, MAX_PAGE_BYTES
from veen.core.msg import Msg
from veen.core.strict_json import Json
from veen.selftest.check import Failed, Skipped, expect

W = TypeVar("W", bound=Wire)

CBOR, JSON, OCTETS = "application/cbor", "application/json", "application/octet-stream"
OK, NOT_FOUND, METHOD_NOT_ALLOWED, UNSUPPORTED, TOO_MANY, UNAVAILABLE = 200, 404, 405, 415, 429, 503
SUBMIT_HEAD = b"\xa2\x01\x01\x02"  # {1: 1, 2: msg}: the rest of a submit request is the encoded MSG
_CONNECT_TIMEOUT_S, _ANSWER_TIMEOUT_S = 5.0, 30.0
_BUSY_ATTEMPTS, _MAX_RETRY_WAIT_S = 5, 5
_MAX_ANSWER_BYTES = 4 * MAX_PAGE_BYTES + MAX_MSG_BYTES  # a page in JSON, where each byte is two digits


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """A raw answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    asked: str  # method and path, for failure messages
    form: str  # content type of the request; the answer must have the same

    def read(self, cls: type[W]) -> W:
        """Decode the body of a successful answer."""
        if self.status != OK:
            raise Failed(f"{self.asked} answered {self.status}{self._error_text()}")
        return self._decode(cls)

    def offered(self, cls: type[W]) -> W:
        """Like `read`, for an optional endpoint."""
        return self.if_offered().read(cls)

    def if_offered(self) -> Self:
        """Raise `Skipped` if the hub does not have this optional endpoint."""
        if self.status in (NOT_FOUND, METHOD_NOT_ALLOWED):
            raise Skipped(f"the hub does not offer {self.asked}")
        return self

    def error(self) -> ErrorEnvelope:
        """The error envelope of a rejection; its HTTP status must match its code. Spec §10.6."""
        expect(self.status != OK, f"{self.asked} was accepted")
        expect(400 <= self.status < 600, f"{self.asked} answered {self.status}, which is not an error status")
        envelope = self._decode(ErrorEnvelope)
        wanted = STATUS.get(envelope.code)
        expect(wanted is not None, f"{self.asked} answered with the unknown code {envelope.code!r}")
        expect(self.status == wanted, f"{self.asked} answered {envelope.code} with status {self.status}, not {wanted}")
        return envelope

    def refused(self) -> Refused:
        return self.error().refused()

    def expect_code(self, code: str) -> Refused:
        """Expect a rejection by the endpoint itself."""
        refused = self.refused()
        expect(refused.code == code, f"{self.asked} answered {refused.code}, not {code}")
        return refused

    def expect_row(self, name: str) -> Refused:
        """Expect a rejection by one row of the admission table. `detail_enum` is optional. Spec §8.2."""
        row = BY_DETAIL[name]
        expect(self.status != OK, f"accepted instead of rejected with {row.code}/{name}")
        refused = self.refused()
        found = (refused.code, refused.stage, refused.detail_enum or name)
        wanted = (row.code, str(row.stage), name)
        shown, due = ("{} {} {}".format(*triple) for triple in (found, wanted))
        expect(found == wanted, f"rejected with {shown}, not {due}")
        return refused

    def retry_after(self) -> int | None:
        """The seconds of the Retry-After header, if it is valid."""
        seconds = self.headers.get("retry-after", "")
        return int(seconds) if seconds.isascii() and seconds.isdigit() else None

    def json(self) -> dict[str, Json]:
        """The JSON object in the body of a successful answer."""
        expect(self.status == OK, f"{self.asked} answered {self.status}")
        found = strict_json.decode(self.body, self.asked)
        if not isinstance(found, dict):
            raise Failed(f"{self.asked} did not answer with a JSON object")
        return found

    def _decode(self, cls: type[W]) -> W:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        expect(kind == self.form, f"{self.asked} answered {kind or 'without content-type'} to {self.form}")
        try:
            return wire_json.decode(cls, self.body) if self.form == JSON else cls.decode(self.body)
        except Malformed as error:
            raise Failed(f"{self.asked} answered {self.status} with an invalid body: {error}") from None

    def _error_text(self) -> str:
        try:
            decoded = (
                wire_json.decode(ErrorEnvelope, self.body) if self.form == JSON else ErrorEnvelope.decode(self.body)
            )
        except Malformed:
            return ""
        return f": {decoded.refused()}"


class Probe:
    """HTTP client of one hub. Thread-safe."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, *, answer_s: float = _ANSWER_TIMEOUT_S) -> None:
        self._answer_s = answer_s
        self.url = url.rstrip("/")
        self.tls = tls
        try:
            base = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise Malformed("hub URL", str(error)) from None
        if base.scheme not in ("http", "https") or not base.host:
            raise Malformed("hub URL", f"{url!r} is not http://HOST or https://HOST")
        self._exchange = BlockingExchange(
            httpx.AsyncClient(
                base_url=base,
                verify=trusting(self.url) if tls is None and base.scheme == "https" else tls or False,
                # Shorter than any hub's idle timeout, so no reused connection is already closed.
                limits=httpx.Limits(keepalive_expiry=1.0),
                headers={"accept-encoding": "identity", "user-agent": "veen-selftest"},
                trust_env=False,
            )
        )

    def close(self) -> None:
        self._exchange.close()

    def get(self, path: str) -> ProbeReply:
        return self._request("GET", path, None, JSON)

    def post(self, path: str, body: bytes | Wire, authorization: str | None = None) -> ProbeReply:
        """Send a CBOR request."""
        return self._request("POST", path, body.encode() if isinstance(body, Wire) else body, CBOR, authorization)

    def post_json(self, path: str, body: bytes | Wire) -> ProbeReply:
        """Send a JSON request; hubs need not support JSON."""
        reply = self._request("POST", path, wire_json.encode(body) if isinstance(body, Wire) else body, JSON)
        if reply.status == UNSUPPORTED:
            raise Skipped("the hub does not support JSON")
        return reply

    def put(self, path: str, body: bytes, authorization: str | None = None) -> ProbeReply:
        """Upload raw bytes."""
        return self._request("PUT", path, body, OCTETS, authorization)

    def submit(self, message: Msg | bytes, *, patient: bool = True) -> ProbeReply:
        """Submit a message, or arbitrary bytes as one. If the rate is exhausted, wait as long as the hub says."""
        body = SUBMIT_HEAD + (message if isinstance(message, bytes) else message.encode())
        reply = self.post("/v1/submit", body)
        for _ in range(_BUSY_ATTEMPTS if patient else 0):
            wait = reply.retry_after()
            if reply.status != TOO_MANY or wait is None or wait > _MAX_RETRY_WAIT_S:
                break
            time.sleep(wait)
            reply = self.post("/v1/submit", body)
        return reply

    def _request(
        self, method: str, path: str, body: bytes | None, form: str, authorization: str | None = None
    ) -> ProbeReply:
        """Retry a few times while the hub is busy. Raises `Unavailable` if no answer comes."""
        headers = {"accept": form} if body is None else {"content-type": form, "accept": form}
        if authorization is not None:
            headers["authorization"] = authorization
        for _ in range(_BUSY_ATTEMPTS - 1):
            reply = self._request_once(method, path, body, headers)
            if reply.status != UNAVAILABLE:
                return reply
            wait = reply.retry_after()
            time.sleep(1 if wait is None else min(wait, _MAX_RETRY_WAIT_S))
        return self._request_once(method, path, body, headers)

    def _request_once(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> ProbeReply:
        try:
            answer, found = self._exchange(
                method,
                path,
                limit_s=self._answer_s,
                connect_s=_CONNECT_TIMEOUT_S,
                most=_MAX_ANSWER_BYTES,
                content=body,
                headers=headers,
            )
        except Malformed:
            raise Failed(f"{method} {path} answered with more than {_MAX_ANSWER_BYTES} bytes") from None
        except httpx.TransportError as error:
            raise no_answer(self.url, f"{self.url} did not answer {method} {path}", error) from None
        named = {name.lower(): text for name, text in answer.headers.items()}
        return ProbeReply(answer.status_code, named, found, f"{method} {path}", headers["accept"])


_PATH = "/tooling/subscribe"
_PORTS = {"http": 80, "https": 443}
_WAIT_S = 30.0
_MIN_TIMEOUT_S = 0.001  # a socket timeout of 0 would mean non-blocking
_READ_BYTES = 1 << 16


class Listener:
    """A subscription to one label, starting at one place."""

    def __init__(self, probe: Probe, label: bytes, from_seq: int, *, wait_s: float = _WAIT_S) -> None:
        self._wait_s = wait_s
        where = urlsplit(probe.url)
        host = where.hostname or ""
        self._ends = monotonic() + self._wait_s  # deadline for the upgrade response
        try:
            self._socket = socket.create_connection((host, where.port or _PORTS[where.scheme]), wait_s)
            if where.scheme == "https":
                tls = probe.tls or trusting(probe.url)
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise Unavailable(f"{probe.url} did not answer {_PATH}: {error}") from None
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._events: deque[Event] = deque()
        target = f"{where.path}{_PATH}?label={label.hex()}&from={from_seq}"
        self._socket.sendall(self._frames.send(Request(host=where.netloc, target=target)))
        try:
            answer = self._event()
        except BaseException:
            self._socket.close()
            raise
        if isinstance(answer, RejectConnection) and answer.status_code in (NOT_FOUND, METHOD_NOT_ALLOWED):
            raise Skipped(f"the hub does not offer {_PATH}")
        expect(isinstance(answer, AcceptConnection), f"{_PATH} was not upgraded to a WebSocket")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def item(self) -> StreamItem:
        """Wait for the next entry."""
        self._ends = monotonic() + self._wait_s
        whole = b""
        while True:
            match self._event():
                case BytesMessage(data=part, message_finished=finished):
                    whole += part
                    if finished:
                        return StreamItem.decode(whole)
                case Ping() as ping:
                    self._socket.sendall(self._frames.send(ping.response()))
                case CloseConnection(code=code):
                    raise Failed(f"the hub closed the subscription with code {code}")

    def _event(self) -> Event:
        while not self._events:
            try:
                self._socket.settimeout(max(self._ends - monotonic(), _MIN_TIMEOUT_S))
                data = self._socket.recv(_READ_BYTES)
                self._frames.receive_data(data or None)
            except TimeoutError:
                raise Failed(f"{_PATH} sent no complete message for {self._wait_s:g} s") from None
            except OSError as error:
                raise Unavailable(f"the subscription broke: {error}") from None
            except ProtocolError as error:
                raise Failed(f"{_PATH} violates the WebSocket protocol: {error}") from None
            self._events.extend(self._frames.events())
        return self._events.popleft()
