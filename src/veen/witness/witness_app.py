"""The HTTP service of a witness.

    POST /v1/cosign    cosign request -> cosignature
    POST /v1/reset     reset request -> cosignature
    POST /v1/held      held request -> held labels, signed
    GET  /v1/witness   the public key of the witness, JSON
    GET  /healthz, /metrics

Requests and answers are CBOR; errors are the envelope of a hub (spec §10.6). One worker judges one request at a time,
because the answer to each depends on what the one before stored. The queue in front of it is bounded.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from plumbing.background import Background, Worker
from plumbing.http import HttpServer, HttpSettings
from plumbing.http.message import Request, Respond, Response, WebSocketHandler
from plumbing.json_log import JsonLog
from veen.core import Malformed, Refused, Unavailable, Unverified, strict_json
from veen.core.admission import STATUS
from veen.core.cbor import Wire
from veen.core.cosignature import CosignRequest, Forked, HeldRequest, ResetRequest
from veen.core.envelopes import ErrorEnvelope
from veen.core.limits import MAX_TEXT_BYTES, SERVER_VERSION
from veen.witness.witness_dir import WitnessDir

MAX_QUEUED = 256
MAX_BODY_BYTES = 1 << 19  # a record with the maximum number of keys
CBOR, JSON = b"application/cbor", b"application/json"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
_RETRY_AFTER_S = 1
_GRACE_S = 5.0
_MAX_CONNECTIONS = 256
W = TypeVar("W", bound=Wire)
Decide = Callable[[], Wire]


class WitnessMetrics:
    """The counters of one witness."""

    def __init__(self, state: WitnessDir) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.cosigned = Counter("veen_witness_cosigned", "cosigned checkpoints", registry=r)
        self.resets = Counter("veen_witness_resets", "cosigned recoveries", registry=r)
        self.refused = Counter("veen_witness_refused", "refused requests", ["code", "detail_enum"], registry=r)
        self.queued = Gauge("veen_witness_queue_depth", "requests that wait for an answer", registry=r)
        for name, text, read in (
            ("veen_witness_hubs", "hubs of which the witness holds something", lambda: state.hub_count),
            ("veen_witness_labels", "labels of which the witness holds a checkpoint", lambda: state.label_count),
            ("veen_witness_forks", "stored proofs that a hub signed two histories", lambda: state.forks),
        ):
            Gauge(name, text, registry=r).set_function(read)


@dataclass(slots=True)
class WitnessApp:
    """The application that the HTTP server calls."""

    state: WitnessDir
    log: JsonLog
    loop: asyncio.AbstractEventLoop
    worker: Worker
    metrics: WitnessMetrics = field(init=False)
    routes: dict[str, Callable[[bytes], Decide]] = field(init=False)
    _queued: int = 0

    def __post_init__(self) -> None:
        self.metrics = WitnessMetrics(self.state)
        self.routes = {
            "/v1/cosign": lambda body: partial(self.state.cosign, _decoded(CosignRequest, body)),
            "/v1/reset": lambda body: partial(self.state.reset, _decoded(ResetRequest, body)),
            "/v1/held": lambda body: partial(self.state.held, _decoded(HeldRequest, body)),
        }

    # The server calls these.

    def body_limit(self, method: str, path: str) -> int | None:
        return MAX_BODY_BYTES if method == "POST" and path in self.routes else None

    def too_large(self, head: Request) -> Response:
        return refusal(Refused("E.LIMIT", "the body is too large", detail={"max_allowed": MAX_BODY_BYTES}))

    def refused(self, status: int, reason: str, head: Request) -> Response:
        code = "E.UNAVAILABLE" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "E.BAD_REQUEST"
        return refusal(Refused(code, reason or HTTPStatus(status).phrase.lower()), status)

    def upload(self, head: Request) -> Response | None:
        return None

    def shortcut(self, head: Request) -> None:
        return None

    def websocket(self, head: Request) -> WebSocketHandler | Response:
        return refusal(Refused("E.NOT_FOUND", "a witness has no subscriptions"))

    def handle(self, request: Request, respond: Respond) -> None:
        method = "GET" if request.method == "HEAD" else request.method
        if method == "POST" and request.path in self.routes:
            self._queue(request, respond)
        elif method == "GET" and request.path in ("/healthz", "/v1/witness"):
            shown: strict_json.Json = {
                "witness_pk": self.state.key.public_key.hex(),
                "hubs": self.state.hub_count,
                "labels": self.state.label_count,
                "forks": self.state.forks,
                "server_version": SERVER_VERSION,
            }
            respond(Response(200, strict_json.encode(shown), JSON))
        elif method == "GET" and request.path == "/metrics":
            self.metrics.queued.set(self._queued)
            respond(Response(200, generate_latest(self.metrics.registry), PROMETHEUS))
        else:
            respond(self._refuse(Refused("E.NOT_FOUND", f"there is no {request.method} {request.path[:200]}")))

    def _queue(self, request: Request, respond: Respond) -> None:
        if self._queued >= MAX_QUEUED:
            busy = "too many requests wait for this witness"
            respond(self._refuse(Refused("E.UNAVAILABLE", busy, retry_after=_RETRY_AFTER_S)))
            return
        self._queued += 1
        path, body, is_lost = request.path, request.body, request.is_lost

        def job() -> None:
            outcome: Wire | Exception
            try:
                if is_lost():
                    raise Unavailable("the client is gone")
                outcome = self.routes[path](body)()
            except Exception as error:  # noqa: BLE001  the worker must go on
                outcome = error
            self.loop.call_soon_threadsafe(self._answer, path, outcome, respond)

        self.worker.add(job)

    def _answer(self, path: str, outcome: Wire | Exception, respond: Respond) -> None:
        self._queued -= 1
        match outcome:
            case Wire():
                if path == "/v1/cosign":
                    self.metrics.cosigned.inc()
                elif path == "/v1/reset":
                    self.metrics.resets.inc()
                    self.log.event("warn", "reset")
                respond(Response(200, outcome.encode(), CBOR))
            case Forked():
                held = outcome.proof.held
                self.log.event(
                    "error",
                    "fork",
                    hub_id=outcome.proof.identity.hub_id.hex(),
                    label=held.label_curr.hex(),
                    upto_seq=held.upto_seq,
                )
                respond(self._refuse(outcome))
            case Refused():
                respond(self._refuse(outcome))
            case Unverified():
                respond(self._refuse(Refused("E.FORBIDDEN", f"{outcome.what}: {outcome.reason}")))
            case _:
                # The text may contain a path, which belongs in the log only.
                self.log.failed(path, outcome)
                respond(self._refuse(Refused("E.UNAVAILABLE", "the witness cannot read or write its state")))

    def _refuse(self, refused: Refused) -> Response:
        self.metrics.refused.labels(refused.code, refused.detail_enum or "").inc()
        if self.log.may_log("refused"):
            row = {"code": refused.code, "detail_enum": refused.detail_enum, "error": refused.message}
            self.log.event("warn", "refused", **row)
        return refusal(refused)


def refusal(error: Refused, status: int | None = None) -> Response:
    """The error envelope."""
    short = Refused(
        error.code,
        error.message.encode()[:MAX_TEXT_BYTES].decode(errors="ignore"),
        detail_enum=error.detail_enum,
        detail=error.detail,
        retry_after=error.retry_after,
    )
    headers = () if error.retry_after is None else ((b"retry-after", str(error.retry_after).encode()),)
    return Response(status or STATUS[error.code], ErrorEnvelope.of(short).encode(), CBOR, headers)


def _decoded(cls: type[W], body: bytes) -> W:
    """A decoded request. A decoding error here is the sender's fault; the same error from a file is not."""
    try:
        return cls.decode(body)
    except Malformed as error:
        raise Refused("E.BAD_REQUEST", f"{error.what}: {error.reason}") from None


@asynccontextmanager
async def serving(
    state: WitnessDir,
    log: JsonLog,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    background: Background | None = None,
) -> AsyncIterator[HttpServer]:
    """Serve a witness. The caller closes its directory afterwards."""
    worker = (background or Background()).worker("witness")
    loop = asyncio.get_running_loop()
    server = HttpServer(log.failed)
    settings = HttpSettings(max_connections=_MAX_CONNECTIONS, makes_room=True)
    try:
        await server.start(WitnessApp(state, log, loop, worker), host, port, tls=tls, settings=settings)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}") from None
    log.event("info", "started", witness_pk=state.key.public_key.hex(), listen=f"{host}:{server.port}")
    try:
        yield server
    finally:
        await server.stop(_GRACE_S)
        await loop.run_in_executor(None, worker.close)
        log.stopped()
