"""Folding: what is read, what is a copy, what is refused; nothing of it stops a fold or changes a state."""

from dataclasses import replace
from hashlib import sha256

import pytest

from tests.overlays.logs import CLIENTS, START, LogLine, log, msg_id, root
from veen.core import DhKey, Limits, PayloadHdr, Place, Profile, Receipt, SigningKey, ciphertext, msg
from veen.overlays import (
    Applied,
    At,
    EventFault,
    FaultKind,
    Fold,
    FoldEntry,
    FoldStep,
    draft,
    encode_states,
    fold,
    preview,
    state_hash,
)
from veen.overlays.crdt import G_COUNTER, LWW, OR_SET, GCounter, Increment, Write
from veen.overlays.kept_fold import MemoryRows, Timeline, extend
from veen.overlays.queue import QUEUE, Ack, Put, TaskClaim

A, B = bytes(32), b"\xff" * 32
CAP = b"\x07" * 32


def kinds(entries: list[FoldEntry]) -> list[tuple[int, str]]:
    return [(fault.stream_seq, fault.kind) for fault in fold(G_COUNTER, entries).faults]


def test_an_entry_of_another_schema_is_ignored() -> None:
    folded = fold(G_COUNTER, log(Write(b"k", 0, b"v"), Increment(A, 1)))
    assert (folded.states, folded.faults) == ({A: 1}, [])


def test_an_entry_that_does_not_open_is_listed_as_sealed() -> None:
    assert kinds(log(LogLine(Increment(A, 1), sealed=True))) == [(1, FaultKind.SEALED)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xa0",
        Increment(A, 1).encode()[:-1],
        Increment(A, 1).encode() + b"\x00",
        Increment(A, 1).encode()[:-1] + b"\x18\x01",
        b"\xa2\x65delta\x01\x65shard\x58\x20" + A,
        b"\xa3\x65shard\x58\x20" + A + b"\x65delta\x01\x61x\x00",
        b"\xa2\x65shard\x58\x1f" + A[:31] + b"\x65delta\x01",
        b"\xa2\x65shard\x58\x20" + A + b"\x65delta\x20",
        b"\xa2\x65shard\x58\x20" + A + b"\x65delta\xf9\x3c\x00",
        b"\xbf\x65shard\x58\x20" + A + b"\x65delta\x01\xff",
    ],
)
def test_a_body_that_its_schema_does_not_allow_is_listed_as_malformed_and_changes_nothing(body: bytes) -> None:
    good = log(Increment(A, 1), Increment(A, 2))
    spoiled = [good[0], replace(good[1], body=body)]
    folded = fold(G_COUNTER, spoiled)
    assert folded.states == {A: 1}
    assert [(fault.stream_seq, fault.kind) for fault in folded.faults] == [(2, FaultKind.MALFORMED)]
    assert folded.faults[0].reason.startswith("crdt.gcnt.v1: ")
    assert fold(G_COUNTER, spoiled).faults == folded.faults


def test_a_body_that_fits_no_form_has_the_reason_of_each() -> None:
    entry = replace(log(Increment(A, 1))[0], header=PayloadHdr(OR_SET.EVENTS[0].SCHEMA))
    fault = fold(OR_SET, [entry]).faults[0]
    assert "crdt.orset.v1 add: " in fault.reason
    assert "crdt.orset.v1 remove: " in fault.reason


def test_a_header_that_names_another_capability_than_the_message_is_malformed() -> None:
    claimed = LogLine(Increment(A, 1), cap_ref=CAP)
    assert kinds(log(claimed)) == [(1, FaultKind.MALFORMED)]
    assert kinds(log(replace(claimed, auth_ref=A))) == [(1, FaultKind.MALFORMED)]
    assert kinds(log(replace(claimed, auth_ref=CAP))) == []


def test_copies_of_one_message_count_once_whichever_came_first() -> None:
    mirrored = LogLine(Increment(A, 5), msg_id(9))
    folded = fold(G_COUNTER, log(mirrored, mirrored, Increment(A, 1), mirrored))
    assert folded.states == {A: 6}
    assert [(fault.stream_seq, fault.reason) for fault in folded.faults] == [
        (2, "a copy of entry 1"),
        (4, "a copy of entry 1"),
    ]


def test_a_copy_in_a_later_epoch_names_the_epoch_of_the_first() -> None:
    entries = [*log(Increment(A, 1)), *log(LogLine(Increment(A, 1), msg_id(1)), epoch=3)]
    folded = fold(G_COUNTER, entries)
    assert folded.states == {A: 1}
    assert [(fault.epoch, fault.reason) for fault in folded.faults] == [(3, "a copy of entry 1 of epoch 0")]


def test_adding_an_entry_returns_its_outcomes() -> None:
    running = Fold(G_COUNTER)
    first, second = log(Increment(A, 3), LogLine(Increment(A, 1), spoil=b"\x00"))
    (applied,) = running.add(first)
    (fault,) = running.add(second)
    assert isinstance(applied, Applied)
    assert (applied.before, applied.after, applied.step.part) == (0, 3, A)
    assert isinstance(fault, EventFault)
    assert fault.part is None


@pytest.mark.parametrize("again", [1, 2])
def test_entries_out_of_order_raise_a_value_error(again: int) -> None:
    entries = log(*[Increment(A, 1)] * 2)
    running = fold(G_COUNTER, entries)
    with pytest.raises(ValueError, match="does not come after"):
        running.add(entries[again - 1])


def test_the_hash_of_a_state_is_that_of_its_sorted_parts_under_its_class() -> None:
    states = fold(G_COUNTER, log(Increment(b"\xff" * 32, 2), Increment(A, 300))).states
    encoded = b"\x82\x82\x58\x20" + A + b"\x19\x01\x2c\x82\x58\x20" + b"\xff" * 32 + b"\x02"
    assert encode_states(G_COUNTER, states) == encoded
    assert state_hash(G_COUNTER, states) == sha256(b"veen/state-crdt.gcnt\x00" + encoded).digest()
    assert state_hash(G_COUNTER, {A: 300}) != state_hash(G_COUNTER, states)
    assert state_hash(LWW, {}) != state_hash(G_COUNTER, {})


def test_an_entry_has_one_encoding_with_or_without_its_payload() -> None:
    for entry in (log(Increment(A, 1))[0], log(LogLine(Increment(A, 1), sealed=True, auth_ref=CAP))[0]):
        assert FoldEntry.decode(entry.encode()) == entry
    assert log(Increment(A, 1))[0].client_id == CLIENTS[0]


def test_an_entry_with_a_header_and_no_body_does_not_decode() -> None:
    with pytest.raises(ValueError, match="both be present"):
        replace(log(Increment(A, 1))[0], body=None).encode()


def test_what_a_client_sealed_and_a_hub_ordered_folds_once_it_is_opened() -> None:
    writer, reader, profile = SigningKey.generate(), DhKey.generate(), Profile()
    place = Place(profile.profile_id(), A, writer.public_key, client_seq=1, prev_ack=0)
    header, body = Increment(A, 7).payload()
    sealed = ciphertext.seal(reader.public_key, place, header, body, profile.pad_block)
    fields = {"profile_id": place.profile_id, "label": A, "client_seq": 1, "prev_ack": 0, "auth_ref": None}
    message = msg.sign(writer, **fields, ciphertext=sealed)  # type: ignore[arg-type]
    receipt = Receipt(A, 1, message.leaf_hash(), message.leaf_hash(), START, bytes(64))
    opened = ciphertext.open_sealed(reader, place, message.ciphertext, Limits())
    entry = FoldEntry.of(message, receipt, opened.header, opened.body, epoch=3)
    assert (entry.at, entry.client_id, entry.msg_id) == (At(3, 1), writer.public_key, message.leaf_hash())
    assert fold(G_COUNTER, [entry]).states == {A: 7}
    assert [fault.kind for fault in fold(G_COUNTER, [FoldEntry.of(message, receipt, None, None)]).faults] == ["sealed"]


def test_preview_returns_the_outcome_of_an_event_before_sending() -> None:
    entries = log(Put(b"x"), TaskClaim(msg_id(1), 60))
    asked = fold(QUEUE, entries)
    for event, later, refused in [
        (TaskClaim(msg_id(1), 60), 0, True),
        (TaskClaim(msg_id(1), 60), 60, False),
        (Ack(msg_id(1), msg_id(2)), 0, False),
        (Ack(msg_id(1), msg_id(3)), 0, True),
    ]:
        next_ = draft(event, client_id=A, hub_ts=entries[-1].hub_ts + later, after=asked.upto)
        (outcome,) = preview(QUEUE, next_, asked)
        assert isinstance(outcome, EventFault) is refused
    assert asked.faults == []
    assert asked.states == fold(QUEUE, entries).states


def test_preview_detects_a_copy_and_stores_nothing() -> None:
    asked = fold(G_COUNTER, log(LogLine(Increment(A, 1), msg_id(50))))
    for parent, kind in [(msg_id(50), "copy"), (msg_id(51), None), (msg_id(51), None)]:
        next_ = draft(Increment(A, 1), client_id=A, hub_ts=START, after=asked.upto, parent_id=parent)
        (outcome,) = preview(G_COUNTER, next_, asked)
        assert (outcome.kind if isinstance(outcome, EventFault) else None) == kind


def test_a_draft_comes_next() -> None:
    made = draft(Increment(A, 1), client_id=B, hub_ts=5, after=At(2, 9))
    assert (made.at, made.client_id, made.hub_ts, made.body) == (At(2, 10), B, 5, Increment(A, 1).encode())
    assert draft(Increment(A, 1), client_id=B, hub_ts=5).at == At(0, 1)


def test_a_fold_continues_from_a_cache_without_reading_it_again() -> None:
    entries = log(Increment(A, 1), Increment(B, 2), LogLine(Increment(A, 4), msg_id(1)), Increment(A, 8))
    rows = MemoryRows()
    extend(G_COUNTER, rows, entries[:2], root(entries[:2]))
    timeline = Timeline(G_COUNTER, rows)
    going_on = Fold(G_COUNTER, timeline)
    going_on.extend(entries[2:])
    whole = fold(G_COUNTER, entries)
    assert going_on.states == {A: 9}
    assert {**timeline.states(), **going_on.states} == whole.states
    assert going_on.faults == whole.faults
    assert (going_on.state(B), going_on.state(CAP)) == (2, 0)


def test_a_step_with_one_key_twice_is_not_a_copy_of_itself() -> None:
    class Stuttering(GCounter):
        def keys(self, step: FoldStep) -> tuple[bytes, ...]:
            return super().keys(step) * 2

    folded = fold(Stuttering(), log(Increment(A, 1), LogLine(Increment(A, 1), msg_id(1))))
    assert folded.states == {A: 1}
    assert [fault.stream_seq for fault in folded.faults] == [2]
