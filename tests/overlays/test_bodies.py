"""Bodies are byte-exact: every event of every overlay, in every way another spelling could be tried."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import cbor2
import pytest

from tests.overlays.logs import log
from veen.core import Malformed, cbor, msg
from veen.core.cbor import Bool, Bstr, Bytes, FieldType, ListOf, Nested, Text, Uint, Wire, heads
from veen.overlays import AnyOverlay, Event, fold
from veen.overlays.authority import AuthorityEvent
from veen.overlays.authorization import RevocationEvent, ShownToken
from veen.overlays.bridge_logs import BundleExported, BundleImported, BundleIntake, EventOrigin
from veen.overlays.event import Int, ValueItem
from veen.overlays.identity_events import Device, HandleMap, device_id
from veen.overlays.record import CHANGES, MapType, Migration, PositionKind, Producer, RecorderProfile, RecordEvent
from veen.overlays.registry import BUILTIN
from veen.overlays.rpc import Reply, RpcError
from veen.overlays.wallet_ledger import Open, wallet_id

# The body of a capability is a token of the core, with numbers for keys, and is tried with the other wire objects.
OVERLAYS = [overlay for overlay in BUILTIN if ShownToken not in overlay.EVENTS]
EVENTS = sorted(
    {event for overlay in OVERLAYS for event in overlay.EVENTS}, key=lambda event: (event.__name__, event.__module__)
)
RENAMED = {"content": "payload"}
PAIRED = (Reply, RecordEvent)  # fields of these are there together or not at all
TAGS_AND_FLOATS = [b"\xc1\x00", b"\xf9\x3c\x00", b"\xf7"]


def sample_field(kind: FieldType) -> Any:
    match kind:
        case Bool():
            return True
        case Bstr():
            return bytes(range(kind.size))
        case Bytes():
            return b"some bytes"
        case Text():
            return "text"
        case Uint():
            return 300
        case Int():
            return -300
        case ValueItem():
            return cbor.encode({"a": [1, None]})
        case ListOf():
            return (sample_field(kind.item),)
        case Nested():
            return sample(kind.wire)
        case PositionKind():
            return 300
    raise AssertionError(kind)


def sample(cls: type[Wire]) -> Any:
    """An object with every field there."""
    if cls is Reply:
        return Reply(False, None, RpcError("code", "detail"))
    made = cls(*(sample_field(kind) for kind in cls.LAYOUT.kinds if not kind.fixed))
    if isinstance(made, Open):
        return replace(made, wallet_id=wallet_id(made.realm_id, made.ctx_id, made.currency))
    if isinstance(made, RevocationEvent):
        return replace(made, kind="client-id")
    if isinstance(made, AuthorityEvent):
        return replace(made, policy="single-primary")
    if isinstance(made, Device):
        return replace(made, device_id=device_id(made.device_pk))
    if isinstance(made, BundleExported):
        return replace(made, event_count=1)
    if isinstance(made, EventOrigin):
        leaf = msg.leaf_hash(made.receipt.label, made.profile_id, made.ct_hash, made.client_id, made.client_seq)
        return replace(made, receipt=replace(made.receipt, leaf_hash=leaf))
    if isinstance(made, BundleIntake):
        return replace(made, event_count=1, position=1)
    if isinstance(made, BundleImported):
        return replace(made, result="failure")
    if isinstance(made, RecordEvent):
        return replace(made, content='{"a":1}')
    if isinstance(made, MapType):
        return replace(made, stream="record/app/web")
    if isinstance(made, Migration):
        return replace(made, kind="split", from_stream="record/app/web", to_stream="record/app/slow")
    if isinstance(made, Producer):
        return replace(made, streams=("record/app/web",))
    if isinstance(made, RecorderProfile):
        return replace(made, streams=(CHANGES,))
    if isinstance(made, HandleMap):
        return replace(made, target_type="ctx")
    return made


def past(data: bytes, pos: int) -> int:
    """The start of the next value. The keys of this one may be in any order."""
    major, argument, pos = heads.read_head(data, pos)
    if major in (heads.BSTR, heads.TEXT):
        return pos + argument
    for _ in range({heads.ARRAY: argument, heads.MAP: 2 * argument}.get(major, 0)):
        pos = past(data, pos)
    return pos


def pairs(body: bytes) -> list[tuple[bytes, bytes]]:
    """The keys and values of a map as they are encoded."""
    count, pos = heads.read_count("body", heads.MAP, body, 0)
    found = []
    for _ in range(count):
        middle = past(body, pos)
        end = past(body, middle)
        found.append((body[pos:middle], body[middle:end]))
        pos = end
    return found


def joined(found: list[tuple[bytes, bytes]]) -> bytes:
    return heads.write_head(heads.MAP, len(found)) + b"".join(key + value for key, value in found)


def spoiled(event: Event) -> Iterator[tuple[str, bytes]]:
    """Everything that is nearly the body of this event."""
    good, found = event.encode(), pairs(event.encode())
    yield "nothing", b""
    yield "an empty map", b"\xa0"
    yield "a trailing byte", good + b"\x00"
    yield "the last byte missing", good[:-1]
    yield "an indefinite map", b"\xbf" + good[1:] + b"\xff"
    yield "an array", heads.write_head(heads.ARRAY, 2 * len(found)) + good[1:]
    yield "an unknown key last", joined([*found, (b"\x67unknown", b"\x00")])
    yield "an unknown key first", joined([(b"\x67unknown", b"\x00"), *found])
    yield "a key twice", joined([*found, found[-1]])
    yield "a longer head", b"\xb8" + bytes([len(found)]) + good[1:]
    if len(found) > 1:
        yield "two keys exchanged", joined([found[1], found[0], *found[2:]])
        yield "all keys the other way round", joined(found[::-1])
    present = [kind for kind in type(event).LAYOUT.kinds if getattr(event, kind.name) is not None]
    for at, ((key, value), kind) in enumerate(zip(found, present, strict=True)):
        rest = found[:at], found[at + 1 :]
        if not kind.optional:
            yield f"{kind.name} missing", joined([*rest[0], *rest[1]])
        if not isinstance(kind, ValueItem):
            yield f"{kind.name} null", joined([*rest[0], (key, b"\xf6"), *rest[1]])
        yield f"{kind.name} in capitals", joined([*rest[0], (key[:1] + key[1:].upper(), value), *rest[1]])
        yield f"{kind.name} with a number for a key", joined([*rest[0], (bytes([at + 1]), value), *rest[1]])
        for other in TAGS_AND_FLOATS:
            yield f"{kind.name} {other.hex()}", joined([*rest[0], (key, other), *rest[1]])


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{event.__module__}.{event.__name__}")
def test_an_event_decodes_from_its_own_bytes_only(event: type[Event]) -> None:
    made = sample(event)
    assert event.decode(made.encode()) == made
    taken = []
    for name, body in spoiled(made):
        try:
            event.decode(body)
        except Malformed:
            continue
        taken.append(name)
    assert taken == []


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{event.__module__}.{event.__name__}")
def test_field_names_are_text_keys_in_order(event: type[Event]) -> None:
    made = sample(event)
    present = [field.name for field in fields(made) if getattr(made, field.name) is not None]
    names = [RENAMED.get(name, name.rstrip("_")) for name in present]
    assert list(cbor2.loads(made.encode())) == names


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{event.__module__}.{event.__name__}")
def test_an_absent_optional_is_left_out(event: type[Event]) -> None:
    made = sample(event)
    for kind in event.LAYOUT.kinds:
        if kind.optional and event not in PAIRED:
            without = replace(made, **{kind.name: None})
            assert kind.name not in cbor2.loads(without.encode())
            assert event.decode(without.encode()) == without


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda overlay: overlay.CLASS)
def test_a_malformed_body_is_a_fault_with_its_place_and_changes_no_state(overlay: AnyOverlay) -> None:
    for event in overlay.EVENTS:
        made = sample(event)
        (entry,) = log(made)
        for name, body in spoiled(made):
            spoiled_entry = replace(entry, body=body)
            folded = fold(overlay, [spoiled_entry])
            if folded.faults == [] and len(overlay.schemas[event.SCHEMA]) > 1:
                continue  # another form of the same schema
            assert folded.states == {}, name
            assert [fault.stream_seq for fault in folded.faults] == [1], name
            assert folded.faults == fold(overlay, [spoiled_entry]).faults
