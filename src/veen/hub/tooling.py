"""The tooling endpoints: status, capabilities, later proofs, batches, attachments, evidence. No proof needs them."""

import re
from collections.abc import Callable
from functools import cache
from urllib.parse import parse_qsl

from plumbing.http.message import Request, Respond, Response, Upload, WebSocketHandler
from veen.core import CapToken, Malformed, Msg, Receipt, Refused, Unverified, strict_json
from veen.core.admission import BY_DETAIL
from veen.core.cbor import DeferredFaults, heads
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_PAGE_ITEMS
from veen.core.tooling_messages import AuthorizeResponse, ConsistencyRequest, ProofAtRequest, StreamRegistration
from veen.hub import hub_openapi, responses
from veen.hub.admission_rules import Rules
from veen.hub.config import HubConfig, need_operator
from veen.hub.prefilter import Prefilter
from veen.hub.read_api import ReadApi
from veen.hub.read_executor import ReadExecutor
from veen.hub.sequencer import Outcome
from veen.hub.status import HubStatusPage
from veen.hub.submit import SubmitPipeline
from veen.hub.subscriptions import Subscriber, Subscriptions
from veen.hub.uploads import Uploads
from veen.hub.witness_records import WitnessRecords

# Limit for finding the end of an item that is not a MSG. A MSG has a tenth of it.
_MAX_HEADS = 100
_CONSTANTS = (heads.FALSE, heads.TRUE, heads.NULL)


def split(body: bytes) -> list[bytes]:
    """The encoded items, MSG or not. If the end of an item cannot be found, the rest is the last item."""
    items: list[bytes] = []
    pos = 0
    while pos < len(body):
        if len(items) == MAX_PAGE_ITEMS:
            raise Refused("E.LIMIT", f"more than {MAX_PAGE_ITEMS} messages", detail={"max_allowed": MAX_PAGE_ITEMS})
        end = _end_of_item(body, pos)
        items.append(body[pos:end])
        pos = end
    return items


def _end_of_item(body: bytes, pos: int) -> int:
    try:
        return Msg.read(body, pos, DeferredFaults())[1]
    except Malformed:
        pass
    try:
        return _end_of_value(body, pos)
    except Malformed:
        return len(body)


def _end_of_value(body: bytes, pos: int) -> int:
    """The offset behind one value. Nothing is decoded: the value will be rejected in any case."""
    left = 1
    for _ in range(_MAX_HEADS):
        at = pos
        major, argument, pos = heads.read_head(body, at)
        left -= 1
        match major:
            case heads.UINT | heads.NINT:
                pass
            case heads.BSTR | heads.TEXT:
                pos += argument
            case heads.ARRAY:
                left += argument
            case heads.MAP:
                left += 2 * argument
            case _ if body[at] not in _CONSTANTS:
                raise Malformed("cbor", f"a tag, float or undefined value at byte {at}")
        if pos > len(body) or left > len(body) - pos:
            raise Malformed("cbor", f"ends within the value at byte {at}")
        if not left:
            return pos
    raise Malformed("cbor", f"more than {_MAX_HEADS} values")


class SubmitBatch:
    """The messages of one request, answered together once all have an answer."""

    def __init__(self, pipeline: SubmitPipeline, respond: Callable[[Response], None], owner: object = None) -> None:
        self._pipeline = pipeline
        self._respond = respond
        self._owner = owner
        self._outcomes: list[bytes] = []
        self._left = 0

    def submit(self, items: list[bytes]) -> None:
        """Submit each message on its own, in order."""
        self._outcomes = [b""] * len(items)
        self._left = len(items)
        if not items:
            self._respond(Response(200, b"", responses.CBOR_SEQ))
        for number, encoded in enumerate(items):
            self._pipeline.submit(
                encoded,
                lambda outcome, number=number: self._ended(number, outcome),  # type: ignore[misc]
                self._owner,
            )

    def _ended(self, number: int, outcome: Outcome) -> None:
        self._outcomes[number] = responses.envelope_of(outcome).encode() if isinstance(outcome, Refused) else outcome
        self._left -= 1
        if not self._left:
            self._respond(Response(200, b"".join(self._outcomes), responses.CBOR_SEQ))


_SMALL_BODY = 1 << 17  # the largest capability in JSON takes more than half of it
_BATCH_BODY = 1 << 26
_SEQ = re.compile(r"[1-9][0-9]{0,19}")
Handler = Callable[[Request, Respond], None]


class Tooling:
    """Everything under /tooling, and the health endpoints."""

    def __init__(
        self,
        config: HubConfig,
        rules: Rules,
        prefilter: Prefilter,
        executor: ReadExecutor,
        reads: ReadApi,
        pipeline: SubmitPipeline,
        subscriptions: Subscriptions,
        witness_records: WitnessRecords,
        uploads: Uploads,
        status: HubStatusPage,
    ) -> None:
        self._config = config
        self._rules = rules
        self._prefilter = prefilter
        self._executor = executor
        self._reads = reads
        self._pipeline = pipeline
        self._subscriptions = subscriptions
        self._witness_records = witness_records
        self._uploads = uploads
        self._status = status
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "status"): self._get_status,
            ("GET", "openapi.json"): self._get_openapi,
            ("POST", "authorize"): self._authorize,
            ("POST", "streams"): self._register,
            ("POST", "proof"): self._proof,
            ("POST", "consistency"): self._consistency,
            ("POST", "submit-batch"): self._batch,
            ("GET", "origin"): self._origin,
            ("GET", "checkpoints"): self._checkpoints,
            ("GET", "equivocation"): self._evidence,
            ("POST", "equivocation"): self._equivocation,
            ("POST", "witness"): self._witness,
        }

    def body_limit(self, method: str, path: str) -> int | None:
        if path == "/tooling/submit-batch":
            return _BATCH_BODY
        if path.startswith("/tooling/attachments/"):
            return self._uploads.max_bytes
        return _SMALL_BODY if (method, path.removeprefix("/tooling/")) in self._routes else None

    def handle(self, request: Request, respond: Respond) -> None:
        name = request.path.removeprefix("/tooling/")
        handler = self._routes.get((request.method, name))
        try:
            if handler:
                handler(request, respond)
            elif name.startswith("attachments/") and request.method == "GET":
                self._attachment(request, respond)
            elif name == "subscribe" and request.method == "GET":
                raise Refused("E.BAD_REQUEST", "subscribe needs a WebSocket connection")
            else:
                raise Refused("E.NOT_FOUND", f"there is no {request.method} {request.path[:200]}")
        except Refused as refused:
            respond(responses.refusal(refused, as_json=responses.wants_json(request)))

    def upload(self, head: Request) -> Upload | Response | None:
        """Start an attachment upload, the only PUT."""
        try:
            self._prefilter.check_peer(head.peer)
            return self._uploads.begin(head, _coid_in(head.path))
        except Refused as refused:
            return responses.refusal(refused, as_json=responses.wants_json(head))

    def probe(self, path: str) -> Response:
        return self._status.probe(path)

    def subscribe(self, head: Request) -> WebSocketHandler | Response:
        try:
            label, start = _place_in(head.query)
        except Refused as refused:
            return responses.refusal(refused)
        return Subscriber(self._subscriptions, label, start or 1)

    def _get_status(self, request: Request, respond: Respond) -> None:
        respond(Response(200, strict_json.encode(self._status.as_json()), responses.JSON))

    def _get_openapi(self, request: Request, respond: Respond) -> None:
        respond(Response(200, _described(), responses.JSON))

    def _authorize(self, request: Request, respond: Respond) -> None:
        """Log a capability of a trusted issuer. A repeat gets the receipt of the first time."""
        as_json = responses.wants_json(request)

        def verified() -> Response:
            token = responses.decode_request(CapToken, request.body, as_json)
            if token.issuer_pk not in self._config.issuers:
                raise Refused("E.FORBIDDEN", "the issuer of the capability is not trusted by this hub")
            try:
                token.verify()
            except Unverified as error:
                raise BY_DETAIL["CAP_INVALID"].refused(str(error)) from None
            token.rate_under(self._rules.limits)
            self._executor.loop.call_soon_threadsafe(self._log_token, token, respond, as_json)
            return _NOT_YET

        def respond_unless_later(response: Response) -> None:
            if response is not _NOT_YET:
                respond(response)

        self._executor.answer(request, verified, respond_unless_later)

    def _log_token(self, token: CapToken, respond: Respond, as_json: bool) -> None:
        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Refused):
                respond(responses.refusal(outcome, as_json=as_json))
                return
            receipt = Receipt.decode(outcome)
            answer = AuthorizeResponse(token.auth_ref(), token.expires_at(receipt.hub_ts), receipt)
            respond(responses.answer(answer, as_json=as_json))

        self._pipeline.log_event(token, done)

    def _register(self, request: Request, respond: Respond) -> None:
        need_operator(self._config, request.headers)
        as_json = responses.wants_json(request)
        registration = responses.decode_request(StreamRegistration, request.body, as_json)

        self._pipeline.log_event(
            registration.stream_id, lambda outcome: respond(responses.submitted(outcome, as_json=as_json))
        )

    def _proof(self, request: Request, respond: Respond) -> None:
        as_json = responses.wants_json(request)

        def proved() -> Response:
            query = responses.decode_request(ProofAtRequest, request.body, as_json)
            found = self._reads.proof_at(query.label, query.stream_seq, query.upto_seq)
            return responses.answer(found, as_json=as_json)

        self._executor.answer(request, proved, respond)

    def _consistency(self, request: Request, respond: Respond) -> None:
        """The inclusion proof of the older tree's last leaf in the newer tree proves consistency."""
        as_json = responses.wants_json(request)

        def proved() -> Response:
            query = responses.decode_request(ConsistencyRequest, request.body, as_json)
            found = self._reads.proof_at(query.label, query.from_seq, query.to_seq)
            return responses.answer(found, as_json=as_json)

        self._executor.answer(request, proved, respond)

    def _batch(self, request: Request, respond: Respond) -> None:
        try:
            self._prefilter.check(request.peer, request.headers, request.body, batch=True)
        except Refused as refused:
            self._pipeline.record_rejection(refused, len(request.body))
            raise
        SubmitBatch(self._pipeline, respond, request.owner).submit(split(request.body))

    def _origin(self, request: Request, respond: Respond) -> None:
        as_json = responses.wants_json(request)
        self._executor.answer(
            request, lambda: responses.answer(self._witness_records.origin(), as_json=as_json), respond
        )

    def _checkpoints(self, request: Request, respond: Respond) -> None:
        label, start = _place_in(request.query)
        as_json = responses.wants_json(request)
        self._executor.answer(
            request,
            lambda: responses.answer(self._witness_records.checkpoints(label, start), as_json=as_json),
            respond,
            long=True,
        )

    def _evidence(self, request: Request, respond: Respond) -> None:
        as_json = responses.wants_json(request)
        self._executor.answer(
            request, lambda: responses.answer(self._witness_records.evidence(), as_json=as_json), respond, long=True
        )

    def _equivocation(self, request: Request, respond: Respond) -> None:
        as_json = responses.wants_json(request)
        self._executor.answer(request, lambda: self._witness_records.store_equivocation(request.body, as_json), respond)

    def _witness(self, request: Request, respond: Respond) -> None:
        as_json = responses.wants_json(request)
        self._executor.answer(request, lambda: self._witness_records.add_witness(request.body, as_json), respond)

    def _attachment(self, request: Request, respond: Respond) -> None:
        coid = _coid_in(request.path)
        self._executor.answer(request, lambda: self._witness_records.get_attachment(coid), respond)


_NOT_YET = Response(200)


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


def _coid_in(path: str) -> bytes:
    return _hash_in(path.removeprefix("/tooling/attachments/"), "coid")


def _hash_in(text: str, name: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32 or text != found.hex():
        raise Refused("E.BAD_REQUEST", f"{name} is not 64 lowercase hex digits", detail={"field": name})
    return found
