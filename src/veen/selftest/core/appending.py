"""Scenario A: one writer, one label, and a log that only grows. Spec 001 §20; §4.3, §5, §7."""

from itertools import pairwise

from veen.core import Mmr, proof
from veen.core.envelopes import ProofRequest, ProofResponse, ReceiptRequest, ReceiptResponse, StreamRequest
from veen.core.tooling import ProofAtRequest, ProofAtResponse
from veen.selftest.check import claim
from veen.selftest.trial import Trial
from veen.selftest.verdict import expect, expect_equal


@claim("append.receipt", "every accepted message gets a receipt for it, signed by the hub", "§4.3, §7 I1–I2")
def receipt(trial: Trial) -> str:
    for accepted in trial.filled:
        accepted.receipt.check_binds(accepted.msg)
        trial.facts.verify_receipt(accepted.receipt)
    return f"{len(trial.filled)} receipts"


@claim("append.sequence", "stream_seq runs from 1 without a gap", "§2")
def sequence(trial: Trial) -> None:
    found = [accepted.receipt.stream_seq for accepted in trial.filled]
    expect_equal(found, list(range(1, len(found) + 1)), "the row of stream_seq")


@claim("append.time", "hub_ts never goes back", "§6, §12")
def hub_time(trial: Trial) -> None:
    for before, after in pairwise(trial.filled):
        earlier, later = before.receipt.hub_ts, after.receipt.hub_ts
        expect(earlier <= later, f"hub_ts {later} at {after.receipt.stream_seq} comes after {earlier}")


@claim("append.root", "each receipt signs the root of the tree that ends with its message", "§5.1, §7 I3")
def root(trial: Trial) -> None:
    tree = Mmr()
    for accepted in trial.filled:
        tree.append(accepted.msg.leaf_hash())
        expect_equal(accepted.receipt.mmr_root, tree.root(), f"the root at {accepted.receipt.stream_seq}")


@claim("append.proof", "every entry is proved against its own receipt", "§5.2–5.4, §10.4.4")
def inclusion(trial: Trial) -> None:
    for accepted in trial.filled:
        asked = ProofRequest(accepted.msg.label, accepted.receipt.stream_seq)
        found = trial.probe.post("/v1/proof", asked).read(ProofResponse).mmr_proof
        proof.verify_in_receipt(found, accepted.receipt)


@claim("append.proof-later", "every entry is proved in every later tree", "§5.4")
def inclusion_later(trial: Trial) -> None:
    last = trial.filled[-1].receipt
    for accepted in trial.filled:
        asked = ProofAtRequest(last.label, accepted.receipt.stream_seq, last.stream_seq)
        found = trial.probe.post("/tooling/proof", asked).offered(ProofAtResponse).mmr_proof
        proof.verify_inclusion(found, proof.Leaf.of(accepted.receipt), last)


@claim("append.replay", "reading gives the messages that were sent, in order, byte for byte", "§10.2")
def replay(trial: Trial) -> None:
    label = trial.filled[0].msg.label
    items = trial.page(StreamRequest(label, 1)).items
    expect_equal([item.stream_seq for item in items], list(range(1, len(trial.filled) + 1)), "the row of entries")
    for item, accepted in zip(items, trial.filled, strict=True):
        expect(item.msg == accepted.msg, f"the message at {item.stream_seq} is not the one that was sent")


@claim("append.receipt-again", "a receipt can be fetched later and is the same", "§10.1, §10.4.3")
def receipt_again(trial: Trial) -> None:
    for accepted in trial.filled:
        asked = ReceiptRequest(accepted.msg.label, accepted.receipt.stream_seq)
        found = trial.probe.post("/v1/receipt", asked).read(ReceiptResponse).receipt
        expect(found == accepted.receipt, f"the receipt at {accepted.receipt.stream_seq} changed")


@claim("append.labels", "each label counts for itself", "§2")
def labels(trial: Trial) -> None:
    writers = [trial.writer() for _ in range(3)]
    for turn in (1, 2):
        for writer in writers:
            expect_equal(writer.send().receipt.stream_seq, turn, "stream_seq of a label of its own")
    for writer in writers:
        found = {item.msg.label for item in trial.pages(writer.label)}
        expect(found == {writer.label}, "a page holds entries of another label")


CHECKS = (receipt, sequence, hub_time, root, inclusion, inclusion_later, replay, receipt_again, labels)
