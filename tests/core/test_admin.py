"""The admin streams of a realm and how a hub decodes them: names, keys, intervals and malformed content. spec-2."""

from dataclasses import replace
from hashlib import sha256
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.wire_strategies import wire_objects
from veen.core import DhKey, Limits, Malformed, Msg, PayloadHdr, Place, SigningKey, admin, ciphertext, msg, naming
from veen.core.admin import Authority, AuthorityPolicy, Revocation, RevocationKind

REALM = bytes(range(32))
KEY = SigningKey(b"\x05" * 32)
REVOCATIONS, AUTHORITIES = admin.revocation_stream(REALM), admin.fed_admin_stream(REALM)
REVOCATION = Revocation("client-id", b"\x01" * 32, None, 1000, 50)
AUTHORITY = Authority(REALM, b"\x02" * 32, b"\x03" * 32, (), "single-primary", 1000, 50)


def tagged(tag: str, data: bytes) -> bytes:
    return sha256(tag.encode() + b"\0" + data).digest()


# Names.


def test_each_admin_stream_has_the_name_of_the_specification() -> None:
    assert admin.admin_streams(REALM) == (
        tagged("veen/admin", REALM),
        tagged("veen/revocation", REALM),
        tagged("veen/label-class", REALM),
        tagged("veen/meta-schema", REALM),
    )
    assert admin.label_class_stream(REALM) == tagged("veen/label-class", REALM)
    assert admin.schema_meta_stream(REALM) == tagged("veen/meta-schema", REALM)


def test_a_realm_is_named_by_its_hash_or_by_its_id() -> None:
    assert naming.realm_id("example.org") == tagged("id/realm", b"example.org")
    assert naming.realm_id(REALM.hex()) == REALM
    assert naming.realm_id("zürich") == tagged("id/realm", "zürich".encode())
    assert naming.realm_id("veen") == admin.GLOBAL_REALM


def test_the_schemas_are_those_of_the_specification() -> None:
    assert sha256(b"veen.revocation.v1").digest() == Revocation.SCHEMA
    assert sha256(b"veen.fed.authority.v1").digest() == Authority.SCHEMA


def test_the_keys_of_admin_streams_are_derived_from_the_realm() -> None:
    keys = {admin.reader_key(stream).public_key for stream in admin.admin_streams(REALM)}
    assert len(keys) == 4
    assert admin.reader_key(REVOCATIONS).public_key == DhKey(tagged("veen/admin-key", REVOCATIONS)).public_key


def test_a_hub_without_a_realm_has_no_binding_streams() -> None:
    assert admin.binding_streams(None) == {}
    assert admin.binding_streams(REALM) == {REVOCATIONS: Revocation, AUTHORITIES: Authority}


# Times.


@pytest.mark.parametrize(
    ("ttl", "now", "held"),
    [
        (50, 999, False),
        (50, 1000, True),
        (50, 1049, True),
        (50, 1050, False),
        (0, 1000, False),
        (1, 1000, True),
        (None, 999, False),
        (None, 1000, True),
        (None, (1 << 64) - 1, True),
    ],
)
def test_a_revocation_holds_from_its_time_until_just_before_its_end(ttl: int | None, now: int, held: bool) -> None:
    assert replace(REVOCATION, ttl=ttl).applies_at(now) == held


@pytest.mark.parametrize(("now", "held"), [(999, False), (1000, True), (1049, True), (1050, False)])
def test_an_authority_holds_from_its_time_until_just_before_its_end(now: int, held: bool) -> None:
    assert AUTHORITY.active_at(now) == held
    assert (admin.active([AUTHORITY], now) is AUTHORITY) == held


def test_no_record_is_no_authority() -> None:
    assert admin.active([], 1000) is None


RECORDS = (
    replace(AUTHORITY, ts=990, primary_hub=b"\xff" * 32),
    replace(AUTHORITY, primary_hub=b"\x00" * 32),
    replace(AUTHORITY, primary_hub=b"\x00" * 32, replica_hubs=(b"\x01" * 32,)),
    replace(AUTHORITY, primary_hub=b"\x01" * 32),
)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_the_earliest_record_applies_then_the_lowest_primary(order: tuple[int, ...]) -> None:
    records = [RECORDS[number] for number in order]
    assert admin.active(records, 1000) == RECORDS[0]
    assert admin.active(records, 1045) == RECORDS[1]  # the first one has ended
    assert admin.active([one for one in records if one != RECORDS[0]], 1000) == RECORDS[1]
    assert admin.active(records, 1050) is None


# Decoding by a hub.


def logged(stream: bytes, schema: bytes, body: bytes, *, key: bytes | None = None, by_leave: bool = True) -> Msg:
    place = Place(bytes(32), b"\x09" * 32, KEY.public_key, 1, 0, b"\x04" * 32 if by_leave else None)
    sealed = ciphertext.seal(key or admin.reader_key(stream).public_key, place, PayloadHdr(schema), body, 256)
    return msg.sign(
        KEY,
        profile_id=place.profile_id,
        label=place.label,
        client_seq=1,
        prev_ack=0,
        auth_ref=place.auth_ref,
        ciphertext=sealed,
    )


def read(stream: bytes, message: Msg, realm_id: bytes = REALM) -> admin.Event | None:
    return admin.event_of(realm_id, stream, message, Limits())


def test_a_record_is_read_on_its_own_stream() -> None:
    for stream, event in ((REVOCATIONS, REVOCATION), (AUTHORITIES, AUTHORITY)):
        assert read(stream, logged(stream, event.SCHEMA, event.encode())) == event


def test_a_message_that_does_not_bind_a_hub_is_ignored() -> None:
    body = REVOCATION.encode()
    good = logged(REVOCATIONS, Revocation.SCHEMA, body)
    assert read(REVOCATIONS, good) == REVOCATION
    nothing = {
        "without leave": read(REVOCATIONS, logged(REVOCATIONS, Revocation.SCHEMA, body, by_leave=False)),
        "of another realm's stream": read(REVOCATIONS, good, b"\x07" * 32),
        "on the other stream": read(AUTHORITIES, logged(AUTHORITIES, Revocation.SCHEMA, body)),
        "of another schema": read(REVOCATIONS, logged(REVOCATIONS, Authority.SCHEMA, body)),
        "sealed for others": read(
            REVOCATIONS, logged(REVOCATIONS, Revocation.SCHEMA, body, key=DhKey(KEY.seed).public_key)
        ),
        "moved": read(REVOCATIONS, replace(good, client_seq=2)),
        "altered": read(REVOCATIONS, replace(good, ciphertext=good.ciphertext[:-1] + b"\x01")),
        "cut short": read(REVOCATIONS, logged(REVOCATIONS, Revocation.SCHEMA, body[:-1])),
        "of classes": read(
            admin.label_class_stream(REALM), logged(admin.label_class_stream(REALM), Revocation.SCHEMA, body)
        ),
    }
    assert {how: found for how, found in nothing.items() if found is not None} == {}


def test_an_authority_of_another_realm_is_ignored() -> None:
    elsewhere = replace(AUTHORITY, realm_id=b"\x07" * 32)
    assert read(AUTHORITIES, logged(AUTHORITIES, Authority.SCHEMA, elsewhere.encode())) is None


@given(st.binary(max_size=200))
def test_any_body_decodes_or_is_ignored(body: bytes) -> None:
    for stream, cls in admin.binding_streams(REALM).items():
        found = read(stream, logged(stream, cls.SCHEMA, body))
        assert found is None or found.encode() == body


# Events in the index.


@given(wire_objects(Revocation) | wire_objects(Authority))
def test_an_event_is_decoded_as_it_was_encoded(event: admin.Event) -> None:
    assert admin.read_event(admin.write_event(event)) == event


@pytest.mark.parametrize("data", [b"", bytes(32), bytes(40), Revocation.SCHEMA, Revocation.SCHEMA + b"\xa0"])
def test_bytes_that_are_not_an_event_are_rejected(data: bytes) -> None:
    with pytest.raises(Malformed):
        admin.read_event(data)


@pytest.mark.parametrize("kind", list(RevocationKind))
def test_each_kind_is_written_as_the_specification_spells_it(kind: RevocationKind) -> None:
    assert kind in ("client-id", "auth-ref", "cap-token")
    assert Revocation.decode(replace(REVOCATION, kind=kind).encode()).kind == str(kind)


@pytest.mark.parametrize("policy", ["single-primary", "multi-primary"])
def test_each_policy_is_written_as_the_specification_spells_it(policy: str) -> None:
    assert AuthorityPolicy(policy) == policy
    assert Authority.decode(replace(AUTHORITY, policy=policy).encode()).policy == policy


def test_an_authority_record_ends_within_400_days_so_that_a_mistake_does_not_last_for_ever() -> None:
    mistake = Authority.decode(replace(AUTHORITY, ts=0, ttl=1 << 63).encode())
    correction = replace(AUTHORITY, ts=500 * 86_400, ttl=86_400)
    assert mistake.active_at(400 * 86_400 - 1)
    assert admin.active([mistake, correction], correction.ts) == correction
