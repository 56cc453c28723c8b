"""disc.query: find the descriptors of the directory that match a filter. 001, spec-5 §6.

    disc.query.v1      {kind, filter, limit?, offset?}
    disc.query.res.v1  {ok, results, more, error?}

Answers are deterministic: results ascend by id. A page starts at `offset` and ends at `limit`, at `MAX_RESULTS`, or
before the first descriptor that would not fit into one message.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, TypeAlias

from veen.core import Malformed, cbor
from veen.core.cbor import Bool, Bstr, DeferredFaults, FieldType, ListOf, Nested, Text, Uint, Wire, text_map
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.discovery import (
    MAX_DESCRIPTOR_BYTES,
    MAX_NAMES,
    AnyDescriptor,
    Descriptor,
    DescriptorKind,
    HubAdvertise,
    OverlayAdvertise,
    ServiceAdvertise,
    States,
    live_advertisements,
)
from veen.overlays.event import Event, event
from veen.overlays.rpc import CallRequest, PendingReply, Reply, RpcError, pending_replies
from veen.overlays.rpc import States as Calls

MAX_RESULTS = 100  # Lmax of §6.2
MAX_RESULT_BYTES = MAX_BODY_BYTES // 2  # of the descriptors in one answer, leaving room for the envelope
UNKNOWN_KIND = "DISC.UNKNOWN_KIND"
BAD_QUERY = "DISC.BAD_QUERY"


def _text(*, name: str = "") -> Text:
    return Text(MAX_DESCRIPTOR_BYTES, name=name, optional=True)


def _tags_any() -> ListOf:
    return ListOf(Text(MAX_DESCRIPTOR_BYTES, name="tag"), name="tags_any", least=1, most=MAX_NAMES, optional=True)


def _tagged(wanted: tuple[str, ...] | None, tags: tuple[str, ...]) -> bool:
    return wanted is None or not set(wanted).isdisjoint(tags)


@text_map("hub filter")
class HubFilter(Wire):
    """Hubs in exactly this region, with at least one of these tags, that advertise this overlay."""

    region: Annotated[str | None, _text()] = None
    tags_any: Annotated[tuple[str, ...] | None, _tags_any()] = None
    overlay_id: Annotated[bytes | None, Bstr(optional=True)] = None

    def fits(self, one: Descriptor) -> bool:
        return (
            isinstance(one, HubAdvertise)
            and self.region in (None, one.region)
            and _tagged(self.tags_any, one.tags)
            and (self.overlay_id is None or self.overlay_id in one.overlays)
        )


@text_map("service filter")
class ServiceFilter(Wire):
    """Services by the start of their name, a method, their overlay, a region they prefer, and tags."""

    name_prefix: Annotated[str | None, _text()] = None
    method: Annotated[str | None, _text()] = None
    overlay_id: Annotated[bytes | None, Bstr(optional=True)] = None
    region: Annotated[str | None, _text()] = None
    tags_any: Annotated[tuple[str, ...] | None, _tags_any()] = None

    def fits(self, one: Descriptor) -> bool:
        return (
            isinstance(one, ServiceAdvertise)
            and one.name.startswith(self.name_prefix or "")
            and (self.method is None or self.method in one.methods)
            and self.overlay_id in (None, one.overlay_id)
            and (self.region is None or self.region in one.regions)
            and _tagged(self.tags_any, one.tags)
        )


@text_map("overlay filter")
class OverlayFilter(Wire):
    """Overlays by the start of their name, a schema they use, and tags."""

    name_prefix: Annotated[str | None, _text()] = None
    schema: Annotated[bytes | None, Bstr(optional=True)] = None
    tags_any: Annotated[tuple[str, ...] | None, _tags_any()] = None

    def fits(self, one: Descriptor) -> bool:
        return (
            isinstance(one, OverlayAdvertise)
            and one.name.startswith(self.name_prefix or "")
            and (self.schema is None or self.schema in one.schemas)
            and _tagged(self.tags_any, one.tags)
        )


Filter: TypeAlias = HubFilter | ServiceFilter | OverlayFilter
FILTERS: dict[DescriptorKind, type[HubFilter] | type[ServiceFilter] | type[OverlayFilter]] = {
    DescriptorKind.HUB: HubFilter,
    DescriptorKind.SERVICE: ServiceFilter,
    DescriptorKind.OVERLAY: OverlayFilter,
}


class AnyFilter(FieldType):
    """A filter of any kind, stored as the received bytes. `kind` determines how it is decoded."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[bytes, int]:
        for form in FILTERS.values():
            try:
                _, end = form.read(data, pos, DeferredFaults())
            except Malformed:
                continue
            return data[pos:end], end
        raise Malformed("cbor", f"{self.name} at byte {pos} is not a filter")

    def write(self, field: bytes) -> bytes:
        try:
            _, end = self.read(field, 0, DeferredFaults())
        except Malformed as error:
            raise ValueError(error.reason) from None
        if end != len(field):
            raise ValueError(f"{self.name} has {len(field) - end} bytes after its end")
        return field


@event("disc.query.v1")
class DirectoryQuery(Event):
    """`disc.query.v1`. Build with `DirectoryQuery.of`; `wanted` decodes the filter."""

    kind: Annotated[str, Text(MAX_DESCRIPTOR_BYTES)]
    filter: Annotated[bytes, AnyFilter()]
    limit: Annotated[int | None, Uint(optional=True)] = None
    offset: Annotated[int | None, Uint(optional=True)] = None

    @classmethod
    def of(cls, wanted: Filter, limit: int | None = None, offset: int | None = None) -> "DirectoryQuery":
        kind = next(kind for kind, form in FILTERS.items() if isinstance(wanted, form))
        return cls(str(kind), wanted.encode(), limit, offset)

    def wanted(self) -> Filter:
        """Decode the filter. Raises `Malformed` for an unknown kind or a filter of another kind."""
        if self.kind not in FILTERS:
            raise Malformed("disc.query.v1", f"unknown kind {self.kind!r}")
        return FILTERS[DescriptorKind(self.kind)].decode(self.filter)


@event("disc.query.res.v1")
class QueryResult(Event):
    """`disc.query.res.v1`."""

    ok: Annotated[bool, Bool()]
    results: Annotated[tuple[Descriptor, ...], ListOf(AnyDescriptor(name="result"), most=MAX_BODY_BYTES)]
    more: Annotated[bool, Bool()]
    error: Annotated[RpcError | None, Nested(RpcError, optional=True)] = None

    def flaw(self) -> str | None:
        return "a successful result must not have an error" if self.ok and self.error is not None else None


def failure(code: str, detail: str | None = None) -> QueryResult:
    """The answer to an invalid query: an error and no results."""
    return QueryResult(False, (), False, RpcError(code, detail))


def matches(states: States, wanted: Filter, now: int) -> Iterator[Descriptor]:
    """The descriptors that match a filter at a time, ascending by id."""
    kind = next(kind for kind, form in FILTERS.items() if isinstance(wanted, form))
    return (known.descriptor for known in live_advertisements(states, kind, now) if wanted.fits(known.descriptor))


def evaluate(states: States, query: DirectoryQuery, now: int, most: int = MAX_RESULTS) -> QueryResult:
    """The answer to a query at `now`, in seconds of hub time. An invalid query gets an error answer."""
    if query.kind not in FILTERS:
        return failure(UNKNOWN_KIND, query.kind)
    try:
        wanted = query.wanted()
    except Malformed as error:
        return failure(BAD_QUERY, str(error))
    limit = most if query.limit is None else min(query.limit, most)
    skipped = min(query.offset or 0, len(states))  # islice() rejects values up to 2^64
    return _page(islice(matches(states, wanted, now), skipped, None), limit)


def _page(found: Iterable[Descriptor], limit: int) -> QueryResult:
    results: list[Descriptor] = []
    room = MAX_RESULT_BYTES
    for one in found:
        room -= len(one.encode())
        if len(results) == limit or room < 0:
            return QueryResult(True, tuple(results), True)
        results.append(one)
    return QueryResult(True, tuple(results), False)


METHOD = "disc.query.v1"
NO_ANSWER = "DISC.NO_ANSWER"


def request(
    query: DirectoryQuery, *, timeout_ms: int | None = None, reply_to: bytes | None = None, idem: int | None = None
) -> CallRequest:
    """The RPC0 call that carries a query."""
    return CallRequest(METHOD, cbor.encode(query.encode()), timeout_ms, reply_to, idem)


def pending_queries(calls: Calls, now: int, parts: Iterable[bytes] | None = None) -> Iterator[PendingReply]:
    """The unanswered queries in log order, of all calls or of these parts."""
    pending = pending_replies(calls, calls if parts is None else parts, 1000 * now)
    queries = (one for one in pending if one.asked.request.method == METHOD)
    yield from sorted(queries, key=lambda one: (one.asked.epoch, one.asked.stream_seq))


def reply(asked: CallRequest, states: States, now: int) -> Reply:
    """The answer to a `disc.query.v1` call. Never raises on invalid arguments."""
    try:
        found = evaluate(states, DirectoryQuery.decode(_body_of(asked.args)), now)
    except Malformed as error:
        found = failure(BAD_QUERY, str(error))
    return Reply(True, cbor.encode(found.encode()))


def result_of(answered: Reply) -> QueryResult:
    """Decode a reply. A failed call becomes an answer without results."""
    if answered.error is not None:
        return QueryResult(False, (), False, answered.error)
    try:
        return QueryResult.decode(_body_of(answered.result or b""))
    except Malformed as error:
        return failure(NO_ANSWER, str(error))


def _body_of(item: bytes) -> bytes:
    found = cbor.decode(item, METHOD)
    if not isinstance(found, bytes):
        raise Malformed(METHOD, "not a byte string")
    return found
