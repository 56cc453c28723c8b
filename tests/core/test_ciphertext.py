"""Sealing and opening: a payload opens only unaltered, at its place, for its reader. Spec §4.2."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import DhKey, Fault, Limits, Malformed, PayloadHdr, Place, Sealer, Unverified, ciphertext
from veen.core.hashing import U64_MAX, h, ht, u32be, u64be
from veen.core.hpke import TAG_BYTES
from veen.core.limits import MAX_BODY_BYTES

LIMITS = Limits()
READER = DhKey(bytes(range(32)))
PLACE = Place(h(b"profile"), h(b"label"), h(b"client"), 7, 3, h(b"cap"))
HEADER = PayloadHdr(h(b"schema"))
LENGTHS_END = 40
HDR_LEN = len(HEADER.encode()) + TAG_BYTES

hashes = st.binary(min_size=32, max_size=32)
numbers = st.integers(0, U64_MAX)
places = st.builds(Place, hashes, hashes, hashes, numbers, numbers, st.none() | hashes)


def sealed(body: bytes = b"the body", pad_block: int = 256, place: Place = PLACE, header: PayloadHdr = HEADER) -> bytes:
    return ciphertext.seal(READER.public_key, place, header, body, pad_block)


def opened(data: bytes, place: Place = PLACE) -> tuple[PayloadHdr, bytes]:
    found = ciphertext.open_sealed(READER, place, data, LIMITS)
    return found.header, found.body


@given(place=places, body=st.binary(max_size=600), pad_block=st.sampled_from([0, 1, 2, 255, 256, 1024]))
def test_what_was_sealed_opens_again(place: Place, body: bytes, pad_block: int) -> None:
    header = PayloadHdr(h(b"schema"), expires_at=5)
    data = sealed(body, pad_block, place, header)
    assert opened(data, place) == (header, body)
    assert len(data) % (pad_block or 1) == 0


@pytest.mark.parametrize("pad_block", [1, 2, 64, 256, 1024])
def test_padding_is_the_least_that_fills_the_block(pad_block: int) -> None:
    for length in range(3 * pad_block if pad_block < 64 else 40):
        bare, padded = len(sealed(bytes(length), 0)), len(sealed(bytes(length), pad_block))
        assert padded % pad_block == 0
        assert 0 <= padded - bare < pad_block


def test_the_layout_is_enc_lengths_header_body() -> None:
    data = sealed(b"12345", pad_block=0)
    assert data[32:LENGTHS_END] == u32be(HDR_LEN) + u32be(5 + TAG_BYTES)
    assert len(data) == LENGTHS_END + HDR_LEN + 5 + TAG_BYTES


def test_aad_and_nonce_are_the_specified_hashes() -> None:
    numbers_ = u64be(7) + u64be(3)
    assert PLACE.aad() == ht("veen/aad", h(b"profile") + h(b"label") + h(b"client") + numbers_ + h(b"cap"))
    without = replace(PLACE, auth_ref=None)
    assert without.aad() == ht("veen/aad", h(b"profile") + h(b"label") + h(b"client") + numbers_ + bytes(32))
    assert PLACE.nonce() == ht("veen/nonce", h(b"label") + u64be(3) + h(b"client") + u64be(7))[:24]


@pytest.mark.parametrize(
    "moved",
    [
        replace(PLACE, profile_id=h(b"other")),
        replace(PLACE, label=h(b"other")),
        replace(PLACE, client_id=h(b"other")),
        replace(PLACE, client_seq=8),
        replace(PLACE, prev_ack=4),
        replace(PLACE, auth_ref=h(b"other")),
        replace(PLACE, auth_ref=None),
        replace(PLACE, client_seq=3, prev_ack=7),
    ],
    ids=["profile", "label", "client", "client_seq", "prev_ack", "auth_ref", "no auth_ref", "numbers swapped"],
)
def test_it_does_not_open_at_another_place(moved: Place) -> None:
    data = sealed()
    with pytest.raises(Unverified):
        opened(data, moved)


def test_it_does_not_open_for_another_reader() -> None:
    data = sealed()
    with pytest.raises(Unverified):
        ciphertext.open_sealed(DhKey.generate(), PLACE, data, LIMITS)


@pytest.mark.parametrize("at", range(LENGTHS_END + HDR_LEN + 8 + TAG_BYTES))
def test_a_changed_byte_before_the_padding_is_refused(at: int) -> None:
    data = bytearray(sealed())
    data[at] ^= 1
    with pytest.raises((Unverified, Malformed)):
        opened(bytes(data))


@pytest.mark.parametrize("length", [0, 1, 31, 32, 39])
def test_too_short_for_its_lengths_is_refused(length: int) -> None:
    with pytest.raises(Malformed, match="too short") as caught:
        opened(sealed()[:length])
    assert caught.value.fault is Fault.SIZE


def test_a_ciphertext_cut_anywhere_in_its_parts_is_refused() -> None:
    data = sealed(pad_block=0)
    for length in range(LENGTHS_END, len(data)):
        with pytest.raises(Malformed, match="less than hdr_len and body_len claim"):
            opened(data[:length])


def test_padding_that_is_not_zero_is_rejected_at_any_position() -> None:
    data = sealed()
    end = LENGTHS_END + HDR_LEN + 8 + TAG_BYTES
    assert end < len(data)
    for at in (end, (end + len(data)) // 2, len(data) - 1):
        altered = data[:at] + b"\x01" + data[at + 1 :]
        with pytest.raises(Malformed, match="padding"):
            opened(altered)


@pytest.mark.parametrize("extra", [1, 255, 256, 1000])
def test_further_zeros_at_the_end_are_ignored(extra: int) -> None:
    assert opened(sealed() + bytes(extra)) == (HEADER, b"the body")
    assert opened(sealed(pad_block=0) + bytes(extra)) == (HEADER, b"the body")


def test_lengths_that_claim_more_than_four_gigabytes_of_nothing_are_refused_at_once() -> None:
    data = sealed()
    huge = data[:32] + b"\xff" * 8 + data[LENGTHS_END:]
    with pytest.raises(Malformed) as caught:
        opened(huge)
    assert caught.value.fault is Fault.SIZE


def test_sizes_are_held_to_the_limits_without_a_key() -> None:
    body_len = 8 + TAG_BYTES
    data = sealed()
    assert ciphertext.check_sizes(data, Limits(max_hdr_bytes=HDR_LEN, max_body_bytes=body_len)) == (HDR_LEN, body_len)
    with pytest.raises(Malformed, match="hdr_len"):
        ciphertext.check_sizes(data, Limits(max_hdr_bytes=HDR_LEN - 1))
    with pytest.raises(Malformed, match="body_len"):
        ciphertext.check_sizes(data, Limits(max_body_bytes=body_len - 1))


def test_a_header_that_is_not_deterministic_is_refused_though_it_authenticates() -> None:
    sealer = Sealer(READER.public_key, PLACE)
    overlong = b"\xa1\x18\x01\x58\x20" + bytes(32)
    header = sealer.context.seal(PLACE.aad(), overlong)
    data = sealer.enc + u32be(len(header)) + u32be(TAG_BYTES) + header + bytes(TAG_BYTES)
    with pytest.raises(Malformed, match="payload_hdr"):
        opened(data)


def test_a_header_may_name_the_capability_it_was_admitted_under() -> None:
    header = replace(HEADER, cap_ref=PLACE.auth_ref)
    assert opened(sealed(header=header)) == (header, b"the body")


@pytest.mark.parametrize("auth_ref", [None, h(b"cap")])
def test_a_header_that_names_another_capability_is_refused(auth_ref: bytes | None) -> None:
    place = replace(PLACE, auth_ref=auth_ref)
    header = replace(HEADER, cap_ref=h(b"another")).encode()
    sealer = Sealer(READER.public_key, place)  # by hand, because `seal` rejects it
    sealed_hdr = sealer.context.seal(place.aad(), header)
    data = sealer.enc + u32be(len(sealed_hdr)) + u32be(TAG_BYTES) + sealed_hdr + bytes(TAG_BYTES)
    with pytest.raises(Unverified, match="cap_ref"):
        opened(data, place)


def test_a_sealer_seals_once() -> None:
    sealer = Sealer(READER.public_key, PLACE)
    sealer.seal(HEADER, b"first", 0)
    with pytest.raises(ValueError, match="already sealed"):
        sealer.seal(HEADER, b"second", 0)


def test_two_sealings_of_the_same_payload_share_nothing_a_hub_could_see() -> None:
    first, second = sealed(pad_block=0), sealed(pad_block=0)
    assert first[:32] != second[:32]
    assert first[LENGTHS_END:] != second[LENGTHS_END:]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 3)), unique=True, max_size=60))
def test_a_nonce_is_unique_to_its_label_client_and_pair_of_numbers(pairs: list[tuple[int, int, int]]) -> None:
    nonces = {
        Place(h(b"p"), h(bytes([which >> 1])), h(bytes([which & 1])), client_seq, prev_ack).nonce()
        for client_seq, prev_ack, which in pairs
    }
    assert len(nonces) == len(pairs)


@given(client_seq=numbers, prev_ack=numbers)
def test_swapping_the_two_numbers_gives_another_nonce(client_seq: int, prev_ack: int) -> None:
    one, other = (
        replace(PLACE, client_seq=client_seq, prev_ack=prev_ack),
        replace(PLACE, client_seq=prev_ack, prev_ack=client_seq),
    )
    assert (one.nonce() == other.nonce()) == (client_seq == prev_ack)


# Payloads that are never sealed, because no reader could open them.


@pytest.mark.parametrize(
    "place",
    [
        replace(PLACE, label=b"short"),
        replace(PLACE, profile_id=bytes(33)),
        replace(PLACE, client_id=b""),
        replace(PLACE, auth_ref=bytes(31)),
        replace(PLACE, client_seq=-1),
        replace(PLACE, prev_ack=U64_MAX + 1),
    ],
)
def test_nothing_is_sealed_for_a_place_no_message_can_have(place: Place) -> None:
    with pytest.raises(ValueError, match=r"must have 32 bytes|unsigned"):
        Sealer(READER.public_key, place)


def test_nothing_is_sealed_under_another_capability_than_the_messages() -> None:
    header = replace(HEADER, cap_ref=h(b"another"))
    with pytest.raises(ValueError, match="cap_ref"):
        sealed(header=header)


def test_the_largest_body_is_sealed_and_one_byte_more_is_not() -> None:
    most = MAX_BODY_BYTES - TAG_BYTES
    assert opened(sealed(bytes(most), pad_block=0))[1] == bytes(most)
    with pytest.raises(ValueError, match="above"):
        sealed(bytes(most + 1), pad_block=0)


def test_a_ciphertext_above_the_message_limit_is_refused_before_it_is_read() -> None:
    data = sealed()
    assert ciphertext.check_sizes(data + bytes(512 - len(data)), Limits(max_msg_bytes=512))
    with pytest.raises(Malformed, match="above 512"):
        ciphertext.check_sizes(data + bytes(513 - len(data)), Limits(max_msg_bytes=512))


def test_what_was_opened_does_not_show_its_body() -> None:
    found = ciphertext.open_sealed(READER, PLACE, sealed(b"secret body"), LIMITS)
    assert b"secret" not in repr(found).encode()
