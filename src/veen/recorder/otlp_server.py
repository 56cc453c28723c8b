"""The endpoint for logs of OpenTelemetry exporters: `POST /v1/logs`, OTLP/HTTP.

A request succeeds once its records are on disk. If the response is lost, the exporter repeats the request, which is
recognized by its digest.
"""

import asyncio
import logging
import ssl
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from types import TracebackType
from typing import Self

from plumbing.http import HttpServer, HttpSettings, Request, Respond, Response, peer_address
from veen.core import Malformed, Unavailable
from veen.core.limits import MAX_MSG_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder import otlp
from veen.recorder.connections import HANDSHAKE_S, NOTIFY_EVERY_S
from veen.recorder.normalize import Defaults
from veen.recorder.spool import SpoolWriter

PATH = "/v1/logs"
MAX_REQUEST_BYTES = 4 * MAX_MSG_BYTES
MAX_UNPACKED_BYTES = 8 * MAX_MSG_BYTES
MAX_CONNECTIONS = 128
IDLE_S = 60.0  # between requests
REQUEST_S = 30.0  # for a whole request, and for sending its response
_STOP_S = 1.0
_RETRY_AFTER = b"retry-after", b"1"
_MS = 1_000_000


class _Rejected(Exception):
    """A rejected request, with its response."""

    def __init__(self, status: int, reason: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(reason)
        self.response = Response(status, reason.encode(), headers=headers)


class OtlpServer:
    """The OTLP endpoint, as an async context manager. It is the app of an HTTP server."""

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
        self._tls = tls
        self._settings = HttpSettings(
            max_connections=max_connections,
            makes_room=True,
            max_connections_per_address=max_connections,
            handshake_timeout_s=handshake_s,
            header_timeout_s=request_s / 2,
            body_timeout_s=request_s / 2,
            write_timeout_s=request_s,
            min_bytes_per_s=1 << 40,  # a longer body gets no more time
            idle_timeout_s=idle_s,
        )
        self._notify = notify
        self._notified_at = float("-inf")
        self._local = peer_address.is_loopback(host)
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = HttpServer(_log_bug)
        self._server.on_full = self._on_full

    async def __aenter__(self) -> Self:
        await self._server.start(self, *self._address, tls=self._tls, settings=self._settings)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._server.stop(_STOP_S)
        await asyncio.gather(*self._tasks)

    @property
    def port(self) -> int:
        return self._server.port

    def body_limit(self, method: str, path: str) -> int | None:
        return MAX_REQUEST_BYTES

    def too_large(self, head: Request) -> Response:
        return Response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"the request has more than %d bytes" % MAX_REQUEST_BYTES)

    def refused(self, status: int, reason: str, head: Request) -> Response | None:
        """Exporters retry after a broken connection, and drop the data after a 408."""
        if status == HTTPStatus.REQUEST_TIMEOUT:
            return None
        return Response(status, (reason or HTTPStatus(status).phrase).encode())

    def upload(self, head: Request) -> None:
        return None

    def shortcut(self, head: Request) -> None:
        return None

    def websocket(self, head: Request) -> Response:
        return Response(HTTPStatus.NOT_FOUND, f"unknown path; use {PATH}".encode())

    def handle(self, request: Request, respond: Respond) -> None:
        try:
            form, encoding = self._check(request)
        except _Rejected as rejected:
            respond(rejected.response)
            return
        task = asyncio.ensure_future(self._record(request.body, encoding, form, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check(self, request: Request) -> tuple[str, str]:
        """Content type and encoding of an acceptable request."""
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers.items()}
        # A web page may have sent the browser to a loopback endpoint: reject cross-origin requests.
        if self._local and not peer_address.is_local_request(headers.get("host", ""), headers.get("origin")):
            raise _Rejected(403, "the Host or Origin header is not that of this endpoint")
        if request.path != PATH:
            raise _Rejected(404, f"unknown path; use {PATH}")
        if request.method != "POST":
            raise _Rejected(405, "use POST", (b"allow", b"POST"))
        form = headers.get("content-type", "").partition(";")[0].strip().lower()
        if form not in (otlp.PROTOBUF, otlp.JSON):
            raise _Rejected(415, f"the content type must be {otlp.PROTOBUF} or {otlp.JSON}")
        return form, headers.get("content-encoding", "identity").strip().lower()

    async def _record(self, body: bytes, encoding: str, form: str, respond: Respond) -> None:
        async with self._lock:  # one at a time: decoding can take seconds and many times the memory of the request
            try:
                response = await asyncio.to_thread(self._store, body, encoding, form)
            except _Rejected as rejected:
                response = rejected.response
            except Exception as error:  # noqa: BLE001  the exporter gets a response in any case
                _log_bug(PATH, error)
                response = Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error")
        respond(response)

    def _on_full(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._notified_at >= NOTIFY_EVERY_S:
            self._notified_at = now
            most = self._settings.max_connections
            self._notify(f"all {most} connections are in use; each new one closes the one idle for longest")

    def _store(self, body: bytes, encoding: str, form: str) -> Response:
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
        return Response(200, otlp.encode(self._with_refusals(exported).response(), form), form.encode())

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


def _log_bug(place: str, error: BaseException) -> None:
    logging.getLogger("veen.recorder").error("bug in the OTLP endpoint at %s", place, exc_info=error)
