"""Scenario A: one writer, one label, and a log that only grows. Spec 001 §20; §4.3, §5, §7."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from veen.core import Mmr, proof
from veen.core.envelopes import ProofRequest, ProofResponse, ReceiptRequest, ReceiptResponse, StreamRequest
from veen.core.tooling_messages import ProofAtRequest, ProofAtResponse
from veen.selftest.check import claim
from veen.selftest.check_context import CheckContext
from veen.selftest.verdict import Failed, expect, expect_equal
from veen.selftest.writer import AcceptedMessage, Writer


@claim("append.receipt", "every accepted message gets a receipt signed by the hub", "§4.3, §7 I1–I2")
def receipt(context: CheckContext) -> str:
    for accepted in context.filled:
        accepted.receipt.check_binds(accepted.msg)
        context.facts.verify_receipt(accepted.receipt)
    return f"{len(context.filled)} receipts"


@claim("append.sequence", "stream_seq runs from 1 without a gap", "§2")
def sequence(context: CheckContext) -> None:
    found = [accepted.receipt.stream_seq for accepted in context.filled]
    expect_equal(found, list(range(1, len(found) + 1)), "the sequence of stream_seq")


@claim("append.time", "hub_ts never decreases", "§6, §12")
def hub_time(context: CheckContext) -> None:
    for before, after in pairwise(context.filled):
        earlier, later = before.receipt.hub_ts, after.receipt.hub_ts
        expect(earlier <= later, f"hub_ts decreases from {earlier} to {later} at {after.receipt.stream_seq}")


@claim("append.root", "each receipt signs the root of the tree that ends with its message", "§5.1, §7 I3")
def root(context: CheckContext) -> None:
    tree = Mmr()
    for accepted in context.filled:
        tree.append(accepted.msg.leaf_hash())
        expect_equal(accepted.receipt.mmr_root, tree.root(), f"the root at {accepted.receipt.stream_seq}")


@claim("append.proof", "every entry has an inclusion proof against its own receipt", "§5.2–5.4, §10.4.4")
def inclusion(context: CheckContext) -> None:
    for accepted in context.filled:
        asked = ProofRequest(accepted.msg.label, accepted.receipt.stream_seq)
        found = context.probe.post("/v1/proof", asked).read(ProofResponse).mmr_proof
        proof.verify_in_receipt(found, accepted.receipt)


@claim("append.proof-later", "every entry has an inclusion proof in every later tree", "§5.4")
def inclusion_later(context: CheckContext) -> None:
    last = context.filled[-1].receipt
    for accepted in context.filled:
        asked = ProofAtRequest(last.label, accepted.receipt.stream_seq, last.stream_seq)
        found = context.probe.post("/tooling/proof", asked).offered(ProofAtResponse).mmr_proof
        proof.verify_inclusion(found, proof.Leaf.of(accepted.receipt), last)


@claim("append.replay", "reading returns the sent messages in order, byte for byte", "§10.2")
def replay(context: CheckContext) -> None:
    label = context.filled[0].msg.label
    items = context.page(StreamRequest(label, 1)).items
    expect_equal(
        [item.stream_seq for item in items], list(range(1, len(context.filled) + 1)), "the sequence of entries"
    )
    for item, accepted in zip(items, context.filled, strict=True):
        expect(item.msg == accepted.msg, f"the message at {item.stream_seq} differs from the sent one")


@claim("append.receipt-again", "a receipt fetched later is the same", "§10.1, §10.4.3")
def receipt_again(context: CheckContext) -> None:
    for accepted in context.filled:
        asked = ReceiptRequest(accepted.msg.label, accepted.receipt.stream_seq)
        found = context.probe.post("/v1/receipt", asked).read(ReceiptResponse).receipt
        expect(found == accepted.receipt, f"the receipt at {accepted.receipt.stream_seq} changed")


@claim("append.labels", "each label has its own numbers", "§2")
def labels(context: CheckContext) -> None:
    writers = [context.writer() for _ in range(3)]
    for turn in (1, 2):
        for writer in writers:
            expect_equal(writer.send().receipt.stream_seq, turn, "stream_seq of a separate label")
    for writer in writers:
        found = {item.msg.label for item in context.pages(writer.label)}
        expect(found == {writer.label}, "a page contains entries of another label")


APPEND_CHECKS = (receipt, sequence, hub_time, root, inclusion, inclusion_later, replay, receipt_again, labels)


_WRITERS = 4
_TURNS = 6


def _shared_writers(context: CheckContext) -> list[Writer]:
    """Writers with different keys and the same label."""
    first = context.writer()
    others = [context.writer(first.stream_id) for _ in range(_WRITERS - 1)]
    for other in others:
        other.label = first.label  # an epoch may have ended meanwhile
    return [first, *others]


def _check_one_order(context: CheckContext, sent: list[AcceptedMessage], label: bytes) -> None:
    """Each entry has one place, each place one entry, and each tree extends the previous one."""
    by_seq = {accepted.receipt.stream_seq: accepted for accepted in sent}
    expect_equal(sorted(by_seq), list(range(1, len(sent) + 1)), "the sequence of stream_seq over all receipts")
    tree = Mmr()
    for item in context.pages(label, with_receipts=True):
        accepted = by_seq.get(item.stream_seq)
        if accepted is None:
            raise Failed(f"no writer has a receipt for the entry at {item.stream_seq}")
        expect(item.msg == accepted.msg, f"the entry at {item.stream_seq} differs from the sent one")
        expect(
            item.receipt == accepted.receipt, f"the receipt at {item.stream_seq} differs from the one its writer got"
        )
        tree.append(item.msg.leaf_hash())
        expect_equal(accepted.receipt.mmr_root, tree.root(), f"the root at {item.stream_seq}")
    expect_equal(tree.size, len(sent), "the number of entries")


@claim("share.turns", "writers under one label share one order and have separate counters", "§7 I8–I9")
def turns(context: CheckContext) -> None:
    writers = _shared_writers(context)
    sent = [writer.send() for _ in range(_TURNS) for writer in writers]
    _check_one_order(context, sent, writers[0].label)
    for writer in writers:
        found = [one.msg.client_seq for one in sent if one.msg.client_id == writer.key.public_key]
        expect_equal(found, list(range(1, _TURNS + 1)), "the sequence of a writer's client_seq")


@claim("share.at-once", "concurrent writers get one order without gaps or duplicates", "§7 I3, I8")
def at_once(context: CheckContext) -> str:
    writers = _shared_writers(context)
    with ThreadPoolExecutor(_WRITERS) as threads:
        sent_by_writer = list(threads.map(lambda writer: [writer.send() for _ in range(_TURNS)], writers))
    _check_one_order(context, [accepted for row in sent_by_writer for accepted in row], writers[0].label)
    return f"{_WRITERS} writers"


@claim("share.resend", "a repeated message is rejected as a duplicate, with its place", "§7 I8, §8.2")
def resend(context: CheckContext) -> None:
    first, second = _shared_writers(context)[:2]
    accepted = [first.send(), second.send(), first.send()]
    for one in accepted:
        refused = context.probe.submit(one.msg).expect_row("DUPLICATE")
        expect_equal(refused.detail.get("stream_seq"), one.receipt.stream_seq, "stream_seq in the detail of the error")
    _check_one_order(context, accepted, first.label)


@claim("share.reuse", "another message with a used client_seq is rejected", "§7 I8, §8.2")
def reuse(context: CheckContext) -> None:
    writer = context.writer()
    accepted = [writer.send(), writer.send()]
    for used in (1, 2):
        context.probe.submit(writer.message(b"another", client_seq=used)).expect_row("DUPLICATE")
    _check_one_order(context, accepted, writer.label)


@claim("share.gap", "client_seq starts at 1 and has no gaps", "§7 I9, §8.2")
def gap(context: CheckContext) -> None:
    writer = context.writer()
    for wrong in (0, 2, (1 << 64) - 1):
        context.probe.submit(writer.message(client_seq=wrong)).expect_row("CLIENT_SEQ")
    writer.send()
    for wrong in (0, 3):
        context.probe.submit(writer.message(client_seq=wrong)).expect_row("CLIENT_SEQ")
    writer.send()


@claim("share.prev-ack", "prev_ack is never ahead of the log and never decreases", "§7 I6, §8.2")
def prev_ack(context: CheckContext) -> None:
    first, second = _shared_writers(context)[:2]
    context.probe.submit(first.message(prev_ack=1)).expect_row("PREV_ACK")
    first.send()
    first.send()
    second.prev_ack = 2
    second.send()
    context.probe.submit(second.message(prev_ack=1)).expect_row("PREV_ACK")
    context.probe.submit(second.message(prev_ack=4)).expect_row("PREV_ACK")
    second.send()


@claim("share.refused", "a rejected message leaves no trace", "§7 I13, §8.1")
def refused_leaves_nothing(context: CheckContext) -> None:
    writer = context.writer()
    accepted = [writer.send()]
    good = writer.message()
    wrong = [
        writer.message(client_seq=9),
        writer.message(prev_ack=9),
        writer.message(b"another", client_seq=1),
    ]
    for message in wrong:
        expect(context.probe.submit(message).status != 200, "a message with wrong counters was accepted")
    accepted.append(writer.accept(good))
    _check_one_order(context, accepted, writer.label)


SHARED_LABEL_CHECKS = (turns, at_once, resend, reuse, gap, prev_ack, refused_leaves_nothing)
