"""RPC0: requests, replies, idempotency keys and timeouts. 001, spec-1 §24.

A call is a request and its reply. The call id is the id of the request's message, and the reply names it as its
`parent_id`. The first reply is the answer. Requests of one client with the same method and `idem` are one request: only
the first is executed, and its answer answers all of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from veen.core import cbor
from veen.core.cbor import Bool, Bstr, Nested, Uint, Wire, text_map
from veen.core.hashing import U64_MAX, u64be
from veen.overlays.event import Event, FoldEntry, ValueItem, body_text, event
from veen.overlays.overlay import FoldStep, MergeOverlay

_CALL, _IDEM = b"c", b"k"
UNKNOWN_METHOD = "RPC.UNKNOWN_METHOD"


@event("rpc.v1")
class CallRequest(Event):
    """`rpc.v1`. `args` is one CBOR value; `reply_to` is the stream for the reply, by default the request's stream."""

    method: Annotated[str, body_text()]
    args: Annotated[bytes, ValueItem()]
    timeout_ms: Annotated[int | None, Uint(optional=True)] = None
    reply_to: Annotated[bytes | None, Bstr(optional=True)] = None
    idem: Annotated[int | None, Uint(optional=True)] = None


@text_map("error")
class RpcError(Wire):
    """Why a call failed."""

    code: Annotated[str, body_text()]
    detail: Annotated[str | None, body_text(optional=True)] = None


@event("rpc.res.v1")
class Reply(Event):
    """`rpc.res.v1`: the result, which may be null, or the error."""

    ok: Annotated[bool, Bool()]
    result: Annotated[bytes | None, ValueItem(optional=True)] = None
    error: Annotated[RpcError | None, Nested(RpcError, optional=True)] = None

    def flaw(self) -> str | None:
        if self.ok and (self.result is None or self.error is not None):
            return "a successful reply needs a result and no error"
        return "a failed reply needs an error" if not self.ok and self.error is None else None


@text_map("asked")
class PendingCall(Wire):
    """A logged request. `deadline_ms` is set if the request has a timeout or its header an expiry."""

    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    client_id: Annotated[bytes, Bstr()]
    mirrored: Annotated[bool, Bool()]  # if true, `client_id` is the bridge's key
    request: Annotated[CallRequest, Nested(CallRequest)]
    deadline_ms: Annotated[int | None, Uint(optional=True)] = None


@text_map("answered")
class Answered(Wire):
    """A logged reply."""

    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    client_id: Annotated[bytes, Bstr()]
    hub_ts: Annotated[int, Uint()]
    reply: Annotated[Reply, Nested(Reply)]


@text_map("call")
class Call(Wire):
    """The state of a call; or, in the part of an idempotency key, the id of the first call with that key."""

    asked: Annotated[PendingCall | None, Nested(PendingCall, optional=True)] = None
    answered: Annotated[Answered | None, Nested(Answered, optional=True)] = None
    first_call: Annotated[bytes | None, Bstr(optional=True)] = None

    def timed_out(self, now_ms: int) -> bool:
        """Whether the deadline has passed without an answer."""
        deadline = self.asked.deadline_ms if self.asked else None
        return self.answered is None and deadline is not None and now_ms > deadline


NO_CALL = Call()
States: TypeAlias = Mapping[bytes, Call]


class Rpc(MergeOverlay[Call]):
    """One part per call and one per idempotency key. In each, the first request and the first reply count."""

    CLASS = "rpc"
    EVENTS = (CallRequest, Reply)
    EMPTY = NO_CALL

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        named = entry.header is not None and entry.header.parent_id is not None
        return None if named or isinstance(event, CallRequest) else "rpc.res.v1: parent_id must name the request"

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        call, own = _CALL + entry.origin, entry.origin == entry.msg_id
        # A mirrored request is signed by the bridge, so the client that its `idem` belongs to is unknown.
        if isinstance(event, CallRequest) and event.idem is not None and own:
            return call, idem_part(event.method, entry.client_id, event.idem)
        return (call,)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """A request's key is its origin. A reply has none: its `parent_id` names the request, not an original."""
        return (step.entry.origin,) if isinstance(step.event, CallRequest) else ()

    def refusal(self, state: Call, step: FoldStep) -> str | None:
        answered = isinstance(step.event, Reply) and state.answered is not None
        return "the call is already answered" if answered else None

    def lift(self, step: FoldStep) -> Call:
        event, entry = step.event, step.entry
        if isinstance(event, Reply):
            return Call(answered=Answered(*step.at, entry.client_id, entry.hub_ts, event))
        assert isinstance(event, CallRequest)
        if step.part[:1] == _IDEM:
            return Call(first_call=entry.origin)
        mirrored = entry.origin != entry.msg_id
        return Call(PendingCall(*step.at, entry.client_id, mirrored, event, _deadline_ms(entry, event)))

    def merge(self, a: Call, b: Call) -> Call:
        if a == NO_CALL or b == NO_CALL:
            return b if a == NO_CALL else a
        return Call(a.asked or b.asked, a.answered or b.answered, a.first_call or b.first_call)

    def live(self, state: Call) -> bool:
        return state.asked is not None and state.answered is None

    def plain(self, part: bytes, state: Call) -> Mapping[str, cbor.Value]:
        if state.first_call is not None:
            return {"idem": part[1:], "first_call": state.first_call}
        shown: dict[str, cbor.Value] = {"call": part[1:]}
        if state.asked is not None:
            request = state.asked.request
            shown |= {"method": request.method, "args": cbor.decode(request.args)}
        if state.answered is not None:
            shown |= _plain_reply(state.answered.reply)
        return shown


RPC = Rpc()


def call_part(call_id: bytes) -> bytes:
    return _CALL + call_id


def idem_part(method: str, client_id: bytes, idem: int) -> bytes:
    return _IDEM + client_id + u64be(idem) + method.encode()


def first_of(states: States, call_id: bytes) -> bytes:
    """The call that is executed for this one: itself, or the first with the same idempotency key."""
    asked = states.get(_CALL + call_id, NO_CALL).asked
    if asked is None or asked.request.idem is None or asked.mirrored:
        return call_id
    part = idem_part(asked.request.method, asked.client_id, asked.request.idem)
    return states.get(part, NO_CALL).first_call or call_id


def answer(states: States, call_id: bytes) -> Answered | None:
    """The answer to a call, or None."""
    own = states.get(_CALL + call_id, NO_CALL).answered
    return own or states.get(_CALL + first_of(states, call_id), NO_CALL).answered


@dataclass(frozen=True, slots=True)
class PendingReply:
    """A call without a reply. `known` is the answer of an earlier call with the same idempotency key."""

    call_id: bytes
    asked: PendingCall
    known: Reply | None


def pending_replies(states: States, calls: Iterable[bytes], now_ms: int) -> Iterator[PendingReply]:
    """The replies that a server still has to send for these parts, in their order.

    Pass the parts of `timeline.live()` or of a fold's states. A call whose idempotency key belongs to another
    unanswered call waits for the reply to that call. If the other call has timed out, it becomes pending again, because
    a caller still waits for its reply.
    """
    again = set[bytes]()
    for part in calls:
        call = states.get(part, NO_CALL)
        if call.asked is None or call.answered is not None or call.timed_out(now_ms):
            continue
        call_id = part[1:]
        found, first = answer(states, call_id), first_of(states, call_id)
        if found is not None or first == call_id:
            yield PendingReply(call_id, call.asked, found.reply if found else None)
            continue
        before = states.get(_CALL + first, NO_CALL)
        if before.asked is not None and before.timed_out(now_ms) and first not in again:
            again.add(first)
            yield PendingReply(first, before.asked, None)


class RpcFailure(Exception):
    """Raised by a method to answer with an error."""

    def __init__(self, code: str, detail: str | None = None) -> None:
        super().__init__(code if detail is None else f"{code}: {detail}")
        self.error = RpcError(code, detail)


def success(result: cbor.Value) -> Reply:
    return Reply(True, cbor.encode(result))


def _deadline_ms(entry: FoldEntry, request: CallRequest) -> int | None:
    ends = [] if request.timeout_ms is None else [1000 * entry.hub_ts + request.timeout_ms]
    if entry.header is not None and entry.header.expires_at is not None:
        ends.append(1000 * entry.header.expires_at)
    return min(*ends, U64_MAX) if ends else None


def _plain_reply(reply: Reply) -> dict[str, cbor.Value]:
    if reply.error is None:
        return {"ok": reply.ok, "result": cbor.decode(reply.result or b"\xf6")}
    return {"ok": reply.ok, "error": {"code": reply.error.code, "detail": reply.error.detail}}
