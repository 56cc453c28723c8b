"""Scenario B: several writers under one label, each counted for itself, and nothing taken twice. Spec 001 §20."""

from concurrent.futures import ThreadPoolExecutor

from veen.core import Mmr
from veen.selftest.check import claim
from veen.selftest.trial import Trial
from veen.selftest.verdict import Failed, expect, expect_equal
from veen.selftest.writer import Accepted, Writer

_WRITERS = 4
_TURNS = 6


def _company(trial: Trial) -> list[Writer]:
    """Writers with a key each and a label in common."""
    first = trial.writer()
    others = [trial.writer(first.stream_id) for _ in range(_WRITERS - 1)]
    for other in others:
        other.label = first.label  # an epoch may have ended meanwhile
    return [first, *others]


def _check_one_order(trial: Trial, sent: list[Accepted], label: bytes) -> None:
    """Each entry has one place, each place one entry, and the trees follow each other."""
    by_seq = {accepted.receipt.stream_seq: accepted for accepted in sent}
    expect_equal(sorted(by_seq), list(range(1, len(sent) + 1)), "the row of stream_seq over all receipts")
    tree = Mmr()
    for item in trial.pages(label, with_receipts=True):
        accepted = by_seq.get(item.stream_seq)
        if accepted is None:
            raise Failed(f"there is an entry at {item.stream_seq} for which no writer has a receipt")
        expect(item.msg == accepted.msg, f"the entry at {item.stream_seq} is not the one its writer sent")
        expect(item.receipt == accepted.receipt, f"the receipt at {item.stream_seq} is not the one its writer got")
        tree.append(item.msg.leaf_hash())
        expect_equal(accepted.receipt.mmr_root, tree.root(), f"the root at {item.stream_seq}")
    expect_equal(tree.size, len(sent), "the number of entries")


@claim("share.turns", "writers under one label share one order and count each for itself", "§7 I8–I9")
def turns(trial: Trial) -> None:
    writers = _company(trial)
    sent = [writer.send() for _ in range(_TURNS) for writer in writers]
    _check_one_order(trial, sent, writers[0].label)
    for writer in writers:
        found = [one.msg.client_seq for one in sent if one.msg.client_id == writer.key.public_key]
        expect_equal(found, list(range(1, _TURNS + 1)), "the row of a writer's client_seq")


@claim("share.at-once", "writers that send at the same time get one order without gap or repeat", "§7 I3, I8")
def at_once(trial: Trial) -> str:
    writers = _company(trial)
    with ThreadPoolExecutor(_WRITERS) as threads:
        rows = list(threads.map(lambda writer: [writer.send() for _ in range(_TURNS)], writers))
    _check_one_order(trial, [accepted for row in rows for accepted in row], writers[0].label)
    return f"{_WRITERS} at once"


@claim("share.resend", "a message that is sent again is refused as a duplicate and told its place", "§7 I8, §8.2")
def resend(trial: Trial) -> None:
    first, second = _company(trial)[:2]
    accepted = [first.send(), second.send(), first.send()]
    for one in accepted:
        refused = trial.probe.submit(one.msg).expect_row("DUPLICATE")
        expect_equal(refused.detail.get("stream_seq"), one.receipt.stream_seq, "stream_seq in the refusal's detail")
    _check_one_order(trial, accepted, first.label)


@claim("share.reuse", "another message under a used client_seq is refused", "§7 I8, §8.2")
def reuse(trial: Trial) -> None:
    writer = trial.writer()
    accepted = [writer.send(), writer.send()]
    for used in (1, 2):
        trial.probe.submit(writer.message(b"another", client_seq=used)).expect_row("DUPLICATE")
    _check_one_order(trial, accepted, writer.label)


@claim("share.gap", "client_seq starts at 1 and leaves no number out", "§7 I9, §8.2")
def gap(trial: Trial) -> None:
    writer = trial.writer()
    for wrong in (0, 2, (1 << 64) - 1):
        trial.probe.submit(writer.message(client_seq=wrong)).expect_row("CLIENT_SEQ")
    writer.send()
    for wrong in (0, 3):
        trial.probe.submit(writer.message(client_seq=wrong)).expect_row("CLIENT_SEQ")
    writer.send()


@claim("share.prev-ack", "prev_ack is never ahead of the log and never goes back", "§7 I6, §8.2")
def prev_ack(trial: Trial) -> None:
    first, second = _company(trial)[:2]
    trial.probe.submit(first.message(prev_ack=1)).expect_row("PREV_ACK")
    first.send()
    first.send()
    second.prev_ack = 2
    second.send()
    trial.probe.submit(second.message(prev_ack=1)).expect_row("PREV_ACK")
    trial.probe.submit(second.message(prev_ack=4)).expect_row("PREV_ACK")
    second.send()


@claim("share.refused", "a refused message leaves no trace", "§7 I13, §8.1")
def refused_leaves_nothing(trial: Trial) -> None:
    writer = trial.writer()
    accepted = [writer.send()]
    good = writer.message()
    wrong = [
        writer.message(client_seq=9),
        writer.message(prev_ack=9),
        writer.message(b"another", client_seq=1),
    ]
    for message in wrong:
        expect(trial.probe.submit(message).status != 200, "a message that counts wrong was accepted")
    accepted.append(writer.accept(good))
    _check_one_order(trial, accepted, writer.label)


CHECKS = (turns, at_once, resend, reuse, gap, prev_ack, refused_leaves_nothing)
