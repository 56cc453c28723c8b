"""The endpoints of a hub: the data plane under /v1, tooling, health. Spec §10. No proof needs the tooling."""

import re
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeVar
from urllib.parse import parse_qsl

from plumbing.http.message import Request, Respond, Response, Upload, WebSocketHandler
from veen.core import (
    CapPresentation,
    CapToken,
    Checkpoint,
    Limits,
    Malformed,
    Receipt,
    Refused,
    Unverified,
    control_stream,
    naming,
    signing,
    strict_json,
    wire_json,
)
from veen.core.admin import OperatorRevocation
from veen.core.admission import BY_DETAIL
from veen.core.cap_token import Capability, capability_type, token_of
from veen.core.cbor import Wire
from veen.core.checkpoint import RequestedCheckpoint
from veen.core.envelopes import (
    AuthorizeResponse,
    CheckpointOrder,
    CheckpointRequest,
    CheckpointResponse,
    ClockAcceptance,
    ConsistencyRequest,
    Equivocation,
    KeyRelease,
    ProofAtRequest,
    ProofRequest,
    ReceiptRequest,
    ReleasedKeys,
    RevocationRequest,
    RotationRequest,
    StreamRegistration,
    StreamRequest,
    WitnessRequest,
)
from veen.core.handover import HandOver
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_UPLOAD_SKEW_SEC, SERVER_VERSION
from veen.core.profile import LoweredLimits
from veen.core.retention import Hold, RetentionPolicy, RetentionRequest
from veen.hub import hub_openapi, responses
from veen.hub.admission_rules import Admission, Prefilter, Rules
from veen.hub.admission_state import Outcome
from veen.hub.config import HubConfig, need_operator
from veen.hub.epochs import StreamEpochs
from veen.hub.hub_time import ClockWatch
from veen.hub.lost_entries import LostEntries
from veen.hub.read_access import ATTACHMENTS, SUBSCRIBE, ReadGate
from veen.hub.read_api import PageMemoryBudget, ReadApi, Subscriber, Subscriptions
from veen.hub.read_executor import ReadExecutor
from veen.hub.retention_run import RetentionRun
from veen.hub.status import HubStatusPage
from veen.hub.submit import SubmitPipeline
from veen.hub.submit_api import SubmitApi, respond_submitted
from veen.hub.uploads import Uploads
from veen.hub.witness_records import WitnessRecords

_SMALL_BODY = 4096
_TOOLING_BODY = 1 << 17  # the largest capability in JSON takes more than half of it
_BATCH_BODY = 1 << 26
_SEQ = re.compile(r"[1-9][0-9]{0,19}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
Handler = Callable[[Request, Respond], None]
W = TypeVar("W", bound=Wire)


@dataclass(slots=True)
class HubApp:
    """The application that the HTTP server calls. `routes` has every endpoint but uploads and subscriptions."""

    config: HubConfig
    rules: Rules
    prefilter: Prefilter
    executor: ReadExecutor
    reads: ReadApi
    pipeline: SubmitPipeline
    subscriptions: Subscriptions
    records: WitnessRecords
    lost_entries: LostEntries
    uploads: Uploads
    status: HubStatusPage
    clock: ClockWatch
    rotate: Callable[[RotationRequest, Callable[[HandOver | Refused], None]], None]
    release: Callable[[KeyRelease], ReleasedKeys]
    cosign: Callable[[bytes, int, Callable[[], None]], None]  # asks the witnesses
    retention: RetentionRun
    retention_pool: Executor
    streams: StreamEpochs
    pages: PageMemoryBudget = field(default_factory=PageMemoryBudget)
    gate: ReadGate = field(init=False)
    submits: SubmitApi = field(init=False)
    routes: dict[tuple[str, str], Handler] = field(init=False)

    def __post_init__(self) -> None:
        reads, records = self.reads, self.records
        self.gate = ReadGate(
            self.config,
            self.rules.hub_id,
            lambda: self.pipeline.hub_ts,
            lambda auth_ref: self.uploads.authorised(auth_ref),
        )
        self.submits = SubmitApi(self.rules, self.prefilter, self.pipeline)
        self.routes = {
            ("POST", "/v1/submit"): self.submits.submit,
            ("POST", "/v1/stream"): self._stream,
            ("POST", "/v1/receipt"): self._query(ReceiptRequest, reads.receipt),
            ("POST", "/v1/proof"): self._query(ProofRequest, reads.proof),
            ("POST", "/v1/checkpoint"): self._query(CheckpointRequest, reads.checkpoint),
            ("GET", "/healthz"): self._probe,
            ("GET", "/readyz"): self._probe,
            ("GET", "/metrics"): self._probe,
            ("GET", "/tooling/status"): self._get_status,
            ("GET", "/tooling/openapi.json"): self._get_openapi,
            ("POST", "/tooling/authorize"): self._authorize,
            ("GET", "/tooling/streams"): self._list_streams,
            ("POST", "/tooling/streams"): self._operator_event(
                StreamRegistration, lambda asked: control_stream.RegisteredStream(asked.stream_id)
            ),
            ("GET", "/tooling/epochs"): self._epochs,
            ("GET", "/tooling/time"): self._place_in_time,
            ("POST", "/tooling/revoke"): self._revoke,
            ("POST", "/tooling/clock"): self._accept_clock,
            ("POST", "/tooling/rotate-key"): self._rotate_key,
            ("POST", "/tooling/release-keys"): self._release_keys,
            ("POST", "/tooling/limits"): self._operator_event(Limits, self._lowered),
            ("GET", "/tooling/retention"): self._retention_rules,
            ("POST", "/tooling/retention/policy"): self._operator_event(RetentionPolicy, self._rule),
            ("POST", "/tooling/retention/hold"): self._operator_event(Hold, self._rule),
            ("POST", "/tooling/retention/run"): self._run_retention,
            ("POST", "/tooling/submit-batch"): self.submits.submit_batch,
            ("POST", "/tooling/proof"): self._query(
                ProofAtRequest, lambda query: reads.proof_at(query.label, query.stream_seq, query.upto_seq)
            ),
            # The inclusion proof of the older tree's last leaf in the newer tree proves consistency.
            ("POST", "/tooling/consistency"): self._query(
                ConsistencyRequest, lambda query: reads.proof_at(query.label, query.from_seq, query.to_seq)
            ),
            ("GET", "/tooling/origin"): lambda request, respond: self._answer(request, respond, records.origin),
            ("GET", "/tooling/handovers"): self._handovers,
            ("GET", "/tooling/checkpoints"): self._checkpoints,
            ("GET", "/tooling/equivocation"): lambda request, respond: self._answer(
                request, respond, records.evidence, long=True
            ),
            ("POST", "/tooling/equivocation"): self._query(Equivocation, records.store_equivocation),
            ("GET", "/tooling/recoveries"): self._recoveries,
            ("POST", "/tooling/receipt-check"): self._query(Receipt, self.lost_entries.check),
            ("POST", "/tooling/witness"): self._add_witness,
            ("GET", "/tooling/checkpoint"): self._newest_checkpoint,
            ("POST", "/tooling/checkpoint"): self._order_checkpoint,
            ("GET", "/tooling/cosigned"): self._cosigned,
        }

    # The server calls these.

    def body_limit(self, method: str, path: str) -> int | None:
        if path == "/tooling/submit-batch":
            return _BATCH_BODY
        if path.startswith(ATTACHMENTS):
            return self.uploads.max_bytes
        if (method, path) not in self.routes:
            return None
        if path.startswith("/tooling/"):
            return _TOOLING_BODY
        if path == "/v1/submit":  # JSON has two digits per byte; CBOR is checked again later
            return 2 * self.submits.max_body_bytes + _SMALL_BODY
        return _SMALL_BODY if method == "POST" else None

    def too_large(self, head: Request) -> Response:
        is_submit = head.path == "/v1/submit"
        refused = self.submits.too_large(head) if is_submit else Refused("E.LIMIT", "the body is too large")
        return responses.refusal(refused, as_json=responses.wants_json(head))

    def refused(self, status: int, reason: str, head: Request) -> Response:
        return responses.front_refusal(status, reason, head)

    def upload(self, head: Request) -> Upload | Response | None:
        """Start an attachment upload, the only PUT."""
        try:
            self.prefilter.check_peer(head.peer)
            return self.uploads.begin(head, _coid_in(head.path))
        except Refused as refused:
            return responses.refusal(refused, as_json=responses.wants_json(head))

    def handle(self, request: Request, respond: Respond) -> None:
        if request.method == "HEAD":
            request.method = "GET"  # the server omits the body
        handler = self.routes.get((request.method, request.path))
        try:
            self.gate.check(request)
            if handler:
                handler(request, respond)
            elif request.method == "GET" and request.path.startswith(ATTACHMENTS):
                coid = _coid_in(request.path)
                self.executor.answer(request, lambda: self.records.get_attachment(coid), respond)
            elif request.method == "GET" and request.path == SUBSCRIBE:
                raise Refused("E.BAD_REQUEST", "subscribe needs a WebSocket connection")
            else:
                raise _unknown(request)
        except Refused as refused:
            respond(responses.refusal(refused, as_json=responses.wants_json(request)))

    def shortcut(self, head: Request) -> Callable[[bytes, Respond], None] | None:
        return self.submits.shortcut(head) if (head.method, head.path) == ("POST", "/v1/submit") else None

    def websocket(self, head: Request) -> WebSocketHandler | Response:
        try:
            if head.path != SUBSCRIBE:
                raise _unknown(head)
            self.gate.check(head)
            label, start = _place_in(head.query)
            self.subscriptions.check_room()
        except Refused as refused:
            return responses.refusal(refused)
        return Subscriber(self.subscriptions, label, start or 1)

    # Endpoints.

    def _query(self, cls: type[W], work: Callable[[W], Wire]) -> Handler:
        """A handler that decodes the body and answers it on the thread pool."""

        def handle(request: Request, respond: Respond) -> None:
            as_json = responses.wants_json(request)
            self._answer(request, respond, lambda: work(responses.decode_request(cls, request.body, as_json)))

        return handle

    def _operator_event(self, cls: type[W], event_of: Callable[[W], control_stream.Event]) -> Handler:
        """A handler that logs an event for the operator."""

        def handle(request: Request, respond: Respond) -> None:
            need_operator(self.config, request.headers)
            as_json = responses.wants_json(request)
            event = event_of(responses.decode_request(cls, request.body, as_json))
            self.pipeline.log_event(event, partial(respond_submitted, respond, as_json=as_json))

        return handle

    def _answer(self, request: Request, respond: Respond, work: Callable[[], Wire], *, long: bool = False) -> None:
        as_json = responses.wants_json(request)
        self.executor.answer(request, lambda: responses.answer(work(), as_json=as_json), respond, long=long)

    def _stream(self, request: Request, respond: Respond) -> None:
        as_json = responses.wants_json(request)

        def page() -> Response:
            query = responses.decode_request(StreamRequest, request.body, as_json)
            self.pages.check(request)
            found = self.reads.page(query)
            shown = wire_json.encode(found.response()) if as_json else found.encode()
            return Response(200, self.pages.counted(shown, request), responses.JSON if as_json else responses.CBOR)

        self.executor.answer(request, page, respond, long=True)

    def _checkpoints(self, request: Request, respond: Respond) -> None:
        label, start = _place_in(request.query)
        self._answer(request, respond, lambda: self.records.checkpoints(label, start), long=True)

    def _newest_checkpoint(self, request: Request, respond: Respond) -> None:
        label, _ = _place_in(request.query)
        self._answer(request, respond, lambda: self.reads.newest_checkpoint(label))

    def _list_streams(self, request: Request, respond: Respond) -> None:
        need_operator(self.config, request.headers)
        given = _fields_in(request.query, (), ("after",))
        after = _hash_in(given["after"], "after") if "after" in given else b""
        self._answer(request, respond, lambda: self.streams.streams(after))

    def _epochs(self, request: Request, respond: Respond) -> None:
        given = _fields_in(request.query, ("stream",), ("epoch_min", "epoch_max"))
        stream_id = _hash_in(given["stream"], "stream")
        first, last = _number(given, "epoch_min"), _number(given, "epoch_max")
        self._answer(request, respond, lambda: self.streams.epochs(stream_id, first, last), long=True)

    def _place_in_time(self, request: Request, respond: Respond) -> None:
        given = _fields_in(request.query, ("label", "hub_ts"))
        label, hub_ts = _hash_in(given["label"], "label"), _number(given, "hub_ts") or 0
        self._answer(request, respond, lambda: self.streams.place_in_time(label, hub_ts))

    def _recoveries(self, request: Request, respond: Respond) -> None:
        label, _ = _place_in(request.query)
        self._answer(request, respond, lambda: self.lost_entries.recoveries(label))

    def _handovers(self, request: Request, respond: Respond) -> None:
        label = _place_in(request.query)[0] if request.query else None
        self._answer(request, respond, lambda: self.records.handovers(label), long=True)

    def _probe(self, request: Request, respond: Respond) -> None:
        respond(self.status.probe(request.path))

    def _get_status(self, request: Request, respond: Respond) -> None:
        respond(Response(200, strict_json.encode(self.status.as_json()), responses.JSON))

    def _get_openapi(self, request: Request, respond: Respond) -> None:
        respond(Response(200, _described(), responses.JSON))

    def _authorize(self, request: Request, respond: Respond) -> None:
        """Log a capability of a trusted issuer. A repeat gets the receipt of the first time."""
        as_json = responses.wants_json(request)

        def verified() -> Response:
            capability = responses.decode_request(_capability_type(request.body, as_json), request.body, as_json)
            self._check_capability(capability)
            self.executor.loop.call_soon_threadsafe(self._log_capability, capability, respond, as_json)
            return _NOT_YET

        self.executor.answer(request, verified, _unless_later(respond))

    def _check_capability(self, shown: Capability) -> None:
        """Every check that depends only on the capability and on fixed settings. Raises `Refused`."""
        token, invalid = token_of(shown), BY_DETAIL["CAP_INVALID"]
        if token.issuer_pk not in self.config.issuers:
            raise Refused("E.FORBIDDEN", "the issuer of the capability is not trusted by this hub")
        if isinstance(shown, CapPresentation):
            if shown.hub_id != self.rules.hub_id:
                raise invalid.refused(f"the capability is for hub {shown.hub_id.hex()}", hub_id=self.rules.hub_id.hex())
        elif not self.rules.bare_tokens:
            raise invalid.refused(
                "this hub requires a presentation: a token that its issuer signed for this hub",
                hub_id=self.rules.hub_id.hex(),
            )
        try:
            shown.verify()
        except Unverified as error:
            raise invalid.refused(str(error)) from None
        token.rate_under(self.rules.limits_in_force.registry.limits)

    def _log_capability(self, shown: Capability, respond: Respond, as_json: bool) -> None:
        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Refused):
                respond(responses.refusal(outcome, as_json=as_json))
                return
            logged = self.pipeline.capability(auth_ref)
            assert logged is not None, "a capability with a receipt is logged"
            answer = AuthorizeResponse(auth_ref, logged.expires_at, Receipt.decode(outcome))
            respond(responses.answer(answer, as_json=as_json))

        auth_ref = shown.auth_ref()
        self.pipeline.log_event(shown, done)

    def _revoke(self, request: Request, respond: Respond) -> None:
        """Log a revocation by the operator. It applies from now on, by the hub's time."""
        need_operator(self.config, request.headers)
        if not self.config.allow_revocation:
            raise Refused("E.FORBIDDEN", "this hub does not revoke: it was started without --allow-revocation")

        def event(given: RevocationRequest) -> OperatorRevocation:
            return OperatorRevocation(given.kind, given.target, given.reason, self.pipeline.hub_ts, given.ttl)

        self._operator_event(RevocationRequest, event)(request, respond)

    def _rotate_key(self, request: Request, respond: Respond) -> None:
        """Change to another signing key between two groups."""
        need_operator(self.config, request.headers)
        as_json = responses.wants_json(request)

        def done(outcome: HandOver | Refused) -> None:
            if isinstance(outcome, Refused):
                respond(responses.refusal(outcome, as_json=as_json))
            else:
                respond(responses.answer(outcome, as_json=as_json))

        self.rotate(responses.decode_request(RotationRequest, request.body, as_json), done)

    def _release_keys(self, request: Request, respond: Respond) -> None:
        """Prepare for the destruction of the retired keys."""
        need_operator(self.config, request.headers)
        self._query(KeyRelease, self.release)(request, respond)

    def _lowered(self, wanted: Limits) -> LoweredLimits:
        """The request has all limits, so that two operators cannot undo each other's change."""
        current = self.rules.limits_in_force.registry.limits
        refusal = current.refusal(wanted)
        if refusal:
            raise Refused("E.CONFLICT", refusal)
        return LoweredLimits(current, wanted)

    def _retention_rules(self, request: Request, respond: Respond) -> None:
        respond(responses.answer(self.retention.retention(), as_json=responses.wants_json(request)))

    def _rule(self, event: RetentionPolicy | Hold) -> RetentionPolicy | Hold:
        """A policy or a hold. It decides the next run."""
        self.retention.check_rule(event)
        return event

    def _run_retention(self, request: Request, respond: Respond) -> None:
        """Plan or prune on a thread of its own, and answer at the end. The run goes on if the operator disconnects."""
        need_operator(self.config, request.headers)
        as_json = responses.wants_json(request)
        wanted = responses.decode_request(RetentionRequest, request.body, as_json)
        by_age = not (wanted.is_erasure or wanted.dry)
        now = self.clock.pruning_time() if by_age else self.pipeline.hub_ts

        def work() -> Response:
            return responses.answer(self.retention.run(wanted, now), as_json=as_json)

        self.executor.answer_on(self.retention_pool, work, request, respond)

    def _cosigned(self, request: Request, respond: Respond) -> None:
        label, _ = _place_in(request.query)
        self._answer(request, respond, lambda: self.records.cosigned(label))

    def _order_checkpoint(self, request: Request, respond: Respond) -> None:
        """Log and store a checkpoint of a label, and answer when every witness was asked."""
        as_json = responses.wants_json(request)
        order = responses.decode_request(CheckpointOrder, request.body, as_json)
        self._check_order(order, request)

        def stored(label: bytes, upto_seq: int) -> None:
            self.cosign(label, upto_seq, lambda: self._answer(request, respond, partial(answer, label, upto_seq)))

        def answer(label: bytes, upto_seq: int) -> CheckpointResponse:
            return CheckpointResponse(self.records.checkpoint(label, upto_seq), SERVER_VERSION)

        self._prepare_checkpoint(request, respond, lambda: self.reads.plain_checkpoint(order.label), stored)

    def _check_order(self, order: CheckpointOrder, request: Request) -> None:
        """Raise unless the operator asks, or the subject of a capability. If admission is open, anyone may ask."""
        if order.sig is None or order.auth_ref is None or order.made_at is None:
            if self.rules.admission is not Admission.OPEN or b"authorization" in request.headers:
                need_operator(self.config, request.headers, "the operator's token or a signed order")
            return
        token, hub_ts = self.uploads.authorised(order.auth_ref), self.pipeline.hub_ts
        if abs(order.made_at - hub_ts) > MAX_UPLOAD_SKEW_SEC:
            raise Refused("E.UNAUTHORIZED", "the order is too old, or the clock is wrong", detail={"hub_ts": hub_ts})
        epoch = self.rules.profile.epoch(hub_ts)
        labels = (
            naming.label(self.rules.routing_key, stream_id, one)
            for stream_id in token.allow.stream_ids
            for one in {epoch, max(epoch - 1, 0)}
        )
        if order.label not in labels:
            raise Refused("E.FORBIDDEN", "the capability is not for the stream of this label")
        if not signing.is_valid(token.subject_pk, order.digest(self.rules.hub_id), order.sig):
            raise Refused("E.UNAUTHORIZED", "the subject of the capability did not sign the order")

    def _add_witness(self, request: Request, respond: Respond) -> None:
        """Store the cosignature of a known witness. It may be for a checkpoint that the witness asked for itself."""
        as_json = responses.wants_json(request)
        given = responses.decode_request(WitnessRequest, request.body, as_json)

        def prepared() -> Checkpoint:
            asked = CheckpointRequest(given.label, given.upto_seq)
            made = replace(self.reads.checkpoint(asked).checkpoint, witness_sigs=None)
            self.records.check_witness(given, made)
            return made

        def stored(label: bytes, upto_seq: int) -> None:
            self._answer(request, respond, lambda: self.records.add_witness(given))

        self._prepare_checkpoint(request, respond, prepared, stored)

    def _prepare_checkpoint(
        self, request: Request, respond: Respond, make: Callable[[], Checkpoint], stored: Callable[[bytes, int], None]
    ) -> None:
        """Make a checkpoint on the thread pool, log the event that asks for it, and store it. Then call `stored`."""
        as_json = responses.wants_json(request)
        loop = self.executor.loop

        def work() -> Response:
            made = make()
            label, upto_seq = made.label_curr, made.upto_seq
            if self.records.has_checkpoint(label, upto_seq):
                loop.call_soon_threadsafe(stored, label, upto_seq)
            else:
                event = RequestedCheckpoint(label, upto_seq, made.mmr_root)
                loop.call_soon_threadsafe(self.pipeline.log_event, event, partial(logged, made))
            return _NOT_YET

        def logged(made: Checkpoint, outcome: Outcome) -> None:
            if isinstance(outcome, Refused):
                respond(responses.refusal(outcome, as_json=as_json))
                return

            def store() -> Response:
                self.records.store_requested(made)
                loop.call_soon_threadsafe(stored, made.label_curr, made.upto_seq)
                return _NOT_YET

            self.executor.answer(request, store, _unless_later(respond))

        self.executor.answer(request, work, _unless_later(respond))

    def _accept_clock(self, request: Request, respond: Respond) -> None:
        """Follow the wall clock. The acceptance is durable before it takes effect, so that a restart knows it."""
        need_operator(self.config, request.headers)
        as_json = responses.wants_json(request)
        wall_ts = responses.decode_request(ClockAcceptance, request.body, as_json).wall_ts
        self.clock.check_accepted(wall_ts)

        def marked() -> Response:
            self.clock.mark_accepted(wall_ts)
            return _NOT_YET

        def follow(response: Response) -> None:
            if response is not _NOT_YET:
                respond(response)
                return
            try:
                self.clock.accept(wall_ts)
            except Refused as refused:
                respond(responses.refusal(refused, as_json=as_json))
            else:
                respond(Response(200, strict_json.encode(self.clock.as_json()), responses.JSON))

        self.executor.answer(request, marked, follow)


def _capability_type(body: bytes, as_json: bool) -> type[CapToken] | type[CapPresentation]:
    if not as_json:
        return capability_type(body)
    try:
        found = strict_json.decode(body, "capability")
    except Malformed as error:
        raise responses.as_refused(error) from None
    return CapPresentation if isinstance(found, dict) and "token" in found else CapToken


def _unknown(request: Request) -> Refused:
    first, *rest = request.path.strip("/").split("/")
    if rest and first.startswith("v") and first[1:].isdigit() and first != "v1":
        return Refused("E.VERSION", f"this hub supports v1, not {first[:20]}")
    return Refused("E.NOT_FOUND", f"there is no {request.method} {request.path[:200]}")


_NOT_YET = Response(200)


def _unless_later(respond: Respond) -> Respond:
    """Respond with what the work returned, unless somebody else responds later."""

    def respond_now(response: Response) -> None:
        if response is not _NOT_YET:
            respond(response)

    return respond_now


@cache
def _described() -> bytes:
    """The same for every hub of this version."""
    return strict_json.encode(hub_openapi.describe())


def _place_in(query: str) -> tuple[bytes, int | None]:
    """`label` and the optional `from` of a query string."""
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=2)
        named = dict(given)
        label, start = named["label"], named.get("from")
        if len(given) > 1 + (start is not None) or (start is not None and not _SEQ.fullmatch(start)):
            raise ValueError(query)
    except (ValueError, KeyError):
        raise Refused("E.BAD_REQUEST", "the query must be label=HEX, optionally with from=NUMBER") from None
    place = None if start is None else int(start)
    if place is not None and place > U64_MAX:
        raise Refused("E.BAD_REQUEST", "from is not a stream_seq", detail={"field": "from"})
    return _hash_in(label, "label"), place


def _fields_in(query: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, str]:
    """The fields of a query string, each once."""
    known = (*required, *optional)
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=len(known))
    except ValueError:
        given = [("", "")]
    named = dict(given)
    if len(named) != len(given) or not named.keys() <= set(known) or not named.keys() >= set(required):
        shape = "&".join([*(f"{name}=…" for name in required), *(f"[{name}=…]" for name in optional)])
        raise Refused("E.BAD_REQUEST", f"the query must be {shape}")
    return named


def _number(given: dict[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or int(text) > U64_MAX:
        raise Refused("E.BAD_REQUEST", f"{name} is not a number", detail={"field": name})
    return int(text)


def _coid_in(path: str) -> bytes:
    return _hash_in(path.removeprefix(ATTACHMENTS), "coid")


def _hash_in(text: str, name: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32 or text != found.hex():
        raise Refused("E.BAD_REQUEST", f"{name} is not 64 lowercase hex digits", detail={"field": name})
    return found
