"""The `props` suite: invariants on a random history of writers and labels with wrong messages mixed in."""

import math
import time
from dataclasses import dataclass, field
from random import Random

from veen.core import Mmr, Msg, Receipt, proof
from veen.core.envelopes import (
    StreamRequest,
)
from veen.selftest.check import Failed, Suite, expect, expect_equal
from veen.selftest.check_context import AcceptedMessage, CheckContext, Writer

CHECKS = Suite[CheckContext]()

_MAX_LABELS, _MAX_WRITERS, _MAX_BODY_BYTES = 3, 4, 600
_WRONG_SHARE = 0.2


@dataclass(slots=True)
class LabelModel:
    """One label: its writers and accepted messages, in order."""

    label: bytes
    writers: list[Writer]
    entries: list[AcceptedMessage] = field(default_factory=list)

    def receipt(self, stream_seq: int) -> Receipt:
        return self.entries[stream_seq - 1].receipt


@dataclass(slots=True)
class History:
    """The accepted messages by label, and rejections that differ from the rules."""

    models: list[LabelModel]
    refused: int = 0
    mistakes: list[str] = field(default_factory=list)

    def pick(self, rng: Random) -> LabelModel:
        """A label that has entries."""
        return rng.choice([model for model in self.models if model.entries])


def history(context: CheckContext) -> History:
    """Send `count` messages, some of them wrong on purpose, or as many as fit before their labels expire."""
    rng = context.rng
    ends = time.monotonic() + _lasts_sec(context)
    made = History([_new_label(context, rng) for _ in range(rng.randint(1, _MAX_LABELS))])
    first = made.models[0]
    _send(rng, first, rng.choice(first.writers))
    for _ in range(context.count):
        if time.monotonic() > ends:
            break
        model = rng.choice(made.models)
        writer = rng.choice(model.writers)
        if rng.random() < _WRONG_SHARE:
            _send_wrong(context, made, model, writer)
        else:
            _send(rng, model, writer)
    return made


def _lasts_sec(context: CheckContext) -> float:
    """How long a label can be written at least. The runner repeats a check that fails while an epoch ends."""
    return context.facts.window() * context.profile.epoch_sec or math.inf


def _new_label(context: CheckContext, rng: Random) -> LabelModel:
    first = context.writer()
    others = [context.writer_beside(first) for _ in range(rng.randrange(_MAX_WRITERS))]
    return LabelModel(first.label, [first, *others])


def _send(rng: Random, model: LabelModel, writer: Writer) -> None:
    """The writer's next message, with a random valid prev_ack."""
    prev_ack = rng.randint(writer.prev_ack, len(model.entries))
    accepted = writer.accept(writer.message(rng.randbytes(rng.randrange(_MAX_BODY_BYTES)), prev_ack=prev_ack))
    writer.prev_ack = prev_ack
    model.entries.append(accepted)


def _send_wrong(context: CheckContext, made: History, model: LabelModel, writer: Writer) -> None:
    row, message = _wrong(context.rng, model, writer)
    reply = context.probe.submit(message)
    if reply.status == 200:
        raise Failed(f"a message was accepted instead of rejected with {row}")
    made.refused += 1
    try:
        reply.expect_row(row)
    except Failed as failed:
        made.mistakes.append(str(failed))


def _wrong(rng: Random, model: LabelModel, writer: Writer) -> tuple[str, Msg]:
    """A message that must be rejected, and the row that rejects it."""
    kinds = ["gap", "ahead"]
    kinds += ["again"] * bool(model.entries) + ["reused"] * bool(writer.client_seq) + ["back"] * bool(writer.prev_ack)
    match rng.choice(kinds):
        case "gap":
            return "CLIENT_SEQ", writer.message(client_seq=writer.client_seq + rng.randint(2, 1 << 32))
        case "ahead":
            return "PREV_ACK", writer.message(prev_ack=len(model.entries) + rng.randint(1, 1 << 32))
        case "back":
            return "PREV_ACK", writer.message(prev_ack=rng.randrange(writer.prev_ack))
        case "reused":
            return "DUPLICATE", writer.message(b"another", client_seq=rng.randint(1, writer.client_seq))
    return "DUPLICATE", rng.choice(model.entries).msg


def _history(context: CheckContext) -> History:
    return context.once(history)


@CHECKS.claim("props.order", "a message gets the next place of its label, in any order of writers", "§2, §7 I8–I9")
def order(context: CheckContext) -> str:
    models = _history(context).models
    for model in models:
        found = [entry.receipt.stream_seq for entry in model.entries]
        expect_equal(found, list(range(1, len(found) + 1)), "the sequence of stream_seq")
    entries, writers = sum(len(model.entries) for model in models), sum(len(model.writers) for model in models)
    return f"{entries} entries by {writers} writers under {len(models)} labels"


@CHECKS.claim("props.refusals", "wrong counters are rejected by their row and change nothing", "§7 I13, §8.2")
def refusals(context: CheckContext) -> str:
    made = _history(context)
    if made.mistakes:
        raise Failed(f"{len(made.mistakes)} of {made.refused} refusals are wrong, the first: {made.mistakes[0]}")
    return f"{made.refused} refusals"


@CHECKS.claim(
    "props.receipts", "every receipt is signed by the hub, for its message, over the tree so far", "§4.3, §7 I1–I3"
)
def receipts(context: CheckContext) -> None:
    for model in _history(context).models:
        tree = Mmr()
        for entry in model.entries:
            tree.append(entry.msg.leaf_hash())
            entry.receipt.check_binds(entry.msg)
            context.facts.verify_receipt(entry.receipt)
            expect_equal(entry.receipt.mmr_root, tree.root(), f"the root at {entry.receipt.stream_seq}")


@CHECKS.claim("props.fetched", "any receipt fetched later is the same", "§10.4.3")
def fetched(context: CheckContext) -> str:
    for model, seq in _places(context):
        expect(context.receipt(model.label, seq) == model.receipt(seq), f"the receipt at {seq} changed")
    return f"{_tries(context)} places"


@CHECKS.claim("props.proofs", "any entry has an inclusion proof against its receipt", "§5.2–5.4")
def proofs(context: CheckContext) -> str:
    for model, seq in _places(context):
        proof.verify_in_receipt(context.proof(model.label, seq), model.receipt(seq))
    return f"{_tries(context)} places"


@CHECKS.claim("props.checkpoints", "any prefix has a checkpoint with the root of its last receipt", "§4.4")
def checkpoints(context: CheckContext) -> str:
    for model, seq in _places(context):
        found = context.checkpoint(model.label, seq)
        context.facts.verify_checkpoint(found)
        found_entries = (found.label_curr, found.upto_seq, found.mmr_root)
        expect_equal(found_entries, (model.label, seq, model.receipt(seq).mmr_root), f"the checkpoint at {seq}")
    return f"{_tries(context)} prefixes"


@CHECKS.claim("props.later", "any entry has an inclusion proof in any later tree", "§5.4")
def later(context: CheckContext) -> str:
    for model, seq in _places(context):
        upto = context.rng.randint(seq, len(model.entries))
        proof.verify_inclusion(
            context.proof_at(model.label, seq, upto), proof.Leaf.of(model.receipt(seq)), model.receipt(upto)
        )
    return f"{_tries(context)} pairs"


@CHECKS.claim("props.consistency", "a consistency proof exists from any tree to any later one", "§5.4, §4.4.1")
def consistency(context: CheckContext) -> str:
    for model, old in _places(context):
        new = context.rng.randint(old, len(model.entries))
        proof.verify_consistency(context.consistency(model.label, old, new), model.receipt(old), model.receipt(new))
    return f"{_tries(context)} pairs"


@CHECKS.claim("props.pages", "any page has the entries accepted there, in order, and leads to the rest", "§10.2, §10.5")
def pages(context: CheckContext) -> str:
    for model, _ in _places(context):
        _check_page(context, model, _any_range(context.rng, model))
    for model in _history(context).models:
        if model.entries:
            found = context.pages(model.label, context.rng.randint(1, 50), with_receipts=True)
            found_entries = [(item.stream_seq, item.msg, item.receipt) for item in found]
            wanted = [(entry.receipt.stream_seq, entry.msg, entry.receipt) for entry in model.entries]
            expect(found_entries == wanted, "following the cursor does not return what was accepted")
    return f"{_tries(context)} pages"


def _any_range(rng: Random, model: LabelModel) -> StreamRequest:
    """A page request with random bounds, inside and outside the log."""
    edge = len(model.entries) + 3

    def maybe(number: int) -> int | None:
        return number if rng.random() < 0.5 else None

    return StreamRequest(
        model.label,
        rng.randint(0, edge),
        to_seq=maybe(rng.randint(0, edge)),
        max_items=maybe(rng.randint(1, edge)),
        cursor=maybe(rng.randint(1, edge)),
        with_receipts=rng.random() < 0.5,
        with_mmr_proof=rng.random() < 0.5,
    )


def _check_page(context: CheckContext, model: LabelModel, asked: StreamRequest) -> None:
    """Compare a page with the model. A hub may return a shorter page if next_cursor says where to continue."""
    page = context.page(asked)
    start = max(1, asked.from_seq if asked.cursor is None else asked.cursor)
    end = len(model.entries) if asked.to_seq is None else min(asked.to_seq, len(model.entries))
    most = end if asked.max_items is None else min(end, start + asked.max_items - 1)
    shown = f"the page {asked.from_seq}..{asked.to_seq} at {asked.cursor}, at most {asked.max_items},"
    seqs = [item.stream_seq for item in page.items]
    expect_equal(seqs, list(range(start, start + len(seqs))), shown)
    last = start + len(seqs) - 1
    expect(not seqs or last <= most, f"{shown} extends to {last}, beyond {most}")
    expect_equal(page.next_cursor, last + 1 if last < end else None, f"next_cursor of {shown}")
    expect(last >= start or start > most, f"{shown} is empty although there are entries")
    for item in page.items:
        entry = model.entries[item.stream_seq - 1]
        expect(item.msg == entry.msg, f"the message at {item.stream_seq} differs")
        expect(item.receipt == (entry.receipt if asked.with_receipts else None), f"a receipt of {shown} is wrong")
    expect(
        (page.mmr_proof is not None) == bool(asked.with_mmr_proof and seqs), f"the proof of {shown} is missing or extra"
    )
    if page.mmr_proof is not None:
        proof.verify_in_receipt(page.mmr_proof, model.receipt(last))


def _tries(context: CheckContext) -> int:
    """One per message, but at most 100, to stay fast."""
    return max(1, min(context.count, 100))


def _places(context: CheckContext) -> list[tuple[LabelModel, int]]:
    """Random places."""
    made = _history(context)
    models = [made.pick(context.rng) for _ in range(_tries(context))]
    return [(model, context.rng.randint(1, len(model.entries))) for model in models]
