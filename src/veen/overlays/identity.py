"""ID: principals, devices, accounts, organizations, handles and external ids as one overlay. 001, id-spec.

A part key is one letter for the kind, then the ids of the part. The letter determines how the state is decoded.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Generic, Self, TypeAlias, TypeVar

from veen.core import Malformed, PayloadHdr, cbor
from veen.core.cbor import Bstr, Bytes, ListOf, Map, Nested, Uint, Wire, array, text_map
from veen.core.hashing import U32_MAX, h, u32be
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import At, Event, FoldEntry, ascending, body, body_text, optional_map, plain_wire
from veen.overlays.identity_events import (
    EVENTS,
    CtxProfile,
    Device,
    ExternalLink,
    HandleMap,
    IdentityBinding,
    IdentityGroup,
    IdentityPrincipal,
    IdentityRevocation,
    OrgProfile,
    RoleBinding,
    Scope,
    encode_scope,
)
from veen.overlays.overlay import NULL, FoldStep, MergeOverlay

E = TypeVar("E", bound=Event)
NOWHERE = At(0, 0)


@text_map("principal")
class PrincipalState(Wire):
    """A principal. `info_epoch` and `info_seq` are 0 if no record had `info`."""

    created_at: Annotated[int, Uint()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    info_epoch: Annotated[int, Uint()] = 0
    info_seq: Annotated[int, Uint()] = 0
    info: Annotated[bytes | None, optional_map()] = None

    @classmethod
    def of(cls, created_at: int, at: At, info: bytes | None) -> Self:
        return cls(created_at, *at, *(NOWHERE if info is None else at), info)

    def join(self, other: Self) -> Self:
        first = min(self, other, key=lambda one: (one.epoch, one.stream_seq, one.created_at))
        newest = max(self, other, key=lambda one: (one.info_epoch, one.info_seq, one.info or b""))
        founded = (first.created_at, first.epoch, first.stream_seq)
        return type(self)(*founded, newest.info_epoch, newest.info_seq, newest.info)


@dataclass(frozen=True, slots=True)
class Latest(Wire, Generic[E]):
    """The winning record so far."""

    ts: int
    epoch: int
    stream_seq: int
    record: E

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    def join(self, other: Self) -> Self:
        # Equal (ts, place) occur only across two streams. Compare the bytes, so that every reader picks the same one.
        return max(self, other, key=lambda one: (one.ts, one.at, one.record.encode()))


def _latest(name: str, event: type[Event]) -> Map:
    return body(name, Uint(name="ts"), Uint(name="epoch"), Uint(name="stream_seq"), Nested(event, name="record"))


class LatestDevice(Latest[Device]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("device", Device)


class LatestCtx(Latest[CtxProfile]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("context profile", CtxProfile)


class LatestOrg(Latest[OrgProfile]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("organization profile", OrgProfile)


class LatestHandle(Latest[HandleMap]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("handle", HandleMap)


class LatestLink(Latest[ExternalLink]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("external link", ExternalLink)


@text_map("group")
class GroupName(Wire):
    """The name of a group. The greatest (ts, place) wins."""

    ts: Annotated[int, Uint()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    name: Annotated[str, body_text()]
    realm_id: Annotated[bytes | None, Bstr(optional=True)] = None

    def join(self, other: Self) -> Self:
        return max(
            self, other, key=lambda one: (one.ts, one.epoch, one.stream_seq, one.name.encode(), one.realm_id or b"")
        )


@array("mark")
class Mark(Wire):
    """One name with the places where it was last added and removed; entry 0 means never."""

    name: Annotated[bytes, Bytes(MAX_BODY_BYTES)]
    on_epoch: Annotated[int, Uint()]
    on_seq: Annotated[int, Uint()]
    off_epoch: Annotated[int, Uint()]
    off_seq: Annotated[int, Uint()]

    @classmethod
    def of(cls, name: bytes, at: At, *, on: bool, off: bool) -> Self:
        return cls(name, *(at if on else NOWHERE), *(at if off else NOWHERE))

    @property
    def on(self) -> At:
        return At(self.on_epoch, self.on_seq)

    @property
    def off(self) -> At:
        return At(self.off_epoch, self.off_seq)

    @property
    def holds(self) -> bool:
        """An add is effective until a later remove. A remove in the same entry is not later."""
        return self.on != NOWHERE and self.on >= self.off

    def join(self, other: Self) -> Self:
        return type(self)(self.name, *max(self.on, other.on), *max(self.off, other.off))


@text_map("marks")
class Marks(Wire):
    """Marks, ascending by name."""

    marks: Annotated[tuple[Mark, ...], ListOf(Nested(Mark, name="mark"), most=U32_MAX, least=1)]

    def flaw(self) -> str | None:
        return None if ascending(mark.name for mark in self.marks) else "names are not in ascending order"

    def names(self) -> Iterator[bytes]:
        """The names that are currently added."""
        return (mark.name for mark in self.marks if mark.holds)

    def join(self, other: Self) -> Self:
        joined = {mark.name: mark for mark in self.marks}
        for mark in other.marks:
            joined[mark.name] = mark.join(joined[mark.name]) if mark.name in joined else mark
        return type(self)(tuple(joined[name] for name in sorted(joined)))


@text_map("revocation")
class Revoked(Wire):
    """A revocation: the revoker's ts, the entry, the reason and the revoking organization. The earliest counts."""

    ts: Annotated[int, Uint()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    reason: Annotated[str | None, body_text(optional=True)] = None
    org_id: Annotated[bytes | None, Bstr(optional=True)] = None

    def join(self, other: Self) -> Self:
        return min(
            self,
            other,
            key=lambda one: (one.ts, one.epoch, one.stream_seq, (one.reason or "").encode(), one.org_id or b""),
        )


PartValue: TypeAlias = (
    PrincipalState | LatestDevice | LatestCtx | LatestOrg | LatestHandle | LatestLink | GroupName | Marks | Revoked
)
State: TypeAlias = PartValue | None


def join(a: State, b: State) -> State:
    """Join two states of one part."""
    if a is None or b is None:
        return b if a is None else a
    assert type(a) is type(b), "a part is of one kind"
    joined: PartValue = a.join(b)  # type: ignore[arg-type]
    return joined


PRINCIPAL, DEVICE, CTX, ORG, GROUP, GROUPS_OF, ROLES_OF_CTX, ROLES_OF_GROUP, HANDLE, LINK = (
    b"p", b"d", b"c", b"o", b"g", b"m", b"r", b"s", b"h", b"l",
)  # fmt: skip
REVOKED_DEVICE, REVOKED_AUTH_REF, REVOKED_CTX, REVOKED_ORG = b"xd", b"xa", b"xc", b"xo"
ID = 32

# The state of each kind of part and the ids in its key. A device is keyed by principal, so a record of the same device
# by another principal has no effect. The last id may be absent: then the part is for all principals or realms.
KINDS: Mapping[bytes, tuple[type[PartValue], tuple[str, ...]]] = {
    PRINCIPAL: (PrincipalState, ("principal_pk",)),
    DEVICE: (LatestDevice, ("principal_pk", "device_id")),
    CTX: (LatestCtx, ("ctx_id", "realm_id")),
    ORG: (LatestOrg, ("org_id",)),
    GROUP: (GroupName, ("org_id", "group_id")),
    GROUPS_OF: (Marks, ("org_id", "ctx_id")),  # current and past memberships
    ROLES_OF_CTX: (Marks, ("org_id", "ctx_id", "realm_id")),
    ROLES_OF_GROUP: (Marks, ("org_id", "group_id", "realm_id")),
    HANDLE: (LatestHandle, ("realm_id",)),  # and the handle
    LINK: (LatestLink, ("realm_id",)),  # and the external subject, which has a different account in each realm
    REVOKED_DEVICE: (Revoked, ("device_id", "principal_pk")),
    REVOKED_AUTH_REF: (Revoked, ("auth_ref",)),
    REVOKED_CTX: (Revoked, ("ctx_id", "realm_id")),
    REVOKED_ORG: (Revoked, ("org_id", "realm_id")),
}


def part_key(kind: bytes, *ids: bytes | None) -> bytes:
    """The key of a part, from the ids that `KINDS` lists."""
    return kind + b"".join(one or b"" for one in ids)


def handle(realm_id: bytes, name: str) -> bytes:
    return HANDLE + realm_id + name.encode()


def link(realm_id: bytes, provider: str, external_sub: str) -> bytes:
    named = provider.encode()
    return LINK + realm_id + u32be(len(named)) + named + external_sub.encode()


def _kind(part: bytes) -> bytes:
    kind = part[:2] if part[:2] in KINDS else part[:1]
    if kind not in KINDS:
        raise Malformed("state", f"unknown part kind {part[:1].hex()}")
    return kind


def names(part: bytes) -> dict[str, bytes | str]:
    """The ids in a part key, by name."""
    kind = _kind(part)
    found: dict[str, bytes | str] = {}
    rest = part[len(kind) :]
    for name in KINDS[kind][1]:
        found[name], rest = rest[:ID], rest[ID:]
    if kind == HANDLE:
        found["handle"] = rest.decode()
    elif kind == LINK:
        cut = 4 + int.from_bytes(rest[:4], "big")
        found |= {"provider": rest[4:cut].decode(), "external_sub": rest[cut:].decode()}
    return {name: value for name, value in found.items() if value != b""}


class IdentityOverlay(MergeOverlay[State]):
    """The state of ID events on one stream. With `scope`, events that belong on other streams are malformed. §1, §4."""

    CLASS = "id"
    EVENTS = EVENTS
    EMPTY: State = None

    def __init__(self, scope: Scope | None = None) -> None:
        self.scope = scope

    def settings(self) -> bytes:
        return b"" if self.scope is None else encode_scope(self.scope)

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        return None if self.scope is None else self.scope.flaw(event)

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        match event:
            case IdentityPrincipal():
                return (part_key(PRINCIPAL, event.principal_pk),)
            case Device():
                return (part_key(DEVICE, event.principal_pk, event.device_id),)
            case CtxProfile():
                return (part_key(CTX, event.ctx_id, event.realm_id),)
            case OrgProfile():
                return (part_key(ORG, event.org_id),)
            case IdentityGroup():
                listed = (*(event.members_add or ()), *(event.members_remove or ()))
                members = (part_key(GROUPS_OF, event.org_id, ctx_id) for ctx_id in listed)
                return (part_key(GROUP, event.org_id, event.group_id), *members)
            case IdentityBinding():
                of_ctx = (part_key(ROLES_OF_CTX, event.org_id, one, event.realm_id) for one in event.targets_ctx or ())
                of_group = (
                    part_key(ROLES_OF_GROUP, event.org_id, one, event.realm_id) for one in event.targets_group or ()
                )
                return (*of_ctx, *of_group)
            case HandleMap():
                return (handle(event.realm_id, event.handle),)
            case ExternalLink():
                return (link(event.realm_id, event.provider, event.external_sub),)
            case IdentityRevocation():
                return _revoked_parts(event)
        raise AssertionError(event)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """The key is the original message and the body, so a forged copy with another body cannot suppress it.

        §12.1.
        """
        entry = step.entry
        assert entry.header is not None
        assert entry.body is not None
        return (entry.origin + h(entry.header.schema + entry.body),)

    def lift(self, step: FoldStep) -> State:
        event, at = step.event, step.at
        match event:
            case IdentityPrincipal():
                return PrincipalState.of(event.created_at, at, event.info)
            case Device():
                return LatestDevice(0, *at, event)
            case CtxProfile():
                return LatestCtx(event.updated_at, *at, event)
            case OrgProfile():
                return LatestOrg(event.updated_at, *at, event)
            case IdentityGroup():
                if step.part[:1] == GROUP:
                    return GroupName(event.updated_at, *at, event.name, event.realm_id)
                ctx_id = step.part[-ID:]
                added, removed = ctx_id in (event.members_add or ()), ctx_id in (event.members_remove or ())
                return Marks((Mark.of(event.group_id, at, on=added, off=removed),))
            case IdentityBinding():
                granted = isinstance(event, RoleBinding)
                return Marks((Mark.of(event.role.encode(), at, on=granted, off=not granted),))
            case HandleMap():
                return LatestHandle(event.ts, *at, event)
            case ExternalLink():
                return LatestLink(event.ts, *at, event)
            case IdentityRevocation():
                return Revoked(event.ts, *at, event.reason, event.org_id)
        raise AssertionError(event)

    def merge(self, a: State, b: State) -> State:
        return join(a, b)

    def decode_state(self, part: bytes, data: bytes) -> State:
        return None if data == NULL else KINDS[_kind(part)][0].decode(data)

    def plain(self, part: bytes, state: State) -> Mapping[str, cbor.Value]:
        return {**names(part), **_plain(part, state)}


IDENTITY = IdentityOverlay()


def _revoked_parts(event: IdentityRevocation) -> tuple[bytes, ...]:
    """The parts that a revocation targets. An org_id beside other targets is the revoking organization."""
    found = []
    if event.device_id is not None:
        found.append(part_key(REVOKED_DEVICE, event.device_id, event.principal_pk))
    if event.revoked_auth_ref is not None:
        found.append(part_key(REVOKED_AUTH_REF, event.revoked_auth_ref))
    if event.ctx_id is not None:
        found.append(part_key(REVOKED_CTX, event.ctx_id, event.realm_id))
    if not found and event.org_id is not None:
        found.append(part_key(REVOKED_ORG, event.org_id, event.realm_id))
    return tuple(found)


def _plain(part: bytes, state: State) -> dict[str, cbor.Value]:
    match state:
        case None:
            return {}
        case PrincipalState():
            return {"created_at": state.created_at, "info": None if state.info is None else cbor.decode(state.info)}
        case Marks():
            is_text = part[:1] != GROUPS_OF
            shown = [name.decode() if is_text else name for name in state.names()]
            return {"roles" if is_text else "groups": shown}
        case GroupName():
            return {"name": state.name, "realm_id": state.realm_id, "stream_seq": state.stream_seq}
        case Revoked():
            return {"revoked_at": state.ts, "reason": state.reason, "stream_seq": state.stream_seq}
        case LatestDevice():
            record = state.record
            disabled = record.flags is not None and record.flags.disabled is True
            names = ("device_pk", "dh_pk", "label", "created_at", "expires_at")
            shown_device = {name: getattr(record, name) for name in names}
            return {**shown_device, "disabled": disabled, "stream_seq": state.stream_seq}
        case _:
            return {**plain_wire(state.record, absent=True), "stream_seq": state.stream_seq}


def mirrored(entry: FoldEntry) -> tuple[PayloadHdr, bytes]:
    """The header and body with which a bridge publishes an event on another hub, with unchanged schema and body.

    A copy of a copy names the original message too. The capability reference is dropped: it is valid only on its own
    hub.
    """
    if entry.header is None or entry.body is None:
        raise ValueError("a sealed entry cannot be mirrored")
    return PayloadHdr(entry.header.schema, entry.origin, expires_at=entry.header.expires_at), entry.body


def union(*logs: Iterable[FoldEntry]) -> list[FoldEntry]:
    """Merge the events of all trusted hubs into one renumbered log. The order of the arguments does not matter.

    Each log is one stream of one hub, in order. The logs are interleaved by `hub_ts`; a clock that went back does not
    reorder a log. An event and its copies count once: the original if present, otherwise the first copy.
    """
    placed = sorted((item for log in logs for item in _placed(log)), key=lambda item: item[0])
    counted: dict[tuple[bytes, bytes | None], FoldEntry] = {}
    for _, entry in placed:
        first = counted.setdefault((entry.origin, entry.body), entry)
        if entry.origin == entry.msg_id and first is not entry:
            counted[entry.origin, entry.body] = entry
    kept = [entry for _, entry in placed if counted[entry.origin, entry.body] is entry]
    return [replace(entry, epoch=0, stream_seq=number) for number, entry in enumerate(kept, 1)]


Place = tuple[int, int, bytes, int]


def _placed(log: Iterable[FoldEntry]) -> Iterable[tuple[Place, FoldEntry]]:
    latest = 0
    for entry in log:
        latest = max(latest, entry.hub_ts)
        yield (latest, entry.epoch, entry.label, entry.stream_seq), entry
