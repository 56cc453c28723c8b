"""Every wire object, generated from its field table, and damage to encodings that several tests use."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import shake_128
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

import veen.core
from veen.core import naming, recovery
from veen.core.admin import Authority, AuthorityPolicy, OperatorRevocation, Revocation, RevocationKind
from veen.core.cap_token import Allow
from veen.core.cbor import Array, Bool, Bstr, Bytes, Details, FieldType, ListOf, Map, Nested, Text, Uint, Wire
from veen.core.checkpoint import Checkpoint
from veen.core.cosignature import CosignRequest, ForkProof, ResetRequest
from veen.core.envelopes import Equivocation, RevocationRequest
from veen.core.hashing import U64_MAX
from veen.core.hub_identity import (
    ANCHORINGS,
    ROOT,
    ForkOrigin,
    HubIdentity,
    HubKey,
    IdentitySignature,
    OriginHub,
    OriginRef,
)
from veen.core.limits import ENTRY_OVERHEAD_BYTES
from veen.core.profile import AdmissionSettings, EarlierLimits, LimitRegistry, Limits, LoweredLimits
from veen.core.proof_of_work import PowCookie
from veen.core.receipt import Receipt
from veen.core.recovery import RecoveredLog
from veen.core.retention import Manifest, RetentionPolicy, RetentionRequest, Segment, Tombstone, UploadRecord
from veen.core.root_key import KeyRequest, RootEndorsement, RootRequest
from veen.core.signing import SIGNATURE_BYTES

W = TypeVar("W", bound=Wire)

# Files of a hub, with text keys instead of numbers.
TEXT_KEYED: frozenset[type[Wire]] = frozenset({HubIdentity, HubKey, IdentitySignature, Limits, OriginRef}) | {
    EarlierLimits,
    KeyRequest,
    LimitRegistry,
    RootEndorsement,
    RootRequest,
    Authority,
    PowCookie,
    AdmissionSettings,
    OperatorRevocation,
    Revocation,
}
# These, and the objects that contain them.
IN_TABLE_ORDER = TEXT_KEYED | {CosignRequest, ForkOrigin, ForkProof, LoweredLimits, OriginHub, ResetRequest}

# Both sides of every size at which a head grows.
HEAD_EDGES = (0, 1, 23, 24, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, U64_MAX)
_LENGTHS = (0, 1, 23, 24, 255, 256, 257)
_SAMPLE_NUMBER = 70_000  # needs a head of five bytes
_SAMPLE_BYTES = 300  # a head of three


def _all_wire() -> list[type[Wire]]:
    for module in pkgutil.walk_packages(veen.core.__path__, "veen.core."):
        importlib.import_module(module.name)
    found: set[type[Wire]] = set()
    pending = [Wire]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        # A slotted dataclass leaves its original class behind; the one in its module is the real one.
        named = getattr(sys.modules[cls.__module__], cls.__name__, None)
        if cls.__module__.startswith("veen.core.") and named is cls and hasattr(cls, "LAYOUT"):
            found.add(cls)
    return sorted(found, key=lambda cls: cls.__name__)


ALL_WIRE: list[type[Wire]] = _all_wire()


def _dated(key: HubKey) -> HubKey:
    until = key.valid_until
    if until is not None and until <= key.valid_from:
        until = key.valid_from + 1 if key.valid_from < U64_MAX else None
    role = key.role and ROOT
    return replace(key, key_id=naming.key_id(key.hub_pk), valid_until=until, role=role)


def _chained(identity: HubIdentity) -> HubIdentity:
    unique = {key.hub_pk: key for key in identity.hub_keys}
    first, *later = sorted(unique.values(), key=lambda key: (key.valid_from, key.hub_pk))
    endorsed = [replace(key, endorsement=key.endorsement or bytes(SIGNATURE_BYTES)) for key in later]
    # At most the first key is a root, and only if there is another one.
    first = replace(first, valid_until=None if endorsed and first.role else first.valid_until)
    first = first if endorsed else replace(first, role=None)
    endorsed = [replace(key, role=None) for key in endorsed]
    anchoring = ANCHORINGS[len(identity.anchoring) % len(ANCHORINGS)]
    return replace(identity, hub_keys=(replace(first, endorsement=None), *endorsed), anchoring=anchoring)


def _contradicting(pair: Equivocation) -> Equivocation:
    first, second = pair.first, pair.second
    leaf_hash = (
        second.leaf_hash if second.leaf_hash != first.leaf_hash else bytes(255 - byte for byte in first.leaf_hash)
    )
    return replace(pair, second=replace(second, label=first.label, stream_seq=first.stream_seq, leaf_hash=leaf_hash))


def _one_of(allowed: Sequence[str], text: str) -> str:
    return str(allowed[len(text) % len(allowed)])


def _by_label(hub: OriginHub) -> OriginHub:
    unique = {checkpoint.label_curr: checkpoint for checkpoint in hub.checkpoints}
    return replace(hub, checkpoints=tuple(unique[label] for label in sorted(unique)))


def _stated(log: RecoveredLog) -> RecoveredLog:
    unique = {row.label: row for row in log.labels}
    labels = tuple(unique[label] for label in sorted(unique))
    said = replace(log.statement.recovery, labels=len(labels), labels_root=recovery.root_of(labels))
    return RecoveredLog(replace(log.statement, recovery=said), labels)


def _pruned(segment: Segment) -> Segment:
    file, at, event = segment.artifact_hash or bytes(32), segment.pruned_at or 0, segment.event_seq or 1
    return replace(segment, level=segment.level or 1, artifact_hash=file, pruned_at=at, event_seq=event)


def _segment(segment: Segment) -> Segment:
    ordered = replace(segment, end_seq=max(segment.start_seq, segment.end_seq))
    if ordered.level:
        return _pruned(ordered)
    return replace(ordered, artifact_hash=None, pruned_at=None, event_seq=None)


def _consecutive(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    return tuple(replace(one, start_seq=at, end_seq=at) for at, one in enumerate(segments, 1))


def _longer(policy: RetentionPolicy) -> RetentionPolicy:
    if policy.receipt_sec is None:
        return policy
    return replace(policy, payload_sec=min(policy.payload_sec or 0, policy.receipt_sec))


def _whole_request(request: RetentionRequest) -> RetentionRequest:
    if request.coid is not None:
        request = replace(request, reason=request.reason or "")
    if request.from_seq is None:
        return replace(request, to_seq=None)
    return replace(request, label=request.label or bytes(32), reason=request.reason or "")


def _bound(record: UploadRecord) -> UploadRecord:
    if record.coid is None:
        return replace(record, digest=None)
    return UploadRecord.of(record.coid, record.label, record.uploaded_at)


def _roomy(limits: Limits) -> Limits:
    least = limits.max_msg_bytes + ENTRY_OVERHEAD_BYTES
    return replace(limits, max_chunk_bytes=max(limits.max_chunk_bytes, least))


# The rules of `flaw()`, for objects that would rarely satisfy them by chance.
_REPAIRS: dict[type[Wire], Callable[[Any], Wire]] = {
    Authority: lambda record: replace(record, policy=_one_of(list(AuthorityPolicy)[:2], record.policy)),
    **dict.fromkeys(
        (Revocation, OperatorRevocation, RevocationRequest),
        lambda revoked: replace(revoked, kind=_one_of(list(RevocationKind), revoked.kind)),
    ),
    Allow: lambda allow: replace(allow, stream_ids=tuple(sorted(set(allow.stream_ids)))),
    Checkpoint: lambda checkpoint: replace(checkpoint, upto_seq=checkpoint.upto_seq or 1),
    Equivocation: _contradicting,
    HubIdentity: _chained,
    HubKey: _dated,
    Limits: _roomy,
    LoweredLimits: lambda event: replace(event, after=replace(event.before, max_client_id_lifetime_sec=1)),
    OriginHub: _by_label,
    Receipt: lambda receipt: replace(receipt, stream_seq=receipt.stream_seq or 1),
    RecoveredLog: _stated,
    Segment: _segment,
    Manifest: lambda manifest: replace(manifest, segments=_consecutive(manifest.segments)),
    Tombstone: lambda stone: replace(stone, segment=_pruned(stone.segment)),
    RetentionPolicy: _longer,
    RetentionRequest: _whole_request,
    UploadRecord: _bound,
}


def _made(cls: type[W], **fields: Any) -> W:
    """An object with these fields, changed as little as needed to satisfy `flaw()`."""
    wire = cls(**fields)
    repair = _REPAIRS.get(cls)
    repaired = repair(wire) if repair else wire
    assert isinstance(repaired, cls)
    return repaired


def _flawless(wire: W) -> W:
    assert wire.flaw() is None, f"{wire.flaw()}: a sample of {type(wire).__name__} needs a line in _REPAIRS"
    return wire


@cache
def uints(least: int = 0, most: int = U64_MAX) -> st.SearchStrategy[int]:
    """Numbers of every width, with an emphasis on the edges."""
    edges = [least, most, *(edge for edge in HEAD_EDGES if least < edge < most)]
    return st.sampled_from(edges) | st.integers(least, most)


def fields(kind: FieldType) -> st.SearchStrategy[Any]:
    """Valid values of a field of this type."""
    present = _present(kind)
    return st.none() | present if kind.optional else present


def _present(kind: FieldType) -> st.SearchStrategy[Any]:
    match kind:
        case Uint():
            return uints(kind.least, kind.most)
        case Bool():
            return st.booleans()
        case Bstr():
            content = st.binary(min_size=kind.size, max_size=kind.size)
            return st.none() | content if kind.nullable else content
        case Bytes():
            lengths = [length for length in _LENGTHS if length <= kind.most]
            return st.builds(
                lambda length, byte: bytes((byte,)) * length, st.sampled_from(lengths), st.integers(0, 255)
            )
        case Text():
            return st.text(max_size=min(kind.most // 4, 30))
        case ListOf():
            return st.lists(fields(kind.item), min_size=kind.least, max_size=min(kind.most, kind.least + 3)).map(tuple)
        case Nested():
            return wire_objects(kind.wire)
        case Details():
            return st.dictionaries(st.text(max_size=8), uints() | st.text(max_size=8), max_size=4)
    raise AssertionError(f"no strategy for {type(kind).__name__}: add one")


_STRATEGIES: dict[type[Wire], st.SearchStrategy[Any]] = {}


def wire_objects(cls: type[W]) -> st.SearchStrategy[W]:
    """Valid objects of one class."""
    if cls not in _STRATEGIES:
        parts = {kind.name: fields(kind) for kind in cls.LAYOUT.kinds if not kind.fixed}
        _STRATEGIES[cls] = st.builds(_made, st.just(cls), **parts).filter(lambda wire: wire.flaw() is None)
    return _STRATEGIES[cls]


def changed(wire: W, **fields: Any) -> W:
    """`dataclasses.replace` for an object whose class is only known by its table."""
    held: Any = wire
    made: W = replace(held, **fields)
    return made


def fullest(cls: type[W]) -> W:
    """One object with every optional field present and two items in every list."""
    return _flawless(_sample(cls, "", full=True))


def barest(cls: type[W]) -> W:
    """One object without any optional field."""
    return _flawless(_sample(cls, "", full=False))


def _sample(cls: type[W], path: str, *, full: bool) -> W:
    kinds = [kind for kind in cls.LAYOUT.kinds if not kind.fixed]
    return _made(cls, **{kind.name: _sample_field(kind, f"{path}.{kind.name}", full=full) for kind in kinds})


def _sample_field(kind: FieldType, path: str, *, full: bool) -> Any:
    if kind.optional and not full:
        return None
    match kind:
        case Uint():
            return min(max(_SAMPLE_NUMBER, kind.least), kind.most) if full else kind.least
        case Bool():
            return full
        case Bstr():
            return shake_128(path.encode()).digest(kind.size) if full or not kind.nullable else None
        case Bytes():
            return shake_128(path.encode()).digest(min(_SAMPLE_BYTES, kind.most) if full else 0)
        case Text():
            return f"{kind.name}: ü水" if full else ""
        case ListOf():
            count = max(kind.least, min(2, kind.most)) if full else kind.least
            return tuple(_sample_field(kind.item, f"{path}.{index}", full=full) for index in range(count))
        case Nested():
            return _sample(kind.wire, path, full=full)
        case Details():
            return {"field": "ttl", "max_allowed": _SAMPLE_NUMBER}
    raise AssertionError(f"no sample for {type(kind).__name__}: add one")


@dataclass(frozen=True, slots=True)
class Item:
    """One item of an encoding: its head is `start` to `body`, and all of it `start` to `end`."""

    major: int
    argument: int
    start: int
    body: int
    end: int
    children: tuple["Item", ...]  # of a map: key, value, key, value

    def walk(self) -> Iterator["Item"]:
        """The item and everything in it."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse(data: bytes, start: int = 0) -> Item:
    """The item at `start` of valid bytes; this parser checks nothing."""
    major, argument = data[start] >> 5, data[start] & 31
    body = start + 1
    if argument >= 24:
        body += 1 << argument - 24
        argument = int.from_bytes(data[start + 1 : body], "big")
    end = body + argument if major in (2, 3) else body
    children = []
    for _ in range(argument * {4: 1, 5: 2}.get(major, 0)):
        children.append(parse(data, end))
        end = children[-1].end
    return Item(major, argument, start, body, end, tuple(children))


def kinds_in(cls: type[Wire]) -> Iterator[FieldType]:
    """Every field type in the table of an object and of nested objects."""
    pending = list(cls.LAYOUT.kinds)
    while pending:
        kind = pending.pop()
        yield kind
        if isinstance(kind, Nested):
            pending += kind.wire.LAYOUT.kinds
        elif isinstance(kind, ListOf):
            pending.append(kind.item)


def fields_in(cls: type[Wire], data: bytes, item: Item | None = None) -> Iterator[tuple[FieldType, Item]]:
    """Every field of an encoded object and of nested objects, with its item."""
    item = item or parse(data)
    if isinstance(cls.LAYOUT, Array):
        found = list(zip(cls.LAYOUT.kinds, item.children, strict=False))
    else:
        by_key: dict[bytes | int, FieldType] = {}
        for number, kind in enumerate(cls.LAYOUT.kinds, 1):
            by_key |= {kind.name.encode(): kind, number: kind}
        keys = [data[key.body : key.end] if key.major == 3 else key.argument for key in item.children[::2]]
        found = [(by_key[key], held) for key, held in zip(keys, item.children[1::2], strict=True)]
    for kind, held in found:
        yield from _field_in(kind, data, held)


def _field_in(kind: FieldType, data: bytes, item: Item) -> Iterator[tuple[FieldType, Item]]:
    yield kind, item
    if isinstance(kind, Nested):
        yield from fields_in(kind.wire, data, item)
    elif isinstance(kind, ListOf):
        for child in item.children:
            yield from _field_in(kind.item, data, child)


def spelled(wire: Wire) -> Any:
    """The object as the lists, maps and numbers of the specification; absent fields are omitted."""
    layout = wire.LAYOUT
    held: dict[int | str, Any] = {}
    for number, kind in enumerate(layout.kinds, 1):
        field = getattr(kind, "text", 1) if kind.fixed else getattr(wire, kind.name)
        if field is not None or not kind.optional:
            held[kind.name if type(wire) in TEXT_KEYED else number] = _spelled_field(field)
    return held if isinstance(layout, Map) else list(held.values())


def _spelled_field(field: Any) -> Any:
    if isinstance(field, Wire):
        return spelled(field)
    return [_spelled_field(item) for item in field] if isinstance(field, tuple) else field


# Bytes that matter to a CBOR decoder: heads on both sides of each width, indefinite lengths, tags, null, break.
TELLING = bytes.fromhex(
    "00 01 17 18 19 1a 1b 1c 1f 20 37 40 57 58 59 5a 5b 5f 60 77 78 7b 7f"
    "80 81 97 98 99 9b 9f a0 a1 b7 b8 bb bf c0 c2 d8 f4 f5 f6 f7 f8 f9 fa fb ff"
)


def mutate(rng: Random, data: bytes, other: bytes) -> bytes:
    """`data` after one to three random changes: bits, bytes and runs changed, lost, doubled, moved or inserted."""
    changed = bytearray(data)
    random = rng.random
    for _ in range(1 + int(random() * random() * 4)):
        size = len(changed)
        at = int(random() * (size + 1))
        run = 1 + int(random() * random() * 40)
        match int(random() * 9):
            case 0 if at < size:
                changed[at] ^= 1 << int(random() * 8)
            case 1 if at < size:
                changed[at] = int(random() * 256)
            case 2 if at < size:
                changed[at] = TELLING[int(random() * len(TELLING))]
            case 3 if at < size:
                changed[at] = (changed[at] + (1 if random() < 0.5 else 255)) & 255
            case 4:
                changed.insert(at, TELLING[int(random() * len(TELLING))])
            case 5:
                del changed[at : at + run]
            case 6:
                changed[at:at] = changed[at : at + run]
            case 7:
                to = int(random() * (size + 1))
                changed[at : at + run], changed[to : to + run] = changed[to : to + run], changed[at : at + run]
            case 8:
                begin = int(random() * (len(other) + 1))
                changed[at : at + int(random() * run)] = other[begin : begin + run]
    return bytes(changed)
