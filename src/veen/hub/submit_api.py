"""Submit requests: the prefilter, the envelope in CBOR or JSON, and batches. Spec §8.1, §10.4."""

from collections.abc import Callable
from functools import partial

from plumbing.http.message import Request, Respond, Response
from veen.core import Malformed, Msg, Receipt, Refused, cbor, strict_json
from veen.core.admission import BY_DETAIL
from veen.core.cbor import DeferredFaults, heads
from veen.core.envelopes import SUBMIT_RESPONSE_HEAD, SUBMIT_RESPONSE_TAIL, SubmitRequest, SubmitResponse
from veen.core.limits import MAX_PAGE_ITEMS, SERVER_VERSION
from veen.hub import responses
from veen.hub.admission_rules import Prefilter, Rules
from veen.hub.admission_state import Outcome
from veen.hub.submit import SubmitPipeline

# {1: 1, 2: msg}: the only encoding of a submit request starts with these bytes, followed by the MSG.
ENVELOPE = b"\xa2\x01\x01\x02"
# One comma after "ver", and one between fields: a text with more cannot be a message, and is not parsed.
_MAX_COMMAS = len(Msg.LAYOUT.kinds)
# Limit for finding the end of an item that is not a MSG. A MSG has a tenth of it.
_MAX_HEADS = 100
_CONSTANTS = (heads.FALSE, heads.TRUE, heads.NULL)


class SubmitApi:
    """Hands the messages of requests to the pipeline, and answers with what comes back."""

    def __init__(self, rules: Rules, prefilter: Prefilter, pipeline: SubmitPipeline) -> None:
        self._prefilter = prefilter
        self._pipeline = pipeline
        self.max_body_bytes = rules.limits.max_msg_bytes + len(ENVELOPE)

    def submit(self, request: Request, respond: Respond) -> None:
        """POST /v1/submit."""
        if not responses.wants_json(request):
            self._filtered(request, request.body, respond)
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
        self._pipeline.submit(encoded, partial(respond_submitted, respond, as_json=True), request.owner)

    def shortcut(self, head: Request) -> Callable[[bytes, Respond], None] | None:
        """How to handle further submits of a connection with the same head; None for JSON."""
        if responses.wants_json(head):
            return None
        return partial(self._filtered, head) if self._prefilter.is_active else partial(self._cbor, head.owner)

    def submit_batch(self, request: Request, respond: Respond) -> None:
        """POST /tooling/submit-batch."""
        try:
            self._prefilter.check(request.peer, request.headers, request.body, batch=True)
        except Refused as refused:
            self._pipeline.record_rejection(refused, len(request.body))
            raise
        SubmitBatch(self._pipeline, respond, request.owner).submit(split(request.body))

    def too_large(self, head: Request) -> Refused:
        """Count a submit whose body is not read."""
        refused = BY_DETAIL["SIZE_PREFILTER"].refused("the body is too large")
        announced = head.headers.get(b"content-length", b"")
        self._pipeline.record_rejection(refused, int(announced) if announced.isdigit() else self.max_body_bytes)
        return refused

    def _filtered(self, head: Request, body: bytes, respond: Respond) -> None:
        if self._prefilter.is_active and len(body) <= self.max_body_bytes:  # size comes first
            try:
                self._prefilter.check(head.peer, head.headers, body)
            except Refused as refused:
                self._pipeline.record_rejection(refused, len(body))
                respond(responses.refusal(refused))
                return
        self._cbor(head.owner, body, respond)

    def _cbor(self, owner: object, body: bytes, respond: Respond) -> None:
        """The hot path: most requests of a hub."""
        try:
            if len(body) > self.max_body_bytes:
                raise BY_DETAIL["SIZE_PREFILTER"].refused("the message is too large", max_allowed=self.max_body_bytes)
            if not body.startswith(ENVELOPE):
                raise _envelope_fault(body)
        except Refused as refused:
            self._pipeline.record_rejection(refused, len(body))
            respond(responses.refusal(refused))
            return
        self._pipeline.submit(body[len(ENVELOPE) :], partial(respond_submitted, respond), owner)


def respond_submitted(respond: Respond, outcome: Outcome, *, as_json: bool = False) -> None:
    """Answer a submit with the encoded receipt or the rejection."""
    if isinstance(outcome, Refused):
        respond(responses.refusal(outcome, as_json=as_json))
    elif as_json:
        respond(responses.answer(SubmitResponse(Receipt.decode(outcome), SERVER_VERSION), as_json=True))
    else:
        respond(Response(200, SUBMIT_RESPONSE_HEAD + outcome + SUBMIT_RESPONSE_TAIL, responses.CBOR))


class SubmitBatch:
    """The messages of one request, answered together once all have an answer."""

    def __init__(self, pipeline: SubmitPipeline, respond: Respond, owner: object = None) -> None:
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


def _envelope_fault(body: bytes) -> Refused:
    """Faults of the envelope are reported as structural faults of the submit."""
    try:
        SubmitRequest.decode(body)
    except Malformed as error:
        return BY_DETAIL["CBOR_INVALID"].refused(error.reason)
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
