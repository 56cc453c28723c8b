"""Revocations and authority records: what holds when. The folds agree with the rules as they are written."""

from itertools import pairwise, permutations
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.logs import START, LogLine, log, logs, msg_id
from veen.core import Malformed, admin, cap_token, cbor, naming
from veen.core.admin import AuthorityPolicy, RevocationKind
from veen.core.hashing import U64_MAX, h
from veen.core.signing import SigningKey
from veen.hub.admission_rules import Revoker
from veen.hub.admission_state import Realm
from veen.overlays import AnyOverlay, Event, FaultKind, FoldEntry, check_laws, draft, fold, preview
from veen.overlays.admin_records import record_at, slots
from veen.overlays.authority import (
    AUTHORITIES,
    Authorities,
    AuthorityEvent,
    LabelAuthority,
    active,
    contested,
    label_authority,
    part_of,
)
from veen.overlays.authorization import REVOCATIONS, RevocationEvent, of_token, revoked
from veen.overlays.authorization import part_of as revocation_part

KINDS = [str(kind) for kind in RevocationKind]
TARGETS = [h(b"target %d" % number) for number in range(2)]
HUBS = sorted(h(b"hub %d" % number) for number in range(3))
REALM, OTHER_REALM = naming.realm_id("town"), naming.realm_id("village")
STREAM, OTHER_STREAM = naming.stream_id("doors"), naming.stream_id("windows")
TIMES = range(16)

revocations = st.builds(
    RevocationEvent,
    st.sampled_from(KINDS[:2]),
    st.sampled_from(TARGETS),
    st.one_of(st.none(), st.just("lost")),
    st.integers(0, 9),
    st.one_of(st.none(), st.integers(0, 6)),
)
authorities = st.builds(
    AuthorityEvent,
    st.sampled_from([REALM, REALM, REALM, OTHER_REALM]),
    st.sampled_from([STREAM, STREAM, OTHER_STREAM]),
    st.sampled_from(HUBS),
    st.lists(st.sampled_from(HUBS), max_size=2).map(tuple),
    st.sampled_from(["single-primary", "multi-primary"]),
    st.integers(0, 9),
    st.integers(0, 6),
)


def authority(hub: int, ts: int, ttl: int, policy: str = "single-primary", stream: bytes = STREAM) -> AuthorityEvent:
    return AuthorityEvent(REALM, stream, HUBS[hub], (), policy, ts, ttl)


def revocation(ts: int, ttl: int | None = None, kind: str = "client-id", reason: str | None = None) -> RevocationEvent:
    return RevocationEvent(kind, TARGETS[0], reason, ts, ttl)


def said_in(overlay: AnyOverlay, entries: list[FoldEntry]) -> list[Any]:
    """What the entries of a log say, without those that nobody can read."""
    found = [overlay.read(entry) for entry in entries]
    return [step.event for steps in found if isinstance(steps, tuple) for step in steps]


@given(logs(revocations, most=14))
def test_revocations_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(REVOCATIONS, entries)


@given(logs(authorities, most=14))
def test_authority_records_keep_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(AUTHORITIES, entries)
    check_laws(Authorities(REALM), entries)


@given(logs(revocations))
def test_a_target_is_revoked_in_exactly_the_intervals_of_the_specification(entries: list[FoldEntry]) -> None:
    folded, said = fold(REVOCATIONS, entries), said_in(REVOCATIONS, entries)
    for now in TIMES:
        expected = set()
        for one in said:
            forever = one.ttl is None
            if one.ts <= now and (forever or now < one.ts + one.ttl):
                expected.add((one.kind, one.target))
        for kind in KINDS:
            for target in TARGETS:
                found = revoked(folded.states, kind, target, now)
                assert (found is not None) is ((kind, target) in expected)
                assert found is None or found.event.applies_at(now)


@given(logs(authorities))
def test_the_effective_record_is_the_first_active_one_by_time_and_primary(entries: list[FoldEntry]) -> None:
    folded, said = fold(AUTHORITIES, entries), said_in(AUTHORITIES, entries)
    for now in TIMES:
        for realm in (REALM, OTHER_REALM):
            for stream in (STREAM, OTHER_STREAM):
                mine = [one for one in said if (one.realm_id, one.stream_id) == (realm, stream)]
                on = sorted(
                    (one for one in mine if one.ts <= now < one.ts + one.ttl),
                    key=lambda one: (one.ts, one.primary_hub, one.encode()),
                )
                found = active(folded.states, realm, stream, now)
                assert found == (on[0] if on else None)
                assert found == admin.active(mine, now)  # as a hub has it


@given(st.lists(authorities, max_size=5), st.integers(0, 15))
def test_the_primary_does_not_depend_on_the_order_of_records(said: list[AuthorityEvent], now: int) -> None:
    found = {active(fold(AUTHORITIES, log(*order)).states, REALM, STREAM, now) for order in permutations(said[:4])}
    assert len(found) == 1


@given(logs(st.one_of(revocations, authorities)))
def test_slots_do_not_overlap_and_cover_the_periods_of_the_records(entries: list[FoldEntry]) -> None:
    overlays: tuple[AnyOverlay, ...] = (REVOCATIONS, AUTHORITIES)
    for overlay in overlays:
        for state in fold(overlay, entries).states.values():
            found = list(slots(state))
            assert len(found) == len(state)
            for one, other in pairwise(found):
                assert one.end is not None
                assert one.end <= other.start
            for slot in found:
                assert slot.end is None or slot.start < slot.end
                assert record_at(state, slot.start) is slot.record


@given(logs(st.one_of(revocations, authorities)), st.integers(0, 15))
def test_a_hub_of_the_realm_computes_the_same_state(entries: list[FoldEntry], now: int) -> None:
    hub = Realm()
    for said in (*said_in(REVOCATIONS, entries), *said_in(Authorities(REALM), entries)):
        changed, key, value = hub.folded(said, 0)
        changed[key] = value  # type: ignore[assignment]
    states, named = fold(REVOCATIONS, entries).states, fold(Authorities(REALM), entries).states
    for kind in RevocationKind:
        for target in TARGETS:
            found = revoked(states, kind, target, now)
            assert hub.revoker(kind, target, now) is (None if found is None else Revoker.REALM)
    for stream in (STREAM, OTHER_STREAM):
        assert hub.authority(stream, now) == active(named, REALM, stream, now)


HISTORIES = 10_000


def test_ten_thousand_histories_agree_with_the_intervals_of_the_specification() -> None:
    met = 0
    for seed in range(HISTORIES):
        random = Random(seed)
        events: list[Event] = []
        for _ in range(random.randrange(7)):
            ts, ttl = random.randrange(10), random.choice([None, 0, 1, 3, 6])
            if random.random() < 0.5:
                events.append(revocation(ts, ttl))
            else:
                events.append(authority(random.randrange(3), ts, ttl or 0, random.choice(list(AuthorityPolicy)[:2])))
        entries, now = log(*events), random.randrange(16)
        banned = [one for one in events if isinstance(one, RevocationEvent)]
        named = [one for one in events if isinstance(one, AuthorityEvent)]
        expected = any(one.ts <= now and (one.ttl is None or now < one.ts + one.ttl) for one in banned)
        primary = sorted((one for one in named if one.ts <= now < one.ts + one.ttl), key=AuthorityEvent.rank)[:1]
        found = active(fold(AUTHORITIES, entries).states, REALM, STREAM, now)
        assert [found] * bool(found) == primary, f"seed {seed}"
        revoked_now = revoked(fold(REVOCATIONS, entries).states, "client-id", TARGETS[0], now)
        assert (revoked_now is not None) is expected, f"seed {seed}"
        met += bool(primary) and expected
    assert met > HISTORIES // 20


# Revocation, rule by rule


@pytest.mark.parametrize(
    ("ttl", "now", "expected"),
    [(None, 99, False), (None, 100, True), (None, U64_MAX, True), (10, 99, False), (10, 100, True), (10, 109, True),
     (10, 110, False), (10, U64_MAX, False), (0, 100, False), (U64_MAX, U64_MAX, True)],
)  # fmt: skip
def test_a_revocation_is_valid_from_its_start_until_its_end_exclusive(
    ttl: int | None, now: int, expected: bool
) -> None:
    states = fold(REVOCATIONS, log(revocation(100, ttl))).states
    assert (revoked(states, "client-id", TARGETS[0], now) is not None) is expected


def test_a_revocation_is_for_its_kind_and_target_only() -> None:
    states = fold(REVOCATIONS, log(revocation(0))).states
    assert revoked(states, "auth-ref", TARGETS[0], 5) is None
    assert revoked(states, "client-id", TARGETS[1], 5) is None


def test_the_time_of_a_revocation_is_its_own_and_not_the_hubs() -> None:
    states = fold(REVOCATIONS, log(revocation(START + 10_000))).states
    assert revoked(states, "client-id", TARGETS[0], START + 1) is None
    assert revoked(states, "client-id", TARGETS[0], START + 10_000) is not None


def test_a_shorter_revocation_does_not_end_a_longer_one_and_is_refused() -> None:
    folded = fold(REVOCATIONS, log(revocation(5), revocation(6, 1), revocation(5)))
    assert revoked(folded.states, "client-id", TARGETS[0], 1000) is not None
    assert [(fault.kind, fault.reason) for fault in folded.faults] == [
        (FaultKind.REFUSED, "entry 1 covers its whole period")
    ] * 2


def test_a_longer_revocation_replaces_a_shorter_one() -> None:
    folded = fold(REVOCATIONS, log(revocation(5, 10, reason="a while"), revocation(5, None, reason="for good")))
    (state,) = folded.states.values()
    assert [record.event.reason for record in state] == ["for good"]
    assert folded.faults == []


def test_of_two_overlapping_revocations_the_earlier_one_is_reported() -> None:
    states = fold(REVOCATIONS, log(revocation(5, 10, reason="one"), revocation(10, 10, reason="two"))).states
    shown = [
        (now, found.event.reason)
        for now in (4, 5, 14, 15, 19, 20)
        if (found := revoked(states, "client-id", TARGETS[0], now))
    ]
    assert shown == [(5, "one"), (14, "one"), (15, "two"), (19, "two")]


def test_a_revocation_with_an_empty_period_is_refused() -> None:
    folded = fold(REVOCATIONS, log(revocation(5, 0)))
    assert folded.states == {}
    assert [fault.reason for fault in folded.faults] == ["its validity period is empty"]


@pytest.mark.parametrize("kind", ["", "client", "Client-Id", "issuer", "client-id\0"])
def test_a_revocation_of_an_unknown_kind_is_malformed(kind: str) -> None:
    good = revocation(5).encode()
    spoiled = good.replace(b"\x69client-id", cbor.encode(kind))
    (entry,) = log(LogLine(revocation(5)))
    folded = fold(REVOCATIONS, [FoldEntry(*_fixed(entry), entry.header, spoiled)])
    assert folded.states == {}
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]


def test_a_mirrored_revocation_is_kept_once() -> None:
    folded = fold(REVOCATIONS, log(revocation(5, 10), LogLine(revocation(5, 10), msg_id(1))))
    assert [record.stream_seq for state in folded.states.values() for record in state] == [1]
    assert [fault.kind for fault in folded.faults] == [FaultKind.REFUSED]


def test_a_forged_parent_id_does_not_suppress_a_revocation() -> None:
    states = fold(REVOCATIONS, log(LogLine(revocation(5, 1), msg_id(2)), revocation(5))).states
    assert revoked(states, "client-id", TARGETS[0], 1000) is not None


def test_a_token_is_revoked_by_its_hash_its_auth_ref_or_its_subject() -> None:
    issuer, subject = SigningKey(h(b"issuer")), SigningKey(h(b"subject"))
    token = cap_token.mint(issuer, subject.public_key, [STREAM], 60)
    named = {
        RevocationKind.CLIENT_ID: subject.public_key,
        RevocationKind.AUTH_REF: token.auth_ref(),
        RevocationKind.CAP_TOKEN: h(token.encode()),
    }
    for kind, target in named.items():
        states = fold(REVOCATIONS, log(RevocationEvent(kind, target, None, 5, 5))).states
        found = of_token(states, token, 5)
        assert found is not None
        assert found.event.target == target
        assert of_token(states, token, 10) is None
        wrong = fold(REVOCATIONS, log(*(RevocationEvent(one, target, None, 5) for one in named if one != kind))).states
        assert of_token(wrong, token, 5) is None


def test_revocations_are_shown_with_their_intervals() -> None:
    (part,) = (states := fold(REVOCATIONS, log(revocation(5, 10, reason="lost"), revocation(9)))).states
    assert part == revocation_part("client-id", TARGETS[0])
    plain = REVOCATIONS.plain(part, states.states[part])
    assert plain["kind"] == "client-id"
    assert plain["target"] == TARGETS[0]
    shown = plain["revocations"]
    assert isinstance(shown, list)
    assert [(one["from"], one["until"], one["reason"], one["stream_seq"]) for one in shown] == [
        (5, 15, "lost", 1),
        (9, None, None, 2),
    ]


# Authority, rule by rule


@pytest.mark.parametrize(("now", "expected"), [(99, None), (100, 0), (109, 0), (110, None)])
def test_a_record_is_active_from_its_start_until_its_end_exclusive(now: int, expected: int | None) -> None:
    found = active(fold(AUTHORITIES, log(authority(0, 100, 10))).states, REALM, STREAM, now)
    assert (found and found.primary_hub) == (None if expected is None else HUBS[expected])


def test_a_later_record_waits_until_the_active_one_ends() -> None:
    states = fold(AUTHORITIES, log(authority(0, 100, 10), authority(1, 105, 10))).states
    primaries = {now: active(states, REALM, STREAM, now) for now in (104, 105, 109, 110, 114, 115)}
    assert [found and HUBS.index(found.primary_hub) for found in primaries.values()] == [0, 0, 0, 1, 1, None]
    (state,) = states.values()
    assert [len(contested(state, now)) for now in (104, 105, 109, 110)] == [0, 1, 1, 0]


def test_of_two_records_of_one_time_the_lower_primary_counts() -> None:
    for order in ((0, 1), (1, 0)):
        states = fold(AUTHORITIES, log(*(authority(hub, 100, 10) for hub in order))).states
        found = active(states, REALM, STREAM, 100)
        assert found is not None
        assert found.primary_hub == HUBS[0]


def test_a_record_that_can_never_take_effect_is_refused_before_and_after_sending() -> None:
    folded = fold(AUTHORITIES, log(authority(0, 100, 50)))
    late = authority(1, 120, 30)
    (foreseen,) = preview(AUTHORITIES, draft(late, client_id=HUBS[0], hub_ts=START + 9, after=folded.upto), folded)
    folded.add(log(late, start=2)[0])
    assert folded.faults == [foreseen]
    assert folded.faults[0].reason == "entry 1 covers its whole period"


def test_a_record_of_another_realm_is_malformed_on_the_stream_of_a_realm() -> None:
    stranger = AuthorityEvent(OTHER_REALM, STREAM, HUBS[2], (), "single-primary", 0, 1000)
    folded = fold(Authorities(REALM), log(stranger, authority(0, 5, 10)))
    assert [(fault.stream_seq, fault.kind, fault.reason) for fault in folded.faults] == [
        (1, FaultKind.MALFORMED, "the record is for another realm")
    ]
    assert set(folded.states) == {part_of(REALM, STREAM)}
    assert Authorities(REALM).settings() != AUTHORITIES.settings()


@pytest.mark.parametrize("policy", ["", "unspecified", "primary", "Single-Primary"])
def test_a_record_with_an_unknown_policy_is_malformed(policy: str) -> None:
    (entry,) = log(authority(0, 5, 10))
    assert entry.body is not None
    body = entry.body.replace(cbor.encode("single-primary"), cbor.encode(policy))
    folded = fold(AUTHORITIES, [FoldEntry(*_fixed(entry), entry.header, body)])
    assert folded.states == {}
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]


def test_the_authority_of_a_label_is_that_of_its_stream_and_realm() -> None:
    states = fold(AUTHORITIES, log(authority(1, 100, 10, "multi-primary"))).states
    routing = naming.routing_key(HUBS[0])
    labels = {naming.label(routing, stream, epoch): stream for stream in (STREAM, OTHER_STREAM) for epoch in (0, 1)}
    mine = naming.label(routing, STREAM, 1)

    def realm(label: bytes) -> bytes:
        return REALM

    found = label_authority(states, mine, 100, labels.__getitem__, realm)
    assert found == LabelAuthority(STREAM, REALM, HUBS[1], AuthorityPolicy.MULTI_PRIMARY)
    unspecified = LabelAuthority(STREAM, REALM, None, AuthorityPolicy.UNSPECIFIED)
    assert label_authority(states, mine, 110, labels.__getitem__, realm) == unspecified
    other = naming.label(routing, OTHER_STREAM, 0)
    assert label_authority(states, other, 100, labels.__getitem__, realm).policy == "unspecified"
    assert label_authority(states, mine, 100, labels.__getitem__) == LabelAuthority(STREAM)


def test_the_plain_form_of_records_has_their_effective_periods() -> None:
    folded = fold(AUTHORITIES, log(authority(0, 100, 10), authority(1, 105, 10)))
    plain = AUTHORITIES.plain(part_of(REALM, STREAM), folded.states[part_of(REALM, STREAM)])
    shown = plain["records"]
    assert isinstance(shown, list)
    assert [(one["from"], one["until"], one["ts"], one["ttl"]) for one in shown] == [
        (100, 110, 100, 10),
        (110, 115, 105, 10),
    ]
    assert (plain["realm_id"], plain["stream_id"]) == (REALM, STREAM)


# Encodings


def spoil_records(overlay: AnyOverlay, *events: Event) -> list[Any]:
    (state,) = fold(overlay, log(*events)).states.values()
    records = cbor2.loads(overlay.encode_state(state))
    assert isinstance(records, list)
    return records


@pytest.mark.parametrize(
    "spoil",
    [
        lambda records: records[::-1],
        lambda records: [*records, records[0]],
        lambda records: [records[0], records[0]],
        lambda records: [[]],
        lambda records: 7,
        lambda records: {},
        lambda records: [{**records[0], "more": 1}],
        lambda records: [{**records[0], "stream_seq": 0}],
        lambda records: [{**records[0], "client_id": b"short"}],
        lambda records: [{**records[0], "said": {**records[0]["said"], "kind": "issuer"}}],
    ],
)
def test_a_state_has_one_encoding_and_no_other_decodes(spoil: Any) -> None:
    records = spoil_records(REVOCATIONS, revocation(5, 10), revocation(9))
    part = revocation_part("client-id", TARGETS[0])
    assert len(REVOCATIONS.decode_state(part, cbor2.dumps(records))) == 2
    with pytest.raises(Malformed):
        REVOCATIONS.decode_state(part, cbor2.dumps(spoil(records)))


def test_a_state_with_bytes_after_it_does_not_decode() -> None:
    (part, state), *_ = fold(REVOCATIONS, log(revocation(5))).states.items()
    with pytest.raises(Malformed):
        REVOCATIONS.decode_state(part, REVOCATIONS.encode_state(state) + b"\0")


def _fixed(entry: FoldEntry) -> tuple[bytes, int, int, int, bytes, bytes | None, bytes]:
    return entry.label, entry.epoch, entry.stream_seq, entry.hub_ts, entry.client_id, entry.auth_ref, entry.msg_id
