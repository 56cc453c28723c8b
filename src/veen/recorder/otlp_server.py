"""The endpoint for logs of OpenTelemetry exporters: `POST /v1/logs`, OTLP/HTTP.

A request succeeds once its records are on disk. If the response is lost, the exporter repeats the request, which is
recognized by its digest.
"""

import asyncio
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import h11

from plumbing.http import peer_address
from veen.core import Malformed, Unavailable
from veen.core.limits import MAX_MSG_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder import otlp
from veen.recorder.connections import HANDSHAKE_S, Connection, Connections
from veen.recorder.normalize import Defaults
from veen.recorder.spool import SpoolWriter

PATH = "/v1/logs"
MAX_REQUEST_BYTES = 4 * MAX_MSG_BYTES
MAX_UNPACKED_BYTES = 8 * MAX_MSG_BYTES
MAX_CONNECTIONS = 128
IDLE_S = 60.0  # between requests
REQUEST_S = 30.0  # for a whole request, and for sending its response
_RETRY_AFTER = "retry-after", "1"
_READ_BYTES = 65_536
_MS = 1_000_000
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class OtlpAnswer:
    """An HTTP response."""

    status: int
    body: bytes = b""
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


class _Rejected(Exception):
    """A rejected request, with its response."""

    def __init__(self, status: int, reason: str, *headers: tuple[str, str]) -> None:
        super().__init__(reason)
        self.answer = OtlpAnswer(status, reason.encode(), headers=headers)


class OtlpServer:
    """The OTLP endpoint, as an async context manager."""

    def __init__(
        self,
        writer: SpoolWriter,
        defaults: Defaults,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        refusal: Callable[[RecordEvent], str | None] = lambda event: None,
        notify: Callable[[str], None] = lambda text: None,
        idle_s: float = IDLE_S,
        request_s: float = REQUEST_S,
        handshake_s: float = HANDSHAKE_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`refusal` returns why an event will be set aside instead of recorded; the exporter is informed.

        A request that takes longer than `request_s` is closed without a response; the exporter repeats it.
        """
        self._writer = writer
        self._refusal = refusal
        self._defaults = defaults
        self._address = host, port
        self._idle_s = idle_s
        self._request_s = request_s
        self._connections = Connections(
            self._serve, tls=tls, max_connections=max_connections, handshake_s=handshake_s, notify=notify
        )
        self._local = peer_address.is_loopback(host)
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._connections.start(*self._address, _READ_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._connections.stop()

    @property
    def port(self) -> int:
        return self._connections.port

    async def _serve(self, connection: Connection) -> None:
        wire, stream = h11.Connection(h11.SERVER), connection.writer
        while True:
            try:
                found = await self._request(wire, connection.reader, stream)
                if found is None:
                    return
                with connection.storing():
                    answer = await self._answer(*found)
            except _Rejected as rejected:
                answer = rejected.answer
            except h11.RemoteProtocolError as error:
                answer = OtlpAnswer(error.error_status_hint, b"invalid HTTP request")
            if wire.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                stream.write(_encode(wire, answer))
                async with asyncio.timeout(self._request_s):
                    await stream.drain()
            if wire.our_state is not h11.DONE or wire.their_state is not h11.DONE:
                return
            wire.start_next_cycle()

    async def _request(
        self, wire: h11.Connection, reader: asyncio.StreamReader, stream: asyncio.StreamWriter
    ) -> tuple[h11.Request, bytes] | None:
        """The next request of a connection; None at its end."""
        request: h11.Request | None = None
        body = bytearray()
        is_begun = False
        async with asyncio.timeout(self._idle_s) as deadline:
            while True:
                event = wire.next_event()
                if event is h11.NEED_DATA:
                    if wire.they_are_waiting_for_100_continue:
                        stream.write(wire.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                    data = await reader.read(_READ_BYTES)
                    if not is_begun:
                        is_begun = True
                        deadline.reschedule(asyncio.get_running_loop().time() + self._request_s)
                    wire.receive_data(data)
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > MAX_REQUEST_BYTES:
                        raise _Rejected(413, f"the request has more than {MAX_REQUEST_BYTES} bytes")
                elif isinstance(event, h11.EndOfMessage):
                    assert request is not None
                    return request, bytes(body)
                else:
                    return None

    async def _answer(self, request: h11.Request, body: bytes) -> OtlpAnswer:
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in request.headers}
        self._check_asked_here(headers)
        if request.target.partition(b"?")[0] != PATH.encode():
            raise _Rejected(404, f"unknown path; use {PATH}")
        if request.method != b"POST":
            raise _Rejected(405, "use POST", ("allow", "POST"))
        form = headers.get("content-type", "").partition(";")[0].strip().lower()
        if form not in (otlp.PROTOBUF, otlp.JSON):
            raise _Rejected(415, f"the content type must be {otlp.PROTOBUF} or {otlp.JSON}")
        encoding = headers.get("content-encoding", "identity").strip().lower()
        async with self._lock:  # one at a time: decoding can take seconds and many times the memory of the request
            return await asyncio.to_thread(self._store, body, encoding, form)

    def _check_asked_here(self, headers: Mapping[str, str]) -> None:
        """Reject cross-origin requests to a loopback endpoint: a web page may have sent the browser here."""
        if self._local and not peer_address.is_local_request(headers.get("host", ""), headers.get("origin")):
            raise _Rejected(403, "the Host or Origin header is not that of this endpoint")

    def _store(self, body: bytes, encoding: str, form: str) -> OtlpAnswer:
        """Runs in a thread, so that other connections are served meanwhile."""
        data = _unpacked(body, encoding)
        try:
            exported = otlp.export(otlp.decode(data, form), data, self._defaults, time.time_ns() // _MS)
            kept = self._writer.append(exported.events, exported.digest, again=True)
        except otlp.RequestTooLarge as error:
            raise _Rejected(413, str(error)) from None
        except Unavailable:
            raise _Rejected(503, "the disk failed", _RETRY_AFTER) from None
        except (Malformed, ValueError) as error:
            raise _Rejected(400, str(error)) from None
        if not kept:
            raise _Rejected(503, "the spool is full", _RETRY_AFTER)
        return OtlpAnswer(200, otlp.encode(self._with_refusals(exported).response(), form), form)

    def _with_refusals(self, exported: otlp.OtlpExport) -> otlp.OtlpExport:
        """Count events that will be set aside as rejected."""
        reasons = [reason for event in exported.events if (reason := self._refusal(event)) is not None]
        if not reasons:
            return exported
        reason = f"{exported.reason}; set aside: {reasons[0]}" if exported.reason else f"set aside: {reasons[0]}"
        return replace(exported, rejected=exported.rejected + len(reasons), reason=reason)


def _unpacked(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise _Rejected(415, f"unsupported content encoding {encoding[:40]!r}; use gzip")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        data = unpacker.decompress(body, MAX_UNPACKED_BYTES + 1)
    except zlib.error:
        raise _Rejected(400, "the body is not gzip") from None
    if len(data) > MAX_UNPACKED_BYTES:
        raise _Rejected(413, f"the request has more than {MAX_UNPACKED_BYTES} bytes when unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise _Rejected(400, "the body is not one complete gzip member")
    return data


def _encode(wire: h11.Connection, answer: OtlpAnswer) -> bytes:
    headers = [("content-type", answer.content_type), ("content-length", str(len(answer.body))), *answer.headers]
    if wire.their_state is not h11.DONE:
        headers.append(("connection", "close"))
    parts = (
        wire.send(h11.Response(status_code=answer.status, headers=headers)),
        wire.send(h11.Data(data=answer.body)),
        wire.send(h11.EndOfMessage()),
    )
    return b"".join(part for part in parts if part)
