"""The recorder suite: what evidence depends on, tested with events of two producers. 001, products-spec-1 §3.4.

I1  any replay by range returns events in the order of their places
I2  everything that a checkpoint covers verifies against it, or its loss is detected
I3  the events recorded under a principal are exactly those that the principal wrote
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from veen.core import Checkpoint, DhKey, Mmr, PayloadHdr, Place, ciphertext, proof
from veen.core.envelopes import StreamItem, StreamRequest
from veen.core.limits import MAX_PAGE_ITEMS
from veen.core.profile import Limits
from veen.overlays import EventFault, FoldEntry
from veen.overlays.record import RECORD_TALLIES, RecordEvent
from veen.selftest.check import Failed, Suite, expect, expect_equal
from veen.selftest.check_context import AcceptedMessage, CheckContext, Writer

CHECKS = Suite[CheckContext]()

_EVENTS, _COVERED = 13, 9  # 0b1101 and 0b1001: trees of several peaks
_READABLE = Limits()


@dataclass(frozen=True, slots=True)
class RecorderRun:
    """Events of two producers in accepted order, and a checkpoint in between."""

    key: DhKey
    producers: tuple[Writer, Writer]
    events: tuple[RecordEvent, ...]
    accepted: tuple[AcceptedMessage, ...]
    checkpoint: Checkpoint

    @property
    def label(self) -> bytes:
        return self.producers[0].label


def recording(context: CheckContext) -> RecorderRun:
    """Shared by all checks: some events, a checkpoint, and more events."""
    key = DhKey.generate()
    first = context.writer()
    second = context.writer_beside(first)
    first.reader_pk = second.reader_pk = key.public_key
    made: list[tuple[RecordEvent, AcceptedMessage]] = []
    checkpoint: Checkpoint | None = None
    for number in range(_EVENTS):
        producer = context.rng.choice((first, second)) if number > 1 else (first, second)[number]
        event = RecordEvent(f"subject-{number % 3}", "selftest.event", number, "selftest", f'{{"n":{number}}}')
        header = PayloadHdr(event.SCHEMA, cap_ref=producer.auth_ref)
        made.append((event, producer.accept(producer.message(event.encode(), header=header))))
        if number + 1 == _COVERED:
            checkpoint = context.checkpoint(first.label, _COVERED)
    assert checkpoint is not None
    events, accepted = zip(*made, strict=True)
    return RecorderRun(key, (first, second), events, accepted, checkpoint)


def _range(context: CheckContext, run: RecorderRun, first: int, last: int) -> tuple[StreamItem, ...]:
    """Replay a range, both ends included."""
    asked = StreamRequest(run.label, first, to_seq=last, max_items=MAX_PAGE_ITEMS, with_receipts=True)
    return context.page(asked).items


def _event(run: RecorderRun, item: StreamItem) -> RecordEvent:
    """Open and decode an entry as any holder of the reader key does."""
    if item.receipt is None:
        raise Failed(f"entry {item.stream_seq} has no receipt although receipts were requested")
    opened = ciphertext.open_sealed(run.key, Place.of(item.msg), item.msg.ciphertext, _READABLE)
    steps = RECORD_TALLIES.read(FoldEntry.of(item.msg, item.receipt, opened.header, opened.body))
    if isinstance(steps, EventFault) or not steps:
        raise Failed(f"entry {item.stream_seq} is not a recorder event")
    event = steps[0].event
    assert isinstance(event, RecordEvent)
    return event


@CHECKS.claim("recorder.order", "I1: any replay by range returns all its events in order", "§3.4 of products-spec-1")
def order(context: CheckContext) -> str:
    run = context.once(recording)
    ranges = [(1, _EVENTS), (1, 1), (_EVENTS, _EVENTS)]
    for _ in range(5):
        one, other = context.rng.randint(1, _EVENTS), context.rng.randint(1, _EVENTS)
        ranges.append((min(one, other), max(one, other)))
    for first, last in ranges:
        items = _range(context, run, first, last)
        found = [item.stream_seq for item in items]
        expect_equal(found, list(range(first, last + 1)), f"the sequence of entries {first} to {last}")
        for item in items:
            expect(_event(run, item) == run.events[item.stream_seq - 1], f"entry {item.stream_seq} has another event")
    return f"{len(ranges)} ranges"


@CHECKS.claim(
    "recorder.window", "I1: hub time never decreases, so a time window is a range", "§3.2.5 of products-spec-1"
)
def window(context: CheckContext) -> None:
    run = context.once(recording)
    times = [context.receipt(run.label, seq).hub_ts for seq in range(1, _EVENTS + 1)]
    for seq, (before, after) in enumerate(pairwise(times), 2):
        expect(before <= after, f"hub_ts decreases from {before} to {after} at entry {seq}")
    signed = [accepted.receipt.hub_ts for accepted in run.accepted]
    expect_equal(times, signed, "the sequence of hub_ts")


@CHECKS.claim("recorder.covered", "I2: every event that a checkpoint covers is proved in it", "§3.4 of products-spec-1")
def covered(context: CheckContext) -> str:
    run = context.once(recording)
    context.facts.verify_checkpoint(run.checkpoint)
    expect_equal(run.checkpoint.upto_seq, _COVERED, "the last entry that the checkpoint covers")
    for accepted in run.accepted[:_COVERED]:
        shown = context.proof_at(run.label, accepted.receipt.stream_seq, _COVERED)
        proof.verify_inclusion(shown, proof.Leaf.of(accepted.receipt), run.checkpoint)
    return f"{_COVERED} of {_EVENTS} events"


@CHECKS.claim(
    "recorder.whole",
    "I2: the entries that a checkpoint covers are complete: they give its root",
    "§3.4 of products-spec-1",
)
def whole(context: CheckContext) -> None:
    run = context.once(recording)
    tree = Mmr()
    for item in _range(context, run, 1, _COVERED):
        expect_equal(item.stream_seq, tree.size + 1, "the place of the next entry")
        tree.append(item.msg.leaf_hash())
    expect_equal(tree.size, _COVERED, "the number of returned entries")
    expect_equal(tree.root(), run.checkpoint.mmr_root, "the root of the returned entries")


@CHECKS.claim("recorder.stable", "I2: later events do not change a checkpoint", "§3.4 of products-spec-1")
def stable(context: CheckContext) -> None:
    run = context.once(recording)
    expect(context.checkpoint(run.label, _COVERED) == run.checkpoint, "the checkpoint of the same entries changed")
    later = context.checkpoint(run.label, _EVENTS)
    context.facts.verify_checkpoint(later)
    proof.verify_consistency(context.consistency(run.label, _COVERED, _EVENTS), run.checkpoint, later)


@CHECKS.claim(
    "recorder.actors",
    "I3: the events of a principal are exactly those it wrote",
    "§3.4 of products-spec-1",
)
def actors(context: CheckContext) -> str:
    run = context.once(recording)
    items = _range(context, run, 1, _EVENTS)
    for item in items:
        item.msg.verify_signature()
        if item.receipt is not None:
            item.receipt.check_binds(item.msg)
    for producer in run.producers:
        principal = producer.key.public_key
        sent = [accepted.msg for accepted in run.accepted if accepted.msg.client_id == principal]
        found = [item.msg for item in items if item.msg.client_id == principal]
        expect(found == sent, f"{len(found)} events have a principal that wrote {len(sent)}, or they differ")
        expect_equal(
            [message.client_seq for message in found], list(range(1, len(sent) + 1)), "the sequence of client_seq"
        )
    return f"{len(run.producers)} principals"


@CHECKS.claim(
    "recorder.forged", "I3: a producer cannot record under another principal", "§3.4, §8.2 of products-spec-1"
)
def forged(context: CheckContext) -> None:
    run = context.once(recording)
    victim, thief = run.producers
    honest = thief.message()
    context.probe.submit(replace(honest, client_id=victim.key.public_key)).expect_row("SIG_INVALID")


@CHECKS.claim(
    "recorder.kept-apart",
    "a producer can write only to the streams of its capability",
    "§3.2.3 of products-spec-1",
)
def kept_apart(context: CheckContext) -> None:
    own, other = context.writer(), context.stranger()
    own.auth_ref = context.grant(own).auth_ref()
    own.send()
    stray = replace(own, stream_id=other.stream_id, label=other.label, client_seq=0, prev_ack=0)
    context.grant(other)  # the hub must know the stream, so only the capability is missing

    context.probe.submit(stray.message()).expect_row("AUTH_REF")
