"""Properties of all wire objects: one encoding each, and a decoder that accepts nothing else. Spec §3.1, §8.2.

The tests are generated from the field tables, so new objects are covered automatically.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.wire_strategies import (
    ALL_WIRE,
    HEAD_EDGES,
    IN_TABLE_ORDER,
    Item,
    barest,
    changed,
    fields_in,
    fullest,
    kinds_in,
    mutate,
    parse,
    spelled,
    wire_objects,
)
from veen.core import naming
from veen.core.admin import Authority, OperatorRevocation, Revocation
from veen.core.cap_token import Allow, CapToken, Rate
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
from veen.core.checkpoint import Checkpoint
from veen.core.ciphertext import PayloadHdr
from veen.core.control_stream import EpochEnd
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    Equivocation,
    ErrorEnvelope,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    RevocationRequest,
    StreamItem,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.errors import Fault, Malformed
from veen.core.hashing import U64_MAX
from veen.core.hub_identity import ForkOrigin, HubIdentity, HubKey, OriginHub
from veen.core.limits import MAX_DETAIL_BYTES, WIRE_VERSION
from veen.core.msg import Msg
from veen.core.profile import Limits, LoweredLimits, Profile
from veen.core.proof import MmrProof, ProofStep
from veen.core.proof_of_work import PowCookie
from veen.core.receipt import Receipt
from veen.core.recovery import RecoveredLog
from veen.core.retention import Manifest, RetentionPolicy, RetentionRequest, Segment, Tombstone, UploadRecord

KNOWN = 36  # the number of classes; fewer means that the search is broken

each = pytest.mark.parametrize("cls", ALL_WIRE, ids=lambda cls: cls.__name__)
few = settings(max_examples=25)
seeds = st.integers(0, (1 << 64) - 1)

UINT, NINT, BSTR, TEXT, ARRAY, MAP = range(6)
NULL, UNDEFINED, BREAK = b"\xf6", b"\xf7", b"\xff"


def samples(cls: type[Wire]) -> list[bytes]:
    return [fullest(cls).encode(), barest(cls).encode()]


def refusal(cls: type[Wire], data: bytes) -> Malformed | None:
    try:
        cls.decode(data)
    except Malformed as error:
        return error
    return None


def accepted(cls: type[Wire], damaged: dict[str, bytes]) -> list[str]:
    """The inputs that the class accepts, or rejects as something else than bad CBOR."""
    assert damaged
    answers = {what: refusal(cls, data) for what, data in damaged.items()}
    return [what for what, answer in answers.items() if answer is None or answer.fault is not Fault.CBOR]


def head(major: int, argument: int, width: int | None = None) -> bytes:
    """A head with the given number of further bytes; the fewest if none is given."""
    if width is None:
        width = next(width for width in (0, 1, 2, 4, 8) if argument < (24 if width == 0 else 1 << 8 * width))
    info = {0: argument, 1: 24, 2: 25, 4: 26, 8: 27}[width]
    return bytes((major << 5 | info,)) + (argument.to_bytes(width, "big") if width else b"")


def put(data: bytes, item: Item, new: bytes) -> bytes:
    return data[: item.start] + new + data[item.end :]


def test_every_wire_object_is_found() -> None:
    assert len(ALL_WIRE) >= KNOWN
    assert {Msg, Receipt, Checkpoint, CapToken, ErrorEnvelope, HubIdentity} < set(ALL_WIRE)


# Each object as in the specification: a list is an array, `1:` a numbered key, `?` marks an optional field.
# b32 is a byte string of 32 bytes, b* one of any length, and [b32] a list of them.
SPECIFIED: dict[type[Wire], str] = {
    Msg: "ver profile_id=b32 label=b32 client_id=b32 client_seq=uint prev_ack=uint auth_ref=b32/null ct_hash=b32"
    " ciphertext=b* sig=b64",
    Receipt: "ver label=b32 stream_seq=uint leaf_hash=b32 mmr_root=b32 hub_ts=uint hub_sig=b64",
    Checkpoint: "ver label_prev=b32 label_curr=b32 upto_seq=uint mmr_root=b32 epoch=uint hub_sig=b64"
    " witness_sigs?=[b64]",
    Profile: "1:aead='xchacha20poly1305' 2:kdf='hkdf-sha256' 3:sig='ed25519' 4:dh='x25519'"
    " 5:hpke_suite='X25519-HKDF-SHA256-CHACHA20POLY1305' 6:epoch_sec=uint 7:pad_block=uint 8:mmr_hash='sha256'",
    PayloadHdr: "1:schema=b32 2:parent_id?=b32 3:att_root?=b32 4:cap_ref?=b32 5:expires_at?=uint",
    MmrProof: "1:ver 2:leaf_hash=b32 3:path=[ProofStep] 4:peaks_after=[b32]",
    ProofStep: "1:dir=uint 2:sib=b32",
    CapToken: "1:ver 2:issuer_pk=b32 3:subject_pk=b32 4:allow=Allow 5:sig_chain=[b64]",
    Allow: "1:stream_ids=[b32] 2:ttl=uint 3:rate?=Rate",
    Rate: "1:per_sec=uint 2:burst=uint",
    SubmitRequest: "1:ver 2:msg=Msg",
    SubmitResponse: "1:ver 2:receipt=Receipt 3:server_version?=text",
    StreamRequest: "1:ver 2:label=b32 3:from_seq=uint 4:to_seq?=uint 5:max_items?=uint 6:cursor?=uint"
    " 7:with_receipts?=bool 8:with_mmr_proof?=bool",
    StreamResponse: "1:ver 2:label=b32 3:from_seq=uint 4:to_seq?=uint 5:items=[StreamItem] 6:next_cursor?=uint"
    " 7:mmr_proof?=MmrProof 8:server_version?=text",
    StreamItem: "1:stream_seq=uint 2:msg=Msg 3:receipt?=Receipt",
    ReceiptRequest: "1:ver 2:label=b32 3:stream_seq=uint",
    ReceiptResponse: "1:ver 2:receipt=Receipt 3:server_version?=text",
    ProofRequest: "1:ver 2:label=b32 3:stream_seq=uint",
    ProofResponse: "1:ver 2:mmr_proof=MmrProof 3:server_version?=text",
    CheckpointRequest: "1:ver 2:label=b32 3:upto_seq=uint",
    CheckpointResponse: "1:ver 2:checkpoint=Checkpoint 3:server_version?=text",
    Revocation: "kind:kind=text target:target=b32 reason:reason?=text ts:ts=uint ttl:ttl?=uint",
    Authority: "realm_id:realm_id=b32 stream_id:stream_id=b32 primary_hub:primary_hub=b32"
    " replica_hubs:replica_hubs=[b32] policy:policy=text ts:ts=uint ttl:ttl=uint",
    PowCookie: "challenge:challenge=b* nonce:nonce=uint difficulty:difficulty=uint",
    ErrorEnvelope: "1:ver 2:code=text 3:message=text 4:detail?=map 5:retry_after?=uint 6:request_id?=text",
}


def described(kind: FieldType) -> str:
    """The type of the field in the words of the specification."""
    match kind:
        case Bstr():
            return f"b{kind.size}/null" if kind.nullable else f"b{kind.size}"
        case Constant():
            return repr(kind.text)
        case ListOf():
            return f"[{described(kind.item)}]"
        case Nested():
            return kind.wire.__name__
    return {Bool: "bool", Bytes: "b*", Details: "map", Text: "text", Uint: "uint"}[type(kind)]


@pytest.mark.parametrize("cls", SPECIFIED, ids=lambda cls: cls.__name__)
def test_an_object_has_the_fields_of_the_specification(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    keys = [f"{key}:" for key in cbor2.loads(data)] if isinstance(cls.LAYOUT, Map) else [""] * len(cls.LAYOUT.kinds)
    fields = [
        key
        + kind.name
        + ("?" if kind.optional else "")
        + ("" if isinstance(kind, VersionField) else f"={described(kind)}")
        for key, kind in zip(keys, cls.LAYOUT.kinds, strict=True)
    ]
    assert " ".join(fields) == SPECIFIED[cls]


def test_only_the_files_of_a_hub_its_tooling_and_disclosure_are_left_to_us() -> None:
    ours = {cls.__module__ for cls in ALL_WIRE if cls not in SPECIFIED}
    files = {
        "veen.core.control_stream",
        "veen.core.hub_identity",
        "veen.core.profile",
        "veen.core.root_key",
        "veen.core.passphrase",
        "veen.core.handover",
        "veen.core.cosignature",
        "veen.core.recovery",
        "veen.core.retention",
        "veen.core.read_proof",
    }
    capabilities = {"veen.core.cap_token", "veen.core.admin"}  # presentations, and revocations by an operator
    assert ours == files | capabilities | {
        "veen.core.dleq",
        "veen.core.envelopes",
        "veen.core.attachment",
        "veen.core.checkpoint",  # an event of the control stream
    }


@each
def test_the_samples_show_every_field_and_none(cls: type[Wire]) -> None:
    full, bare = fullest(cls), barest(cls)
    names = [kind.name for kind in cls.LAYOUT.kinds if not kind.fixed]
    assert all(getattr(full, name) is not None for name in names)
    assert all(getattr(bare, kind.name) is None for kind in cls.LAYOUT.kinds if kind.optional)
    assert cls.decode(full.encode()) == full
    assert cls.decode(bare.encode()) == bare


@each
@few
@given(data=st.data())
def test_an_object_comes_back_from_its_encoding(cls: type[Wire], data: st.DataObject) -> None:
    wire = data.draw(wire_objects(cls))
    assert cls.decode(wire.encode()) == wire


@each
@few
@given(data=st.data())
def test_another_cbor_library_reads_the_object_of_the_specification(cls: type[Wire], data: st.DataObject) -> None:
    wire = data.draw(wire_objects(cls))
    assert cbor2.loads(wire.encode()) == spelled(wire)


@each
@few
@given(data=st.data())
def test_another_cbor_library_writes_the_same_bytes(cls: type[Wire], data: st.DataObject) -> None:
    wire = data.draw(wire_objects(cls))
    # The names in a hub's files are in the order of the table, which is not the order of their bytes.
    assert cbor2.dumps(spelled(wire), canonical=cls not in IN_TABLE_ORDER) == wire.encode()


@each
@few
@given(data=st.data(), seed=seeds)
def test_any_bytes_fail_to_decode_or_encode_back_to_themselves(cls: type[Wire], data: st.DataObject, seed: int) -> None:
    encoded, other = (data.draw(wire_objects(cls)).encode() for _ in range(2))
    rng = Random(seed)
    for _ in range(30):
        mutated = mutate(rng, encoded, other)
        if refusal(cls, mutated) is None:
            assert cls.decode(mutated).encode() == mutated


@each
@few
@given(data=st.binary(max_size=80))
def test_random_bytes_fail_to_decode_or_encode_back_to_themselves(cls: type[Wire], data: bytes) -> None:
    if refusal(cls, data) is None:
        assert cls.decode(data).encode() == data


@each
def test_an_object_cut_short_is_refused(cls: type[Wire]) -> None:
    for data in samples(cls):
        assert accepted(cls, {f"{end} bytes": data[:end] for end in range(len(data))}) == []


@each
def test_bytes_after_an_object_are_refused(cls: type[Wire]) -> None:
    for data in samples(cls):
        tails = [b"\x00", NULL, BREAK, b"\x60", b"\x80", data, bytes(64)]
        assert accepted(cls, {tail.hex(): data + tail for tail in tails}) == []


def respelled(data: bytes, item: Item) -> Iterator[tuple[str, bytes]]:
    """Other CBOR encodings of one item, and of similar values."""
    content = data[item.body : item.end]
    whole = data[item.start : item.end]
    for width in (1, 2, 4, 8):
        if width > item.body - item.start - 1:
            yield f"a head of {width} further bytes", head(item.major, item.argument, width) + content
    for info in (28, 29, 30):
        yield f"reserved head {info}", bytes((item.major << 5 | info,)) + content
    if item.major in (BSTR, TEXT):
        yield "in chunks of indefinite length", bytes((item.major << 5 | 31,)) + whole + BREAK
        half = item.argument // 2
        chunks = head(item.major, half) + content[:half] + head(item.major, item.argument - half) + content[half:]
        yield "in two chunks", bytes((item.major << 5 | 31,)) + chunks + BREAK
        yield "as the other kind of string", head(BSTR + TEXT - item.major, item.argument) + content
    if item.major in (ARRAY, MAP):
        yield "of indefinite length", bytes((item.major << 5 | 31,)) + content + BREAK
    if item.major == UINT:
        yield "as a negative integer", head(NINT, item.argument) + content
        yield "as a bignum", b"\xc2" + head(BSTR, 8) + item.argument.to_bytes(8, "big")
        yield "as a float", cbor2.dumps(float(item.argument))
        yield "as a string", head(BSTR, 1) + bytes((item.argument & 255,))
    for tag in (0, 24, 55_799):
        yield f"under tag {tag}", head(6, tag) + whole
    for simple in (UNDEFINED, b"\xe0", b"\xf8\xff", BREAK, b"\xf9\x3c\x00"):
        yield f"as simple value or float {simple.hex()}", simple


@each
def test_every_item_has_one_spelling(cls: type[Wire]) -> None:
    for data in samples(cls):
        damaged = {
            f"item at byte {item.start} {how}": put(data, item, new)
            for item in parse(data).walk()
            for how, new in respelled(data, item)
        }
        assert accepted(cls, damaged) == []


def nullable(wire: Wire) -> int:
    """The number of fields in an object that may be null and are not."""
    nested = [getattr(wire, kind.name) for kind in wire.LAYOUT.kinds if isinstance(kind, Nested | ListOf)]
    flat = [item for field in nested for item in (field if isinstance(field, tuple) else (field,))]
    inner = sum(nullable(item) for item in flat if isinstance(item, Wire))
    return inner + (isinstance(wire, Msg) and wire.auth_ref is not None)


@each
def test_only_the_auth_ref_of_a_message_may_be_null(cls: type[Wire]) -> None:
    for wire in (fullest(cls), barest(cls)):
        data = wire.encode()
        nulled = [put(data, item, NULL) for item in parse(data).walk() if data[item.start] != NULL[0]]
        taken = [other for other in nulled if refusal(cls, other) is None]
        assert len(taken) == nullable(wire)
        assert all(cls.decode(other).encode() == other for other in taken)


WRONG_TYPES = {
    "an unsigned integer": b"\x01",
    "a negative integer": b"\x20",
    "a byte string": head(BSTR, 32) + bytes(32),
    "a text": b"\x61a",
    "an array": b"\x81\x01",
    "a map": b"\xa1\x18\x63\x01",  # {99: 1}: {1: 1} is an object of which only the version is required
    "true": b"\xf5",
}
RIGHT_TYPE: dict[type[FieldType], str] = {
    Bool: "true",
    Bstr: "a byte string",
    Bytes: "a byte string",
    Constant: "a text",
    Details: "a map",
    ListOf: "an array",
    Text: "a text",
    Uint: "an unsigned integer",
    VersionField: "an unsigned integer",
}


def right_type(kind: FieldType) -> str:
    if isinstance(kind, Nested):
        return "a map" if isinstance(kind.wire.LAYOUT, Map) else "an array"
    return RIGHT_TYPE[type(kind)]


@each
def test_a_field_of_another_type_is_refused(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    damaged = {
        f"{kind.name} at byte {item.start} is {wrong}": put(data, item, new)
        for kind, item in fields_in(cls, data)
        for wrong, new in WRONG_TYPES.items()
        if wrong != right_type(kind)
    }
    damaged |= {f"the object is {wrong}": new for wrong, new in WRONG_TYPES.items()}
    assert accepted(cls, damaged) == []


def rebuilt(data: bytes, item: Item, parts: list[bytes]) -> bytes:
    """The encoding with other entries of one map, or other items of one array, and a new count."""
    return put(data, item, head(item.major, len(parts)) + b"".join(parts))


def parts_of(data: bytes, item: Item) -> list[bytes]:
    """A map's entries, each key with its value, or an array's items."""
    step = item.major - ARRAY + 1
    firsts, lasts = item.children[::step], item.children[step - 1 :: step]
    return [data[first.start : last.end] for first, last in zip(firsts, lasts, strict=True)]


@each
def test_a_map_has_each_known_key_once_and_in_order(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    damaged = {}
    for item in parse(data).walk():
        if item.major != MAP:
            continue
        parts, at = parts_of(data, item), f"map at byte {item.start}"
        damaged[f"{at}: unknown key at the start"] = rebuilt(data, item, [b"\x00\x00", *parts])
        damaged[f"{at}: unknown key at the end"] = rebuilt(data, item, [*parts, b"\x18\x63\x00"])
        damaged[f"{at}: negative key"] = rebuilt(data, item, [*parts, b"\x20\x00"])
        damaged[f"{at}: a map for a key"] = rebuilt(data, item, [*parts, b"\xa0\x00"])
        damaged[f"{at}: key without a value"] = rebuilt(data, item, [*parts, b"\x18\x63"])
        if len(parts) > 1:
            damaged[f"{at}: reversed"] = rebuilt(data, item, parts[::-1])
        for i in range(len(parts)):
            damaged[f"{at}: entry {i} twice"] = rebuilt(data, item, [*parts[:i], parts[i], *parts[i:]])
            damaged[f"{at}: entry {i} again at the end"] = rebuilt(data, item, [*parts, parts[i]])
        for i in range(len(parts) - 1):
            swapped = [*parts[:i], parts[i + 1], parts[i], *parts[i + 2 :]]
            damaged[f"{at}: entries {i} and {i + 1} swapped"] = rebuilt(data, item, swapped)
    if any(isinstance(kind.wire.LAYOUT, Map) for kind, _ in fields_in(cls, data) if isinstance(kind, Nested)):
        assert len(damaged) > 10
    assert damaged == {} or accepted(cls, damaged) == []


@each
def test_a_count_that_is_off_by_one_is_refused(cls: type[Wire]) -> None:
    damaged = {}
    for data in samples(cls):
        for item in parse(data).walk():
            for off in (-1, 1) if item.major in (ARRAY, MAP) else ():
                if item.argument + off >= 0:
                    miscounted = head(item.major, item.argument + off) + data[item.body : item.end]
                    damaged[f"count {off:+} at byte {item.start} of {len(data)}"] = put(data, item, miscounted)
    answers = {what: refusal(cls, data) for what, data in damaged.items()}
    assert [what for what, answer in answers.items() if answer is None] == []


@each
def test_only_optional_fields_can_be_omitted(cls: type[Wire]) -> None:
    wire = fullest(cls)
    data, top = wire.encode(), parse(wire.encode())
    parts = parts_of(data, top)
    for i, kind in enumerate(cls.LAYOUT.kinds):
        shorter = rebuilt(data, top, [*parts[:i], *parts[i + 1 :]])
        without = changed(wire, **{kind.name: None}) if kind.optional else None
        if without and without.flaw() is None:
            assert cls.decode(shorter) == without
        else:
            assert accepted(cls, {f"without {kind.name}": shorter}) == []


@each
def test_a_field_too_many_is_refused(cls: type[Wire]) -> None:
    data, top = fullest(cls).encode(), parse(fullest(cls).encode())
    more = [b"\x00", NULL, b"\x80", head(BSTR, 32) + bytes(32)]
    key = b"" if top.major == ARRAY else b"\x18\x63"
    longer = {new.hex(): rebuilt(data, top, [*parts_of(data, top), key + new]) for new in more}
    assert accepted(cls, longer) == []


@dataclass(frozen=True, slots=True)
class Edit:
    """One damage to an encoding, and the row of spec §8.2 it falls under."""

    start: int
    end: int
    new: bytes
    fault: Fault


def edited(data: bytes, *edits: Edit) -> bytes:
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        data = data[: edit.start] + edit.new + data[edit.end :]
    return data


def wrong_versions(cls: type[Wire], data: bytes) -> list[Edit]:
    numbers = [number for number in HEAD_EDGES if number != WIRE_VERSION] + [WIRE_VERSION + 1]
    found = [item for kind, item in fields_in(cls, data) if isinstance(kind, VersionField)]
    return [Edit(item.start, item.end, head(UINT, n), Fault.VERSION) for item in found for n in numbers]


def wrong_sizes(cls: type[Wire], data: bytes) -> list[Edit]:
    found = [(kind.size, item) for kind, item in fields_in(cls, data) if isinstance(kind, Bstr)]
    sizes = [(item, size + off) for size, item in found for off in (-1, 1)]
    return [Edit(item.start, item.end, head(BSTR, size) + bytes(size), Fault.SIZE) for item, size in sizes]


def bad_cbor(data: bytes) -> list[Edit]:
    longer = [(item, head(item.major, item.argument, 8)) for item in parse(data).walk() if item.body - item.start < 9]
    edits = [Edit(item.start, item.body, new, Fault.CBOR) for item, new in longer if data[item.start] < 0xE0]
    return [*edits, Edit(len(data), len(data), b"\x00", Fault.CBOR)]


@each
def test_another_version_is_a_fault_of_version(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    for edit in wrong_versions(cls, data):
        error = refusal(cls, edited(data, edit))
        assert error is not None
        assert error.fault is Fault.VERSION


@each
def test_a_byte_string_of_another_size_is_a_fault_of_size(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    for edit in wrong_sizes(cls, data):
        error = refusal(cls, edited(data, edit))
        assert error is not None
        assert error.fault is Fault.SIZE


@each
def test_of_two_faults_the_first_in_the_table_is_named_wherever_they_stand(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    versions, sizes, cbors = wrong_versions(cls, data), wrong_sizes(cls, data), bad_cbor(data)
    # One number per place is enough here: the two tests before this one have tried them all.
    versions = list({edit.start: edit for edit in versions}.values())
    pairs = [*product(cbors, sizes), *product(cbors, versions), *product(sizes, versions)]
    wrong = []
    for first, second in pairs:
        if first.start < second.end and second.start < first.end:
            continue
        error = refusal(cls, edited(data, first, second))
        if error is None or error.fault is not first.fault:
            wrong.append((first, second))
    assert wrong == []


@each
def test_all_three_faults_at_once_are_a_fault_of_cbor(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    for edits in zip(wrong_versions(cls, data), wrong_sizes(cls, data), bad_cbor(data)[-1:], strict=False):
        assert accepted(cls, {"all three": edited(data, *edits)}) == []


@each
def test_a_number_outside_its_bounds_is_refused(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    bounded = [(kind, item) for kind, item in fields_in(cls, data) if isinstance(kind, Uint)]
    damaged = {
        f"{kind.name} is {number}": put(data, item, head(UINT, number))
        for kind, item in bounded
        for number in (kind.least - 1, kind.most + 1)
        if 0 <= number <= U64_MAX
    }
    assert damaged == {} or accepted(cls, damaged) == []


def resized(data: bytes, item: Item, count: int) -> bytes:
    """A list of another length, filled with copies of its first item."""
    first = item.children[0]
    return head(ARRAY, count) + data[first.start : first.end] * count


def wrong_counts(cls: type[Wire], data: bytes) -> list[Edit]:
    lists = [(kind, item) for kind, item in fields_in(cls, data) if isinstance(kind, ListOf)]
    bounds = [(item, count) for kind, item in lists for count in (kind.least - 1, kind.most + 1) if count >= 0]
    return [Edit(item.start, item.end, resized(data, item, count), Fault.SIZE) for item, count in bounds]


LISTING = [cls for cls in ALL_WIRE if any(isinstance(kind, ListOf) for kind in kinds_in(cls))]
each_listing = pytest.mark.parametrize("cls", LISTING, ids=lambda cls: cls.__name__)


@each_listing
def test_a_list_outside_its_bounds_is_a_fault_of_size(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    for edit in wrong_counts(cls, data):
        error = refusal(cls, edited(data, edit))
        assert error is not None
        assert error.fault is Fault.SIZE


@each_listing
def test_a_list_outside_its_bounds_is_refused_where_it_stands(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    start = parse(data).body
    tag_before = Edit(start, start, b"\xc0", Fault.CBOR)
    for edit in wrong_counts(cls, data):
        # The decoder does not read on; the fields before it have been checked.
        bad_after = replace(edit, new=edit.new + b"\xff")
        for edits, fault in (([bad_after], Fault.SIZE), ([edit, tag_before], Fault.CBOR)):
            error = refusal(cls, edited(data, *edits))
            assert error is not None
            assert error.fault is fault


@each_listing
def test_a_list_outside_its_bounds_is_a_fault_before_another_version(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    for edit, old in product(wrong_counts(cls, data), wrong_versions(cls, data)[:1]):
        error = refusal(cls, edited(data, edit, old))
        assert error is not None
        assert error.fault is Fault.SIZE


@each
def test_a_string_above_its_bound_is_a_fault_of_size_and_at_its_bound_is_not(cls: type[Wire]) -> None:
    data = fullest(cls).encode()
    bounded = [(kind, item) for kind, item in fields_in(cls, data) if isinstance(kind, Text | Bytes)]
    for kind, item in bounded:
        at, above = (put(data, item, head(item.major, n) + b"a" * n) for n in (kind.most, kind.most + 1))
        error = refusal(cls, above)
        assert error is not None
        assert error.fault is Fault.SIZE
        # If only some words are allowed, or an object is bounded as a whole, the bound is never reached.
        words = kind.name in ("anchoring", "kind", "policy", "role")
        assert words or cls in (Msg, ForkOrigin, OriginHub) or refusal(cls, at) is None


def test_a_text_is_bounded_by_its_bytes_and_not_by_its_characters() -> None:
    code = next(kind for kind in ErrorEnvelope.LAYOUT.kinds if kind.name == "code")
    assert isinstance(code, Text)
    most = code.most // 2
    assert ErrorEnvelope.decode(cbor2.dumps({1: 1, 2: "ü" * most, 3: ""})).code == "ü" * most
    error = refusal(ErrorEnvelope, cbor2.dumps({1: 1, 2: "ü" * (most + 1), 3: ""}))
    assert error is not None
    assert error.fault is Fault.SIZE


def error_with(detail: Any) -> bytes:
    return cbor2.dumps({1: 1, 2: "E.SIZE", 3: "too large", 4: detail}, canonical=True)


def test_the_details_of_an_error_are_bounded_by_their_bytes() -> None:
    room = MAX_DETAIL_BYTES - len(cbor2.dumps({"field": "a" * 256})) + 256
    assert len(cbor2.dumps({"field": "a" * room})) == MAX_DETAIL_BYTES
    assert ErrorEnvelope.decode(error_with({"field": "a" * room})).detail == {"field": "a" * room}
    error = refusal(ErrorEnvelope, error_with({"field": "a" * (room + 1)}))
    assert error is not None
    assert error.fault is Fault.SIZE


NOT_DETAILS: list[Any] = [-1, None, True, b"", [], {}, [1], {"a": 1}]


@pytest.mark.parametrize("held", [*NOT_DETAILS, 1.5, 1 << 64], ids=repr)
def test_the_details_of_an_error_hold_only_numbers_and_text(held: Any) -> None:
    assert accepted(ErrorEnvelope, {"held": error_with({"field": held})}) == []


@pytest.mark.parametrize("key", [1, -1, b"field", None, True, 1.5], ids=repr)
def test_the_details_of_an_error_are_named_by_text(key: Any) -> None:
    assert accepted(ErrorEnvelope, {"key": error_with({key: 1})}) == []


@pytest.mark.parametrize("held", NOT_DETAILS, ids=repr)
def test_the_writer_refuses_details_that_the_reader_would_refuse(held: Any) -> None:
    envelope = ErrorEnvelope("E.SIZE", "too large", {"field": held})
    with pytest.raises(ValueError):  # noqa: PT011
        envelope.encode()


def unwritable(kind: FieldType, held: Any) -> list[Any]:
    """Values that must not be encoded in a field of this type, which now has the value `held`."""
    match kind:
        case Uint():
            return [kind.least - 1, kind.most + 1, True, 1 << 64, -1]
        case Bstr():
            return [b"", bytes(kind.size - 1), bytes(kind.size + 1)]
        case Bytes():
            return [bytes(kind.most + 1)]
        case Text():
            return ["a" * (kind.most + 1), "ü" * (kind.most // 2 + 1), "\ud800"]
        case Details():
            return [{"a": "a" * MAX_DETAIL_BYTES}]
        case ListOf():
            bad_items = [(bad, *held[1:]) for bad in unwritable(kind.item, held[0])]
            bad_counts = [count for count in (kind.least - 1, kind.most + 1) if count >= 0]
            return [*bad_items, *(held[:1] * count for count in bad_counts)]
    return []


@each
def test_values_that_do_not_decode_are_not_encoded(cls: type[Wire]) -> None:
    wire = fullest(cls)
    for kind in cls.LAYOUT.kinds:
        for bad in [] if kind.fixed else unwritable(kind, getattr(wire, kind.name)):
            # Limits with these values cannot be constructed.
            with pytest.raises((ValueError, Malformed)):
                changed(wire, **{kind.name: bad}).encode()


def rekeyed(key: HubKey) -> HubKey:
    return replace(key, key_id=naming.key_id(key.hub_pk))


def flawed() -> dict[str, Wire]:
    allow, key, identity = fullest(Allow), fullest(HubKey), fullest(HubIdentity)
    one, two = identity.hub_keys
    pair, limits, origin = fullest(Equivocation), barest(Limits), fullest(OriginHub)
    ended = fullest(EpochEnd)
    only = replace(one, role="root", valid_until=None)
    again = replace(one, role=None, valid_from=two.valid_from + 1, valid_until=None, endorsement=two.endorsement)
    return {
        "streams in descending order": replace(allow, stream_ids=allow.stream_ids[::-1]),
        "a stream twice": replace(allow, stream_ids=allow.stream_ids[:1] * 2),
        "the id of another key": replace(key, key_id=bytes(32)),
        "a key that ends as it begins": replace(key, valid_until=key.valid_from),
        "a key that ends before it begins": replace(key, valid_until=key.valid_from - 1),
        "keys in descending order": replace(identity, hub_keys=(two, one)),
        "a key twice in a row": replace(identity, hub_keys=(one, one)),
        "a first key with an endorsement": replace(identity, hub_keys=(replace(one, endorsement=bytes(64)), two)),
        "a second key without one": replace(identity, hub_keys=(one, replace(two, endorsement=None))),
        "a key that comes back": replace(identity, hub_keys=(one, two, again)),
        "an unknown role": replace(key, role="witness"),
        "a root alone": replace(identity, hub_keys=(only,)),
        "two roots": replace(identity, hub_keys=(only, two, rekeyed(replace(two, hub_pk=b"\xff" * 32, role="root")))),
        "a root that ends": replace(identity, hub_keys=(replace(only, valid_until=only.valid_from + 1), two)),
        "a revocation of something else": replace(fullest(Revocation), kind="issuer"),
        "an operator's revocation of something else": replace(fullest(OperatorRevocation), kind="issuer"),
        "a request to revoke something else": replace(fullest(RevocationRequest), kind="issuer"),
        "a policy of none": replace(fullest(Authority), policy="unspecified"),
        "an unknown anchoring": replace(identity, anchoring="hearsay"),
        "receipts of different labels": replace(pair, second=replace(pair.second, label=bytes(32))),
        "receipts for different places": replace(pair, second=replace(pair.second, stream_seq=1)),
        "receipts that agree": replace(pair, second=pair.first),
        "chunks without room for a message": replace(limits, max_msg_bytes=limits.max_msg_bytes + 1),
        "limits that are raised": LoweredLimits(replace(limits, max_hdr_bytes=1), replace(limits, max_hdr_bytes=2)),
        "checkpoints in descending order": replace(origin, checkpoints=origin.checkpoints[::-1]),
        "a label twice": replace(origin, checkpoints=(origin.checkpoints[0],) * 2),
        "labels that the statement does not count": replace(fullest(RecoveredLog), labels=()),
        "a segment that ends before it starts": replace(barest(Segment), start_seq=2),
        "a pruned segment without its file": replace(fullest(Segment), artifact_hash=None),
        "segments with a gap": replace(fullest(Manifest), segments=fullest(Manifest).segments[1:]),
        "a tombstone of a whole segment": replace(fullest(Tombstone), segment=barest(Segment)),
        "receipts that go before payloads": replace(fullest(RetentionPolicy), receipt_sec=0),
        "an ended label twice": replace(ended, labels=(ended.labels[0],) * 2),
        "an erasure without a reason": replace(fullest(RetentionRequest), reason=None, coid=None),
        "the erasure of an attachment without a reason": replace(barest(RetentionRequest), coid=bytes(32)),
        "an upload record with the digest of another": replace(fullest(UploadRecord), uploaded_at=1),
        "an upload record without its digest": replace(fullest(UploadRecord), digest=None),
        "place 0": replace(fullest(Receipt), stream_seq=0),
        "a prefix of no messages": replace(fullest(Checkpoint), upto_seq=0),
    }


def unchecked(wire: Wire) -> bytes:
    """The encoding of the fields without the check of their combination."""
    return wire.LAYOUT.write(wire.LAYOUT.fields_of(wire))


@pytest.mark.parametrize(("flaw", "wire"), flawed().items(), ids=flawed())
def test_fields_that_cannot_stand_together_are_neither_read_nor_written(flaw: str, wire: Wire) -> None:
    assert accepted(type(wire), {flaw: unchecked(wire)}) == []
    with pytest.raises(ValueError, match=wire.LAYOUT.name):
        wire.encode()


def test_every_object_with_such_a_rule_is_shown_to_break_it() -> None:
    ruled = {cls for cls in ALL_WIRE if cls.flaw is not Wire.flaw}
    assert ruled == {type(wire) for wire in flawed().values()}


def test_a_flaw_and_a_wrong_size_give_the_same_fault_whichever_stands_first() -> None:
    token = fullest(CapToken)
    disorder = replace(token.allow, stream_ids=token.allow.stream_ids[::-1])
    data = token.encode().replace(token.allow.encode(), unchecked(disorder))
    answers = {}
    for edit in wrong_sizes(CapToken, data):
        error = refusal(CapToken, edited(data, edit))
        answers[edit.start] = error and error.fault
    assert len(set(answers.values())) == 1
