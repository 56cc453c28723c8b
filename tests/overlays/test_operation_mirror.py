"""Federation mirrors: what is checked before mirroring, what is left to mirror, and what a consumer compares."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.logs import LABEL, START, LogLine, log
from tests.overlays.operation_logs import HUB, KEYS, A, B, C, D
from veen.core import Malformed, Mmr, MmrProof, Msg, Receipt, Unverified, cbor, msg, proof, receipt
from veen.overlays import FaultKind, fold
from veen.overlays.operations.mirror import (
    MIRRORS,
    covers,
    mirror_part,
    mismatch,
    missing,
    record,
    source_of,
    validate,
)
from veen.overlays.operations.operation_events import Mirror


def source(count: int = 3) -> tuple[Msg, Receipt, MmrProof]:
    """The last of some messages of another hub, with its receipt and its proof."""
    tree, nodes = Mmr(), []
    for seq in range(1, count + 1):
        fields = {"profile_id": A, "label": C, "client_seq": seq, "prev_ack": 0, "auth_ref": None}
        sent = msg.sign(KEYS[0], **fields, ciphertext=b"sealed %d" % seq)  # type: ignore[arg-type]
        nodes += tree.append(sent.leaf_hash())
    signed = receipt.sign(
        HUB, label=C, stream_seq=count, leaf_hash=sent.leaf_hash(), mmr_root=tree.root(), hub_ts=START
    )
    return sent, signed, proof.prove(lambda position: nodes[position], count, count)


SENT, SIGNED, PROVED = source()
ANOTHER = source(2)


def test_a_source_message_that_was_validated_becomes_a_record_of_its_receipt() -> None:
    made = record(validate("hub.example", SENT, SIGNED, PROVED, HUB.public_key), LABEL, START + 5)
    assert made == Mirror("hub.example", C, 3, SIGNED.leaf_hash, SIGNED.mmr_root, LABEL, START + 5)
    header, body = made.payload(made.source_leaf_hash)
    assert (header.schema, header.parent_id) == (Mirror.SCHEMA, SENT.leaf_hash())
    assert Mirror.decode(body) == made
    assert mismatch(made, SIGNED) is None


def resigned(**changes: object) -> Receipt:
    fields = {name: getattr(SIGNED, name) for name in ("label", "stream_seq", "leaf_hash", "mmr_root", "hub_ts")}
    return receipt.sign(HUB, **{**fields, **changes})


@pytest.mark.parametrize(
    ("sent", "signed", "proved", "key"),
    [
        (SENT, SIGNED, PROVED, KEYS[0].public_key),
        (SENT, replace(SIGNED, hub_ts=START + 1), PROVED, HUB.public_key),
        (SENT, resigned(label=D), PROVED, HUB.public_key),
        (SENT, resigned(leaf_hash=D), PROVED, HUB.public_key),
        (SENT, resigned(mmr_root=D), PROVED, HUB.public_key),
        (SENT, resigned(stream_seq=2), PROVED, HUB.public_key),
        (ANOTHER[0], SIGNED, PROVED, HUB.public_key),
        (replace(SENT, sig=ANOTHER[0].sig), SIGNED, PROVED, HUB.public_key),
        (replace(SENT, ciphertext=b"changed"), SIGNED, PROVED, HUB.public_key),
        (SENT, SIGNED, ANOTHER[2], HUB.public_key),
        (SENT, SIGNED, replace(PROVED, peaks_after=(D,)), HUB.public_key),
    ],
)
def test_a_message_that_fails_a_check_cannot_be_mirrored(
    sent: Msg, signed: Receipt, proved: MmrProof, key: bytes
) -> None:
    with pytest.raises(Unverified):
        validate("hub.example", sent, signed, proved, key)


@pytest.mark.parametrize(
    "changed",
    [{"source_label": D}, {"source_stream_seq": 4}, {"source_leaf_hash": D}, {"source_receipt_root": D}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_record_that_differs_from_the_receipt_is_detected(changed: dict[str, object]) -> None:
    made = replace(record(validate("hub.example", SENT, SIGNED, PROVED, HUB.public_key), LABEL), **changed)  # type: ignore[arg-type]
    assert mismatch(made, SIGNED) == f"{next(iter(changed))} differs from the receipt"


def mirrored(seq: int, target: bytes = LABEL) -> LogLine:
    return LogLine(Mirror("hub.example", C, seq, D, B, target), D)


PART = mirror_part("hub.example", C, LABEL)


def test_a_second_record_of_one_source_for_one_target_changes_nothing() -> None:
    folded = fold(MIRRORS, log(mirrored(1), mirrored(1), mirrored(1, A), mirrored(2)))
    assert folded.state(PART) == ((1, 2),)
    assert [(fault.stream_seq, fault.kind, fault.reason.partition(":")[0]) for fault in folded.faults] == [
        (2, FaultKind.REFUSED, "mirror.F2")
    ]


@pytest.mark.parametrize(
    "wrong", [LogLine(mirrored(1).event), LogLine(mirrored(1).event, A), LogLine(Mirror("h", C, 0, D, B, LABEL), D)]
)
def test_a_record_without_its_source_as_parent_is_malformed(wrong: LogLine) -> None:
    folded = fold(MIRRORS, log(wrong))
    assert folded.states == {}
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]


@given(st.lists(st.integers(1, 20)), st.integers(0, 22))
def test_missing_returns_the_messages_that_are_not_mirrored(seqs: list[int], upto: int) -> None:
    ranges = fold(MIRRORS, log(*map(mirrored, seqs))).state(PART)
    left = {seq for first, last in missing(ranges, upto) for seq in range(first, last + 1)}
    assert left == set(range(1, upto + 1)) - set(seqs)
    assert {seq for seq in range(1, 23) if covers(ranges, seq)} == set(seqs)
    assert [*missing(ranges, upto)] == sorted(missing(ranges, upto))


def test_a_part_names_its_source_and_target() -> None:
    assert source_of(PART) == ("hub.example", C, LABEL)
    with pytest.raises(ValueError, match="not a part"):
        source_of(cbor.encode([1, 2, 3]))


@pytest.mark.parametrize("state", [None, [[2, 1]], [[0, 1]], [[1, 2], [3, 4]], [[5, 6], [1, 2]], [[1, 2, 3]], [1]])
def test_ranges_have_one_encoding(state: cbor.Value) -> None:
    data = cbor.encode(state)
    with pytest.raises(Malformed):
        MIRRORS.decode_state(PART, data)
