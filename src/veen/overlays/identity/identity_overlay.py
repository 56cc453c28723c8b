"""The ID overlay: principals, accounts, organizations, handles, links and revocations, each in its own part."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from veen.core import Malformed, PayloadHdr, cbor
from veen.core.hashing import h
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event
from veen.overlays.identity import identity_state
from veen.overlays.identity.identity_events import (
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
)
from veen.overlays.identity.identity_state import (
    GroupName,
    LatestCtx,
    LatestDevice,
    LatestHandle,
    LatestLink,
    LatestOrg,
    Mark,
    Marks,
    PrincipalState,
    Revoked,
    State,
    join,
)
from veen.overlays.identity.scope import Scope, encode_scope
from veen.overlays.overlay import FoldStep, MergeOverlay


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
                return (identity_state.principal(event.principal_pk),)
            case Device():
                return (identity_state.device(event.principal_pk, event.device_id),)
            case CtxProfile():
                return (identity_state.ctx(event.ctx_id, event.realm_id),)
            case OrgProfile():
                return (identity_state.org(event.org_id),)
            case IdentityGroup():
                listed = (*(event.members_add or ()), *(event.members_remove or ()))
                members = (identity_state.groups_of(event.org_id, ctx_id) for ctx_id in listed)
                return (identity_state.group(event.org_id, event.group_id), *members)
            case IdentityBinding():
                of_ctx = (
                    identity_state.roles_of_ctx(event.org_id, one, event.realm_id) for one in event.targets_ctx or ()
                )
                of_group = (
                    identity_state.roles_of_group(event.org_id, one, event.realm_id)
                    for one in event.targets_group or ()
                )
                return (*of_ctx, *of_group)
            case HandleMap():
                return (identity_state.handle(event.realm_id, event.handle),)
            case ExternalLink():
                return (identity_state.link(event.realm_id, event.provider, event.external_sub),)
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
                if step.part[:1] == identity_state.GROUP:
                    return GroupName(event.updated_at, *at, event.name, event.realm_id)
                ctx_id = step.part[-identity_state.ID :]
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

    def encode_state(self, state: State) -> bytes:
        return cbor.encode(None) if state is None else state.encode()

    def decode_state(self, part: bytes, data: bytes) -> State:
        if data == cbor.encode(None):
            return None
        kind = identity_state.KINDS.get(part[:1])
        if kind is None:
            raise Malformed("state", f"unknown part kind {part[:1].hex()}")
        return kind.decode(data)

    def plain(self, part: bytes, state: State) -> Mapping[str, cbor.Value]:
        return {**identity_state.names(part), **_plain(part, state)}


IDENTITY = IdentityOverlay()


def _revoked_parts(event: IdentityRevocation) -> tuple[bytes, ...]:
    """The parts that a revocation targets. An org_id beside other targets is the revoking organization."""
    found = []
    if event.device_id is not None:
        found.append(identity_state.revoked_device(event.device_id, event.principal_pk))
    if event.revoked_auth_ref is not None:
        found.append(identity_state.revoked_auth_ref(event.revoked_auth_ref))
    if event.ctx_id is not None:
        found.append(identity_state.revoked_ctx(event.ctx_id, event.realm_id))
    if not found and event.org_id is not None:
        found.append(identity_state.revoked_org(event.org_id, event.realm_id))
    return tuple(found)


def _plain(part: bytes, state: State) -> dict[str, cbor.Value]:
    match state:
        case None:
            return {}
        case PrincipalState():
            return {"created_at": state.created_at, "info": _value(state.info)}
        case Marks():
            is_text = part[:1] != identity_state.GROUPS_OF
            shown = [name.decode() if is_text else name for name in state.names()]
            return {"roles" if is_text else "groups": shown}
        case GroupName():
            return {"name": state.name, "realm_id": state.realm_id, "stream_seq": state.stream_seq}
        case Revoked():
            return {"revoked_at": state.ts, "reason": state.reason, "stream_seq": state.stream_seq}
        case LatestDevice():
            record = state.record
            disabled = record.flags is not None and record.flags.disabled is True
            shown_device = {name: getattr(record, name) for name in ("device_pk", "dh_pk", "label", "created_at")}
            return {**shown_device, "expires_at": record.expires_at, "disabled": disabled, **_place(state.stream_seq)}
        case _:
            record_fields = [kind.name for kind in state.record.LAYOUT.kinds]
            shown_record = {name: getattr(state.record, name) for name in record_fields}
            for opened in ("prefs", "metadata", "attributes"):
                if opened in shown_record:
                    shown_record[opened] = _value(shown_record[opened])
            return {**shown_record, **_place(state.stream_seq)}


def _place(stream_seq: int) -> dict[str, cbor.Value]:
    return {"stream_seq": stream_seq}


def _value(encoded: bytes | None) -> cbor.Value:
    return None if encoded is None else cbor.decode(encoded)


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
    reorder a log. Of an event and its copies one is kept: the original if present, otherwise the first copy.
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
