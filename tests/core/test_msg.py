"""MSG: its fast decoder compared with its field table, its signature and its hash. Spec §4.1, §7."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import sha256
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.wire_strategies import HEAD_EDGES, fields_in, fullest, mutate, parse, spelled, uints
from veen.core import msg, wire_json
from veen.core.cbor import DeferredFaults
from veen.core.envelopes import SubmitRequest
from veen.core.errors import Fault, Malformed, Unverified
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_MSG_BYTES
from veen.core.msg import MAX_CIPHERTEXT_BYTES, Msg
from veen.core.signing import SIGNATURE_BYTES, SigningKey

KEY = SigningKey(bytes(range(32)))
OTHER_KEY = SigningKey(bytes(32))
CT_SIZES = (0, 1, 23, 24, 255, 256, 257, 65_535, 65_536)

bytes32 = st.binary(min_size=32, max_size=32)
messages = st.builds(
    Msg,
    profile_id=bytes32,
    label=bytes32,
    client_id=bytes32,
    client_seq=uints(),
    prev_ack=uints(),
    auth_ref=st.none() | bytes32,
    ct_hash=bytes32,
    ciphertext=st.builds(lambda size, byte: bytes((byte,)) * size, st.sampled_from(CT_SIZES), st.integers(0, 255)),
    sig=st.binary(min_size=SIGNATURE_BYTES, max_size=SIGNATURE_BYTES),
)


def signed(**changes: Any) -> Msg:
    parts: dict[str, Any] = {
        "profile_id": bytes([1]) * 32,
        "label": bytes([2]) * 32,
        "client_seq": 7,
        "prev_ack": 3,
        "auth_ref": bytes([4]) * 32,
        "ciphertext": bytes(range(256)) * 2,
    }
    return msg.sign(KEY, **parts | changes)


Answer = Msg | tuple[Fault, str]


def answer(decode: Callable[[bytes], Msg], data: bytes) -> Answer:
    try:
        return decode(data)
    except Malformed as error:
        return error.fault, str(error)


def by_table(data: bytes) -> Msg:
    """Decode by the field table, without the fast path."""
    late = DeferredFaults()
    try:
        values, end = Msg.LAYOUT.read(data, 0, late)
        if end != len(data):
            raise Malformed("cbor", f"{len(data) - end} bytes after the end")
        late.raise_first()
    except Malformed as error:
        raise Malformed("msg", error.reason, error.fault) from None
    return Msg(*values)


def assert_same_answer(data: bytes) -> Answer:
    """The decoder of MSG and its field table agree on the object, or on the fault and its message."""
    expected = answer(by_table, data)
    assert answer(Msg.decode, data) == expected
    return expected


# The fast path


@given(messages)
def test_the_fast_path_gives_the_object_the_table_gives(message: Msg) -> None:
    assert assert_same_answer(message.encode()) == message


@settings(max_examples=300)
@given(messages, messages, st.integers(0, U64_MAX))
def test_the_fast_path_answers_like_the_table_whatever_the_bytes(message: Msg, other: Msg, seed: int) -> None:
    data, spliced = message.encode(), other.encode()
    rng = Random(seed)
    for _ in range(20):
        mutated = mutate(rng, data, spliced)
        expected = assert_same_answer(mutated)
        if isinstance(expected, Msg):
            assert expected.encode() == mutated


@pytest.mark.parametrize("auth_ref", [None, bytes(32)], ids=["without", "with"])
@pytest.mark.parametrize("size", [256, 300])
def test_the_fast_path_answers_like_the_table_at_every_cut(auth_ref: bytes | None, size: int) -> None:
    data = signed(auth_ref=auth_ref, ciphertext=bytes(size)).encode()
    for end in range(len(data)):
        assert not isinstance(assert_same_answer(data[:end]), Msg)
        assert not isinstance(assert_same_answer(data[:end] + data[end + 1 :]), Msg)
    assert not isinstance(assert_same_answer(data + b"\x00"), Msg)


@pytest.mark.parametrize("auth_ref", [None, bytes(32)], ids=["without", "with"])
def test_the_fast_path_answers_like_the_table_for_every_byte_at_every_head(auth_ref: bytes | None) -> None:
    data = signed(auth_ref=auth_ref, client_seq=70_000, prev_ack=300, ciphertext=bytes(256)).encode()
    for item in parse(data).walk():
        for at in range(item.start, item.body):
            for byte in range(256):
                assert_same_answer(data[:at] + bytes((byte,)) + data[at + 1 :])


WIDTHS = (0, 1, 2, 4, 8)


def spellings(major: int, argument: int) -> list[bytes]:
    """Every head that can encode the argument, the shortest first."""
    able = [width for width in WIDTHS if argument < (24 if width == 0 else 1 << 8 * width)]
    infos = [{0: argument, 1: 24, 2: 25, 4: 26, 8: 27}[width] for width in able]
    further = [argument.to_bytes(width, "big") if width else b"" for width in able]
    return [bytes((major << 5 | info,)) + rest for info, rest in zip(infos, further, strict=True)]


@pytest.mark.parametrize("name", ["client_seq", "prev_ack"])
@pytest.mark.parametrize("number", HEAD_EDGES)
def test_the_fast_path_takes_a_number_only_in_its_shortest_form(name: str, number: int) -> None:
    data = signed(**{name: number}).encode()
    [item] = [item for kind, item in fields_in(Msg, data) if kind.name == name]
    shortest, *longer = spellings(0, number)
    assert data[item.start : item.end] == shortest
    assert isinstance(assert_same_answer(data), Msg)
    for head in longer:
        assert not isinstance(assert_same_answer(data[: item.start] + head + data[item.end :]), Msg)


@pytest.mark.parametrize("size", CT_SIZES)
def test_the_fast_path_takes_a_ciphertext_only_with_the_shortest_head(size: int) -> None:
    data = signed(ciphertext=bytes(size)).encode()
    item = parse(data).children[8]
    shortest, *longer = spellings(2, size)
    assert data[item.start : item.body] == shortest
    assert isinstance(assert_same_answer(data), Msg)
    for head in longer:
        assert not isinstance(assert_same_answer(data[: item.start] + head + data[item.body :]), Msg)


@pytest.mark.parametrize("size", CT_SIZES)
@pytest.mark.parametrize("auth_ref", [None, bytes(32)], ids=["without", "with"])
@pytest.mark.parametrize("number", [0, 23, 24, 255, 256, 65_535, 65_536, (1 << 32) - 1])
def test_the_usual_message_takes_the_fast_path(size: int, auth_ref: bytes | None, number: int) -> None:
    message = signed(ciphertext=bytes(size), auth_ref=auth_ref, client_seq=number, prev_ack=number)
    encoded = message.encode()
    taken = msg._fast_decode(b"before" + encoded + b"after", len(b"before"))
    assert (taken is not None) is (256 <= size <= 65_535)
    assert taken is None or (Msg(*taken[0]), taken[1]) == (message, len(b"before" + encoded))


def test_the_largest_message_has_the_largest_of_every_field() -> None:
    largest = replace(
        fullest(Msg), client_seq=U64_MAX, prev_ack=U64_MAX, auth_ref=bytes(32), ciphertext=bytes(MAX_CIPHERTEXT_BYTES)
    )
    assert len(largest.encode()) == MAX_MSG_BYTES
    assert Msg.decode(largest.encode()) == largest


def test_a_message_is_bounded_before_it_is_read() -> None:
    with pytest.raises(Malformed) as caught:
        Msg.decode(bytes(MAX_MSG_BYTES + 1))
    assert caught.value.fault is Fault.SIZE


def test_a_message_above_the_bound_is_not_signed() -> None:
    message = fullest(Msg)
    with pytest.raises(ValueError, match="above"):
        msg.sign(
            SigningKey.generate(),
            profile_id=message.profile_id,
            label=message.label,
            client_seq=1,
            prev_ack=0,
            auth_ref=None,
            ciphertext=bytes(MAX_MSG_BYTES - 100),
        )


@pytest.mark.parametrize("way", ["as a field", "as JSON", "written"])
def test_a_message_above_the_bound_finds_no_other_way_in_or_out(way: str) -> None:
    above = replace(signed(), ciphertext=bytes(MAX_MSG_BYTES))
    shown = json.dumps([held.hex() if isinstance(held, bytes) else held for held in spelled(above)])
    ways: dict[str, Callable[[], object]] = {
        "as a field": lambda: SubmitRequest.decode(cbor2.dumps({1: 1, 2: spelled(above)})),
        "as JSON": lambda: wire_json.decode(Msg, shown.encode()),
        "written": above.encode,
    }
    with pytest.raises((Malformed, ValueError)):
        ways[way]()


@pytest.mark.parametrize("make", [bytearray, memoryview])
def test_a_message_read_from_another_kind_of_buffer_holds_bytes(make: Callable[[bytes], Any]) -> None:
    received = Msg.decode(make(signed().encode()))
    assert {type(getattr(received, field.name)) for field in fields(Msg)} == {bytes, int}


# The signature


@given(messages)
def test_the_signature_is_over_the_first_nine_fields_as_an_array_of_nine(message: Msg) -> None:
    nine = cbor2.dumps(spelled(message)[:9])
    assert msg.signing_digest(message.encode()) == sha256(b"veen/sig\x00" + nine).digest()


@pytest.mark.parametrize("auth_ref", [None, bytes(32)], ids=["without", "with"])
@pytest.mark.parametrize("size", CT_SIZES)
def test_a_signed_message_verifies_before_and_after_the_wire(auth_ref: bytes | None, size: int) -> None:
    message = signed(auth_ref=auth_ref, ciphertext=b"\x55" * size)
    message.verify_signature()
    message.check_ct_hash()
    received = Msg.decode(message.encode())
    received.verify_signature()
    received.check_ct_hash()
    assert received.client_id == KEY.public_key


def altered(message: Msg, name: str) -> list[Msg]:
    """The message with one field changed, in every possible way."""
    field = getattr(message, name)
    if isinstance(field, int):
        others: list[Any] = [field + 1, field - 1, field + (1 << 32)]
    else:
        size = len(field)
        others = [
            field[:at] + bytes((field[at] ^ bit,)) + field[at + 1 :]
            for at in (0, size // 2, size - 1)
            for bit in (1, 128)
        ]
    if name == "auth_ref":
        others += [None, bytes(32)]
    if name == "ciphertext":
        others += [b"", field[:-1], field + b"\x00"]
    return [replace(message, **{name: other}) for other in others]


@pytest.mark.parametrize("name", [field.name for field in fields(Msg)])
def test_a_message_with_any_field_altered_does_not_verify(name: str) -> None:
    for other in altered(signed(), name):
        with pytest.raises(Unverified, match="msg"):
            other.verify_signature()


def test_an_auth_ref_of_zeros_is_not_the_absence_of_one() -> None:
    with pytest.raises(Unverified):
        replace(signed(auth_ref=None), auth_ref=bytes(32)).verify_signature()


def test_a_signature_by_another_key_does_not_verify() -> None:
    message = signed()
    forged = OTHER_KEY.sign(msg.signing_digest(message.encode()))
    with pytest.raises(Unverified):
        replace(message, sig=forged).verify_signature()


@pytest.mark.parametrize("prefix", [b"\x8a", b"\x88"], ids=["array of ten", "array of eight"])
def test_a_signature_over_another_spelling_of_the_fields_does_not_verify(prefix: bytes) -> None:
    message = signed()
    body = prefix + cbor2.dumps(spelled(message)[:9])[1:]
    forged = KEY.sign(sha256(b"veen/sig\x00" + body).digest())
    with pytest.raises(Unverified):
        replace(message, sig=forged).verify_signature()


def test_invalid_messages_are_not_signed() -> None:
    with pytest.raises(ValueError, match="label"):
        signed(label=bytes(31))
    with pytest.raises(ValueError, match="client_seq"):
        signed(client_seq=1 << 64)
    with pytest.raises(ValueError, match="ciphertext"):
        signed(ciphertext=bytes(MAX_MSG_BYTES + 1))


# The hash


def test_a_ct_hash_of_another_ciphertext_is_refused() -> None:
    message = signed()
    message.check_ct_hash()
    for other in [*altered(message, "ciphertext"), *altered(message, "ct_hash")]:
        with pytest.raises(Unverified, match="ct_hash"):
            other.check_ct_hash()


@given(messages)
def test_the_leaf_hash_is_that_of_the_specification(message: Msg) -> None:
    seq = message.client_seq.to_bytes(8, "big")
    parts = message.label + message.profile_id + message.ct_hash + message.client_id + seq
    assert message.leaf_hash() == sha256(b"veen/leaf\x00" + parts).digest()


NAMING = {"label", "profile_id", "ct_hash", "client_id", "client_seq"}


@pytest.mark.parametrize("name", [field.name for field in fields(Msg)])
def test_the_leaf_hash_hangs_on_the_fields_that_name_a_message_and_on_no_others(name: str) -> None:
    message = signed()
    names = {other.leaf_hash() for other in altered(message, name)}
    assert (message.leaf_hash() in names) is (name not in NAMING)


# Encoding


@given(messages)
def test_a_message_is_written_as_the_table_says(message: Msg) -> None:
    assert message.encode() == Msg.LAYOUT.write(Msg.LAYOUT.fields_of(message))


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {name: bytes(size)}
            for name in ("profile_id", "label", "client_id", "ct_hash", "auth_ref")
            for size in (31, 33)
        ),
        *({"sig": bytes(size)} for size in (63, 65)),
        *({name: number} for name in ("client_seq", "prev_ack") for number in (-1, 1 << 64, True, 1.0)),
        {"ciphertext": bytes(MAX_CIPHERTEXT_BYTES + 1)},
    ],
)
def test_what_breaks_the_table_is_not_written(changes: dict[str, Any]) -> None:
    broken = replace(signed(), **changes)
    with pytest.raises(ValueError, match=r"must have|not within|above"):
        broken.encode()


def test_signing_gives_the_encoding_it_made() -> None:
    message, encoded = msg.sign_encoded(KEY, replace(signed(), sig=bytes(SIGNATURE_BYTES)))
    assert message == signed()
    assert encoded == message.encode()
