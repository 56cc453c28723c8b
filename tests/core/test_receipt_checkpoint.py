"""RECEIPT and CHECKPOINT: signed fields, bindings, and contradictions. Spec §4.3, §4.4."""

from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import cbor2
import pytest
from hypothesis import given

from tests.core.wire_strategies import fullest, parse, spelled, wire_objects
from veen.core import checkpoint, msg, naming, receipt, signing
from veen.core.cbor import DeferredFaults
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Fault, Malformed, Unverified
from veen.core.limits import MAX_WITNESS_SIGS
from veen.core.msg import Msg
from veen.core.profile import Profile
from veen.core.receipt import Receipt
from veen.core.signing import SIGNATURE_BYTES, SigningKey

HUB = SigningKey(bytes(range(32)))
CLIENT = SigningKey(bytes(range(1, 33)))
WITNESSES = [SigningKey(bytes([number]) * 32) for number in range(1, 5)]
STRANGER = SigningKey(bytes([99]) * 32)

EPOCHS = Profile(epoch_sec=60)
ROUTING_KEY = bytes([7]) * 32
STREAM = bytes([8]) * 32
EPOCH = 5
LABEL, PREVIOUS, NEXT = (naming.label(ROUTING_KEY, STREAM, epoch) for epoch in (EPOCH, EPOCH - 1, EPOCH + 1))


def message(**changes: Any) -> Msg:
    parts: dict[str, Any] = {
        "profile_id": bytes([1]) * 32,
        "label": LABEL,
        "client_seq": 1,
        "prev_ack": 0,
        "auth_ref": None,
        "ciphertext": bytes(300),
    }
    return msg.sign(CLIENT, **parts | changes)


def receipt_for(sent: Msg) -> Receipt:
    return receipt.sign(
        HUB, label=sent.label, stream_seq=9, leaf_hash=sent.leaf_hash(), mmr_root=bytes([3]) * 32, hub_ts=1_700_000_000
    )


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        ((4, 100), (5, 100), None),
        ((4, 100), (5, 101), None),
        ((4, 100), (4, 100), None),
        ((4, 100), (5, 99), "hub_ts goes back from 100 to 99, from entry 4 to entry 5"),
        ((4, 1 << 62), (9, 99), f"hub_ts goes back from {1 << 62} to 99, from entry 4 to entry 9"),
        ((4, 100), (4, 101), "entry 4 is signed with two times, hub_ts 100 and 101"),
    ],
)
def test_times_never_go_back_along_a_label_and_an_entry_has_one(
    first: tuple[int, int], second: tuple[int, int], clash: str | None
) -> None:
    one, other = (replace(receipt_for(message()), stream_seq=seq, hub_ts=ts) for seq, ts in (first, second))
    assert receipt.time_clash(one, other) == clash
    if first[0] != second[0]:
        assert receipt.time_clash(other, one) == clash


def checkpoint_at(upto_seq: int = 9, **changes: Any) -> Checkpoint:
    parts: dict[str, Any] = {"label_prev": LABEL, "label_curr": LABEL, "mmr_root": bytes([3]) * 32, "epoch": EPOCH}
    return checkpoint.sign(HUB, upto_seq=upto_seq, **parts | changes)


def flipped(field: Any) -> Any:
    return field + 1 if isinstance(field, int) else bytes((field[0] ^ 1,)) + field[1:]


def digest_of_six(signed: Receipt | Checkpoint) -> bytes:
    return sha256(b"veen/sig\x00" + cbor2.dumps(spelled(signed)[:6])).digest()


# RECEIPT


@given(wire_objects(Receipt))
def test_a_receipt_signs_its_first_six_fields_as_an_array_of_six(signed: Receipt) -> None:
    assert signed.signing_digest() == digest_of_six(signed)


def test_a_signed_receipt_verifies_before_and_after_the_wire() -> None:
    signed = receipt_for(message())
    signed.verify_signature(HUB.public_key)
    Receipt.decode(signed.encode()).verify_signature(HUB.public_key)


@pytest.mark.parametrize("name", [field.name for field in fields(Receipt)])
def test_a_receipt_with_any_field_altered_does_not_verify(name: str) -> None:
    signed = receipt_for(message())
    with pytest.raises(Unverified, match="receipt"):
        replace(signed, **{name: flipped(getattr(signed, name))}).verify_signature(HUB.public_key)


@pytest.mark.parametrize("key", [CLIENT.public_key, bytes(32), b"", HUB.public_key[:31]], ids=bytes.hex)
def test_a_receipt_does_not_verify_under_another_key(key: bytes) -> None:
    with pytest.raises(Unverified, match="receipt"):
        receipt_for(message()).verify_signature(key)


def test_a_receipt_binds_the_message_it_was_given_for() -> None:
    sent = message()
    receipt_for(sent).check_binds(sent)


@pytest.mark.parametrize("name", ["label", "profile_id", "client_id", "client_seq", "ct_hash", "ciphertext"])
def test_a_receipt_does_not_bind_a_message_with_another_field(name: str) -> None:
    sent = message()
    other = replace(sent, **{name: flipped(getattr(sent, name))})
    with pytest.raises(Unverified):
        receipt_for(sent).check_binds(other)


def test_a_receipt_for_another_label_is_refused_even_with_the_right_leaf() -> None:
    sent = message()
    moved = replace(receipt_for(sent), label=NEXT)
    with pytest.raises(Unverified, match="label"):
        moved.check_binds(sent)


def test_a_receipt_with_another_leaf_is_refused() -> None:
    sent = message()
    with pytest.raises(Unverified, match="leaf_hash"):
        receipt_for(message(client_seq=2)).check_binds(sent)


def test_a_receipt_does_not_bind_a_message_whose_ct_hash_is_wrong_even_with_its_leaf() -> None:
    forged = replace(message(), ct_hash=bytes(32))
    with pytest.raises(Unverified, match="ct_hash"):
        receipt_for(forged).check_binds(forged)


def test_the_first_place_of_a_label_is_1() -> None:
    sent = message()
    assert replace(receipt_for(sent), stream_seq=1).encode()
    with pytest.raises(ValueError, match="stream_seq"):
        receipt.sign(HUB, label=LABEL, stream_seq=0, leaf_hash=sent.leaf_hash(), mmr_root=bytes(32), hub_ts=0)


# CHECKPOINT: signatures


@given(wire_objects(Checkpoint))
def test_a_checkpoint_signs_its_first_six_fields_as_an_array_of_six(signed: Checkpoint) -> None:
    assert signed.signing_digest() == digest_of_six(signed)


def test_a_signed_checkpoint_verifies_before_and_after_the_wire() -> None:
    for signed in (checkpoint_at(), checkpoint_at().witnessed(*WITNESSES)):
        signed.verify_signature(HUB.public_key)
        assert Checkpoint.decode(signed.encode()) == signed
        Checkpoint.decode(signed.encode()).verify_signature(HUB.public_key)


@pytest.mark.parametrize("name", [field.name for field in fields(Checkpoint) if field.name != "witness_sigs"])
def test_a_checkpoint_with_any_field_altered_does_not_verify(name: str) -> None:
    signed = checkpoint_at().witnessed(*WITNESSES)
    other = replace(signed, **{name: flipped(getattr(signed, name))})
    with pytest.raises(Unverified, match="checkpoint"):
        other.verify_signature(HUB.public_key)
    for witness, sig in zip(WITNESSES, signed.witness_sigs or (), strict=True):
        assert signing.is_valid(witness.public_key, other.signing_digest(), sig) is (name == "hub_sig")


def test_witnesses_leave_what_the_hub_signed_as_it_was() -> None:
    signed = checkpoint_at()
    assert signed.witnessed(*WITNESSES).signing_digest() == signed.signing_digest()
    signed.witnessed(*WITNESSES).verify_signature(HUB.public_key)


def test_a_receipt_is_never_read_as_a_checkpoint_by_what_is_signed() -> None:
    # Both sign six fields under one tag. The third distinguishes them: a number or a byte string.
    assert isinstance(spelled(fullest(Receipt))[2], int)
    assert isinstance(spelled(fullest(Checkpoint))[2], bytes)


# CHECKPOINT: witnesses


def test_a_witness_signs_the_digest_the_hub_signed() -> None:
    signed = checkpoint_at().witnessed(WITNESSES[0])
    assert signed.witness_sigs == (WITNESSES[0].sign(signed.signing_digest()),)
    assert checkpoint_at().witnessed(HUB).witness_sigs == (signed.hub_sig,)


def test_witnesses_are_added_to_those_already_there() -> None:
    at_once = checkpoint_at().witnessed(*WITNESSES)
    one_by_one = checkpoint_at().witnessed(*WITNESSES[:1]).witnessed(*WITNESSES[1:])
    assert at_once == one_by_one
    assert len(at_once.witness_sigs or ()) == len(WITNESSES)


# CHECKPOINT: seven or eight fields


def fields_of(signed: Checkpoint) -> list[Any]:
    shown = spelled(signed)
    assert isinstance(shown, list)
    return shown


def assert_rejected(shown: list[Any]) -> Malformed:
    with pytest.raises(Malformed) as caught:
        Checkpoint.decode(cbor2.dumps(shown))
    return caught.value


def test_a_checkpoint_has_seven_fields_or_eight_with_witnesses() -> None:
    assert len(fields_of(checkpoint_at())) == 7
    assert len(fields_of(checkpoint_at().witnessed(WITNESSES[0]))) == 8


@pytest.mark.parametrize(
    "witness_sigs", [None, [], [None], [b""], [bytes(63)], [bytes(65)], bytes(64), [[]], 0], ids=repr
)
def test_an_eighth_field_that_is_not_a_list_of_signatures_is_refused(witness_sigs: Any) -> None:
    assert_rejected([*fields_of(checkpoint_at()), witness_sigs])


@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_checkpoint_with_fewer_fields_is_refused(count: int) -> None:
    assert assert_rejected(fields_of(checkpoint_at())[:count]).fault is Fault.CBOR


def test_a_checkpoint_with_nine_fields_is_refused() -> None:
    shown = fields_of(checkpoint_at().witnessed(WITNESSES[0]))
    for ninth in (None, [], 0, [bytes(64)]):
        assert assert_rejected([*shown, ninth]).fault is Fault.CBOR


@pytest.mark.parametrize("count", [0, MAX_WITNESS_SIGS + 1])
def test_a_list_of_no_witnesses_or_too_many_is_neither_read_nor_written(count: int) -> None:
    sigs = (bytes(SIGNATURE_BYTES),) * count
    assert assert_rejected([*fields_of(checkpoint_at()), list(sigs)]).fault is Fault.SIZE
    with pytest.raises(ValueError, match="witness_sigs"):
        replace(checkpoint_at(), witness_sigs=sigs).encode()


def test_as_many_witnesses_as_the_limit_allows_are_taken() -> None:
    full = replace(checkpoint_at(), witness_sigs=(bytes(SIGNATURE_BYTES),) * MAX_WITNESS_SIGS)
    assert Checkpoint.decode(full.encode()) == full


def test_a_checkpoint_of_nothing_is_not_signed() -> None:
    with pytest.raises(ValueError, match="upto_seq"):
        checkpoint_at(0).encode()


# CHECKPOINT: labels, §4.4.1


def label(epoch: int, *, routing_key: bytes = ROUTING_KEY, stream: bytes = STREAM) -> bytes:
    return naming.label(routing_key, stream, epoch)


@pytest.mark.parametrize(
    ("prev", "curr", "epoch"),
    [
        (LABEL, LABEL, EPOCH),
        (PREVIOUS, LABEL, EPOCH),
        (label(0), label(0), 0),
        (label(0), label(1), 1),
        (label((1 << 64) - 2), label((1 << 64) - 1), (1 << 64) - 1),
    ],
    ids=["no rotation", "rotation", "first epoch", "first rotation", "last epoch"],
)
def test_the_labels_of_an_epoch_or_of_the_step_into_it_hold(prev: bytes, curr: bytes, epoch: int) -> None:
    checkpoint_at(label_prev=prev, label_curr=curr, epoch=epoch).check_labels(EPOCHS, ROUTING_KEY, STREAM)


@pytest.mark.parametrize(
    ("prev", "curr", "epoch", "which"),
    [
        (LABEL, LABEL, EPOCH + 1, "label_curr"),
        (LABEL, LABEL, EPOCH - 1, "label_curr"),
        (LABEL, LABEL, 0, "label_curr"),
        (PREVIOUS, LABEL, EPOCH + 1, "label_curr"),
        (PREVIOUS, PREVIOUS, EPOCH, "label_curr"),
        (LABEL, PREVIOUS, EPOCH, "label_curr"),
        (LABEL, bytes(32), EPOCH, "label_curr"),
        (NEXT, LABEL, EPOCH, "label_prev"),
        (label(EPOCH - 2), LABEL, EPOCH, "label_prev"),
        (label(0), LABEL, EPOCH, "label_prev"),
        (bytes(32), LABEL, EPOCH, "label_prev"),
        (label(EPOCH - 1, stream=bytes(32)), LABEL, EPOCH, "label_prev"),
        (label(EPOCH - 1, routing_key=bytes(32)), LABEL, EPOCH, "label_prev"),
        (label(1), label(0), 0, "label_prev"),
        (bytes(32), label(0), 0, "label_prev"),
        (label((1 << 64) - 1), label(0), 0, "label_prev"),
    ],
)
def test_labels_of_any_other_epoch_stream_or_hub_are_refused(prev: bytes, curr: bytes, epoch: int, which: str) -> None:
    signed = checkpoint_at(label_prev=prev, label_curr=curr, epoch=epoch)
    with pytest.raises(Unverified, match=which):
        signed.check_labels(EPOCHS, ROUTING_KEY, STREAM)


@pytest.mark.parametrize(
    ("routing_key", "stream"), [(bytes(32), STREAM), (ROUTING_KEY, bytes(32)), (STREAM, ROUTING_KEY)]
)
def test_the_labels_of_another_stream_or_hub_are_refused(routing_key: bytes, stream: bytes) -> None:
    for signed in (checkpoint_at(), checkpoint_at(label_prev=PREVIOUS)):
        with pytest.raises(Unverified, match="label_curr"):
            signed.check_labels(EPOCHS, routing_key, stream)


# CHECKPOINT: one after another


def test_a_checkpoint_follows_an_earlier_one_and_itself() -> None:
    checkpoint_at(9).check_follows(checkpoint_at(8, mmr_root=bytes(32)))
    checkpoint_at(9).check_follows(checkpoint_at(9))
    checkpoint_at(9).witnessed(WITNESSES[0]).check_follows(checkpoint_at(9))


def test_a_checkpoint_behind_an_accepted_one_is_refused() -> None:
    for upto_seq in (10, 1 << 63):
        with pytest.raises(Unverified, match="lower than the accepted"):
            checkpoint_at(9).check_follows(checkpoint_at(upto_seq))


def test_a_checkpoint_with_another_root_at_the_same_place_is_refused() -> None:
    with pytest.raises(Unverified, match="root differs from the accepted"):
        checkpoint_at(9).check_follows(checkpoint_at(9, mmr_root=bytes(32)))


def test_a_checkpoint_of_another_label_is_no_predecessor() -> None:
    later = checkpoint_at(100, label_curr=NEXT, label_prev=LABEL, epoch=EPOCH + 1)
    checkpoint_at(9).check_follows(later)
    checkpoint_at(9).check_follows(replace(later, upto_seq=9, mmr_root=bytes(32)))


def test_label_prev_does_not_affect_check_follows() -> None:
    with pytest.raises(Unverified, match="lower than the accepted"):
        checkpoint_at(9, label_prev=PREVIOUS).check_follows(checkpoint_at(10))


def test_without_epochs_there_is_only_epoch_0() -> None:
    curr = naming.label(ROUTING_KEY, STREAM, 5)
    rotated = checkpoint_at(label_prev=naming.label(ROUTING_KEY, STREAM, 4), label_curr=curr, epoch=5)
    rotated.check_labels(EPOCHS, ROUTING_KEY, STREAM)
    with pytest.raises(Unverified, match="no epochs"):
        rotated.check_labels(Profile(), ROUTING_KEY, STREAM)


def test_no_witnesses_leave_a_checkpoint_as_it_is() -> None:
    signed = checkpoint_at()
    assert signed.witnessed() == signed
    assert len(signed.witnessed().encode()) == len(signed.encode())


def test_the_hubs_fast_path_writes_what_the_table_writes() -> None:
    for stream_seq in (1, 23, 24, 255, 256, 65_536, 2**32, 2**64 - 1):
        fields = {"label": LABEL, "stream_seq": stream_seq, "leaf_hash": bytes(32), "mmr_root": b"m" * 32}
        signed = receipt.sign(HUB, **fields, hub_ts=stream_seq)  # type: ignore[arg-type]
        assert receipt.sign_encoded(HUB, LABEL, stream_seq, bytes(32), b"m" * 32, stream_seq) == signed.encode()


# The fast path of RECEIPT


def by_table(data: bytes) -> Receipt | tuple[Fault, str]:
    """Decode by the field table, without the fast path."""
    late = DeferredFaults()
    try:
        values, end = Receipt.LAYOUT.read(data, 0, late)
        if end != len(data):
            raise Malformed("cbor", f"{len(data) - end} bytes after the end")
        found = Receipt(*values)
        late.flaw = None if late.first else found.flaw()
        late.raise_first()
    except Malformed as error:
        return error.fault, f"receipt: {error.reason}"
    return found


def by_decode(data: bytes) -> Receipt | tuple[Fault, str]:
    try:
        return Receipt.decode(data)
    except Malformed as error:
        return error.fault, str(error)


EDGES = (0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1)


def written(stream_seq: int = 70_000, hub_ts: int = 1_750_000_000) -> bytes:
    """Encoded by the field table, so that invalid receipts can be encoded too."""
    return Receipt.LAYOUT.write([LABEL, stream_seq, b"l" * 32, b"m" * 32, hub_ts, b"s" * 64])


@pytest.mark.parametrize("stream_seq", EDGES)
@pytest.mark.parametrize("hub_ts", EDGES)
def test_a_receipt_is_read_and_written_as_the_table_says(stream_seq: int, hub_ts: int) -> None:
    data = written(stream_seq, hub_ts)
    assert by_decode(data) == by_table(data)
    assert isinstance(by_decode(data), Receipt) is (stream_seq > 0)
    if stream_seq:
        found = Receipt.decode(data)
        assert found.encode() == replace(found).encode() == data
        assert replace(found, hub_ts=7).encode() == written(stream_seq, 7), "a changed receipt has its own encoding"


def test_the_fast_path_answers_like_the_table_at_every_cut_and_for_every_byte_of_a_head() -> None:
    data = written()
    for end in range(len(data)):
        assert by_decode(data[:end]) == by_table(data[:end])
        assert by_decode(data[:end] + data[end + 1 :]) == by_table(data[:end] + data[end + 1 :])
    for item in parse(data).walk():
        for at in range(item.start, item.body):
            for byte in range(256):
                changed = data[:at] + bytes((byte,)) + data[at + 1 :]
                assert by_decode(changed) == by_table(changed)


def test_a_receipt_within_other_bytes_is_read_where_it_is() -> None:
    data = written()
    found, end = Receipt.read(b"before" + data + b"after", 6, DeferredFaults())
    assert (found.encode(), end) == (data, 6 + len(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"label": bytes(31)},
        {"leaf_hash": bytes(33)},
        {"mmr_root": b""},
        {"hub_sig": bytes(63)},
        {"stream_seq": 0},
        {"stream_seq": -1},
        {"stream_seq": 2**64},
        {"stream_seq": True},
        {"hub_ts": -1},
        {"hub_ts": 2**64},
        {"hub_ts": 1.0},
    ],
)
def test_what_breaks_the_table_is_not_written(changes: dict[str, object]) -> None:
    broken = replace(Receipt.decode(written()), **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"receipt|must have|not within"):
        broken.encode()
