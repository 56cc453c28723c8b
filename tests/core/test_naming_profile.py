"""Names, the hashes they are made of, the profile and its epochs. Spec §2, §3.2, §3.3, §12."""

import struct
from hashlib import sha256

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import hashing, msg, naming, wire_json
from veen.core.errors import Malformed
from veen.core.hashing import U32_MAX, U64_MAX
from veen.core.limits import MAX_PAD_BLOCK
from veen.core.profile import Profile

A, B, C, D = (bytes([number]) * 32 for number in range(1, 5))
COUNTING = bytes(range(32))
HEX_ID = "0123456789abcdef" * 4


# Hashes and integers


def test_h_is_sha256() -> None:
    assert hashing.h(b"wallet.open.v1").hex() == "f1b37e207e51e78a9f83b076ad5d14edf9b811a9805d2dc403e2082f9c924aea"


def test_ht_is_sha256_over_tag_zero_and_data() -> None:
    known = "01a569ebb69ddd4d66e648a0fbe6247a36b27f1d08e18d08ff7b3bac14869483"
    assert hashing.ht("veen/profile", b"hello world").hex() == known


@given(st.text(), st.binary())
def test_ht_is_h_over_its_prefix_and_data(tag: str, data: bytes) -> None:
    assert hashing.ht(tag, data) == sha256(tag.encode() + b"\x00" + data).digest()
    assert hashing.h(hashing.tag_prefix(tag) + data) == hashing.ht(tag, data)


def test_the_same_data_under_two_tags_has_two_hashes() -> None:
    assert hashing.ht("veen/hub-id", A) != hashing.ht("veen/hub-key-id", A) != hashing.h(A)


@pytest.mark.parametrize(("number", "expected"), [(0, "00" * 8), (1, "00" * 7 + "01"), (U64_MAX, "ff" * 8)])
def test_u64be_is_eight_bytes_with_the_greatest_first(number: int, expected: str) -> None:
    assert hashing.u64be(number).hex() == expected


@pytest.mark.parametrize(("number", "expected"), [(0, "00" * 4), (0x01020304, "01020304"), (U32_MAX, "ff" * 4)])
def test_u32be_is_four_bytes_with_the_greatest_first(number: int, expected: str) -> None:
    assert hashing.u32be(number).hex() == expected


@pytest.mark.parametrize("number", [-1, U64_MAX + 1])
def test_u64be_refuses_what_does_not_fit(number: int) -> None:
    with pytest.raises(struct.error):
        hashing.u64be(number)


@pytest.mark.parametrize("number", [-1, U32_MAX + 1])
def test_u32be_refuses_what_does_not_fit(number: int) -> None:
    with pytest.raises(struct.error):
        hashing.u32be(number)


# Names


@pytest.mark.parametrize("name", ["", "a", "orders/2024", "Ünïcode ✓", HEX_ID[:-1], HEX_ID + "0", f"{HEX_ID}\n"])
def test_a_stream_with_a_name_has_the_hash_of_it(name: str) -> None:
    assert naming.stream_id(name) == sha256(name.encode()).digest()


@pytest.mark.parametrize("name", [HEX_ID, HEX_ID.upper(), HEX_ID[:-1] + "F", "0" * 64, "f" * 64, "1" * 64])
def test_64_hex_digits_are_the_stream_id_itself(name: str) -> None:
    assert naming.stream_id(name) == bytes.fromhex(name)


@pytest.mark.parametrize(
    "name",
    [
        HEX_ID[:-1] + "g",
        "0x" + HEX_ID[:-2],
        " " + HEX_ID[:-1],
        HEX_ID[:-1] + "\N{FULLWIDTH DIGIT ONE}",
    ],
)
def test_64_characters_that_are_not_all_hex_are_a_name(name: str) -> None:
    assert len(name) == 64
    assert naming.stream_id(name) == sha256(name.encode()).digest()


def test_half_a_surrogate_pair_is_no_name() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        naming.stream_id("\ud800")


def test_a_schema_id_is_the_hash_of_its_name_even_where_that_is_hex() -> None:
    assert naming.schema_id("veen.revocation.v1").hex().startswith("199270cccd72d7d8")
    assert naming.schema_id(HEX_ID) == sha256(HEX_ID.encode()).digest()


def test_hub_id_is_the_tagged_hash_of_the_first_key() -> None:
    known = "ea9b65369153415467c6685b12a1b568cd744c37b8ea56a52faa00a9180b5db9"
    assert naming.hub_id(COUNTING).hex() == known


def test_key_id_is_the_tagged_hash_of_the_key() -> None:
    assert naming.key_id(A) == sha256(b"veen/hub-key-id\x00" + A).digest()


def test_routing_key_is_the_tagged_hash_of_the_hub_id() -> None:
    assert naming.routing_key(A) == sha256(b"veen/routing_key\x00" + A).digest()


def test_label_is_the_tagged_hash_of_routing_key_stream_and_epoch() -> None:
    known = "980504e8eba5bb36d29bacd6eff03edc8ff862d7c8c14656ba93917978a94c5f"
    assert naming.label(b"routing-key", COUNTING, 0x0123456789ABCDEF).hex() == known


@pytest.mark.parametrize("epoch", [0, 1, U64_MAX])
def test_label_holds_the_epoch_as_eight_bytes(epoch: int) -> None:
    assert naming.label(A, B, epoch) == sha256(b"veen/label\x00" + A + B + epoch.to_bytes(8, "big")).digest()


def test_label_differs_in_each_of_its_parts() -> None:
    labels = {naming.label(A, B, 0), naming.label(B, A, 0), naming.label(A, C, 0), naming.label(A, B, 1)}
    assert len(labels) == 4


def test_control_stream_is_the_tagged_hash_of_the_hub_id() -> None:
    assert naming.control_stream(A) == sha256(b"veen/control\x00" + A).digest()


@pytest.mark.parametrize("client_seq", [0, 1, U64_MAX])
def test_leaf_hash_is_the_tagged_hash_of_its_parts_in_order(client_seq: int) -> None:
    expected = sha256(b"veen/leaf\x00" + A + B + C + D + client_seq.to_bytes(8, "big")).digest()
    leaf_hash = msg.leaf_hash(label=A, profile_id=B, ct_hash=C, client_id=D, client_seq=client_seq)
    assert leaf_hash == expected


@pytest.mark.parametrize("number", [-1, U64_MAX + 1])
def test_an_epoch_that_does_not_fit_has_no_label(number: int) -> None:
    with pytest.raises(struct.error):
        naming.label(A, B, number)


def test_the_zero_hash_is_32_zero_bytes() -> None:
    assert bytes(32) == naming.ZERO_HASH


# The profile


KNOWN = Profile(epoch_sec=60, pad_block=256)
KNOWN_CBOR = bytes.fromhex(
    "a80171786368616368613230706f6c7931333035026b686b64662d73686132353603676564323535313904667832353531390578235832353531"
    "392d484b44462d5348413235362d4348414348413230504f4c593133303506183c071901000866736861323536"
)
KNOWN_ID = "1db91032b4bf4cd8b9f56a782b299458e6f782d3a1276f04c50c7b02651038ca"
ALGORITHMS = {
    1: ("aead", "xchacha20poly1305"),
    2: ("kdf", "hkdf-sha256"),
    3: ("sig", "ed25519"),
    4: ("dh", "x25519"),
    5: ("hpke_suite", "X25519-HKDF-SHA256-CHACHA20POLY1305"),
    8: ("mmr_hash", "sha256"),
}


def test_the_known_profile_has_the_known_bytes_and_id() -> None:
    assert KNOWN.encode() == KNOWN_CBOR
    assert KNOWN.profile_id().hex() == KNOWN_ID
    assert Profile.decode(KNOWN_CBOR) == KNOWN


def test_a_profile_without_settings_has_no_epochs_and_blocks_of_256() -> None:
    assert Profile() == Profile(epoch_sec=0, pad_block=256)


@pytest.mark.parametrize("profile", [Profile(0, 0), Profile(60, 256), Profile(U64_MAX, MAX_PAD_BLOCK)])
def test_a_profile_is_what_another_library_writes(profile: Profile) -> None:
    names = {key: name for key, (_, name) in ALGORITHMS.items()}
    fields = dict(sorted({**names, 6: profile.epoch_sec, 7: profile.pad_block}.items()))
    assert profile.encode() == cbor2.dumps(fields)
    assert profile.profile_id() == sha256(b"veen/profile\x00" + cbor2.dumps(fields)).digest()


@pytest.mark.parametrize("other", [Profile(61, 256), Profile(60, 255), Profile(256, 60), Profile(0, 256)])
def test_another_number_is_another_profile_id(other: Profile) -> None:
    assert other.profile_id().hex() != KNOWN_ID


@pytest.mark.parametrize("key", ALGORITHMS)
@pytest.mark.parametrize("other", ["", "sha512", "none", None, 0, b"sha256"])
def test_another_algorithm_is_refused(key: int, other: str | bytes | int | None) -> None:
    fields = cbor2.loads(KNOWN_CBOR)
    fields[key] = other
    with pytest.raises(Malformed) as caught:
        Profile.decode(cbor2.dumps(fields))
    assert ALGORITHMS[key][0] in caught.value.reason


@pytest.mark.parametrize("key", ALGORITHMS)
def test_an_algorithm_in_other_letters_is_refused(key: int) -> None:
    fields = cbor2.loads(KNOWN_CBOR)
    fields[key] = fields[key].swapcase()
    with pytest.raises(Malformed):
        Profile.decode(cbor2.dumps(fields))


@pytest.mark.parametrize(("name", "algorithm"), ALGORITHMS.values())
def test_another_algorithm_is_refused_in_json_too(name: str, algorithm: str) -> None:
    text = wire_json.encode(KNOWN).replace(f'"{name}":"{algorithm}"'.encode(), f'"{name}":"other"'.encode())
    assert text != wire_json.encode(KNOWN)
    with pytest.raises(Malformed, match=name):
        wire_json.decode(Profile, text)


@pytest.mark.parametrize("key", range(1, 9))
def test_a_profile_that_lacks_a_field_is_refused(key: int) -> None:
    fields = cbor2.loads(KNOWN_CBOR)
    del fields[key]
    with pytest.raises(Malformed):
        Profile.decode(cbor2.dumps(fields))


@pytest.mark.parametrize("key", [0, 9, "aead"])
def test_a_profile_with_an_unknown_key_is_refused(key: int | str) -> None:
    with pytest.raises(Malformed):
        Profile.decode(cbor2.dumps({**cbor2.loads(KNOWN_CBOR), key: 0}))


@pytest.mark.parametrize("pad_block", [MAX_PAD_BLOCK + 1, U64_MAX])
def test_a_block_above_the_limit_is_refused_on_read_and_on_write(pad_block: int) -> None:
    data = cbor2.dumps({**cbor2.loads(KNOWN_CBOR), 7: pad_block, 8: "sha256"})
    with pytest.raises(Malformed, match="pad_block"):
        Profile.decode(data)
    with pytest.raises(ValueError, match="pad_block"):
        Profile(60, pad_block).encode()


@pytest.mark.parametrize("epoch_sec", [-1, U64_MAX + 1, True])
def test_an_epoch_sec_that_is_no_unsigned_integer_is_not_written(epoch_sec: int) -> None:
    with pytest.raises(ValueError, match="epoch_sec"):
        Profile(epoch_sec).encode()


# Epochs


@pytest.mark.parametrize(
    ("epoch_sec", "unix_time_sec", "expected"),
    [(60, 0, 0), (60, 59, 0), (60, 60, 1), (60, 119, 1), (1, 7, 7), (U64_MAX, U64_MAX, 1), (U64_MAX, U64_MAX - 1, 0)],
)
def test_an_epoch_is_the_whole_number_of_epoch_secs(epoch_sec: int, unix_time_sec: int, expected: int) -> None:
    assert Profile(epoch_sec).epoch(unix_time_sec) == expected


@pytest.mark.parametrize("unix_time_sec", [0, 1, 1_700_000_000, U64_MAX])
def test_without_epochs_it_is_always_epoch_0(unix_time_sec: int) -> None:
    assert Profile(epoch_sec=0).epoch(unix_time_sec) == 0


@pytest.mark.parametrize(
    ("max_epoch_skew_sec", "either_side"), [(0, 0), (1, 0), (59, 0), (60, 1), (119, 1), (120, 2), (600, 10)]
)
@pytest.mark.parametrize("hub_ts", [6000, 6001, 6059])
def test_the_window_is_the_whole_number_of_epochs_in_the_skew_on_either_side(
    hub_ts: int, max_epoch_skew_sec: int, either_side: int
) -> None:
    accepted = {epoch for epoch in range(200) if Profile(60).accepts_epoch(epoch, hub_ts, max_epoch_skew_sec)}
    assert accepted == set(range(100 - either_side, 100 + either_side + 1))


def test_a_skew_smaller_than_an_epoch_refuses_the_epoch_before_from_the_first_second_of_the_next() -> None:
    profile = Profile(epoch_sec=3600)
    assert profile.accepts_epoch(4, 5 * 3600 - 1, 3599)
    assert not profile.accepts_epoch(5, 5 * 3600 - 1, 3599)
    assert not profile.accepts_epoch(4, 5 * 3600, 3599)
    assert profile.accepts_epoch(5, 5 * 3600, 3599)


def test_near_the_beginning_of_time_the_window_ends_at_epoch_0() -> None:
    assert Profile(60).accepts_epoch(0, 59, 600)
    assert Profile(60).accepts_epoch(10, 59, 600)
    assert not Profile(60).accepts_epoch(11, 59, 600)


@pytest.mark.parametrize("max_epoch_skew_sec", [0, 60, U64_MAX])
@pytest.mark.parametrize("epoch", [1, 2, U64_MAX])
def test_without_epochs_every_epoch_but_0_is_refused(epoch: int, max_epoch_skew_sec: int) -> None:
    assert not Profile(epoch_sec=0).accepts_epoch(epoch, 1_700_000_000, max_epoch_skew_sec)
    assert Profile(epoch_sec=0).accepts_epoch(0, 1_700_000_000, max_epoch_skew_sec)


@given(st.integers(1, 1000), st.integers(0, 100_000), st.integers(0, 5000), st.integers(-20, 20))
def test_the_window_is_that_of_the_specification(epoch_sec: int, hub_ts: int, skew: int, offset: int) -> None:
    current = hub_ts // epoch_sec
    low, high = current - skew // epoch_sec, current + skew // epoch_sec
    for epoch in (current + offset, low - 1, low, high, high + 1):
        assert Profile(epoch_sec).accepts_epoch(epoch, hub_ts, skew) == (max(0, low) <= epoch <= high)
