"""Scenarios A to C: a log that only grows, shared labels, checkpoints and epochs. 001 §20; §4, §5, §7, §12."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from veen.core import Mmr, proof
from veen.core.envelopes import (
    StreamRequest,
)
from veen.selftest.check import Failed, Skipped, Suite, expect, expect_equal
from veen.selftest.check_context import AcceptedMessage, CheckContext, Writer

CHECKS = Suite[CheckContext]()
_WRITERS, _TURNS = 4, 6
_MAX_WAIT_SEC = 10
_ATTEMPTS = 3


@CHECKS.claim("append.receipt", "every accepted message gets a receipt signed by the hub", "§4.3, §7 I1–I2")
def receipt(context: CheckContext) -> str:
    for accepted in context.filled:
        accepted.receipt.check_binds(accepted.msg)
        context.facts.verify_receipt(accepted.receipt)
    return f"{len(context.filled)} receipts"


@CHECKS.claim("append.sequence", "stream_seq runs from 1 without a gap", "§2")
def sequence(context: CheckContext) -> None:
    found = [accepted.receipt.stream_seq for accepted in context.filled]
    expect_equal(found, list(range(1, len(found) + 1)), "the sequence of stream_seq")


@CHECKS.claim("append.time", "hub_ts never decreases", "§6, §12")
def hub_time(context: CheckContext) -> None:
    for before, after in pairwise(context.filled):
        earlier, later = before.receipt.hub_ts, after.receipt.hub_ts
        expect(earlier <= later, f"hub_ts decreases from {earlier} to {later} at {after.receipt.stream_seq}")


@CHECKS.claim("append.root", "each receipt signs the root of the tree that ends with its message", "§5.1, §7 I3")
def root(context: CheckContext) -> None:
    tree = Mmr()
    for accepted in context.filled:
        tree.append(accepted.msg.leaf_hash())
        expect_equal(accepted.receipt.mmr_root, tree.root(), f"the root at {accepted.receipt.stream_seq}")


@CHECKS.claim("append.proof", "every entry has an inclusion proof against its own receipt", "§5.2–5.4, §10.4.4")
def inclusion(context: CheckContext) -> None:
    for accepted in context.filled:
        found = context.proof(accepted.msg.label, accepted.receipt.stream_seq)
        proof.verify_in_receipt(found, accepted.receipt)


@CHECKS.claim("append.proof-later", "every entry has an inclusion proof in every later tree", "§5.4")
def inclusion_later(context: CheckContext) -> None:
    last = context.filled[-1].receipt
    for accepted in context.filled:
        found = context.proof_at(last.label, accepted.receipt.stream_seq, last.stream_seq)
        proof.verify_inclusion(found, proof.Leaf.of(accepted.receipt), last)


@CHECKS.claim("append.replay", "reading returns the sent messages in order, byte for byte", "§10.2")
def replay(context: CheckContext) -> None:
    label = context.filled[0].msg.label
    items = context.page(StreamRequest(label, 1)).items
    expect_equal(
        [item.stream_seq for item in items], list(range(1, len(context.filled) + 1)), "the sequence of entries"
    )
    for item, accepted in zip(items, context.filled, strict=True):
        expect(item.msg == accepted.msg, f"the message at {item.stream_seq} differs from the sent one")


@CHECKS.claim("append.receipt-again", "a receipt fetched later is the same", "§10.1, §10.4.3")
def receipt_again(context: CheckContext) -> None:
    for accepted in context.filled:
        found = context.receipt(accepted.msg.label, accepted.receipt.stream_seq)
        expect(found == accepted.receipt, f"the receipt at {accepted.receipt.stream_seq} changed")


@CHECKS.claim("append.labels", "each label has its own numbers", "§2")
def labels(context: CheckContext) -> None:
    writers = [context.writer() for _ in range(3)]
    for turn in (1, 2):
        for writer in writers:
            expect_equal(writer.send().receipt.stream_seq, turn, "stream_seq of a separate label")
    for writer in writers:
        found = {item.msg.label for item in context.pages(writer.label)}
        expect(found == {writer.label}, "a page contains entries of another label")


def _shared_writers(context: CheckContext) -> list[Writer]:
    """Writers with different keys and the same label."""
    first = context.writer()
    return [first, *(context.writer_beside(first) for _ in range(_WRITERS - 1))]


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


@CHECKS.claim("share.turns", "writers under one label share one order and have separate counters", "§7 I8–I9")
def turns(context: CheckContext) -> None:
    writers = _shared_writers(context)
    sent = [writer.send() for _ in range(_TURNS) for writer in writers]
    _check_one_order(context, sent, writers[0].label)
    for writer in writers:
        found = [one.msg.client_seq for one in sent if one.msg.client_id == writer.key.public_key]
        expect_equal(found, list(range(1, _TURNS + 1)), "the sequence of a writer's client_seq")


@CHECKS.claim("share.at-once", "concurrent writers get one order without gaps or duplicates", "§7 I3, I8")
def at_once(context: CheckContext) -> str:
    writers = _shared_writers(context)
    with ThreadPoolExecutor(_WRITERS) as threads:
        sent_by_writer = list(threads.map(lambda writer: [writer.send() for _ in range(_TURNS)], writers))
    _check_one_order(context, [accepted for row in sent_by_writer for accepted in row], writers[0].label)
    return f"{_WRITERS} writers"


@CHECKS.claim("share.resend", "a repeated message is rejected as a duplicate, with its place", "§7 I8, §8.2")
def resend(context: CheckContext) -> None:
    first, second = _shared_writers(context)[:2]
    accepted = [first.send(), second.send(), first.send()]
    for one in accepted:
        refused = context.probe.submit(one.msg).expect_row("DUPLICATE")
        expect_equal(refused.detail.get("stream_seq"), one.receipt.stream_seq, "stream_seq in the detail of the error")
    _check_one_order(context, accepted, first.label)


@CHECKS.claim("share.reuse", "another message with a used client_seq is rejected", "§7 I8, §8.2")
def reuse(context: CheckContext) -> None:
    writer = context.writer()
    accepted = [writer.send(), writer.send()]
    for used in (1, 2):
        context.probe.submit(writer.message(b"another", client_seq=used)).expect_row("DUPLICATE")
    _check_one_order(context, accepted, writer.label)


@CHECKS.claim("share.gap", "client_seq starts at 1 and has no gaps", "§7 I9, §8.2")
def gap(context: CheckContext) -> None:
    writer = context.writer()
    for wrong in (0, 2, (1 << 64) - 1):
        context.probe.submit(writer.message(client_seq=wrong)).expect_row("CLIENT_SEQ")
    writer.send()
    for wrong in (0, 3):
        context.probe.submit(writer.message(client_seq=wrong)).expect_row("CLIENT_SEQ")
    writer.send()


@CHECKS.claim("share.prev-ack", "prev_ack is never ahead of the log and never decreases", "§7 I6, §8.2")
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


@CHECKS.claim("share.refused", "a rejected message leaves no trace", "§7 I13, §8.1")
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


@CHECKS.claim("checkpoint.prefix", "every prefix has a checkpoint with its place and root, signed by the hub", "§4.4")
def prefix(context: CheckContext) -> None:
    for accepted in context.filled:
        label, upto_seq = accepted.receipt.label, accepted.receipt.stream_seq
        found = context.checkpoint(label, upto_seq)
        expect_equal((found.label_curr, found.upto_seq), (label, upto_seq), "the place of a checkpoint")
        expect_equal(found.mmr_root, accepted.receipt.mmr_root, f"the root of the checkpoint at {upto_seq}")
        context.facts.verify_checkpoint(found)


@CHECKS.claim("checkpoint.again", "the checkpoint of a prefix does not change when the log grows", "§4.4")
def again(context: CheckContext) -> None:
    writer = context.writer()
    writer.send()
    seq = writer.send().receipt.stream_seq
    first = context.checkpoint(writer.label, seq)
    writer.send()
    expect(context.checkpoint(writer.label, seq) == first, "the checkpoint of the same prefix changed")


@CHECKS.claim("checkpoint.labels", "a checkpoint names its label, its epoch and the previous label", "§4.4.1")
def checkpoint_labels(context: CheckContext) -> None:
    writer = context.writer()
    seq = writer.send().receipt.stream_seq
    found = context.checkpoint(writer.label, seq)
    found.check_labels(context.profile, context.facts.routing_key, writer.stream_id)


@CHECKS.claim("checkpoint.grown", "a consistency proof exists from each tree to every later one", "§5.4, §4.4.1")
def grown(context: CheckContext) -> None:
    new = context.checkpoint(context.filled[-1].msg.label, len(context.filled))
    for accepted in context.filled:
        old = accepted.receipt
        proof.verify_consistency(context.consistency(old.label, old.stream_seq, new.upto_seq), old, new)


def _in_epoch(context: CheckContext, writer: Writer, epoch: int) -> Writer:
    """The same writer under its stream's label of another epoch, where it has not written yet."""
    label = context.facts.label(writer.stream_id, epoch)
    return Writer(context.probe, context.facts, writer.stream_id, label, writer.key, writer.auth_ref)


@CHECKS.claim("epoch.window", "labels of the epochs around the hub's own are accepted, and no others", "§12, §7 I12")
def window(context: CheckContext) -> str:
    context.need_epochs()
    reach = context.facts.window()
    for _ in range(_ATTEMPTS):
        writer = context.writer()
        before = context.status().epoch
        outside, inside = (
            [context.probe.submit(_in_epoch(context, writer, before + away).message()) for away in distances]
            for distances in ((-reach - 1, reach + 1, reach + 1000), {-reach, reach})
        )
        if context.status().epoch != before:
            continue  # the epoch changed during the check
        for reply in outside:
            reply.expect_row("EPOCH")
        expect(all(reply.status == 200 for reply in inside), f"a label {reach} epochs away was rejected")
        return f"{reach} epochs in each direction"
    raise Skipped(f"an epoch of {context.profile.epoch_sec} s ends before its window can be tested")


@CHECKS.claim(
    "epoch.roll", "in the next epoch a stream continues under a label that refers to the previous one", "§4.4.1"
)
def roll(context: CheckContext) -> str:
    """Waits for the next epoch if it is near. Otherwise uses the next label in advance, if the window allows that."""
    context.need_epochs()
    writer = context.writer()
    now = context.status()
    starts = (now.epoch + 1) * context.profile.epoch_sec
    is_near, reach = starts - now.hub_ts <= _MAX_WAIT_SEC, context.facts.window()
    old = _in_epoch(context, writer, now.epoch)
    old.send()
    if not is_near and not reach:
        found = context.checkpoint(old.label, 1)
        found.check_labels(context.profile, context.facts.routing_key, writer.stream_id)
        before = context.facts.label(writer.stream_id, now.epoch - 1)
        expect_equal((found.epoch, found.label_prev), (now.epoch, before), "epoch and label_prev of a checkpoint")
        return f"label_prev only: the next epoch begins in {starts - now.hub_ts} s"
    if is_near:
        context.wait_until(starts)
    new = _in_epoch(context, writer, now.epoch + 1)
    expect_equal(new.send().receipt.stream_seq, 1, "stream_seq of a stream's first message in an epoch")
    for one in (old, new):
        found = context.checkpoint(one.label, 1)
        found.check_labels(context.profile, context.facts.routing_key, writer.stream_id)
        context.facts.verify_checkpoint(found)
    expect_equal(found.label_prev, old.label, "label_prev of the first checkpoint after a rotation")
    return "over the end of an epoch" if is_near else "with the label of the next epoch, which is in the window"
