"""Identity: names, bodies, what belongs on which stream, and each rule of id-spec by itself."""

from dataclasses import replace
from hashlib import sha256

import pytest

from tests.overlays.identities import CTXS, DEVICE_IDS, DEVICE_KEYS, GROUPS, ORGS, PRINCIPALS, REALMS, tagged
from tests.overlays.logs import LogLine, log, msg_id
from veen.core import Malformed, cbor
from veen.core.naming import realm_id
from veen.overlays import AnyOverlay, Event, FaultKind, fold, identity, identity_events, identity_views, state_hash
from veen.overlays.identity import IDENTITY, IdentityOverlay, Marks
from veen.overlays.identity_events import (
    MAX_HANDLE_BYTES,
    MAX_LISTED,
    CtxProfile,
    CtxStream,
    Device,
    ExternalLink,
    Flags,
    HandleMap,
    HandleStream,
    IdentityGroup,
    IdentityPrincipal,
    IdentityRevocation,
    OrgProfile,
    OrgStream,
    PrincipalStream,
    RoleBinding,
    RoleRevoke,
    ctx_id,
    device_id,
    group_id,
    handle_flaw,
    org_id,
    principal_id,
    scoped_org_id,
)

ME, OTHER = PRINCIPALS
KEY, DEVICE = DEVICE_KEYS[0], DEVICE_IDS[0]
REALM, ELSEWHERE = REALMS
MINE, ORG, STAFF = CTXS[0], ORGS[0], GROUPS[0]


def device(**changed: object) -> Device:
    return replace(Device(ME, DEVICE, KEY, bytes(32), None, 1), **changed)  # type: ignore[arg-type]


def group(add: tuple[bytes, ...] | None = None, remove: tuple[bytes, ...] | None = None, ts: int = 0) -> IdentityGroup:
    return IdentityGroup(ORG, None, STAFF, "Staff", add, remove, ts)


def states(*events: Event | LogLine) -> identity_views.States:
    folded = fold(IDENTITY, log(*events))
    assert folded.faults == []
    return folded.states


def test_names_are_the_tagged_hashes_of_the_specification() -> None:
    assert realm_id("example-app") == tagged("id/realm", b"example-app") == REALM
    assert realm_id("名前") == tagged("id/realm", "名前".encode())
    assert principal_id(ME) == tagged("id/principal", ME)
    assert ctx_id(ME, REALM) == tagged("id/ctx", ME, REALM) == MINE
    assert device_id(KEY) == tagged("id/device", KEY)
    assert org_id(ME) == tagged("id/org", ME)
    assert scoped_org_id(ORG, REALM) == tagged("id/org/realm", ORG, REALM)
    assert group_id(ORG, "staff") == tagged("id/group", ORG, b"staff") == STAFF
    assert identity_events.principal_stream(ME) == tagged("id/stream/principal", ME)
    assert identity_events.ctx_stream(MINE, REALM) == tagged("id/stream/ctx", MINE, REALM)
    assert identity_events.org_stream(ORG) == tagged("id/stream/org", ORG)
    assert identity_events.handle_stream(REALM) == tagged("id/stream/handle", REALM)


def test_one_principal_has_one_stable_account_per_realm() -> None:
    assert len({ctx_id(ME, realm_id(name)) for name in ("a", "b", "a")}) == 2
    assert ctx_id(ME, REALM) != ctx_id(OTHER, REALM)


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (IdentityPrincipal, "id.principal.v1"),
        (Device, "id.device.v1"),
        (CtxProfile, "id.ctx.profile.v1"),
        (OrgProfile, "id.org.profile.v1"),
        (IdentityGroup, "id.group.v1"),
        (RoleBinding, "id.role.v1"),
        (HandleMap, "id.handlemap.v1"),
        (ExternalLink, "id.external.v1"),
        (IdentityRevocation, "id.revoke.v1"),
        (RoleRevoke, "id.role.revoke.v1"),
    ],
)
def test_a_schema_is_the_hash_of_its_name(event: type[Event], name: str) -> None:
    assert sha256(name.encode()).digest() == event.SCHEMA


@pytest.mark.parametrize(
    "event",
    [
        device(device_id=DEVICE_IDS[1]),
        IdentityRevocation(ts=1),
        IdentityRevocation(principal_pk=ME, realm_id=REALM, reason="lost", ts=1),
        ExternalLink(REALM, None, None, "google", "1", None, 0),
        HandleMap(REALM, "@ann", "person", MINE, 0),
        HandleMap(REALM, "@ann", "", MINE, 0),
        HandleMap(REALM, "@Ann", "ctx", MINE, 0),
    ],
)
def test_a_body_with_inconsistent_fields_does_not_decode(event: Event) -> None:
    with pytest.raises(ValueError, match=event.LAYOUT.name):
        event.encode()
    spelled = type(event).LAYOUT.write(type(event).LAYOUT.fields_of(event))
    with pytest.raises(Malformed):
        type(event).decode(spelled)
    (entry,) = log(IdentityPrincipal(ME, 0))
    assert entry.header is not None
    folded = fold(IDENTITY, [replace(entry, header=replace(entry.header, schema=event.SCHEMA), body=spelled)])
    assert folded.states == {}
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]


@pytest.mark.parametrize("handle", ["@user", "user", "user@example.com", "a", "a.b-c_d+e", "9", "@a@b.c", "a" * 254])
def test_these_are_handles(handle: str) -> None:
    assert handle_flaw(handle) is None


@pytest.mark.parametrize(
    "handle",
    ["", "@", "@@a", "A", "@Ann", "a b", " a", "a\n", "-a", "a-", ".a", "a@", "@a@", "a@b@c", "é", "\u0430", "a\u200b",
     "a" * (MAX_HANDLE_BYTES + 1), "a/b", "@a@.b"],
)  # fmt: skip
def test_these_are_not_handles(handle: str) -> None:
    assert handle_flaw(handle) is not None


def test_the_number_of_members_in_one_event_is_bounded() -> None:
    members = tuple(number.to_bytes(32, "big") for number in range(MAX_LISTED + 1))
    assert len(states(group(members[:-1]))) == 1 + MAX_LISTED
    with pytest.raises(ValueError, match="members_add"):
        group(members).encode()


def test_a_later_principal_record_changes_only_info() -> None:
    first, second = cbor.encode({"n": 1}), cbor.encode({"n": 2})
    for events, info in [
        ((IdentityPrincipal(ME, 7), IdentityPrincipal(ME, 9, first)), first),
        ((IdentityPrincipal(ME, 7, first), IdentityPrincipal(ME, 3, second)), second),
        ((IdentityPrincipal(ME, 7, first), IdentityPrincipal(ME, 9)), first),
        ((IdentityPrincipal(ME, 7, first), IdentityPrincipal(OTHER, 9, second)), first),
    ]:
        founded = identity_views.principal(states(*events), ME)
        assert founded is not None
        assert (founded.created_at, founded.info) == (7, info)
    assert identity_views.principal({}, ME) is None


@pytest.mark.parametrize(
    ("changed", "now", "active"),
    [
        ({}, 1 << 63, True),
        ({"flags": Flags()}, 5, True),
        ({"flags": Flags(False)}, 5, True),
        ({"flags": Flags(True)}, 5, False),
        ({"expires_at": 5}, 4, True),
        ({"expires_at": 5}, 5, True),
        ({"expires_at": 5}, 6, False),
        ({"expires_at": 5, "flags": Flags(True)}, 4, False),
    ],
)
def test_a_device_is_active_unless_disabled_or_expired(changed: dict[str, object], now: int, active: bool) -> None:
    assert (identity_views.inactive_reason(states(device(**changed)), ME, KEY, now) is None) is active


def test_the_last_record_of_a_device_counts_regardless_of_its_times() -> None:
    found = states(device(created_at=9), device(created_at=1, flags=Flags(True)))
    assert identity_views.inactive_reason(found, ME, KEY, 0) == "it is disabled"
    found = states(device(flags=Flags(True)), device(expires_at=5))
    assert identity_views.inactive_reason(found, ME, KEY, 5) is None
    assert [one.expires_at for one in identity_views.devices(found, ME)] == [5]


def test_a_device_record_of_another_principal_has_no_effect() -> None:
    found = states(device(), device(principal_pk=OTHER, flags=Flags(True)))
    assert identity_views.inactive_reason(found, ME, KEY, 0) is None
    assert identity_views.inactive_reason(found, OTHER, KEY, 0) is not None
    assert (
        identity_views.inactive_reason(found, sha256(b"nobody").digest(), KEY, 0)
        == "it is not a device of this principal"
    )


@pytest.mark.parametrize(
    "revoked", [IdentityRevocation(ME, None, DEVICE, ts=3), IdentityRevocation(device_id=DEVICE, ts=3)]
)
def test_a_revoked_device_stays_inactive_regardless_of_its_records(revoked: IdentityRevocation) -> None:
    for events in [(device(), revoked), (revoked, device()), (device(), revoked, device(flags=Flags(False)))]:
        assert identity_views.inactive_reason(states(*events), ME, KEY, 0) == "it was revoked at 3"


def test_a_revocation_by_another_principal_changes_nothing() -> None:
    found = states(device(), IdentityRevocation(OTHER, None, DEVICE, ts=3))
    assert identity_views.inactive_reason(found, ME, KEY, 0) is None


def test_a_device_rotates_by_a_new_record_and_a_revocation() -> None:
    new = DEVICE_KEYS[1]
    found = states(
        device(),
        device(device_id=device_id(new), device_pk=new),
        IdentityRevocation(ME, None, DEVICE, b"\x0a" * 32, reason="rotated", ts=3),
        device(flags=Flags(True)),
    )
    assert identity_views.inactive_reason(found, ME, KEY, 0) is not None
    assert identity_views.inactive_reason(found, ME, new, 0) is None
    assert identity_views.auth_ref_revocation(found, b"\x0a" * 32) is not None


def profile(name: str, updated_at: int) -> CtxProfile:
    return CtxProfile(MINE, REALM, name, None, None, updated_at)


@pytest.mark.parametrize(
    ("events", "name"),
    [
        ([profile("a", 1), profile("b", 2)], "b"),
        ([profile("b", 2), profile("a", 1)], "b"),
        ([profile("a", 2), profile("b", 2)], "b"),
        ([profile("a", 2), CtxProfile(MINE, ELSEWHERE, "b", None, None, 9)], "a"),
        ([profile("a", 2), CtxProfile(CTXS[1], REALM, "b", None, None, 9)], "a"),
    ],
)
def test_the_profile_with_the_greatest_time_then_place_wins(events: list[Event], name: str) -> None:
    found = identity_views.ctx_profile(states(*events), MINE, REALM)
    assert found is not None
    assert found.display_name == name


def test_the_organization_profile_with_the_greatest_time_then_place_wins() -> None:
    for times, name in [((1, 2), "b"), ((2, 1), "a"), ((2, 2), "b")]:
        a, b = (OrgProfile(ORG, shown, None, 0, ts) for shown, ts in zip("ab", times, strict=True))
        found = identity_views.org_profile(states(a, b), ORG)
        assert found is not None
        assert found.display_name == name


@pytest.mark.parametrize(
    ("events", "member"),
    [
        ([group((MINE,))], True),
        ([group(None, (MINE,))], False),
        ([group((MINE,)), group(None, (MINE,))], False),
        ([group(None, (MINE,)), group((MINE,))], True),
        ([group((MINE,)), group(None, (MINE,)), group((MINE,))], True),
        ([group((MINE,)), group((MINE,)), group(None, (MINE,))], False),
        ([group((MINE,), (MINE,))], True),
        ([group((MINE,)), group((MINE,), (MINE,))], True),
        ([group((MINE,), ts=9), group(None, (MINE,), ts=1)], False),
        ([group((MINE,)), IdentityGroup(ORGS[1], None, STAFF, "Staff", None, (MINE,), 0)], True),
        ([group((MINE,)), IdentityGroup(ORG, None, GROUPS[1], "Board", None, (MINE,), 0)], True),
    ],
)
def test_a_member_was_added_and_not_removed_since(events: list[Event], member: bool) -> None:
    found = states(*events)
    assert (STAFF in identity_views.groups_of(found, ORG, MINE)) is member
    shown = {one.group_id: one for one in identity_views.groups(found, ORG)}[STAFF]
    assert (MINE in shown.members) is member


def test_a_remove_of_one_leaves_the_others() -> None:
    (found,) = identity_views.groups(states(group(CTXS), group(None, (MINE,))), ORG)
    assert found.members == (CTXS[1],)


def test_a_mirrored_add_after_the_remove_does_not_restore_a_member() -> None:
    entries = log(group((MINE,)), group(None, (MINE,)), LogLine(group((MINE,)), msg_id(1)))
    folded = fold(IDENTITY, entries)
    assert STAFF not in identity_views.groups_of(folded.states, ORG, MINE)
    assert {fault.kind for fault in folded.faults} == {FaultKind.COPY}


def test_a_forged_copy_does_not_suppress_the_genuine_event() -> None:
    true, false = group((MINE,)), group((CTXS[1],))
    found = states(LogLine(false, sha256(b"original").digest()), LogLine(true, sha256(b"original").digest()))
    assert STAFF in identity_views.groups_of(found, ORG, MINE)


def role(name: str, realm: bytes | None = None, *, group: bool = False) -> RoleBinding:
    return RoleBinding(ORG, realm, name, None if group else (MINE,), (STAFF,) if group else None, 0)


def test_roles_add_up_from_the_account_and_its_groups() -> None:
    found = states(role("admin"), role("editor", group=True), role("admin"), group((MINE,)))
    assert identity_views.roles(found, ORG, MINE) == {"admin", "editor"}
    found = states(role("admin"), role("editor", group=True), group((MINE,)), group(None, (MINE,)))
    assert identity_views.roles(found, ORG, MINE) == {"admin"}
    assert identity_views.roles(found, ORGS[1], MINE) == frozenset()
    assert identity_views.roles(found, ORG, CTXS[1]) == frozenset()


def test_a_role_of_a_realm_holds_in_that_realm_only() -> None:
    found = states(role("admin", REALM), role("editor"), role("reader", REALM, group=True), group((MINE,)))
    assert identity_views.roles(found, ORG, MINE, REALM) == {"admin", "editor", "reader"}
    assert identity_views.roles(found, ORG, MINE, ELSEWHERE) == identity_views.roles(found, ORG, MINE) == {"editor"}


def test_a_role_can_be_revoked_and_granted_again() -> None:
    back = RoleRevoke(ORG, None, "admin", (MINE,), None, 0)
    assert identity_views.roles(states(role("admin"), back), ORG, MINE) == frozenset()
    assert identity_views.roles(states(back, role("admin")), ORG, MINE) == {"admin"}
    assert identity_views.roles(states(role("admin"), role("editor"), back), ORG, MINE) == {"editor"}
    assert identity_views.roles(states(role("admin", REALM), back), ORG, MINE, REALM) == {"admin"}


def test_the_last_mapping_of_a_handle_in_its_realm_counts() -> None:
    a, b = HandleMap(REALM, "@ann", "ctx", MINE, 5), HandleMap(REALM, "@ann", "org", ORG, 5)
    assert identity_views.handle(states(a, b), REALM, "@ann") == b
    assert identity_views.handle(states(a, replace(b, ts=4)), REALM, "@ann") == a
    assert identity_views.handle(states(a, replace(b, realm_id=ELSEWHERE)), REALM, "@ann") == a
    assert identity_views.handle(states(a), REALM, "@bob") is None


def external(provider: str = "google", sub: str = "1", **changed: object) -> ExternalLink:
    return replace(ExternalLink(REALM, MINE, None, provider, sub, None, 5), **changed)  # type: ignore[arg-type]


def test_a_subject_of_a_provider_is_one_account_of_a_realm() -> None:
    found = states(external(), external(ctx_id=CTXS[1]), external("goog", "le1"), external(realm_id=ELSEWHERE))
    assert identity_views.link(found, REALM, "google", "1") == external(ctx_id=CTXS[1])
    assert identity_views.link(found, REALM, "goog", "le1") == external("goog", "le1")
    assert identity_views.link(found, ELSEWHERE, "google", "1") == external(realm_id=ELSEWHERE)
    assert identity_views.link(found, REALM, "google", "2") is None


def test_a_subject_that_two_streams_link_differently_is_reported() -> None:
    a, b = states(external()), states(external(ctx_id=CTXS[1], ts=4), external(sub="2"))
    assert identity_views.conflicting_links(a, b) == (("google", "1"),)
    assert identity_views.conflicting_links(a, a) == identity_views.conflicting_links(b) == ()
    assert identity_views.conflicting_links(a, states(external(realm_id=ELSEWHERE, ctx_id=CTXS[1]))) == ()


def test_a_revoked_account_is_disabled_in_the_realm_named_or_in_all() -> None:
    one = states(IdentityRevocation(ME, ctx_id=MINE, realm_id=REALM, ts=1))
    assert identity_views.ctx_revocation(one, MINE, REALM) is not None
    assert identity_views.ctx_revocation(one, MINE, ELSEWHERE) is None
    assert identity_views.ctx_revocation(one, CTXS[1], REALM) is None
    assert identity_views.ctx_revocation(states(IdentityRevocation(ctx_id=MINE, ts=1)), MINE, REALM) is not None


def test_an_organization_is_revoked_only_if_it_is_the_only_target() -> None:
    assert identity_views.org_revocation(states(IdentityRevocation(org_id=ORG, ts=1)), ORG) is not None
    in_realm = states(IdentityRevocation(org_id=ORG, realm_id=REALM, ts=1))
    assert identity_views.org_revocation(in_realm, ORG, REALM) is not None
    assert identity_views.org_revocation(in_realm, ORG) is None
    for beside in ({"device_id": DEVICE}, {"ctx_id": MINE}, {"revoked_auth_ref": b"\x0a" * 32}):
        assert identity_views.org_revocation(states(IdentityRevocation(org_id=ORG, ts=1, **beside)), ORG) is None  # type: ignore[arg-type]


def test_the_earliest_of_several_revocations_is_reported_and_all_are_permanent() -> None:
    for times in [(3, 5), (5, 3), (3, 3)]:
        found = identity_views.device_revocation(
            states(*(IdentityRevocation(ME, None, DEVICE, ts=ts) for ts in times)), ME, DEVICE
        )
        assert found is not None
        assert found.ts == 3
        assert found.stream_seq == (2 if times == (5, 3) else 1)


def test_one_revocation_can_name_several_things() -> None:
    found = states(IdentityRevocation(ME, None, DEVICE, b"\x0a" * 32, REALM, MINE, None, 1))
    assert identity_views.device_revocation(found, ME, DEVICE) is not None
    assert identity_views.auth_ref_revocation(found, b"\x0a" * 32) is not None
    assert identity_views.ctx_revocation(found, MINE, REALM) is not None


SCOPED = scoped_org_id(ORG, REALM)
ON_STREAM: list[tuple[AnyOverlay, Event, bool]] = [
    (IdentityOverlay(PrincipalStream(ME)), IdentityPrincipal(ME, 0), True),
    (IdentityOverlay(PrincipalStream(ME)), IdentityPrincipal(OTHER, 0), False),
    (IdentityOverlay(PrincipalStream(ME)), device(), True),
    (IdentityOverlay(PrincipalStream(ME)), device(principal_pk=OTHER), False),
    (IdentityOverlay(PrincipalStream(ME)), IdentityRevocation(ME, None, DEVICE, ts=1), True),
    (IdentityOverlay(PrincipalStream(ME)), IdentityRevocation(None, None, DEVICE, ts=1), True),
    (IdentityOverlay(PrincipalStream(ME)), IdentityRevocation(OTHER, None, DEVICE, ts=1), False),
    (IdentityOverlay(PrincipalStream(ME)), profile("a", 1), False),
    (IdentityOverlay(CtxStream.of(ME, REALM)), profile("a", 1), True),
    (IdentityOverlay(CtxStream.of(ME, REALM)), CtxProfile(CTXS[1], REALM, None, None, None, 1), False),
    (IdentityOverlay(CtxStream.of(ME, REALM)), CtxProfile(MINE, ELSEWHERE, None, None, None, 1), False),
    (IdentityOverlay(CtxStream.of(ME, REALM)), external(), True),
    (IdentityOverlay(CtxStream.of(ME, REALM)), external(ctx_id=CTXS[1]), False),
    (IdentityOverlay(CtxStream.of(ME, REALM)), external(ctx_id=None, org_id=ORG), False),
    (IdentityOverlay(CtxStream.of(ME, REALM)), external(realm_id=ELSEWHERE), False),
    (IdentityOverlay(CtxStream.of(ME, REALM)), device(), False),
    (IdentityOverlay(OrgStream(ORG)), OrgProfile(ORG, None, None, 0, 0), True),
    (IdentityOverlay(OrgStream(ORG)), OrgProfile(ORGS[1], None, None, 0, 0), False),
    (IdentityOverlay(OrgStream(ORG)), group((MINE,)), True),
    (IdentityOverlay(OrgStream(ORG)), role("admin"), True),
    (IdentityOverlay(OrgStream(ORG)), role("admin", REALM), True),
    (IdentityOverlay(OrgStream(ORG)), replace(role("admin", REALM), org_id=SCOPED), True),
    (IdentityOverlay(OrgStream(ORG)), replace(role("admin", ELSEWHERE), org_id=SCOPED), False),
    (IdentityOverlay(OrgStream(ORG)), replace(role("admin"), org_id=SCOPED), False),
    (IdentityOverlay(OrgStream(ORG)), OrgProfile(SCOPED, None, None, 0, 0), False),
    (IdentityOverlay(OrgStream(ORG)), RoleRevoke(ORGS[1], None, "admin", (MINE,), None, 0), False),
    (IdentityOverlay(OrgStream(ORG)), IdentityRevocation(org_id=ORG, ctx_id=MINE, ts=1), True),
    (IdentityOverlay(OrgStream(ORG)), IdentityRevocation(org_id=ORGS[1], ctx_id=MINE, ts=1), False),
    (IdentityOverlay(OrgStream(ORG)), external(org_id=ORG), True),
    (IdentityOverlay(OrgStream(ORG)), external(), False),
    (IdentityOverlay(OrgStream(ORG)), IdentityPrincipal(ME, 0), False),
    (IdentityOverlay(OrgStream(ORG, REALM)), replace(group((MINE,)), org_id=SCOPED, realm_id=REALM), True),
    (IdentityOverlay(OrgStream(ORG, REALM)), replace(group((MINE,)), org_id=SCOPED), True),
    (IdentityOverlay(OrgStream(ORG, REALM)), replace(group((MINE,)), org_id=SCOPED, realm_id=ELSEWHERE), False),
    (IdentityOverlay(OrgStream(ORG, REALM)), replace(group((MINE,)), realm_id=REALM), False),
    (IdentityOverlay(OrgStream(ORG, REALM)), role("admin", REALM), False),
    (IdentityOverlay(OrgStream(ORG, REALM)), replace(role("admin", REALM), org_id=SCOPED), True),
    (IdentityOverlay(HandleStream(REALM)), HandleMap(REALM, "@ann", "ctx", MINE, 0), True),
    (IdentityOverlay(HandleStream(REALM)), HandleMap(ELSEWHERE, "@ann", "ctx", MINE, 0), False),
    (IdentityOverlay(HandleStream(REALM)), profile("a", 1), False),
]


@pytest.mark.parametrize(("overlay", "event", "belongs"), ON_STREAM)
def test_a_scoped_stream_accepts_only_its_own_events(overlay: AnyOverlay, event: Event, belongs: bool) -> None:
    folded = fold(overlay, log(event))
    assert bool(folded.states) is belongs
    assert [fault.kind for fault in folded.faults] == ([] if belongs else [FaultKind.MALFORMED])
    assert fold(IDENTITY, log(event)).faults == []


def test_caches_of_different_streams_are_distinguished() -> None:
    scopes = [
        None,
        PrincipalStream(ME),
        PrincipalStream(OTHER),
        CtxStream.of(ME, REALM),
        OrgStream(ORG),
        OrgStream(ORG, REALM),
        HandleStream(REALM),
    ]
    assert len({IdentityOverlay(scope).settings() for scope in scopes}) == len(scopes)


def test_every_part_key_can_be_decoded_to_names() -> None:
    found = states(
        IdentityPrincipal(ME, 0, cbor.encode({"a": 1})),
        device(label="phone"),
        profile("Ann", 1),
        OrgProfile(ORG, "Org", None, 0, 0),
        group((MINE,)),
        role("admin", REALM),
        role("editor", group=True),
        HandleMap(REALM, "@ann", "ctx", MINE, 0),
        external("saml:corp", "7"),
        IdentityRevocation(ME, None, DEVICE, b"\x0a" * 32, REALM, MINE, "lost", 1),
        IdentityRevocation(org_id=ORG, ts=1),
    )
    shown = {part[:2] if part[:1] == b"x" else part[:1]: IDENTITY.plain(part, found[part]) for part in found}
    assert set(shown) == {b"p", b"d", b"c", b"o", b"g", b"m", b"r", b"s", b"h", b"l", b"xd", b"xa", b"xc", b"xo"}
    assert shown[b"p"] == {"principal_pk": ME, "created_at": 0, "info": {"a": 1}}
    assert shown[b"r"] == {"org_id": ORG, "ctx_id": MINE, "realm_id": REALM, "roles": ["admin"]}
    assert shown[b"s"] == {"org_id": ORG, "group_id": STAFF, "roles": ["editor"]}
    assert shown[b"m"] == {"org_id": ORG, "ctx_id": MINE, "groups": [STAFF]}
    assert (shown[b"l"]["provider"], shown[b"l"]["external_sub"]) == ("saml:corp", "7")
    assert shown[b"h"]["handle"] == "@ann"
    assert shown[b"xd"] == {
        "device_id": DEVICE, "principal_pk": ME, "revoked_at": 1, "reason": "lost", "stream_seq": 10,
    }  # fmt: skip


def test_a_state_of_another_kind_or_with_names_out_of_order_does_not_decode() -> None:
    two = Marks((*states(role("a"))[identity.part_key(identity.ROLES_OF_CTX, ORG, MINE, None)].marks,) * 2)  # type: ignore[union-attr]
    spelled = Marks.LAYOUT.write([two.marks])
    with pytest.raises(Malformed):
        IDENTITY.decode_state(identity.part_key(identity.ROLES_OF_CTX, ORG, MINE, None), spelled)
    with pytest.raises(Malformed):
        IDENTITY.decode_state(b"?", cbor.encode({}))
    with pytest.raises(Malformed):
        IDENTITY.decode_state(
            identity.part_key(identity.ORG, ORG),
            IDENTITY.encode_state(states(IdentityPrincipal(ME, 0))[identity.part_key(identity.PRINCIPAL, ME)]),
        )


def test_the_state_has_a_hash_of_its_own_class() -> None:
    found = states(IdentityPrincipal(ME, 0))
    assert len(state_hash(IDENTITY, found)) == 32
    assert state_hash(IDENTITY, found) != state_hash(IDENTITY, {})
