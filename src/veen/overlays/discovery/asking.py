"""disc.query over RPC0: what a caller sends, what a server answers, and what the caller makes of it. 001, spec-5 §6.

The method is `disc.query.v1`. `args` is a byte string, the body of the query; the result is a byte string, the body of
the answer. So both bodies keep their one spelling, and timeouts and idempotency keys are those of any call.

A server tells apart what it could not read (`RPC` says yes, the answer says no) from what it does not serve: calls of
other methods are left to whoever serves those.
"""

from collections.abc import Iterable, Iterator

from veen.core import Malformed, PayloadHdr, cbor
from veen.overlays.discovery.directory import States
from veen.overlays.discovery.query import BAD_QUERY, Query, QueryResult, evaluate, failure
from veen.overlays.rpc import Owed, Reply, Request
from veen.overlays.rpc import States as Calls
from veen.overlays.rpc import owed as calls_owed

METHOD = "disc.query.v1"
NO_ANSWER = "DISC.NO_ANSWER"


def request(
    query: Query, *, timeout_ms: int | None = None, reply_to: bytes | None = None, idem: int | None = None
) -> Request:
    """The call that asks a query."""
    return Request(METHOD, cbor.encode(query.encode()), timeout_ms, reply_to, idem)


def owed(calls: Calls, now: int, parts: Iterable[bytes] | None = None) -> Iterator[Owed]:
    """The queries that are still to be answered, in the order they were asked: of all calls, or of these parts."""
    looked_at = calls if parts is None else parts
    mine = (one for one in calls_owed(calls, looked_at, 1000 * now) if one.asked.request.method == METHOD)
    yield from sorted(mine, key=lambda one: (one.asked.epoch, one.asked.stream_seq))


def respond(owing: Owed, states: States, now: int) -> tuple[PayloadHdr, bytes]:
    """The message that answers a query from the directory as it is: the known answer again where there is one."""
    return (owing.known or reply(owing.asked.request, states, now)).payload(owing.call_id)


def reply(asked: Request, states: States, now: int) -> Reply:
    """The answer to a call of our method. Total."""
    try:
        found = evaluate(states, Query.decode(_body_of(asked.args)), now)
    except Malformed as error:
        found = failure(BAD_QUERY, str(error))
    return Reply(True, cbor.encode(found.encode()))


def result_of(answered: Reply) -> QueryResult:
    """What a reply says. A call that failed as such is an answer without results."""
    if answered.error is not None:
        return QueryResult(False, (), False, answered.error)
    try:
        return QueryResult.decode(_body_of(answered.result or b""))
    except Malformed as error:
        return failure(NO_ANSWER, str(error))


def _body_of(item: bytes) -> bytes:
    found = cbor.decode(item, METHOD)
    if not isinstance(found, bytes):
        raise Malformed(METHOD, "it is not a byte string")
    return found
