"""Federation mirrors: the messages of other hubs that are mirrored here, and the checks of a mirror. 001, spec-3 §10.

A mirror record repeats the fields of the source's receipt. It can be made only from a `Validated` source message, so
that unchecked messages are not mirrored (F1). `missing` lists the messages that are not mirrored yet, so that none is
mirrored twice (F2).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from veen.core import Malformed, MmrProof, Msg, Receipt, cbor, proof
from veen.overlays.event import Event, FoldEntry, Ranges, join_ranges
from veen.overlays.operations import rules
from veen.overlays.operations.operation_events import Mirror
from veen.overlays.operations.operation_index import LoggedOperation, copy_keys, of_kind
from veen.overlays.overlay import FoldStep, MergeOverlay

WRONG_PARENT = "parent_id is not the mirrored message"


class Mirrors(MergeOverlay[Ranges]):
    """One part per source hub, source label and target label: the sequence numbers of the mirrored messages."""

    CLASS = "federation.mirror"
    EVENTS = (Mirror,)
    EMPTY: Ranges = ()

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        assert isinstance(event, Mirror)
        return _flaw(entry, event)

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, Mirror)
        return (mirror_part(event.source_hub_identifier, event.source_label, event.target_label),)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        return copy_keys(step)

    def refusal(self, state: Ranges, step: FoldStep) -> str | None:
        assert isinstance(step.event, Mirror)
        seq = step.event.source_stream_seq
        return f"{rules.Rule.MIRROR_F2}: {_already(seq)}" if covers(state, seq) else None

    def lift(self, step: FoldStep) -> Ranges:
        assert isinstance(step.event, Mirror)
        return ((step.event.source_stream_seq, step.event.source_stream_seq),)

    def merge(self, a: Ranges, b: Ranges) -> Ranges:
        """Duplicates have no effect, so the merge equals a fold that refuses them."""
        return join_ranges((*a, *b))

    def encode_state(self, state: Ranges) -> bytes:
        return cbor.encode(state)

    def decode_state(self, part: bytes, data: bytes) -> Ranges:
        return _ranges_of(cbor.decode(data, "ranges"))

    def plain(self, part: bytes, state: Ranges) -> Mapping[str, cbor.Value]:
        hub, source_label, target_label = source_of(part)
        return {
            "source_hub_identifier": hub,
            "source_label": source_label,
            "target_label": target_label,
            "mirrored": sum(last - first + 1 for first, last in state),
            "ranges": state,
        }


MIRRORS = Mirrors()


def mirror_part(hub_identifier: str, source_label: bytes, target_label: bytes) -> bytes:
    return cbor.encode([hub_identifier, source_label, target_label])


def source_of(part: bytes) -> tuple[str, bytes, bytes]:
    """Source hub, source label and target label of a part."""
    match cbor.decode(part):
        case (str() as hub, bytes() as source_label, bytes() as target_label):
            return hub, source_label, target_label
    raise ValueError("not a part of federation.mirror")


def covers(ranges: Ranges, seq: int) -> bool:
    return any(first <= seq <= last for first, last in ranges)


def missing(ranges: Ranges, upto_seq: int) -> Ranges:
    """The ranges of a source label with `upto_seq` messages that are not mirrored yet, ascending."""
    gaps, after = [], 0
    for first, last in (*ranges, (upto_seq + 1, upto_seq + 1)):
        if after + 1 <= min(first - 1, upto_seq):
            gaps.append((after + 1, min(first - 1, upto_seq)))
        after = last
    return tuple(gaps)


def source(event: Mirror) -> rules.FactSource:
    """The source message of a record."""
    return rules.FactSource(event.source_hub_identifier, event.source_label, event.source_stream_seq)


@dataclass(frozen=True, slots=True)
class Validated:
    """A fully checked message of a source hub, made by `validate` or from verified evidence."""

    hub_identifier: str
    receipt: Receipt


def validate(hub_identifier: str, message: Msg, receipt: Receipt, inclusion: MmrProof, hub_pk: bytes) -> Validated:
    """Verify the hub's signature, the client's signature, the match of receipt and message, and the proof. §10.3.

    `hub_pk` is the source hub's key at the receipt's `hub_ts`. Raises `Unverified`.
    """
    receipt.verify_signature(hub_pk)
    message.verify_signature()
    receipt.check_binds(message)
    proof.verify_in_receipt(inclusion, receipt)
    return Validated(hub_identifier, receipt)


def record(
    checked: Validated, target_label: bytes, mirror_time: int | None = None, metadata: bytes | None = None
) -> Mirror:
    """The mirror record of a validated source message."""
    receipt = checked.receipt
    source_fields = (receipt.label, receipt.stream_seq, receipt.leaf_hash, receipt.mmr_root)
    return Mirror(checked.hub_identifier, *source_fields, target_label, mirror_time, metadata)


def mismatch(event: Mirror, receipt: Receipt) -> str | None:
    """How a mirror record differs from the verified receipt of the source, or None. §10.4."""
    pairs = (
        ("source_label", event.source_label, receipt.label),
        ("source_stream_seq", event.source_stream_seq, receipt.stream_seq),
        ("source_leaf_hash", event.source_leaf_hash, receipt.leaf_hash),
        ("source_receipt_root", event.source_receipt_root, receipt.mmr_root),
    )
    return next((f"{name} differs from the receipt" for name, found, wanted in pairs if found != wanted), None)


def check(known: Iterable[LoggedOperation], facts: rules.ExternalFacts) -> Iterator[rules.RuleFinding]:
    """Check F1 and F2 for every mirror record."""
    firsts: dict[tuple[rules.FactSource, bytes], LoggedOperation] = {}
    for one, event in of_kind(known, Mirror):
        origin = source(event)
        receipt, flaw = facts.sources.get(origin), _flaw(one.entry, event)
        if receipt is None and flaw is None:
            yield rules.open_finding(rules.Rule.MIRROR_F1, one, "the source's receipt is not known")
        else:
            yield rules.rule_finding(rules.Rule.MIRROR_F1, one, flaw or (mismatch(event, receipt) if receipt else None))
        first = firsts.setdefault((origin, event.target_label), one)
        yield rules.repeat_finding(rules.Rule.MIRROR_F2, one, first, _already(event.source_stream_seq))


def _flaw(entry: FoldEntry, event: Mirror) -> str | None:
    if event.source_stream_seq == 0:
        return "source_stream_seq is 0, but the first message of a label has 1"
    matches = entry.header is not None and entry.header.parent_id == event.source_leaf_hash
    return None if matches else WRONG_PARENT


def _already(seq: int) -> str:
    return f"message {seq} of the source is already mirrored"


def _ranges_of(found: cbor.Value) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for one in found if isinstance(found, tuple) else (None,):
        match one:
            case (int() as first, int() as last) if 1 <= first <= last:
                ranges.append((first, last))
            case _:
                raise Malformed("ranges", "not a list of ranges")
    if join_ranges(tuple(ranges)) != tuple(ranges):
        raise Malformed("ranges", "out of order, overlapping or adjacent")
    return tuple(ranges)
