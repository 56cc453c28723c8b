"""The ID overlay: principals, accounts, organizations, handles, links and revocations, each a part of its own."""

from collections.abc import Mapping

from veen.core import Malformed, cbor
from veen.core.hashing import h
from veen.overlays.entry import Entry
from veen.overlays.event import Event
from veen.overlays.identity import parts
from veen.overlays.identity.events import (
    EVENTS,
    Binding,
    CtxProfile,
    Device,
    ExternalLink,
    Group,
    HandleMap,
    OrgProfile,
    Principal,
    Revocation,
    RoleBinding,
)
from veen.overlays.identity.scope import Scope, encode_scope
from veen.overlays.identity.state import (
    Founded,
    LatestCtx,
    LatestDevice,
    LatestHandle,
    LatestLink,
    LatestOrg,
    Mark,
    Marks,
    Named,
    Revoked,
    State,
    join,
)
from veen.overlays.overlay import MergeOverlay, Step


class Identity(MergeOverlay[State]):
    """All that ID says on one stream. With `scope`, only what belongs on that stream. §1, §4."""

    CLASS = "id"
    EVENTS = EVENTS
    EMPTY: State = None

    def __init__(self, scope: Scope | None = None) -> None:
        self.scope = scope

    def settings(self) -> bytes:
        return b"" if self.scope is None else encode_scope(self.scope)

    def flaw(self, entry: Entry, event: Event) -> str | None:
        return None if self.scope is None else self.scope.flaw(event)

    def parts(self, entry: Entry, event: Event) -> tuple[bytes, ...]:
        match event:
            case Principal():
                return (parts.principal(event.principal_pk),)
            case Device():
                return (parts.device(event.principal_pk, event.device_id),)
            case CtxProfile():
                return (parts.ctx(event.ctx_id, event.realm_id),)
            case OrgProfile():
                return (parts.org(event.org_id),)
            case Group():
                listed = (*(event.members_add or ()), *(event.members_remove or ()))
                members = (parts.groups_of(event.org_id, ctx_id) for ctx_id in listed)
                return (parts.group(event.org_id, event.group_id), *members)
            case Binding():
                of_ctx = (parts.roles_of_ctx(event.org_id, one, event.realm_id) for one in event.targets_ctx or ())
                of_group = (
                    parts.roles_of_group(event.org_id, one, event.realm_id) for one in event.targets_group or ()
                )
                return (*of_ctx, *of_group)
            case HandleMap():
                return (parts.handle(event.realm_id, event.handle),)
            case ExternalLink():
                return (parts.link(event.realm_id, event.provider, event.external_sub),)
            case Revocation():
                return _revoked_parts(event)
        raise AssertionError(event)

    def keys(self, step: Step) -> tuple[bytes, ...]:
        """The original message and its body: whoever names it above another body does not stand in its way. §12.1."""
        entry = step.entry
        assert entry.header is not None
        assert entry.body is not None
        return (entry.origin + h(entry.header.schema + entry.body),)

    def lift(self, step: Step) -> State:
        event, at = step.event, step.at
        match event:
            case Principal():
                return Founded.of(event.created_at, at, event.info)
            case Device():
                return LatestDevice(0, *at, event)
            case CtxProfile():
                return LatestCtx(event.updated_at, *at, event)
            case OrgProfile():
                return LatestOrg(event.updated_at, *at, event)
            case Group():
                if step.part[:1] == parts.GROUP:
                    return Named(event.updated_at, *at, event.name, event.realm_id)
                ctx_id = step.part[-parts.ID :]
                added, removed = ctx_id in (event.members_add or ()), ctx_id in (event.members_remove or ())
                return Marks((Mark.of(event.group_id, at, on=added, off=removed),))
            case Binding():
                granted = isinstance(event, RoleBinding)
                return Marks((Mark.of(event.role.encode(), at, on=granted, off=not granted),))
            case HandleMap():
                return LatestHandle(event.ts, *at, event)
            case ExternalLink():
                return LatestLink(event.ts, *at, event)
            case Revocation():
                return Revoked(event.ts, *at, event.reason, event.org_id)
        raise AssertionError(event)

    def merge(self, a: State, b: State) -> State:
        return join(a, b)

    def encode_state(self, state: State) -> bytes:
        return cbor.encode(None) if state is None else state.encode()

    def decode_state(self, part: bytes, data: bytes) -> State:
        if data == cbor.encode(None):
            return None
        kind = parts.KINDS.get(part[:1])
        if kind is None:
            raise Malformed("state", f"there is no part of kind {part[:1].hex()}")
        return kind.decode(data)

    def plain(self, part: bytes, state: State) -> Mapping[str, cbor.Value]:
        return {**parts.names(part), **_plain(part, state)}


IDENTITY = Identity()


def _revoked_parts(event: Revocation) -> tuple[bytes, ...]:
    """All that a revocation names. An organization that stands beside them is the one that speaks."""
    found = []
    if event.device_id is not None:
        found.append(parts.revoked_device(event.device_id, event.principal_pk))
    if event.revoked_auth_ref is not None:
        found.append(parts.revoked_auth_ref(event.revoked_auth_ref))
    if event.ctx_id is not None:
        found.append(parts.revoked_ctx(event.ctx_id, event.realm_id))
    if not found and event.org_id is not None:
        found.append(parts.revoked_org(event.org_id, event.realm_id))
    return tuple(found)


def _plain(part: bytes, state: State) -> dict[str, cbor.Value]:
    match state:
        case None:
            return {}
        case Founded():
            return {"created_at": state.created_at, "info": _value(state.info)}
        case Marks():
            is_text = part[:1] != parts.GROUPS_OF
            shown = [name.decode() if is_text else name for name in state.names()]
            return {"roles" if is_text else "groups": shown}
        case Named():
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
