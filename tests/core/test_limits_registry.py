"""The fixed bounds of spec §14, and the limits that a hub may lower. Spec §14.1."""

import json
from typing import Any

import pytest

from veen.core import limits, wire_json
from veen.core.cbor import Uint
from veen.core.errors import Malformed
from veen.core.profile import LimitRegistry, Limits, LoweredLimits

MIB = 1 << 20

# name: (minimum, default, maximum)
TABLE = {
    "max_msg_bytes": (512, 1_048_576, 1_048_576),
    "max_hdr_bytes": (0, 16_384, 16_384),
    "max_body_bytes": (0, 1_048_320, 1_048_320),
    "max_attachments_per_msg": (0, 1_024, 1_024),
    "max_attachment_bytes": (0, 64 * MIB, 1024 * MIB),
    "max_chunk_bytes": (1536, 64 * MIB, 1024 * MIB),
    "max_checkpoint_interval": (1, 65_536, 1_048_576),
    "max_cap_rate_per_sec": (0, 100_000, 1_000_000),
    "max_cap_rate_burst": (0, 100_000, 1_000_000),
    "max_epoch_skew_sec": (0, 60, 86_400),
}

KINDS = [kind for kind in Limits.LAYOUT.kinds if isinstance(kind, Uint) and not kind.optional]
NAMES = [kind.name for kind in KINDS]
WITH_LEAST = [kind for kind in KINDS if kind.least]

each_limit = pytest.mark.parametrize("kind", KINDS, ids=NAMES)


def as_json(**changes: Any) -> bytes:
    """The defaults as canonical text, with these changes."""
    named = {**json.loads(wire_json.encode(Limits())), **changes}
    return json.dumps(named, sort_keys=True, separators=(",", ":")).encode()


# Bounds of the specification


@pytest.mark.parametrize(
    ("bound", "value"),
    [
        (limits.MAX_MSG_BYTES, 1_048_576),
        (limits.MAX_HDR_BYTES, 16_384),
        (limits.MAX_BODY_BYTES, 1_048_320),
        (limits.MAX_PROOF_PATH, 64),
        (limits.MAX_CAP_CHAIN, 8),
        (limits.MAX_ATTACHMENTS, 1_024),
        (limits.WIRE_VERSION, 1),
    ],
)
def test_the_maxima_of_the_specification_are_as_it_states_them(bound: int, value: int) -> None:
    assert bound == value


def test_the_server_version_is_that_of_the_specification() -> None:
    assert limits.SERVER_VERSION == "0.0.1"


@pytest.mark.parametrize(
    ("bound", "value"),
    [
        (limits.MAX_PEAKS, 64),
        (limits.MAX_WITNESS_SIGS, 64),
        (limits.MAX_CAP_STREAMS, 1_024),
        (limits.MAX_HUB_KEYS, 1_024),
        (limits.MAX_PAD_BLOCK, 65_536),
        (limits.MAX_PAGE_ITEMS, 1_000),
        (limits.MAX_PAGE_BYTES, 16 * MIB),
        (limits.MAX_TEXT_BYTES, 1_024),
        (limits.MAX_DETAIL_BYTES, 4_096),
        (limits.MAX_VALUE_DEPTH, 16),
        (limits.MAX_JSON_BYTES, 64 * MIB),
    ],
)
def test_the_bounds_that_other_hubs_rely_on_do_not_move(bound: int, value: int) -> None:
    assert bound == value


# The registry


def test_the_registry_has_the_ten_limits_of_the_specification_and_what_a_hub_may_add() -> None:
    assert list(TABLE) == NAMES
    added = ["chunk_zstd_level", "max_client_id_lifetime_sec", "max_msgs_per_client_id_per_label"]
    assert [kind.name for kind in Limits.LAYOUT.kinds] == [*TABLE, *added]


@each_limit
def test_each_limit_has_its_least_its_default_and_its_cap(kind: Uint) -> None:
    assert (kind.least, getattr(Limits(), kind.name), kind.most) == TABLE[kind.name]


@each_limit
def test_a_limit_at_its_cap_is_accepted(kind: Uint) -> None:
    assert getattr(Limits(**{kind.name: kind.most}), kind.name) == kind.most


@each_limit
def test_a_limit_at_its_least_is_accepted(kind: Uint) -> None:
    assert getattr(Limits(**{kind.name: kind.least}), kind.name) == kind.least


@each_limit
@pytest.mark.parametrize("by", [1, 1 << 64])
def test_a_limit_above_its_cap_is_refused(kind: Uint, by: int) -> None:
    with pytest.raises(Malformed) as caught:
        Limits(**{kind.name: kind.most + by})
    assert caught.value.what == "limits"
    assert kind.name in caught.value.reason


@each_limit
def test_a_limit_below_its_least_is_refused(kind: Uint) -> None:
    with pytest.raises(Malformed, match=kind.name):
        Limits(**{kind.name: kind.least - 1})


@each_limit
def test_a_negative_limit_is_refused(kind: Uint) -> None:
    with pytest.raises(Malformed, match=kind.name):
        Limits(**{kind.name: -kind.most})


@each_limit
@pytest.mark.parametrize("wrong", [True, False, "1024", 4_194_304.0, None, b"\x01", [600]])
def test_a_limit_that_is_no_integer_is_refused(kind: Uint, wrong: Any) -> None:
    with pytest.raises(Malformed, match=kind.name):
        Limits(**{kind.name: wrong})


def test_a_limit_cannot_be_changed_once_it_is_set() -> None:
    fixed = Limits()
    with pytest.raises(AttributeError):
        fixed.max_msg_bytes = 512  # type: ignore[misc]


def test_chunks_are_kept_as_they_are_unless_a_level_is_set() -> None:
    assert Limits().chunk_zstd_level is None
    assert b"zstd" not in wire_json.encode(Limits())


@pytest.mark.parametrize("level", [1, 3, 19])
def test_a_level_of_compression_is_kept(level: int) -> None:
    registry = Limits(chunk_zstd_level=level)
    assert wire_json.decode_canonical(Limits, wire_json.encode(registry)) == registry


@pytest.mark.parametrize("level", [0, 20, -1, 1 << 64, True, "3", 3.0, b"3"])
def test_a_level_that_there_is_not_is_refused(level: Any) -> None:
    with pytest.raises(Malformed, match="chunk_zstd_level"):
        Limits(chunk_zstd_level=level)


@pytest.mark.parametrize("level", [0, 20, -1, True, "3", 3.0, None])
def test_a_file_with_a_level_that_there_is_not_is_refused(level: Any) -> None:
    with pytest.raises(Malformed, match=r"chunk_zstd_level|integer"):
        wire_json.decode_canonical(Limits, as_json(chunk_zstd_level=level))


BOUNDS_OF_KEYS = ["max_client_id_lifetime_sec", "max_msgs_per_client_id_per_label"]


@pytest.mark.parametrize("name", BOUNDS_OF_KEYS)
def test_a_client_key_is_not_bounded_unless_that_is_set(name: str) -> None:
    assert getattr(Limits(), name) is None
    assert name.encode() not in wire_json.encode(Limits())


@pytest.mark.parametrize("name", BOUNDS_OF_KEYS)
@pytest.mark.parametrize("number", [1, 86_400, 65_536, 1 << 32])
def test_a_bound_of_client_keys_is_kept(name: str, number: int) -> None:
    registry = Limits(**{name: number})
    assert getattr(registry, name) == number
    assert wire_json.decode_canonical(Limits, wire_json.encode(registry)) == registry


@pytest.mark.parametrize("name", BOUNDS_OF_KEYS)
@pytest.mark.parametrize("number", [0, -1, (1 << 32) + 1, True, "3", 3.0, b"3"])
def test_a_bound_of_client_keys_that_there_is_not_is_refused(name: str, number: Any) -> None:
    with pytest.raises(Malformed, match=name):
        Limits(**{name: number})


# The registry as a file


@pytest.mark.parametrize(
    "registry",
    [
        Limits(),
        Limits(**{kind.name: kind.most for kind in KINDS}),
        Limits(**{kind.name: kind.least for kind in KINDS}),
        Limits(max_epoch_skew_sec=0, max_cap_rate_burst=1),
    ],
)
def test_a_registry_is_read_back_from_its_canonical_text(registry: Limits) -> None:
    assert wire_json.decode_canonical(Limits, wire_json.encode(registry)) == registry
    assert Limits.decode(registry.encode()) == registry


def test_a_registry_is_spelled_with_sorted_names_and_no_white_space() -> None:
    defaults = {name: default for name, (_, default, _) in TABLE.items()}
    assert wire_json.encode(Limits()) == json.dumps(defaults, sort_keys=True, separators=(",", ":")).encode()


@each_limit
def test_a_file_with_a_limit_above_its_cap_is_refused(kind: Uint) -> None:
    with pytest.raises(Malformed, match=kind.name):
        wire_json.decode_canonical(Limits, as_json(**{kind.name: kind.most + 1}))


@pytest.mark.parametrize("kind", WITH_LEAST, ids=[kind.name for kind in WITH_LEAST])
def test_a_file_with_a_limit_below_its_least_is_refused(kind: Uint) -> None:
    with pytest.raises(Malformed, match=kind.name):
        wire_json.decode_canonical(Limits, as_json(**{kind.name: kind.least - 1}))


@each_limit
@pytest.mark.parametrize("wrong", [True, "1024", 4_194_304.0, None, -1, [], {}])
def test_a_file_with_a_limit_that_is_no_unsigned_integer_is_refused(kind: Uint, wrong: Any) -> None:
    with pytest.raises(Malformed) as caught:
        wire_json.decode_canonical(Limits, as_json(**{kind.name: wrong}))
    assert caught.value.reason != "not in canonical form"


@each_limit
def test_a_file_that_lacks_a_limit_is_refused(kind: Uint) -> None:
    named = json.loads(as_json())
    del named[kind.name]
    with pytest.raises(Malformed, match=f"{kind.name} is missing"):
        wire_json.decode_canonical(Limits, json.dumps(named).encode())


@pytest.mark.parametrize("name", ["max_msg_byte", "MAX_MSG_BYTES", "ver", ""])
def test_a_file_with_an_unknown_limit_is_refused(name: str) -> None:
    with pytest.raises(Malformed, match="unknown name"):
        wire_json.decode_canonical(Limits, as_json(**{name: 1}))


SPELLINGS = {
    "a final newline": as_json() + b"\n",
    "white space": as_json().replace(b",", b", "),
    "unsorted names": json.dumps({name: default for name, (_, default, _) in TABLE.items()}).encode(),
    "a name with an escape": as_json().replace(b"max_msg", b"max\\u005fmsg"),
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_another_spelling_of_the_same_registry_is_refused(text: bytes) -> None:
    wire_json.decode(Limits, text)
    with pytest.raises(Malformed, match="not in canonical form"):
        wire_json.decode_canonical(Limits, text)


def test_a_limit_that_stands_twice_is_refused() -> None:
    with pytest.raises(Malformed, match="twice"):
        wire_json.decode(Limits, as_json().replace(b"{", b'{"max_msg_bytes":512,'))


@pytest.mark.parametrize("short", [0, 1])
def test_a_chunk_must_have_room_for_the_largest_message(short: int) -> None:
    limits = Limits(max_msg_bytes=4096, max_chunk_bytes=4096 + 1024 - short)
    if short:
        with pytest.raises(ValueError, match="too small"):
            wire_json.encode(limits)
    else:
        assert wire_json.decode_canonical(Limits, wire_json.encode(limits)) == limits


def test_the_limits_of_an_entry_follow_from_its_time_and_the_logged_events() -> None:
    wide, narrow, narrower = Limits(), Limits(max_body_bytes=2000), Limits(max_body_bytes=1000)
    registry = LimitRegistry(wide).lowered(LoweredLimits(wide, narrow), 100)
    assert [registry.at(time) for time in (99, 100, 101)] == [wide, wide, narrow]
    assert registry.lowered(LoweredLimits(wide, narrow), 100) == registry, "applying an event again changes nothing"
    same_second = registry.lowered(LoweredLimits(narrow, narrower), 100)
    assert [same_second.at(time) for time in (100, 101)] == [wide, narrower]
    later = registry.lowered(LoweredLimits(narrow, narrower), 200)
    assert [later.at(time) for time in (100, 200, 201)] == [wide, narrow, narrower]
