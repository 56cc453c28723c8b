"""The recorder suite: what evidence rests on, tried with events of two producers. 001, products-spec-1 §3.4.

I1  any replay by range gives events in the order of their places
I2  what a checkpoint covers is verifiable against it, or its loss is seen
I3  what is recorded under a principal is what that principal wrote, all of it and nothing else
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from veen.core import Checkpoint, DhKey, Mmr, PayloadHdr, Place, ciphertext, proof
from veen.core.envelopes import ReceiptRequest, ReceiptResponse, StreamItem, StreamRequest
from veen.core.hub_limits import Limits
from veen.core.limits import MAX_PAGE_ITEMS
from veen.core.tooling_messages import ConsistencyRequest, ProofAtRequest, ProofAtResponse
from veen.overlays import EventFault, FoldEntry
from veen.overlays.record import RECORD_TALLIES, RecordEvent
from veen.selftest.check import Check, claim
from veen.selftest.check_context import CheckContext
from veen.selftest.core.checkpoints import checkpoint_at
from veen.selftest.verdict import Failed, expect, expect_equal
from veen.selftest.writer import AcceptedMessage, Writer

_EVENTS, _COVERED = 13, 9  # 0b1101 and 0b1001: trees of several peaks
_READABLE = Limits()


@dataclass(frozen=True, slots=True)
class RecorderRun:
    """Events by two producers in turn, in the order in which they were accepted, and a checkpoint amid them."""

    key: DhKey
    producers: tuple[Writer, Writer]
    events: tuple[RecordEvent, ...]
    accepted: tuple[AcceptedMessage, ...]
    checkpoint: Checkpoint

    @property
    def label(self) -> bytes:
        return self.producers[0].label


def recording(trial: CheckContext) -> RecorderRun:
    """Made once for all checks: some events, a checkpoint, and some more."""
    key = DhKey.generate()
    first = trial.writer()
    second = trial.writer(first.stream_id)
    second.label = first.label
    made: list[tuple[RecordEvent, AcceptedMessage]] = []
    checkpoint: Checkpoint | None = None
    for number in range(_EVENTS):
        who = trial.rng.choice((first, second)) if number > 1 else (first, second)[number]
        event = RecordEvent(f"subject-{number % 3}", "selftest.event", number, "selftest", f'{{"n":{number}}}')
        made.append((event, _record(trial, who, key, event)))
        if number + 1 == _COVERED:
            checkpoint = checkpoint_at(trial, first.label, _COVERED)
    assert checkpoint is not None
    events, accepted = zip(*made, strict=True)
    return RecorderRun(key, (first, second), events, accepted, checkpoint)


def _record(trial: CheckContext, who: Writer, key: DhKey, event: RecordEvent) -> AcceptedMessage:
    place = Place(
        trial.profile.profile_id(), who.label, who.key.public_key, who.client_seq + 1, who.prev_ack, who.auth_ref
    )
    header = PayloadHdr(event.SCHEMA, cap_ref=who.auth_ref)
    sealed = ciphertext.seal(key.public_key, place, header, event.encode(), trial.profile.pad_block)
    return who.accept(who.message(sealed=sealed))


def _range(trial: CheckContext, told: RecorderRun, first: int, last: int) -> tuple[StreamItem, ...]:
    """A replay by range, both ends included."""
    asked = StreamRequest(told.label, first, to_seq=last, max_items=MAX_PAGE_ITEMS, with_receipts=True)
    return trial.page(asked).items


def _event(told: RecorderRun, item: StreamItem) -> RecordEvent:
    """What an entry says, read as anyone with the key reads it."""
    if item.receipt is None:
        raise Failed(f"entry {item.stream_seq} has no receipt, though receipts were asked for")
    opened = ciphertext.open_sealed(told.key, Place.of(item.msg), item.msg.ciphertext, _READABLE)
    steps = RECORD_TALLIES.read(FoldEntry.of(item.msg, item.receipt, opened.header, opened.body))
    if isinstance(steps, EventFault) or not steps:
        raise Failed(f"entry {item.stream_seq} is no recorder's event")
    event = steps[0].event
    assert isinstance(event, RecordEvent)
    return event


@claim(
    "recorder.order", "I1: any replay by range gives its events, all of them, in their order", "§3.4 of products-spec-1"
)
def order(trial: CheckContext) -> str:
    told = trial.once(recording)
    ranges = [(1, _EVENTS), (1, 1), (_EVENTS, _EVENTS)]
    for _ in range(5):
        one, other = trial.rng.randint(1, _EVENTS), trial.rng.randint(1, _EVENTS)
        ranges.append((min(one, other), max(one, other)))
    for first, last in ranges:
        items = _range(trial, told, first, last)
        found = [item.stream_seq for item in items]
        expect_equal(found, list(range(first, last + 1)), f"the row of entries {first} to {last}")
        for item in items:
            expect(
                _event(told, item) == told.events[item.stream_seq - 1], f"entry {item.stream_seq} says another event"
            )
    return f"{len(ranges)} ranges"


@claim("recorder.window", "I1: time never runs back, so that a window of it is a range", "§3.2.5 of products-spec-1")
def window(trial: CheckContext) -> None:
    told = trial.once(recording)
    asked = [ReceiptRequest(told.label, seq) for seq in range(1, _EVENTS + 1)]
    times = [trial.probe.post("/v1/receipt", one).read(ReceiptResponse).receipt.hub_ts for one in asked]
    for seq, (before, after) in enumerate(pairwise(times), 2):
        expect(before <= after, f"hub_ts {after} of entry {seq} comes after {before}")
    signed = [accepted.receipt.hub_ts for accepted in told.accepted]
    expect_equal(times, signed, "the row of hub_ts")


@claim("recorder.covered", "I2: every event that a checkpoint covers is proved against it", "§3.4 of products-spec-1")
def covered(trial: CheckContext) -> str:
    told = trial.once(recording)
    trial.facts.verify_checkpoint(told.checkpoint)
    expect_equal(told.checkpoint.upto_seq, _COVERED, "the last entry that the checkpoint covers")
    for accepted in told.accepted[:_COVERED]:
        asked = ProofAtRequest(told.label, accepted.receipt.stream_seq, _COVERED)
        shown = trial.probe.post("/tooling/proof", asked).offered(ProofAtResponse).mmr_proof
        proof.verify_inclusion(shown, proof.Leaf.of(accepted.receipt), told.checkpoint)
    return f"{_COVERED} of {_EVENTS} events"


@claim(
    "recorder.whole",
    "I2: what a checkpoint covers is shown whole: its entries come to its root",
    "§3.4 of products-spec-1",
)
def whole(trial: CheckContext) -> None:
    told = trial.once(recording)
    tree = Mmr()
    for item in _range(trial, told, 1, _COVERED):
        expect_equal(item.stream_seq, tree.size + 1, "the place of the next entry")
        tree.append(item.msg.leaf_hash())
    expect_equal(tree.size, _COVERED, "how many entries are shown")
    expect_equal(tree.root(), told.checkpoint.mmr_root, "the root that they come to")


@claim("recorder.stable", "I2: what is recorded later leaves a checkpoint as it was", "§3.4 of products-spec-1")
def stable(trial: CheckContext) -> None:
    told = trial.once(recording)
    expect(checkpoint_at(trial, told.label, _COVERED) == told.checkpoint, "the checkpoint of the same entries changed")
    later = checkpoint_at(trial, told.label, _EVENTS)
    trial.facts.verify_checkpoint(later)
    asked = ConsistencyRequest(told.label, _COVERED, _EVENTS)
    shown = trial.probe.post("/tooling/consistency", asked).offered(ProofAtResponse).mmr_proof
    proof.verify_consistency(shown, told.checkpoint, later)


@claim(
    "recorder.actors",
    "I3: under a principal stands what it wrote, all of it and nothing else",
    "§3.4 of products-spec-1",
)
def actors(trial: CheckContext) -> str:
    told = trial.once(recording)
    items = _range(trial, told, 1, _EVENTS)
    for item in items:
        item.msg.verify_signature()
        if item.receipt is not None:
            item.receipt.check_binds(item.msg)
    for who in told.producers:
        principal = who.key.public_key
        sent = [accepted.msg for accepted in told.accepted if accepted.msg.client_id == principal]
        found = [item.msg for item in items if item.msg.client_id == principal]
        expect(found == sent, f"{len(found)} events stand under a principal that wrote {len(sent)}, or others do")
        expect_equal([message.client_seq for message in found], list(range(1, len(sent) + 1)), "the row of client_seq")
    return f"{len(told.producers)} principals"


@claim("recorder.forged", "I3: nobody records under another's name", "§3.4, §8.2 of products-spec-1")
def forged(trial: CheckContext) -> None:
    told = trial.once(recording)
    victim, thief = told.producers
    honest = thief.message()
    trial.probe.submit(replace(honest, client_id=victim.key.public_key)).expect_row("SIG_INVALID")


@claim(
    "recorder.kept-apart",
    "a producer writes to the streams of its capability and to no other",
    "§3.2.3 of products-spec-1",
)
def kept_apart(trial: CheckContext) -> None:
    own, other = trial.writer(), trial.stranger()
    own.auth_ref = trial.grant(own).auth_ref()
    own.send()
    stray = replace(own, stream_id=other.stream_id, label=other.label, client_seq=0, prev_ack=0)
    trial.grant(other)  # so that the hub knows the stream, and only the capability is in the way
    trial.probe.submit(stray.message()).expect_row("AUTH_REF")


CHECKS: tuple[Check, ...] = (order, window, covered, whole, stable, actors, forged, kept_apart)
