"""Requests to a hub as raw as a check wants them, and answers read as strictly as the tables allow."""

import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import httpx
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, RejectConnection, Request
from wsproto.utilities import ProtocolError

from veen.client.exchange import BlockingExchange, reason_of
from veen.core import Malformed, Refused, Unavailable, strict_json, wire_json
from veen.core.admission import BY_DETAIL, STATUS
from veen.core.cbor import Wire
from veen.core.envelopes import ErrorEnvelope, StreamItem
from veen.core.limits import MAX_MSG_BYTES, MAX_PAGE_BYTES
from veen.core.msg import Msg
from veen.core.strict_json import Json
from veen.selftest.verdict import Failed, Skipped, expect

W = TypeVar("W", bound=Wire)

CBOR, JSON, OCTETS = "application/cbor", "application/json", "application/octet-stream"
OK, NOT_FOUND, METHOD_NOT_ALLOWED, UNSUPPORTED, TOO_MANY, UNAVAILABLE = 200, 404, 405, 415, 429, 503
SUBMIT_HEAD = b"\xa2\x01\x01\x02"  # {1: 1, 2: msg}: the rest of a submit request is the encoded MSG
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_BUSY_ATTEMPTS, _LONGEST_WAIT_S = 5, 5
_MOST_BYTES = 4 * MAX_PAGE_BYTES + MAX_MSG_BYTES  # a page in JSON, where each byte is two digits


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    asked: str  # for what is said when it is wrong
    form: str  # of the request; the answer's must be the same

    def read(self, cls: type[W]) -> W:
        """The object in the body of a success."""
        if self.status != OK:
            raise Failed(f"{self.asked} answered {self.status}{self._said()}")
        return self._decode(cls)

    def offered(self, cls: type[W]) -> W:
        """As `read`, for an endpoint that a hub may leave out."""
        if self.status in (NOT_FOUND, METHOD_NOT_ALLOWED):
            raise Skipped(f"the hub does not offer {self.asked}")
        return self.read(cls)

    def error(self) -> ErrorEnvelope:
        """The error envelope of a refusal, under the status of its code. Spec §10.6."""
        expect(self.status != OK, f"{self.asked} was accepted")
        expect(400 <= self.status < 600, f"{self.asked} answered {self.status}, which is no error status")
        envelope = self._decode(ErrorEnvelope)
        wanted = STATUS.get(envelope.code)
        expect(wanted is not None, f"{self.asked} answered with an unknown code, {envelope.code!r}")
        expect(self.status == wanted, f"{self.asked} answered {envelope.code} under {self.status}, not {wanted}")
        return envelope

    def refused(self) -> Refused:
        return self.error().refused()

    def expect_code(self, code: str) -> Refused:
        """A refusal of an endpoint itself."""
        refused = self.refused()
        expect(refused.code == code, f"{self.asked} answered {refused.code}, not {code}")
        return refused

    def expect_row(self, name: str) -> Refused:
        """A refusal by one row of the admission table. Spec §8.2: `detail_enum` may be missing, but not another."""
        row = BY_DETAIL[name]
        expect(self.status != OK, f"accepted, where {row.code}/{name} is due")
        refused = self.refused()
        found = (refused.code, refused.stage, refused.detail_enum or name)
        wanted = (row.code, str(row.stage), name)
        shown, due = ("{} {} {}".format(*triple) for triple in (found, wanted))
        expect(found == wanted, f"refused with {shown}, not {due}")
        return refused

    def retry_after(self) -> int | None:
        """The header's seconds, where it names some."""
        said = self.headers.get("retry-after", "")
        return int(said) if said.isascii() and said.isdigit() else None

    def json(self) -> dict[str, Json]:
        """The JSON object in the body of a success."""
        expect(self.status == OK, f"{self.asked} answered {self.status}")
        found = strict_json.decode(self.body, self.asked)
        if not isinstance(found, dict):
            raise Failed(f"{self.asked} answered with something else than an object")
        return found

    def _decode(self, cls: type[W]) -> W:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        expect(kind == self.form, f"{self.asked} answered {kind or 'without a content-type'} to {self.form}")
        try:
            return wire_json.decode(cls, self.body) if self.form == JSON else cls.decode(self.body)
        except Malformed as error:
            raise Failed(f"{self.asked} answered {self.status} with a body that is none: {error}") from None

    def _said(self) -> str:
        try:
            decoded = (
                wire_json.decode(ErrorEnvelope, self.body) if self.form == JSON else ErrorEnvelope.decode(self.body)
            )
        except Malformed:
            return ""
        return f": {decoded.refused()}"


class Probe:
    """One hub, spoken to over HTTP. Safe on several threads."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, *, answer_s: float = _ANSWER_S) -> None:
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
                verify=True if tls is None else tls,
                # Shorter than any hub keeps an idle connection, so that none is found closed.
                limits=httpx.Limits(keepalive_expiry=1.0),
                headers={"accept-encoding": "identity", "user-agent": "veen-selftest"},
                trust_env=False,
            )
        )

    def close(self) -> None:
        self._exchange.close()

    def get(self, path: str) -> ProbeReply:
        return self._ask("GET", path, None, JSON)

    def post(self, path: str, body: bytes | Wire) -> ProbeReply:
        """Ask in CBOR."""
        return self._ask("POST", path, body.encode() if isinstance(body, Wire) else body, CBOR)

    def post_json(self, path: str, body: bytes | Wire) -> ProbeReply:
        """Ask in JSON, which a hub may leave out."""
        reply = self._ask("POST", path, wire_json.encode(body) if isinstance(body, Wire) else body, JSON)
        if reply.status == UNSUPPORTED:
            raise Skipped("the hub does not speak JSON")
        return reply

    def put(self, path: str, body: bytes, authorization: str | None = None) -> ProbeReply:
        """Bring bytes that are no object."""
        return self._ask("PUT", path, body, OCTETS, authorization)

    def submit(self, message: Msg | bytes, *, patient: bool = True) -> ProbeReply:
        """Submit a message, or the bytes of what claims to be one. A spent rate is waited for, if it says how long."""
        body = SUBMIT_HEAD + (message if isinstance(message, bytes) else message.encode())
        reply = self.post("/v1/submit", body)
        for _ in range(_BUSY_ATTEMPTS if patient else 0):
            wait = reply.retry_after()
            if reply.status != TOO_MANY or wait is None or wait > _LONGEST_WAIT_S:
                break
            time.sleep(wait)
            reply = self.post("/v1/submit", body)
        return reply

    def _ask(
        self, method: str, path: str, body: bytes | None, form: str, authorization: str | None = None
    ) -> ProbeReply:
        """Busy is no answer: it is asked again, a few times. What never comes raises `Unavailable`."""
        headers = {"accept": form} if body is None else {"content-type": form, "accept": form}
        if authorization is not None:
            headers["authorization"] = authorization
        for _ in range(_BUSY_ATTEMPTS - 1):
            reply = self._once(method, path, body, headers)
            if reply.status != UNAVAILABLE:
                return reply
            wait = reply.retry_after()
            time.sleep(1 if wait is None else min(wait, _LONGEST_WAIT_S))
        return self._once(method, path, body, headers)

    def _once(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> ProbeReply:
        try:
            answer, found = self._exchange(
                method,
                path,
                limit_s=self._answer_s,
                connect_s=_CONNECT_S,
                most=_MOST_BYTES,
                content=body,
                headers=headers,
            )
        except Malformed:
            raise Failed(f"{method} {path} answered more than {_MOST_BYTES} bytes") from None
        except httpx.TransportError as error:
            raise Unavailable(f"{self.url} did not answer {method} {path}: {reason_of(error)}") from None
        named = {name.lower(): text for name, text in answer.headers.items()}
        return ProbeReply(answer.status_code, named, found, f"{method} {path}", headers["accept"])


_PATH = "/tooling/subscribe"
_PORTS = {"http": 80, "https": 443}
_WAIT_S = 30.0
_LEAST_S = 0.001  # a socket's timeout of 0 would mean something else
_READ_BYTES = 1 << 16


class Listener:
    """One subscription to one label, from one place on."""

    def __init__(self, probe: Probe, label: bytes, from_seq: int, *, wait_s: float = _WAIT_S) -> None:
        self._wait_s = wait_s
        where = urlsplit(probe.url)
        host = where.hostname or ""
        self._ends = monotonic() + self._wait_s  # for the answer that makes it a subscription
        try:
            self._socket = socket.create_connection((host, where.port or _PORTS[where.scheme]), wait_s)
            if where.scheme == "https":
                tls = probe.tls or ssl.create_default_context()
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
        expect(isinstance(answer, AcceptConnection), f"{_PATH} did not become a WebSocket")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def item(self) -> StreamItem:
        """The next entry, waited for."""
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
                    raise Failed(f"the hub ended the subscription: {code}")

    def _event(self) -> Event:
        while not self._events:
            try:
                self._socket.settimeout(max(self._ends - monotonic(), _LEAST_S))
                data = self._socket.recv(_READ_BYTES)
                self._frames.receive_data(data or None)
            except TimeoutError:
                raise Failed(f"{_PATH} sent nothing whole for {self._wait_s:g} s") from None
            except OSError as error:
                raise Unavailable(f"the subscription broke: {error}") from None
            except ProtocolError as error:
                raise Failed(f"{_PATH} does not speak as a WebSocket: {error}") from None
            self._events.extend(self._frames.events())
        return self._events.popleft()
