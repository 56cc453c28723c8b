"""A random history: writers and labels by chance, in any order, with wrong messages thrown in. The model of `props`."""

import math
import time
from dataclasses import dataclass, field
from random import Random

from veen.core import Mmr, Msg, Receipt, proof
from veen.core.envelopes import (
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
)
from veen.core.tooling_messages import ConsistencyRequest, ProofAtRequest, ProofAtResponse
from veen.selftest.check import Check, claim
from veen.selftest.check_context import CheckContext
from veen.selftest.core.checkpoints import checkpoint_at
from veen.selftest.verdict import Failed, expect, expect_equal
from veen.selftest.writer import AcceptedMessage, Writer

_MOST_LABELS, _MOST_WRITERS, _MOST_BODY = 3, 4, 600
_WRONG_SHARE = 0.2


@dataclass(slots=True)
class Shelf:
    """One label: who writes to it, and what was accepted, in the order in which it was."""

    label: bytes
    writers: list[Writer]
    entries: list[AcceptedMessage] = field(default_factory=list)

    def receipt(self, stream_seq: int) -> Receipt:
        return self.entries[stream_seq - 1].receipt


@dataclass(slots=True)
class History:
    """What was accepted, by label, and whatever was refused in another way than the rules say."""

    shelves: list[Shelf]
    refused: int = 0
    mistakes: list[str] = field(default_factory=list)

    def pick(self, rng: Random) -> Shelf:
        """A label that has entries."""
        return rng.choice([shelf for shelf in self.shelves if shelf.entries])


def history(trial: CheckContext) -> History:
    """As many messages as the run's count, or as their labels last for, of which some are wrong on purpose."""
    rng = trial.rng
    ends = time.monotonic() + _lasts_sec(trial)
    made = History([_shelf(trial, rng) for _ in range(rng.randint(1, _MOST_LABELS))])
    first = made.shelves[0]
    _send(rng, first, rng.choice(first.writers))
    for _ in range(trial.count):
        if time.monotonic() > ends:
            break
        shelf = rng.choice(made.shelves)
        writer = rng.choice(shelf.writers)
        if rng.random() < _WRONG_SHARE:
            _send_wrong(trial, made, shelf, writer)
        else:
            _send(rng, shelf, writer)
    return made


def _lasts_sec(trial: CheckContext) -> float:
    """How long a label can be written to at least. Where it may end any moment, a run that it ends in is repeated."""
    return trial.facts.window() * trial.profile.epoch_sec or math.inf


def _shelf(trial: CheckContext, rng: Random) -> Shelf:
    first = trial.writer()
    others = [trial.writer(first.stream_id) for _ in range(rng.randrange(_MOST_WRITERS))]
    for other in others:
        other.label = first.label
    return Shelf(first.label, [first, *others])


def _send(rng: Random, shelf: Shelf, writer: Writer) -> None:
    """The writer's next message; it acknowledges as much as it likes of what there is."""
    prev_ack = rng.randint(writer.prev_ack, len(shelf.entries))
    accepted = writer.accept(writer.message(rng.randbytes(rng.randrange(_MOST_BODY)), prev_ack=prev_ack))
    writer.prev_ack = prev_ack
    shelf.entries.append(accepted)


def _send_wrong(trial: CheckContext, made: History, shelf: Shelf, writer: Writer) -> None:
    row, message = _wrong(trial.rng, shelf, writer)
    reply = trial.probe.submit(message)
    if reply.status == 200:
        raise Failed(f"a message was accepted, where {row} is due")
    made.refused += 1
    try:
        reply.expect_row(row)
    except Failed as failed:
        made.mistakes.append(str(failed))


def _wrong(rng: Random, shelf: Shelf, writer: Writer) -> tuple[str, Msg]:
    """A message that must be refused, and by which row."""
    kinds = ["gap", "ahead"]
    kinds += ["again"] * bool(shelf.entries) + ["reused"] * bool(writer.client_seq) + ["back"] * bool(writer.prev_ack)
    match rng.choice(kinds):
        case "gap":
            return "CLIENT_SEQ", writer.message(client_seq=writer.client_seq + rng.randint(2, 1 << 32))
        case "ahead":
            return "PREV_ACK", writer.message(prev_ack=len(shelf.entries) + rng.randint(1, 1 << 32))
        case "back":
            return "PREV_ACK", writer.message(prev_ack=rng.randrange(writer.prev_ack))
        case "reused":
            return "DUPLICATE", writer.message(b"another", client_seq=rng.randint(1, writer.client_seq))
    return "DUPLICATE", rng.choice(shelf.entries).msg


def _told(trial: CheckContext) -> History:
    return trial.once(history)


@claim("props.order", "whoever sends when, a message gets the next place of its label", "§2, §7 I8–I9")
def order(trial: CheckContext) -> str:
    shelves = _told(trial).shelves
    for shelf in shelves:
        found = [entry.receipt.stream_seq for entry in shelf.entries]
        expect_equal(found, list(range(1, len(found) + 1)), "the row of stream_seq")
    entries, writers = sum(len(shelf.entries) for shelf in shelves), sum(len(shelf.writers) for shelf in shelves)
    return f"{entries} entries by {writers} writers under {len(shelves)} labels"


@claim("props.refusals", "whatever counts wrong is refused by its row, and changes nothing", "§7 I13, §8.2")
def refusals(trial: CheckContext) -> str:
    told = _told(trial)
    if told.mistakes:
        raise Failed(f"{len(told.mistakes)} of {told.refused} refusals are wrong, the first: {told.mistakes[0]}")
    return f"{told.refused} refusals"


@claim("props.receipts", "every receipt is the hub's, for its message, over the tree so far", "§4.3, §7 I1–I3")
def receipts(trial: CheckContext) -> None:
    for shelf in _told(trial).shelves:
        tree = Mmr()
        for entry in shelf.entries:
            tree.append(entry.msg.leaf_hash())
            entry.receipt.check_binds(entry.msg)
            trial.facts.verify_receipt(entry.receipt)
            expect_equal(entry.receipt.mmr_root, tree.root(), f"the root at {entry.receipt.stream_seq}")


@claim("props.fetched", "any receipt can be fetched again and is the same", "§10.4.3")
def fetched(trial: CheckContext) -> str:
    for shelf, seq in _places(trial):
        found = trial.probe.post("/v1/receipt", ReceiptRequest(shelf.label, seq)).read(ReceiptResponse).receipt
        expect(found == shelf.receipt(seq), f"the receipt at {seq} changed")
    return f"{_tries(trial)} places"


@claim("props.proofs", "any entry is proved against its receipt", "§5.2–5.4")
def proofs(trial: CheckContext) -> str:
    for shelf, seq in _places(trial):
        found = trial.probe.post("/v1/proof", ProofRequest(shelf.label, seq)).read(ProofResponse).mmr_proof
        proof.verify_in_receipt(found, shelf.receipt(seq))
    return f"{_tries(trial)} places"


@claim("props.checkpoints", "any prefix has a checkpoint with the root its last receipt has", "§4.4")
def checkpoints(trial: CheckContext) -> str:
    for shelf, seq in _places(trial):
        found = checkpoint_at(trial, shelf.label, seq)
        trial.facts.verify_checkpoint(found)
        said = (found.label_curr, found.upto_seq, found.mmr_root)
        expect_equal(said, (shelf.label, seq, shelf.receipt(seq).mmr_root), f"the checkpoint at {seq}")
    return f"{_tries(trial)} prefixes"


@claim("props.later", "any entry is proved in any later tree", "§5.4")
def later(trial: CheckContext) -> str:
    for shelf, seq in _places(trial):
        upto = trial.rng.randint(seq, len(shelf.entries))
        asked = ProofAtRequest(shelf.label, seq, upto)
        found = trial.probe.post("/tooling/proof", asked).offered(ProofAtResponse).mmr_proof
        proof.verify_inclusion(found, proof.Leaf.of(shelf.receipt(seq)), shelf.receipt(upto))
    return f"{_tries(trial)} pairs"


@claim("props.consistency", "any tree is proved to be a prefix of any later one", "§5.4, §4.4.1")
def consistency(trial: CheckContext) -> str:
    for shelf, old in _places(trial):
        new = trial.rng.randint(old, len(shelf.entries))
        asked = ConsistencyRequest(shelf.label, old, new)
        found = trial.probe.post("/tooling/consistency", asked).offered(ProofAtResponse).mmr_proof
        proof.verify_consistency(found, shelf.receipt(old), shelf.receipt(new))
    return f"{_tries(trial)} pairs"


@claim("props.pages", "any page holds what was accepted there, in order, and leads on to the rest", "§10.2, §10.5")
def pages(trial: CheckContext) -> str:
    for shelf, _ in _places(trial):
        _check_page(trial, shelf, _any_range(trial.rng, shelf))
    for shelf in _told(trial).shelves:
        if shelf.entries:
            found = trial.pages(shelf.label, trial.rng.randint(1, 50), with_receipts=True)
            said = [(item.stream_seq, item.msg, item.receipt) for item in found]
            wanted = [(entry.receipt.stream_seq, entry.msg, entry.receipt) for entry in shelf.entries]
            expect(said == wanted, "following the cursor does not give what was accepted")
    return f"{_tries(trial)} pages"


def _any_range(rng: Random, shelf: Shelf) -> StreamRequest:
    """A page by any bounds, inside and outside of what there is."""
    edge = len(shelf.entries) + 3

    def maybe(number: int) -> int | None:
        return number if rng.random() < 0.5 else None

    return StreamRequest(
        shelf.label,
        rng.randint(0, edge),
        to_seq=maybe(rng.randint(0, edge)),
        max_items=maybe(rng.randint(1, edge)),
        cursor=maybe(rng.randint(1, edge)),
        with_receipts=rng.random() < 0.5,
        with_mmr_proof=rng.random() < 0.5,
    )


def _check_page(trial: CheckContext, shelf: Shelf, asked: StreamRequest) -> None:
    """The page against the model. A hub may cut it shorter, if it says where the rest begins."""
    page = trial.page(asked)
    start = max(1, asked.from_seq if asked.cursor is None else asked.cursor)
    end = len(shelf.entries) if asked.to_seq is None else min(asked.to_seq, len(shelf.entries))
    most = end if asked.max_items is None else min(end, start + asked.max_items - 1)
    shown = f"the page {asked.from_seq}..{asked.to_seq} at {asked.cursor}, {asked.max_items} at most,"
    seqs = [item.stream_seq for item in page.items]
    expect_equal(seqs, list(range(start, start + len(seqs))), shown)
    last = start + len(seqs) - 1
    expect(not seqs or last <= most, f"{shown} goes on to {last}, beyond {most}")
    expect_equal(page.next_cursor, last + 1 if last < end else None, f"next_cursor of {shown}")
    expect(last >= start or start > most, f"{shown} is empty, though there are entries")
    for item in page.items:
        entry = shelf.entries[item.stream_seq - 1]
        expect(item.msg == entry.msg, f"the message at {item.stream_seq} is another")
        expect(item.receipt == (entry.receipt if asked.with_receipts else None), f"a receipt of {shown} is wrong")
    expect(
        (page.mmr_proof is not None) == bool(asked.with_mmr_proof and seqs), f"the proof of {shown} is or is not there"
    )
    if page.mmr_proof is not None:
        proof.verify_in_receipt(page.mmr_proof, shelf.receipt(last))


def _tries(trial: CheckContext) -> int:
    """As many as there are messages, up to a number that is soon done."""
    return max(1, min(trial.count, 100))


def _places(trial: CheckContext) -> list[tuple[Shelf, int]]:
    """Places by chance."""
    told = _told(trial)
    shelves = [told.pick(trial.rng) for _ in range(_tries(trial))]
    return [(shelf, trial.rng.randint(1, len(shelf.entries))) for shelf in shelves]


CHECKS: tuple[Check, ...] = (
    order,
    refusals,
    receipts,
    fetched,
    proofs,
    checkpoints,
    later,
    consistency,
    pages,
)
