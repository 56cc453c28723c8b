"""The endpoints of a hub: the data plane under /v1, and dispatch of the rest. Spec §10."""

from collections.abc import Callable
from functools import partial

from plumbing.http.message import Request, Respond, Response, Upload, WebSocketHandler
from veen.core import Malformed, Msg, Refused, cbor, strict_json, wire_json
from veen.core.admission import BY_DETAIL
from veen.core.envelopes import CheckpointRequest, ProofRequest, ReceiptRequest, StreamRequest, SubmitRequest
from veen.hub import responses
from veen.hub.admission_rules import Rules
from veen.hub.prefilter import Prefilter
from veen.hub.read_api import PageMemoryBudget, ReadApi
from veen.hub.read_executor import ReadExecutor
from veen.hub.submit import SubmitPipeline
from veen.hub.tooling import Tooling

# {1: 1, 2: msg}: the only encoding of a submit request starts with these bytes, followed by the MSG.
ENVELOPE = b"\xa2\x01\x01\x02"
_SMALL_BODY = 4096
# One comma after "ver", and one between fields: a text with more cannot be a message, and is not parsed.
_MAX_COMMAS = len(Msg.LAYOUT.kinds)


class HubApp:
    """The application that the HTTP server calls."""

    def __init__(
        self,
        executor: ReadExecutor,
        rules: Rules,
        prefilter: Prefilter,
        pipeline: SubmitPipeline,
        reads: ReadApi,
        tooling: Tooling,
    ) -> None:
        self._executor = executor
        self._prefilter = prefilter
        self._pipeline = pipeline
        self._reads = reads
        self._tooling = tooling
        self.pages = PageMemoryBudget()
        self._max_body_bytes = rules.limits.max_msg_bytes + len(ENVELOPE)
        self._data_plane = {
            "/v1/stream": self._stream,
            "/v1/receipt": self._receipt,
            "/v1/proof": self._proof,
            "/v1/checkpoint": self._checkpoint,
        }

    def body_limit(self, method: str, path: str) -> int | None:
        if method == "POST" and path == "/v1/submit":
            return 2 * self._max_body_bytes + _SMALL_BODY  # JSON has two digits per byte; CBOR is checked again later
        if path.startswith("/tooling/"):
            return self._tooling.body_limit(method, path)
        return _SMALL_BODY if method == "POST" and path in self._data_plane else None

    def too_large(self, head: Request) -> Response:
        as_json = responses.wants_json(head)
        if head.path == "/v1/submit":
            refused = BY_DETAIL["SIZE_PREFILTER"].refused("the body is too large")
            announced = head.headers.get(b"content-length", b"")
            self._pipeline.record_rejection(refused, int(announced) if announced.isdigit() else self._max_body_bytes)
            return responses.refusal(refused, as_json=as_json)
        return responses.refusal(Refused("E.LIMIT", "the body is too large"), as_json=as_json)

    def refused(self, status: int, reason: str, head: Request) -> Response:
        return responses.front_refusal(status, reason, head)

    def upload(self, head: Request) -> Upload | Response | None:
        return self._tooling.upload(head)

    def handle(self, request: Request, respond: Respond) -> None:
        if request.method == "HEAD":
            request.method = "GET"  # the server omits the body
        if request.method == "POST" and request.path == "/v1/submit":
            self._submit(request, respond)
        elif request.path.startswith("/tooling/"):
            self._tooling.handle(request, respond)
        elif request.path.startswith("/v1/"):
            self._read(request, respond)
        elif request.method == "GET" and request.path in ("/healthz", "/readyz", "/metrics"):
            respond(self._tooling.probe(request.path))
        else:
            respond(responses.refusal(_unknown(request), as_json=responses.wants_json(request)))

    def shortcut(self, head: Request) -> Callable[[bytes, Respond], None] | None:
        if head.method != "POST" or head.path != "/v1/submit" or responses.wants_json(head):
            return None
        if self._prefilter.is_active:
            return partial(self._submit_filtered, head)
        return partial(self._submit_cbor, head.owner)

    def websocket(self, head: Request) -> WebSocketHandler | Response:
        if head.path == "/tooling/subscribe":
            return self._tooling.subscribe(head)
        return responses.refusal(_unknown(head))

    def _submit(self, request: Request, respond: Respond) -> None:
        if not responses.wants_json(request):
            self._submit_filtered(request, request.body, respond)
            return
        try:
            self._prefilter.check(request.peer, request.headers, request.body)
            if request.body.count(b",") > _MAX_COMMAS:
                raise BY_DETAIL["CBOR_INVALID"].refused("more fields than a message has")
            encoded = from_json(request.body)
        except Refused as refused:
            self._pipeline.record_rejection(refused, len(request.body))
            respond(responses.refusal(refused, as_json=True))
            return
        self._pipeline.submit(
            encoded, lambda outcome: respond(responses.submitted(outcome, as_json=True)), request.owner
        )

    def _submit_filtered(self, head: Request, body: bytes, respond: Respond) -> None:
        if self._prefilter.is_active and len(body) <= self._max_body_bytes:  # size comes first
            try:
                self._prefilter.check(head.peer, head.headers, body)
            except Refused as refused:
                self._pipeline.record_rejection(refused, len(body))
                respond(responses.refusal(refused))
                return
        self._submit_cbor(head.owner, body, respond)

    def _submit_cbor(self, owner: object, body: bytes, respond: Respond) -> None:
        """The hot path: most requests of a hub."""
        try:
            if len(body) > self._max_body_bytes:
                raise BY_DETAIL["SIZE_PREFILTER"].refused("the message is too large", max_allowed=self._max_body_bytes)
            encoded = unwrapped(body)
        except Refused as refused:
            self._pipeline.record_rejection(refused, len(body))
            respond(responses.refusal(refused))
            return
        self._pipeline.submit(encoded, lambda outcome: respond(responses.submitted(outcome)), owner)

    def _read(self, request: Request, respond: Respond) -> None:
        as_json = responses.wants_json(request)
        work = self._data_plane.get(request.path) if request.method == "POST" else None
        if work is None:
            respond(responses.refusal(_unknown(request), as_json=as_json))
        else:
            long = request.path == "/v1/stream"
            self._executor.answer(request, lambda: work(request, as_json), respond, long=long)

    def _stream(self, request: Request, as_json: bool) -> Response:
        query = responses.decode_request(StreamRequest, request.body, as_json)
        self.pages.check(request)
        page = self._reads.page(query)
        shown = wire_json.encode(page.response()) if as_json else page.encode()
        return Response(200, self.pages.counted(shown, request), responses.JSON if as_json else responses.CBOR)

    def _receipt(self, request: Request, as_json: bool) -> Response:
        query = responses.decode_request(ReceiptRequest, request.body, as_json)
        return responses.answer(self._reads.receipt(query), as_json=as_json)

    def _proof(self, request: Request, as_json: bool) -> Response:
        query = responses.decode_request(ProofRequest, request.body, as_json)
        return responses.answer(self._reads.proof(query), as_json=as_json)

    def _checkpoint(self, request: Request, as_json: bool) -> Response:
        query = responses.decode_request(CheckpointRequest, request.body, as_json)
        return responses.answer(self._reads.checkpoint(query), as_json=as_json)


def _unknown(request: Request) -> Refused:
    first, *rest = request.path.strip("/").split("/")
    if rest and first.startswith("v") and first[1:].isdigit() and first != "v1":
        return Refused("E.VERSION", f"this hub supports v1, not {first[:20]}")
    return Refused("E.NOT_FOUND", f"there is no {request.method} {request.path[:200]}")


def unwrapped(body: bytes) -> bytes:
    """The MSG in a submit request. Faults of the envelope are reported as structural faults of the submit."""
    if body.startswith(ENVELOPE):
        return body[len(ENVELOPE) :]
    try:
        SubmitRequest.decode(body)
    except Malformed as error:
        raise BY_DETAIL["CBOR_INVALID"].refused(error.reason) from None
    raise AssertionError("a submit request has one encoding")


def from_json(body: bytes) -> bytes:
    """The encoded MSG of a JSON submit request. From here on both formats are handled alike."""
    try:
        request = strict_json.decode(body, "submit request")
    except Malformed as error:
        raise BY_DETAIL["CBOR_INVALID"].refused(error.reason) from None
    if not isinstance(request, dict) or request.keys() != {"ver", "msg"} or not _is_one(request["ver"]):
        raise BY_DETAIL["CBOR_INVALID"].refused('a submit request is {"ver": 1, "msg": [...]}')
    if not isinstance(request["msg"], list):
        raise BY_DETAIL["CBOR_INVALID"].refused("msg must be the array of its fields")
    try:
        return cbor.encode([_field(value) for value in request["msg"]])
    except ValueError:
        raise BY_DETAIL["CBOR_INVALID"].refused(
            "every field of msg must be an unsigned integer, null or lowercase hex"
        ) from None


def _is_one(value: strict_json.Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 1


def _field(value: strict_json.Json) -> cbor.Value:
    if isinstance(value, str):
        content = bytes.fromhex(value)
        if content.hex() != value:
            raise ValueError("not lowercase hex")
        return content
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError("not a field of a message")
