"""cap_token: each rule of spec §6, with the bytes and digests recomputed by other libraries."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from veen.core import cap_token, wire_json
from veen.core.admission import BY_DETAIL
from veen.core.cap_token import Allow, CapPresentation, CapToken, Rate
from veen.core.errors import Fault, Malformed, Refused, Unverified
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_CAP_CHAIN, MAX_CAP_RATE, MAX_CAP_STREAMS
from veen.core.profile import Limits
from veen.core.signing import SIGNATURE_BYTES, SigningKey

ISSUER = SigningKey(b"i" * 32)
SUBJECT = SigningKey(b"s" * 32)
STRANGER = SigningKey(b"x" * 32)
STREAMS = tuple(bytes([number]) * 32 for number in (1, 2, 3))
TTL = 600
RATE = Rate(per_sec=5, burst=20)
ISSUED_AT = 1_700_000_000
ZEROS = bytes(SIGNATURE_BYTES)

LENGTHS = range(1, MAX_CAP_CHAIN + 1)

# A token decoded by another CBOR library, so that tests can damage it without our field tables.
Plain = dict[Any, Any]


def chain(length: int, rate: Rate | None = RATE) -> CapToken:
    token = cap_token.mint(ISSUER, SUBJECT.public_key, STREAMS, TTL, rate)
    for _ in range(length - 1):
        token = cap_token.resign(token, ISSUER)
    return token


def plain(token: CapToken) -> Plain:
    found: Plain = cbor2.loads(token.encode())
    return found


def link(grant: Plain, previous: bytes, signer: SigningKey = ISSUER, tag: bytes = b"veen/cap-link") -> bytes:
    """One link by the formula of the specification, without our codec, hashes or signatures."""
    unsigned = {key: value for key, value in grant.items() if key != 5}
    digest = sha256(tag + b"\x00" + cbor2.dumps(unsigned) + previous).digest()
    return Ed25519PrivateKey.from_private_bytes(signer.seed).sign(digest)


def relinked(token: CapToken, *links: bytes) -> CapToken:
    return replace(token, sig_chain=links)


def damaged(change: Callable[[Plain], object], token: CapToken | None = None) -> bytes:
    found = plain(token or chain(1))
    change(found)
    return cbor2.dumps(found)


# Minting


def test_the_same_inputs_give_the_same_bytes() -> None:
    assert chain(3).encode() == chain(3).encode()


def test_the_order_and_number_of_the_streams_given_do_not_matter() -> None:
    shuffled = cap_token.mint(ISSUER, SUBJECT.public_key, [*reversed(STREAMS), STREAMS[0]], TTL, RATE)
    assert shuffled == chain(1)


def test_a_minted_token_is_byte_for_byte_what_the_specification_describes() -> None:
    grant = {1: 1, 2: ISSUER.public_key, 3: SUBJECT.public_key, 4: {1: list(STREAMS), 2: TTL, 3: {1: 5, 2: 20}}}
    assert chain(1).encode() == cbor2.dumps({**grant, 5: [link(grant, ZEROS)]})


def test_auth_ref_is_the_tagged_hash_of_the_whole_token() -> None:
    token = chain(2)
    assert token.auth_ref() == sha256(b"veen/cap\x00" + cbor2.dumps(plain(token))).digest()


def test_another_link_is_another_auth_ref_for_the_same_grant() -> None:
    tokens = [chain(length) for length in LENGTHS]
    assert len({token.auth_ref() for token in tokens}) == len(tokens)
    assert {token.allow for token in tokens} == {tokens[0].allow}


@pytest.mark.parametrize("rate", [None, RATE])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_token_is_read_back_as_it_was_written(length: int, rate: Rate | None) -> None:
    token = chain(length, rate)
    assert CapToken.decode(token.encode()) == token
    assert wire_json.decode_canonical(CapToken, wire_json.encode(token)) == token


@pytest.mark.parametrize("subject", [b"", bytes(31), bytes(33)])
def test_a_subject_that_is_no_key_is_not_minted(subject: bytes) -> None:
    with pytest.raises(ValueError, match="subject_pk"):
        cap_token.mint(ISSUER, subject, STREAMS, TTL)


@pytest.mark.parametrize("ttl", [-1, U64_MAX + 1, True])
def test_a_ttl_that_is_no_unsigned_integer_is_not_minted(ttl: int) -> None:
    with pytest.raises(ValueError, match="ttl"):
        cap_token.mint(ISSUER, SUBJECT.public_key, STREAMS, ttl)


@pytest.mark.parametrize("rate", [Rate(-1, 1), Rate(1, -1), Rate(U64_MAX + 1, 1), Rate(1, U64_MAX + 1)])
def test_a_rate_that_is_no_pair_of_unsigned_integers_is_not_minted(rate: Rate) -> None:
    with pytest.raises(ValueError, match="not within"):
        cap_token.mint(ISSUER, SUBJECT.public_key, STREAMS, TTL, rate)


def test_a_stranger_cannot_sign_a_token_again() -> None:
    with pytest.raises(ValueError, match="issuer"):
        cap_token.resign(chain(1), STRANGER)


def test_the_subject_cannot_sign_its_own_token_again() -> None:
    with pytest.raises(ValueError, match="issuer"):
        cap_token.resign(chain(1), SUBJECT)


# Renewing


def test_a_renewed_token_grants_the_same_under_another_name_as_often_as_is_wanted() -> None:
    token, seen = chain(1), {chain(1).auth_ref()}
    for number in range(1, 3 * MAX_CAP_CHAIN):
        token = cap_token.renew(token, ISSUER)
        token.verify()
        assert token.auth_ref() not in seen
        seen.add(token.auth_ref())
        assert len(token.sig_chain) == number % MAX_CAP_CHAIN + 1
        # A new chain adds one second of ttl.
        assert token.allow == Allow(token.allow.stream_ids, chain(1).allow.ttl + number // MAX_CAP_CHAIN, RATE)
        assert (token.issuer_pk, token.subject_pk) == (ISSUER.public_key, SUBJECT.public_key)


@pytest.mark.parametrize("length", LENGTHS)
def test_renewing_depends_on_the_token_alone(length: int) -> None:
    assert cap_token.renew(chain(length), ISSUER) == cap_token.renew(chain(length), ISSUER)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("who", [STRANGER, SUBJECT])
def test_only_its_issuer_renews_a_token(length: int, who: SigningKey) -> None:
    with pytest.raises(ValueError, match="issuer"):
        cap_token.renew(chain(length), who)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_forged_token_is_not_renewed(length: int) -> None:
    token = chain(length)
    forged = replace(token, sig_chain=(*token.sig_chain[:-1], bytes(64)))
    with pytest.raises(Unverified):
        cap_token.renew(forged, ISSUER)


def test_a_token_with_the_maximum_ttl_is_renewed_until_its_chain_is_full() -> None:
    token = cap_token.mint(ISSUER, SUBJECT.public_key, STREAMS, U64_MAX)
    for _ in range(MAX_CAP_CHAIN - 1):
        token = cap_token.renew(token, ISSUER)
    with pytest.raises(ValueError, match="ttl"):
        cap_token.renew(token, ISSUER)


# The chain


@pytest.mark.parametrize("length", LENGTHS)
def test_a_chain_of_one_to_eight_links_verifies(length: int) -> None:
    token = chain(length)
    assert len(token.sig_chain) == length
    token.verify()


@pytest.mark.parametrize("length", LENGTHS)
def test_each_link_is_over_the_grant_and_the_link_before_it(length: int) -> None:
    token = chain(length)
    previous = ZEROS
    for found in token.sig_chain:
        assert found == link(plain(token), previous)
        previous = found


def test_a_ninth_link_is_refused_on_write() -> None:
    full = chain(MAX_CAP_CHAIN)
    with pytest.raises(ValueError, match="sig_chain has 9 items"):
        cap_token.resign(full, ISSUER)


def test_a_ninth_link_is_refused_on_read_though_it_is_the_issuers() -> None:
    found = plain(chain(MAX_CAP_CHAIN))
    found[5].append(link(found, found[5][-1]))
    with pytest.raises(Malformed) as caught:
        CapToken.decode(cbor2.dumps(found))
    assert caught.value.fault is Fault.SIZE


def test_a_ninth_link_is_refused_in_json_too() -> None:
    found = json.loads(wire_json.encode(chain(MAX_CAP_CHAIN)))
    found["sig_chain"].append(found["sig_chain"][-1])
    with pytest.raises(Malformed) as caught:
        wire_json.decode(CapToken, json.dumps(found).encode())
    assert caught.value.fault is Fault.SIZE


def test_a_chain_without_links_is_refused_on_read() -> None:
    with pytest.raises(Malformed) as caught:
        CapToken.decode(damaged(lambda token: token.update({5: []})))
    assert caught.value.fault is Fault.SIZE


def test_a_chain_without_links_is_refused_on_write() -> None:
    with pytest.raises(ValueError, match="sig_chain"):
        relinked(chain(1)).encode()


@pytest.mark.parametrize("size", [0, SIGNATURE_BYTES - 1, SIGNATURE_BYTES + 1])
def test_a_link_of_another_size_is_refused_on_read(size: int) -> None:
    with pytest.raises(Malformed) as caught:
        CapToken.decode(damaged(lambda token: token.update({5: [bytes(size)]})))
    assert caught.value.fault is Fault.SIZE


@pytest.mark.parametrize("first", range(MAX_CAP_CHAIN - 1))
def test_two_swapped_links_are_refused(first: int) -> None:
    links = list(chain(MAX_CAP_CHAIN).sig_chain)
    links[first], links[first + 1] = links[first + 1], links[first]
    with pytest.raises(Unverified) as caught:
        relinked(chain(1), *links).verify()
    assert caught.value.what == f"cap_token link {first + 1}"


def test_a_reversed_chain_is_refused() -> None:
    with pytest.raises(Unverified):
        relinked(chain(1), *reversed(chain(3).sig_chain)).verify()


@pytest.mark.parametrize("dropped", range(MAX_CAP_CHAIN - 1))
def test_a_chain_that_lacks_a_link_before_its_last_is_refused(dropped: int) -> None:
    links = chain(MAX_CAP_CHAIN).sig_chain
    with pytest.raises(Unverified) as caught:
        relinked(chain(1), *links[:dropped], *links[dropped + 1 :]).verify()
    assert caught.value.what == f"cap_token link {dropped + 1}"


def test_a_chain_without_its_last_link_is_the_token_before_it() -> None:
    assert relinked(chain(3), *chain(3).sig_chain[:-1]) == chain(2)


@pytest.mark.parametrize("repeated", range(3))
def test_a_repeated_link_is_refused(repeated: int) -> None:
    links = chain(3).sig_chain
    with pytest.raises(Unverified):
        relinked(chain(1), *links[: repeated + 1], *links[repeated:]).verify()


@pytest.mark.parametrize("byte", [0, 31, 32, SIGNATURE_BYTES - 1])
@pytest.mark.parametrize("altered", range(MAX_CAP_CHAIN))
def test_an_altered_link_is_rejected_at_any_position(altered: int, byte: int) -> None:
    links = list(chain(MAX_CAP_CHAIN).sig_chain)
    changed = bytearray(links[altered])
    changed[byte] ^= 1
    links[altered] = bytes(changed)
    with pytest.raises(Unverified) as caught:
        relinked(chain(1), *links).verify()
    assert caught.value.what == f"cap_token link {altered + 1}"


@pytest.mark.parametrize("foreign", range(MAX_CAP_CHAIN))
def test_a_link_by_another_key_is_rejected_at_any_position(foreign: int) -> None:
    token = chain(MAX_CAP_CHAIN)
    links = list(token.sig_chain)
    previous = links[foreign - 1] if foreign else ZEROS
    links[foreign] = link(plain(token), previous, STRANGER)
    with pytest.raises(Unverified) as caught:
        relinked(token, *links).verify()
    assert caught.value.what == f"cap_token link {foreign + 1}"


def test_a_link_by_the_subject_does_not_delegate() -> None:
    token = chain(1)
    delegated = relinked(token, *token.sig_chain, link(plain(token), token.sig_chain[0], SUBJECT))
    with pytest.raises(Unverified):
        delegated.verify()


def test_a_whole_chain_by_a_stranger_is_refused_under_the_issuers_key() -> None:
    token = chain(1)
    first = link(plain(token), ZEROS, STRANGER)
    with pytest.raises(Unverified):
        relinked(token, first, link(plain(token), first, STRANGER)).verify()


def test_a_link_of_another_token_of_the_same_issuer_is_refused() -> None:
    other = cap_token.mint(ISSUER, STRANGER.public_key, STREAMS, TTL, RATE)
    with pytest.raises(Unverified):
        relinked(chain(1), *other.sig_chain).verify()


@pytest.mark.parametrize("previous", [b"", bytes(32), bytes(63), bytes(65), b"\x01" * SIGNATURE_BYTES])
def test_a_first_link_over_anything_but_64_zero_bytes_is_refused(previous: bytes) -> None:
    token = chain(1)
    with pytest.raises(Unverified):
        relinked(token, link(plain(token), previous)).verify()


def test_a_second_link_over_64_zero_bytes_is_refused() -> None:
    token = chain(1)
    assert link(plain(token), ZEROS) == token.sig_chain[0]
    with pytest.raises(Unverified):
        relinked(token, *token.sig_chain, token.sig_chain[0]).verify()


@pytest.mark.parametrize("tag", [b"veen/cap", b"veen/sig", b"veen/cap-link\x00"])
def test_a_link_under_another_tag_is_refused(tag: bytes) -> None:
    token = chain(1)
    with pytest.raises(Unverified):
        relinked(token, link(plain(token), ZEROS, tag=tag)).verify()


CHANGED_GRANTS = {
    "another issuer": {"issuer_pk": STRANGER.public_key},
    "another subject": {"subject_pk": STRANGER.public_key},
    "a stream less": {"allow": Allow(STREAMS[:-1], TTL, RATE)},
    "a stream more": {"allow": Allow((*STREAMS, b"\xff" * 32), TTL, RATE)},
    "another ttl": {"allow": Allow(STREAMS, TTL + 1, RATE)},
    "a higher rate": {"allow": Allow(STREAMS, TTL, Rate(RATE.per_sec + 1, RATE.burst))},
    "a higher burst": {"allow": Allow(STREAMS, TTL, Rate(RATE.per_sec, RATE.burst + 1))},
    "no rate": {"allow": Allow(STREAMS, TTL)},
}


@pytest.mark.parametrize("change", CHANGED_GRANTS.values(), ids=CHANGED_GRANTS.keys())
def test_a_grant_changed_after_signing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Unverified):
        replace(chain(2), **change).verify()


# Malformed tokens


DAMAGE: dict[str, tuple[Callable[[Plain], object], Fault]] = {
    "version 0": (lambda t: t.update({1: 0}), Fault.VERSION),
    "version 2": (lambda t: t.update({1: 2}), Fault.VERSION),
    "a short issuer_pk": (lambda t: t.update({2: bytes(31)}), Fault.SIZE),
    "a long subject_pk": (lambda t: t.update({3: bytes(33)}), Fault.SIZE),
    "no streams": (lambda t: t[4].update({1: []}), Fault.SIZE),
    "a short stream_id": (lambda t: t[4].update({1: [bytes(31)]}), Fault.SIZE),
    "unsorted streams": (lambda t: t[4][1].reverse(), Fault.CBOR),
    "a stream twice": (lambda t: t[4][1].insert(0, STREAMS[0]), Fault.CBOR),
    "streams as bytes": (lambda t: t[4].update({1: bytes(32)}), Fault.CBOR),
    "a stream as text": (lambda t: t[4].update({1: ["a" * 32]}), Fault.CBOR),
    "a negative ttl": (lambda t: t[4].update({2: -1}), Fault.CBOR),
    "ttl as text": (lambda t: t[4].update({2: "600"}), Fault.CBOR),
    "ttl null": (lambda t: t[4].update({2: None}), Fault.CBOR),
    "rate null": (lambda t: t[4].update({3: None}), Fault.CBOR),
    "rate as an array": (lambda t: t[4].update({3: [5, 20]}), Fault.CBOR),
    "an empty rate": (lambda t: t[4].update({3: {}}), Fault.CBOR),
    "a rate without burst": (lambda t: t[4][3].pop(2), Fault.CBOR),
    "a rate without per_sec": (lambda t: t[4][3].pop(1), Fault.CBOR),
    "a fractional rate": (lambda t: t[4][3].update({1: 0.5}), Fault.CBOR),
    "an unknown key in cap_token": (lambda t: t.update({6: 0}), Fault.CBOR),
    "an unknown key in allow": (lambda t: t[4].update({4: 0}), Fault.CBOR),
    "an unknown key in rate": (lambda t: t[4][3].update({3: 0}), Fault.CBOR),
    "a text key": (lambda t: t.update({"ver": 1}), Fault.CBOR),
    "no version": (lambda t: t.pop(1), Fault.CBOR),
    "no issuer_pk": (lambda t: t.pop(2), Fault.CBOR),
    "no subject_pk": (lambda t: t.pop(3), Fault.CBOR),
    "no allow": (lambda t: t.pop(4), Fault.CBOR),
    "no sig_chain": (lambda t: t.pop(5), Fault.CBOR),
    "no ttl": (lambda t: t[4].pop(2), Fault.CBOR),
    "sig_chain null": (lambda t: t.update({5: None}), Fault.CBOR),
    "keys out of order": (lambda t: t.update({1: t.pop(1)}), Fault.CBOR),
    "keys of allow out of order": (lambda t: t[4].update({1: t[4].pop(1)}), Fault.CBOR),
}


@pytest.mark.parametrize(("change", "fault"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_token_that_breaks_its_table_is_malformed(change: Callable[[Plain], object], fault: Fault) -> None:
    data = damaged(change)
    with pytest.raises(Malformed) as caught:
        CapToken.decode(data)
    assert caught.value.what == "cap_token"
    assert caught.value.fault is fault


def test_an_absent_rate_omits_its_key() -> None:
    token = chain(1, rate=None)
    assert set(plain(token)[4]) == {1, 2}
    assert CapToken.decode(token.encode()).allow.rate is None
    assert b"rate" not in wire_json.encode(token)


def test_a_null_rate_is_refused_in_json_too() -> None:
    text = wire_json.encode(chain(1, rate=None)).replace(b'"ttl":600', b'"ttl":600,"rate":null')
    with pytest.raises(Malformed):
        wire_json.decode(CapToken, text)


BAD_STREAMS = {
    "none": (),
    "unsorted": (STREAMS[1], STREAMS[0]),
    "unsorted at the end": (STREAMS[0], STREAMS[2], STREAMS[1]),
    "one twice": (STREAMS[0], STREAMS[0]),
    "one too short": (bytes(31),),
}


@pytest.mark.parametrize("streams", BAD_STREAMS.values(), ids=BAD_STREAMS.keys())
def test_invalid_streams_are_not_encoded(streams: tuple[bytes, ...]) -> None:
    token = replace(chain(1), allow=Allow(streams, TTL))
    with pytest.raises(ValueError, match="stream_id"):
        token.encode()


@pytest.mark.parametrize("streams", [BAD_STREAMS["unsorted"], BAD_STREAMS["one twice"], BAD_STREAMS["none"]])
def test_streams_that_cbor_refuses_are_refused_in_json_too(streams: tuple[bytes, ...]) -> None:
    text = wire_json.encode(chain(1)).replace(
        ",".join(f'"{stream.hex()}"' for stream in STREAMS).encode(),
        ",".join(f'"{stream.hex()}"' for stream in streams).encode(),
    )
    with pytest.raises(Malformed, match="stream_ids"):
        wire_json.decode(CapToken, text)


def test_streams_are_ordered_byte_by_byte_and_unsigned() -> None:
    streams = (b"\x00" * 31 + b"\x01", b"\x7f" + bytes(31), b"\x80" + bytes(31), b"\xff" * 32)
    token = cap_token.mint(ISSUER, SUBJECT.public_key, streams[::-1], TTL)
    assert CapToken.decode(token.encode()).allow.stream_ids == streams


def many(count: int) -> tuple[bytes, ...]:
    return tuple(number.to_bytes(32, "big") for number in range(count))


def test_a_token_may_name_as_many_streams_as_the_limit() -> None:
    token = cap_token.mint(ISSUER, SUBJECT.public_key, many(MAX_CAP_STREAMS), TTL)
    CapToken.decode(token.encode()).verify()


def test_one_stream_above_the_limit_is_refused_on_write() -> None:
    with pytest.raises(ValueError, match="stream_ids"):
        cap_token.mint(ISSUER, SUBJECT.public_key, many(MAX_CAP_STREAMS + 1), TTL)


def test_one_stream_above_the_limit_is_refused_on_read() -> None:
    with pytest.raises(Malformed) as caught:
        CapToken.decode(damaged(lambda token: token[4].update({1: list(many(MAX_CAP_STREAMS + 1))})))
    assert caught.value.fault is Fault.SIZE


@pytest.mark.parametrize("data", [b"", b"\xa0", b"\x80", b"\xf6", chain(1).encode() + b"\x00", chain(1).encode()[:-1]])
def test_an_incomplete_token_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        CapToken.decode(data)


@given(position=st.integers(0, len(chain(2).encode()) - 1), byte=st.integers(0, 255))
def test_any_other_bytes_fail_to_decode_or_are_another_token_with_its_own_encoding(position: int, byte: int) -> None:
    original = chain(2).encode()
    data = original[:position] + bytes([byte]) + original[position + 1 :]
    try:
        token = CapToken.decode(data)
    except Malformed:
        return
    assert token.encode() == data


# Time and limits


@pytest.mark.parametrize("ttl", [0, 1, TTL])
def test_a_token_admits_through_the_second_issued_at_plus_ttl(ttl: int) -> None:
    token = cap_token.mint(ISSUER, SUBJECT.public_key, STREAMS, ttl)
    assert token.expires_at(ISSUED_AT) == ISSUED_AT + ttl
    assert not token.expired(ISSUED_AT, ISSUED_AT)
    assert not token.expired(ISSUED_AT, ISSUED_AT + ttl)
    assert token.expired(ISSUED_AT, ISSUED_AT + ttl + 1)


def test_a_token_for_ever_expires_at_the_last_second_there_is() -> None:
    token = cap_token.mint(ISSUER, SUBJECT.public_key, STREAMS, U64_MAX)
    assert token.expires_at(ISSUED_AT) == U64_MAX
    assert not token.expired(ISSUED_AT, U64_MAX)


@pytest.mark.parametrize("rate", [None, Rate(0, 0), Rate(5, 20), Rate(5, 0), Rate(0, 20)])
def test_a_rate_up_to_the_hubs_own_is_within_its_limits(rate: Rate | None) -> None:
    limits = Limits(max_cap_rate_per_sec=5, max_cap_rate_burst=20)
    assert chain(1, rate).rate_under(limits) == (rate or Rate(5, 20))


@pytest.mark.parametrize("rate", [Rate(6, 20), Rate(5, 21), Rate(6, 0), Rate(0, 21), Rate(U64_MAX, U64_MAX)])
def test_a_rate_above_the_hubs_own_is_refused_as_an_invalid_capability(rate: Rate) -> None:
    token = chain(1, rate)
    with pytest.raises(Refused) as caught:
        token.rate_under(Limits(max_cap_rate_per_sec=5, max_cap_rate_burst=20))
    assert (caught.value.code, caught.value.stage, caught.value.detail_enum) == ("E.CAP", "auth", "CAP_INVALID")
    assert (BY_DETAIL["CAP_INVALID"].code, BY_DETAIL["CAP_INVALID"].stage) == ("E.CAP", "auth")


@pytest.mark.parametrize("rate", [Rate(MAX_CAP_RATE + 1, 1), Rate(1, MAX_CAP_RATE + 1)])
def test_a_rate_above_the_cap_of_all_hubs_is_refused_by_each(rate: Rate) -> None:
    token = chain(1, rate)
    with pytest.raises(Refused):
        token.rate_under(Limits(max_cap_rate_per_sec=MAX_CAP_RATE, max_cap_rate_burst=MAX_CAP_RATE))


def test_the_issuer_adds_no_link_to_a_chain_that_does_not_verify() -> None:
    """The new link would be a valid first link for a grant that the issuer never made."""
    forged = CapToken(ISSUER.public_key, STRANGER.public_key, Allow(STREAMS, TTL), (ZEROS,))
    with pytest.raises(Unverified):
        cap_token.resign(forged, ISSUER)


# Presentations

HUB, OTHER_HUB, NOT_AFTER = b"h" * 32, b"o" * 32, ISSUED_AT + 50


def shown(not_after: int = NOT_AFTER, token: CapToken | None = None) -> CapPresentation:
    return cap_token.present(ISSUER, token or chain(2), HUB, not_after)


def test_a_presentation_is_the_issuers_signature_over_hub_date_and_token() -> None:
    unsigned = {1: 1, 2: HUB, 3: NOT_AFTER, 4: plain(chain(2))}
    digest = sha256(b"veen/cap-presentation\x00" + cbor2.dumps(unsigned)).digest()
    sig = Ed25519PrivateKey.from_private_bytes(ISSUER.seed).sign(digest)
    assert shown().encode() == cbor2.dumps({**unsigned, 5: sig})
    assert shown().auth_ref() == chain(2).auth_ref()
    shown().verify()


@pytest.mark.parametrize(
    "changed",
    [
        replace(shown(), hub_id=OTHER_HUB),
        replace(shown(), not_after=NOT_AFTER + 1),
        replace(shown(), token=chain(1)),
        replace(shown(), sig=bytes(SIGNATURE_BYTES)),
        replace(shown(), sig=chain(2).sig_chain[-1]),
        replace(shown(), token=relinked(chain(2), *reversed(chain(2).sig_chain))),
    ],
)
def test_no_field_of_a_presentation_can_be_changed_after_it_was_signed(changed: CapPresentation) -> None:
    with pytest.raises(Unverified):
        changed.verify()


@pytest.mark.parametrize("who", [STRANGER, SUBJECT])
def test_only_its_issuer_presents_a_token(who: SigningKey) -> None:
    with pytest.raises(ValueError, match="issuer"):
        cap_token.present(who, chain(1), HUB, NOT_AFTER)


@pytest.mark.parametrize("not_after", [0, 23, 24, NOT_AFTER, U64_MAX])
@pytest.mark.parametrize("length", LENGTHS)
def test_tokens_and_presentations_are_told_apart_by_their_bytes(length: int, not_after: int) -> None:
    token = chain(length)
    for capability in (token, shown(not_after, token)):
        data = capability.encode()
        assert cap_token.decode_capability(data) == capability
        assert cap_token.capability_type(b"before" + data, len(b"before")) is type(capability)
        assert wire_json.decode_canonical(type(capability), wire_json.encode(capability)) == capability
        assert cap_token.token_of(capability) == token


@pytest.mark.parametrize("length", range(60))
def test_a_cut_capability_is_malformed_whatever_it_was(length: int) -> None:
    for capability in (chain(1), shown()):
        with pytest.raises(Malformed):
            cap_token.decode_capability(capability.encode()[:length])


@pytest.mark.parametrize(
    ("not_after", "end"),
    [
        (ISSUED_AT + TTL - 1, ISSUED_AT + TTL - 1),
        (ISSUED_AT + TTL, ISSUED_AT + TTL),
        (ISSUED_AT + TTL + 1, ISSUED_AT + TTL),
        (0, 0),
        (U64_MAX, ISSUED_AT + TTL),
    ],
)
def test_a_capability_ends_with_its_ttl_or_its_date_whichever_is_first(not_after: int, end: int) -> None:
    assert shown(not_after).expires_at(ISSUED_AT) == end
    assert not shown(not_after).expired(ISSUED_AT, end)
    assert shown(not_after).expired(ISSUED_AT, end + 1)
