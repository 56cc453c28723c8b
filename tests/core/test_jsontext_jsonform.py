"""JSON: strict text, and the JSON form of every wire object, decoded as strictly as CBOR. Spec §10.3, §10.4."""

import json
import tracemalloc
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.wire_strategies import ALL_WIRE, barest, changed, fullest, mutate, uints, wire_objects
from veen.core import strict_json, wire_json
from veen.core.cap_token import CapToken, Rate
from veen.core.cbor import (
    Bool,
    Bstr,
    Bytes,
    Constant,
    Details,
    FieldType,
    ListOf,
    Map,
    Nested,
    Text,
    Uint,
    VersionField,
    Wire,
)
from veen.core.envelopes import ErrorEnvelope, SubmitResponse
from veen.core.errors import Fault, Malformed
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_DETAIL_BYTES, MAX_JSON_BYTES
from veen.core.msg import MAX_CIPHERTEXT_BYTES, Msg
from veen.core.receipt import Receipt

each = pytest.mark.parametrize("cls", ALL_WIRE, ids=lambda cls: cls.__name__)
few = settings(max_examples=25)


def assert_text_rejected(data: bytes) -> Malformed:
    with pytest.raises(Malformed) as caught:
        strict_json.decode(data, "thing")
    assert caught.value.what == "thing"
    return caught.value


def refusal(cls: type[Wire], data: bytes) -> Malformed | None:
    try:
        wire_json.decode(cls, data)
    except Malformed as error:
        return error
    return None


def accepted(cls: type[Wire], damaged: dict[str, bytes]) -> list[str]:
    assert damaged
    return [what for what, data in damaged.items() if refusal(cls, data) is None]


def text(shown: Any) -> bytes:
    return json.dumps(shown).encode()


# Text


@pytest.mark.parametrize("number", ["1.0", "0.0", "1e3", "1E3", "1e-3", "-0.0", "1.5", "1e400"])
def test_a_float_is_refused_even_where_it_is_whole(number: str) -> None:
    assert_text_rejected(number.encode())
    assert_text_rejected(f'{{"a":[{number}]}}'.encode())


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_does_not_have_is_refused(constant: str) -> None:
    assert_text_rejected(constant.encode())
    assert_text_rejected(f"[{constant}]".encode())


@pytest.mark.parametrize("digits", [21, 100, 5_000, 1_000_000])
def test_an_integer_with_more_digits_than_64_bits_have_is_refused(digits: int) -> None:
    for number in (b"1" * digits, b"-" + b"1" * digits, b"[" + b"9" * digits + b"]"):
        assert "64-bit" in assert_text_rejected(number).reason


def test_the_largest_integer_of_64_bits_is_read() -> None:
    assert strict_json.decode(str(U64_MAX).encode(), "thing") == U64_MAX


@pytest.mark.parametrize(
    "twice",
    ['{"a":1,"a":1}', '{"a":1,"b":2,"a":3}', '[{"x":{"a":1,"a":2}}]', '{"a":1,"\\u0061":1}', '{"":1,"":1}'],
)
def test_a_repeated_name_in_one_object_is_rejected(twice: str) -> None:
    assert "twice" in assert_text_rejected(twice.encode()).reason


def test_a_name_may_occur_in_two_objects() -> None:
    assert strict_json.decode(b'[{"a":1},{"a":{"a":2}}]', "thing") == [{"a": 1}, {"a": {"a": 2}}]


@pytest.mark.parametrize(
    "half",
    ['"\\ud800"', '"\\udfff"', '"a\\ud83dz"', '"\\ude00\\ud83d"', '{"\\ud800":1}', '[["\\uDBFF"]]', '"\\ud800\\u0041"'],
)
def test_half_a_surrogate_pair_is_refused(half: str) -> None:
    assert_text_rejected(half.encode())


@pytest.mark.parametrize("whole", ['"\\ud83d\\ude00"', '"\\uD83D\\uDE00"', '"\U0001f600"'], ids=ascii)
def test_a_whole_surrogate_pair_is_one_character(whole: str) -> None:
    assert strict_json.decode(whole.encode(), "thing") == "\U0001f600"


@pytest.mark.parametrize(
    "data",
    [b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b"\xef\xbb\xbf1", '"a"'.encode("utf-16"), b"\xfe\xff"],
    ids=bytes.hex,
)
def test_text_that_is_not_plain_utf_8_is_refused(data: bytes) -> None:
    assert_text_rejected(data)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'], ids=bytes.decode)
@pytest.mark.parametrize("depth", [100_000, 1_000_000])
def test_deep_nesting_is_refused_and_does_not_crash(opening: bytes, depth: int) -> None:
    assert_text_rejected(opening * depth)
    closing = b"]" if opening == b"[" else b"}" if opening == b'{"a":' else b"}]"
    assert_text_rejected(opening * depth + b"1" + closing * depth)


NEARLY = ["", " ", "{", "[1,]", '{"a":1,}', "{a:1}", "{'a':1}", "[1 2]", "1 1", "tru", "True", "undefined", "//c\n1"]
NEARLY += [
    "01",
    "+1",
    "0x1",
    ".5",
    "5.",
    '"',
    '"a\nb"',
    '"\t"',
    '"\x00"',
    '"\\x41"',
    '"\\u00"',
    "/**/1",
    "\x0b1",
    "\u00a01",
]


@pytest.mark.parametrize("data", NEARLY, ids=ascii)
def test_what_is_nearly_json_is_refused(data: str) -> None:
    assert_text_rejected(data.encode())


def test_text_is_bounded() -> None:
    at = b" " * (MAX_JSON_BYTES - 1) + b"1"
    assert strict_json.decode(at, "thing") == 1
    assert str(MAX_JSON_BYTES) in assert_text_rejected(b" " + at).reason


def test_text_above_the_bound_is_refused_before_it_is_looked_at() -> None:
    data = b"\xff" * (MAX_JSON_BYTES + 1)
    tracemalloc.start()
    assert_text_rejected(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_white_space_between_tokens_is_no_matter() -> None:
    assert strict_json.decode(b' \n\t{ "a" : [ 1 , 2 ] }\r\n', "thing") == {"a": [1, 2]}


def test_the_canonical_form_is_sorted_and_without_white_space() -> None:
    shown: strict_json.Json = {"b": [1, True, None], "a": {"z": "ü", "y": '"\\\n'}}
    assert strict_json.encode(shown) == '{"a":{"y":"\\"\\\\\\n","z":"ü"},"b":[1,true,null]}'.encode()


def test_names_are_sorted_by_their_utf_8_bytes() -> None:
    # In UTF-16 the last two have the other order.
    names = ["", "A", "a", "aa", "é", "水", "\uffff", "\U0001f600"]
    assert sorted(names, key=str.encode) == names
    encoded = strict_json.encode(dict.fromkeys(reversed(names), 0)).decode()
    places = [encoded.index(json.dumps(name, ensure_ascii=False) + ":") for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "\ud800", b"", {1}], ids=ascii)
def test_what_json_cannot_hold_is_not_written(value: Any) -> None:
    for held in (value, [value], {"a": value}):
        with pytest.raises((ValueError, TypeError)):
            strict_json.encode(held)


texts: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | uints() | uints(0, 1 << 62).map(lambda number: -number) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(texts)
def test_a_value_comes_back_from_its_text(value: Any) -> None:
    assert strict_json.decode(strict_json.encode(value), "thing") == value
    assert strict_json.decode(json.dumps(value, indent=1).encode(), "thing") == value


# Objects


@each
@few
@given(data=st.data())
def test_an_object_comes_back_from_its_json_as_the_same_cbor(cls: type[Wire], data: st.DataObject) -> None:
    wire = data.draw(wire_objects(cls))
    encoded = wire_json.encode(wire)
    back = wire_json.decode(cls, encoded)
    assert back == wire
    assert back.encode() == wire.encode()
    assert wire_json.decode(cls, json.dumps(json.loads(encoded), indent=2).encode()) == wire
    assert wire_json.decode_canonical(cls, encoded) == wire


@each
@few
@given(data=st.data(), seed=st.integers(0, U64_MAX))
def test_any_json_that_decodes_stands_for_an_object_of_the_wire(
    cls: type[Wire], data: st.DataObject, seed: int
) -> None:
    encoded, other = (wire_json.encode(data.draw(wire_objects(cls))) for _ in range(2))
    rng = Random(seed)
    for _ in range(20):
        mutated = mutate(rng, encoded, other)
        if refusal(cls, mutated) is None:
            wire = wire_json.decode(cls, mutated)
            assert cls.decode(wire.encode()) == wire
            assert wire_json.decode(cls, wire_json.encode(wire)) == wire


@each
def test_the_json_form_has_the_names_of_the_table_and_hex_for_bytes(cls: type[Wire]) -> None:
    wire = fullest(cls)
    shown = json.loads(wire_json.encode(wire))
    names = [kind.name for kind in cls.LAYOUT.kinds]
    held = shown if isinstance(shown, dict) else dict(zip(names, shown, strict=True))
    assert isinstance(shown, dict) is isinstance(cls.LAYOUT, Map)
    assert set(held) == set(names)
    for kind in cls.LAYOUT.kinds:
        if isinstance(kind, Bstr | Bytes):
            assert held[kind.name] == getattr(wire, kind.name).hex()
        elif isinstance(kind, VersionField):
            assert held[kind.name] == 1


def test_what_is_absent_is_left_out_and_only_auth_ref_may_be_null() -> None:
    for cls in ALL_WIRE:
        shown = json.loads(wire_json.encode(barest(cls)))
        if isinstance(shown, dict):
            assert set(shown) == {kind.name for kind in cls.LAYOUT.kinds if not kind.optional}
            assert None not in shown.values()
    assert json.loads(wire_json.encode(barest(Msg)))[6] is None
    nullable = {(cls, kind.name) for cls in ALL_WIRE for kind in cls.LAYOUT.kinds if getattr(kind, "nullable", False)}
    assert nullable == {(Msg, "auth_ref")}


Path = tuple[str | int, ...]


def places(cls: type[Wire], shown: Any, path: Path = ()) -> Iterator[tuple[Path, FieldType]]:
    """The path of every field of the object and of nested objects."""
    for number, kind in enumerate(cls.LAYOUT.kinds):
        key: str | int = kind.name if isinstance(shown, dict) else number
        if not kind.optional or key in shown or isinstance(shown, list):
            yield from _place(kind, shown[key], (*path, key))


def _place(kind: FieldType, shown: Any, path: Path) -> Iterator[tuple[Path, FieldType]]:
    yield path, kind
    if isinstance(kind, Nested):
        yield from places(kind.wire, shown, path)
    elif isinstance(kind, ListOf):
        for number, item in enumerate(shown):
            yield from _place(kind.item, item, (*path, number))


def at(shown: Any, path: Path) -> Any:
    for key in path:
        shown = shown[key]
    return shown


def put(shown: Any, path: Path, new: Any) -> Any:
    copy = deepcopy(shown)
    at(copy, path[:-1])[path[-1]] = new
    return copy


def wrong(kind: FieldType, held: Any) -> list[Any]:
    """Values that are invalid for a field of this type."""
    anywhere: list[Any] = [1.0, 1.5, -1, float("nan"), [[]], {"zz": 0}]
    match kind:
        case Uint() | VersionField():
            return [*anywhere, None, True, False, "1", "", [], {}, 1 << 64, 10**20]
        case Bool():
            return [*anywhere, None, 0, 1, "true", "", [], {}]
        case Bstr() | Bytes():
            spellings = [held.upper(), held[:-1], held + "0", "0x" + held[2:], " " + held[1:], held[:-1] + " "]
            wide = "\N{FULLWIDTH DIGIT ZERO}" * 2
            null = [] if isinstance(kind, Bstr) and kind.nullable else [None]
            return [*anywhere, *null, True, 0, *spellings, held[:-2] + "zz", held[:-2] + wide, held + "\n", [], {}, [0]]
        case Text():
            return [*anywhere, None, True, 0, [], {}]
        case Constant():
            return [*anywhere, None, True, 0, "", held + " ", held.swapcase(), [], {}]
        case ListOf():
            return [*anywhere, None, True, 0, "", {}, {"0": held[0]}]
        case Nested():
            return [*anywhere, None, True, 0, "", [], {}, [held]]
        case Details():
            inner: list[Any] = [None, True, -1, 1.0, [], {}, 1 << 64]
            return [1.5, -1, None, True, 0, "", [], *({"a": item} for item in inner)]
    raise AssertionError(f"no wrong value for {type(kind).__name__}: add some")


@each
def test_a_field_of_another_type_or_spelling_is_refused(cls: type[Wire]) -> None:
    shown = json.loads(wire_json.encode(fullest(cls)))
    damaged = {
        f"{path} is {new!r}": text(put(shown, path, new))
        for path, kind in places(cls, shown)
        for new in wrong(kind, at(shown, path))
    }
    assert accepted(cls, damaged) == []


@each
def test_a_field_that_is_nested_deep_is_refused(cls: type[Wire]) -> None:
    shown = json.loads(wire_json.encode(fullest(cls)))
    deep: Any = 1
    for _ in range(200):
        deep = [{"a": deep}]
    damaged = {f"{path}": text(put(shown, path, deep)) for path, _ in places(cls, shown)}
    assert accepted(cls, damaged) == []


@each
def test_another_thing_in_place_of_the_object_is_refused(cls: type[Wire]) -> None:
    shown = json.loads(wire_json.encode(fullest(cls)))
    swapped = list(shown.values()) if isinstance(shown, dict) else {str(i): item for i, item in enumerate(shown)}
    others: list[Any] = [None, True, 0, "", [], {}, [shown], {"": shown}, swapped]
    assert accepted(cls, {repr(other)[:40]: text(other) for other in others}) == []


@each
def test_an_unknown_name_is_rejected_at_any_position(cls: type[Wire]) -> None:
    shown = json.loads(wire_json.encode(fullest(cls)))
    objects: list[tuple[Path, type[Wire]]] = [((), cls)]
    objects += [(path, kind.wire) for path, kind in places(cls, shown) if isinstance(kind, Nested)]
    damaged = {}
    for path, _ in objects:
        copy = deepcopy(shown)
        held = at(copy, path)
        if isinstance(held, dict):
            held["zz"] = 0
        else:
            held.append(0)
        damaged[f"in {path}"] = text(copy)
    assert accepted(cls, damaged) == []


@each
def test_a_name_in_other_letters_is_refused(cls: type[Wire]) -> None:
    shown = json.loads(wire_json.encode(fullest(cls)))
    names = shown if isinstance(shown, dict) else []
    damaged = {name: text({key.upper() if key == name else key: held for key, held in shown.items()}) for name in names}
    assert isinstance(shown, list) or accepted(cls, damaged) == []


@each
def test_only_optional_names_can_be_omitted(cls: type[Wire]) -> None:
    wire = fullest(cls)
    shown = json.loads(wire_json.encode(wire))
    for number, kind in enumerate(cls.LAYOUT.kinds):
        shorter = deepcopy(shown)
        del shorter[kind.name if isinstance(shown, dict) else number]
        without = changed(wire, **{kind.name: None}) if kind.optional else None
        if without and without.flaw() is None:
            assert wire_json.decode(cls, text(shorter)) == without
        else:
            assert accepted(cls, {kind.name: text(shorter)}) == []


@each
def test_a_repeated_name_is_rejected_at_any_position(cls: type[Wire]) -> None:
    encoded = wire_json.encode(fullest(cls)).decode()
    decoder = json.JSONDecoder()
    damaged = {}
    for start, character in enumerate(encoded):
        if character == "{":
            name, colon = decoder.raw_decode(encoded, start + 1)
            _, end = decoder.raw_decode(encoded, colon + 1)
            first = encoded[start + 1 : end]
            damaged[f"{name} at {start}"] = f"{encoded[: start + 1]}{first},{encoded[start + 1 :]}".encode()
    assert isinstance(json.loads(encoded), list) or accepted(cls, damaged) == []


def wrong_size(kind: FieldType, held: Any) -> list[Any]:
    match kind:
        case Bstr():
            return ["", held[:-2], held + "00"]
        case Bytes():
            return ["00" * (kind.most + 1)]
        case Text():
            return ["a" * (kind.most + 1), "ü" * (kind.most // 2 + 1)]
        case Details():
            return [{"a": "a" * MAX_DETAIL_BYTES}]
        case ListOf():
            return [held[:1] * count for count in (kind.least - 1, kind.most + 1) if count >= 0]
    return []


def faults(cls: type[Wire], shown: Any, fault: Fault) -> list[Any]:
    """The object with one wrong size or version, at each possible position."""
    found = list(places(cls, shown))
    if fault is Fault.VERSION:
        return [
            put(shown, path, new) for path, kind in found if isinstance(kind, VersionField) for new in (0, 2, U64_MAX)
        ]
    return [put(shown, path, new) for path, kind in found for new in wrong_size(kind, at(shown, path))]


@each
@pytest.mark.parametrize("fault", [Fault.SIZE, Fault.VERSION], ids=lambda fault: fault.name)
def test_a_wrong_size_or_version_is_the_fault_it_is_in_cbor(cls: type[Wire], fault: Fault) -> None:
    shown = json.loads(wire_json.encode(fullest(cls)))
    for other in faults(cls, shown, fault):
        data = text(other)
        if len(data) <= MAX_JSON_BYTES:  # a longer text is rejected before its objects are read
            error = refusal(cls, data)
            assert error is not None
            assert error.fault is fault


@pytest.mark.parametrize("cls", [CapToken, SubmitResponse, ErrorEnvelope, Receipt], ids=lambda cls: cls.__name__)
def test_a_wrong_size_is_named_before_a_wrong_version(cls: type[Wire]) -> None:
    shown = json.loads(wire_json.encode(fullest(cls)))
    for old in faults(cls, shown, Fault.VERSION):
        for other in faults(cls, old, Fault.SIZE):
            error = refusal(cls, text(other))
            assert error is not None
            assert error.fault is Fault.SIZE


def longer(shown: Any) -> bytes:
    return text(shown | {"zz": 0} if isinstance(shown, dict) else [*shown, 0])


@each
def test_an_unknown_name_is_a_fault_before_a_wrong_size_or_version(cls: type[Wire]) -> None:
    shown = json.loads(wire_json.encode(fullest(cls)))
    sizes = [put(shown, path, "00") for path, kind in places(cls, shown) if isinstance(kind, Bstr)]
    for other in [*sizes, *faults(cls, shown, Fault.VERSION)]:
        error = refusal(cls, longer(other))
        assert error is not None
        assert error.fault is Fault.CBOR


def test_a_list_outside_its_bounds_is_refused_before_the_rest_is_read() -> None:
    shown = json.loads(wire_json.encode(fullest(CapToken)))
    error = refusal(CapToken, longer(put(shown, ("sig_chain",), [])))
    assert error is not None
    assert error.fault is Fault.SIZE


def test_fields_that_cannot_stand_together_are_refused() -> None:
    token = json.loads(wire_json.encode(fullest(CapToken)))
    streams = token["allow"]["stream_ids"]
    for bad in (streams[::-1], streams[:1] * 2):
        token["allow"]["stream_ids"] = bad
        assert accepted(CapToken, {"streams": text(token)}) == []


def test_an_integer_of_twenty_digits_above_64_bits_is_refused() -> None:
    for number in (U64_MAX + 1, 10**20 - 1):
        assert accepted(Rate, {"burst": text({"per_sec": 1, "burst": number})}) == []
    assert wire_json.decode(Rate, text({"per_sec": 1, "burst": U64_MAX})).burst == U64_MAX


def test_minus_zero_is_not_an_unsigned_integer() -> None:
    assert accepted(Rate, {"per_sec": b'{"burst":1,"per_sec":-0}'}) == []


def test_reading_hex_takes_memory_in_proportion_to_it() -> None:
    shown = json.loads(wire_json.encode(fullest(Msg)))
    data = text([*shown[:8], "ab" * MAX_CIPHERTEXT_BYTES, shown[9]])
    tracemalloc.start()
    wire = wire_json.decode(Msg, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(wire.ciphertext) == MAX_CIPHERTEXT_BYTES
    assert peak < 16 * len(data)


UNWRITABLE: dict[str, Wire] = {
    "a short label": changed(fullest(Receipt), label=bytes(31)),
    "a time before all others": changed(fullest(Receipt), hub_ts=-1),
    "place 0": changed(fullest(Receipt), stream_seq=0),
    "a negative detail": changed(fullest(ErrorEnvelope), detail={"a": -1}),
    "no link": changed(fullest(CapToken), sig_chain=()),
}


@pytest.mark.parametrize("wire", UNWRITABLE.values(), ids=UNWRITABLE)
def test_values_that_do_not_decode_are_not_encoded(wire: Wire) -> None:
    with pytest.raises(ValueError, match=r"must|is not|is -1|is 0|holds|has 0"):
        wire_json.encode(wire)


# Files


@each
def test_a_file_has_one_spelling(cls: type[Wire]) -> None:
    wire = fullest(cls)
    encoded = wire_json.encode(wire)
    shown = json.loads(encoded)
    assert wire_json.decode_canonical(cls, encoded) == wire
    letter = encoded.index(b'"') + 1
    others = {
        "a line at the end": encoded + b"\n",
        "a space at the start": b" " + encoded,
        "a space after a comma": encoded.replace(b",", b", ", 1),
        "indented": json.dumps(shown, indent=1, sort_keys=True).encode(),
        "a letter as an escape": encoded[:letter] + b"\\u%04x" % encoded[letter] + encoded[letter + 1 :],
    }
    if isinstance(shown, dict):
        backwards = dict(sorted(shown.items(), reverse=True))
        others["names in another order"] = json.dumps(backwards, separators=(",", ":"), ensure_ascii=False).encode()
    for data in set(others.values()) - {encoded}:  # an object with one field has no comma
        assert wire_json.decode(cls, data) == wire
        with pytest.raises(Malformed, match="canonical"):
            wire_json.decode_canonical(cls, data)


def test_a_file_whose_text_is_escaped_is_not_canonical() -> None:
    wire = fullest(ErrorEnvelope)
    escaped = json.dumps(json.loads(wire_json.encode(wire)), sort_keys=True, separators=(",", ":")).encode()
    assert wire_json.decode(ErrorEnvelope, escaped) == wire
    with pytest.raises(Malformed, match="canonical"):
        wire_json.decode_canonical(ErrorEnvelope, escaped)


@each
@few
@given(data=st.data(), seed=st.integers(0, U64_MAX))
def test_any_file_fails_to_decode_or_encodes_back_to_itself(cls: type[Wire], data: st.DataObject, seed: int) -> None:
    encoded, other = (wire_json.encode(data.draw(wire_objects(cls))) for _ in range(2))
    rng = Random(seed)
    for _ in range(20):
        mutated = mutate(rng, encoded, other)
        try:
            wire = wire_json.decode_canonical(cls, mutated)
        except Malformed:
            continue
        assert wire_json.encode(wire) == mutated
