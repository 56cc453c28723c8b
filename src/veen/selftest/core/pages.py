"""Reading in pages: bounds, cursor, and what comes along when it is asked for. Spec §10.4.2, §10.5."""

from veen.core import proof
from veen.core.envelopes import StreamRequest, StreamResponse
from veen.selftest.check import claim
from veen.selftest.trial import Trial
from veen.selftest.verdict import Failed, expect, expect_equal

_U64_MAX = (1 << 64) - 1


def _seqs(page: StreamResponse) -> list[int]:
    return [item.stream_seq for item in page.items]


def _label(trial: Trial) -> bytes:
    return trial.filled[0].msg.label


@claim("page.bounds", "from_seq and to_seq are both part of the range", "§10.5")
def bounds(trial: Trial) -> None:
    label, last = _label(trial), len(trial.filled)
    for from_seq, to_seq in ((1, 1), (2, 5), (last, last), (3, last + 9), (0, 2)):
        page = trial.page(StreamRequest(label, from_seq, to_seq=to_seq))
        wanted = list(range(max(from_seq, 1), min(to_seq, last) + 1))
        expect_equal(_seqs(page), wanted, f"the page from {from_seq} to {to_seq}")
    expect_equal(_seqs(trial.page(StreamRequest(label, 4))), list(range(4, last + 1)), "the page from 4")


@claim("page.echo", "a page names its label and the bounds it was read by", "§10.4.2")
def echo(trial: Trial) -> None:
    label = _label(trial)
    page = trial.page(StreamRequest(label, 2, to_seq=4))
    expect_equal((page.label, page.from_seq, page.to_seq), (label, 2, 4), "the echo of label, from_seq and to_seq")
    page = trial.page(StreamRequest(label, 2, cursor=5, max_items=1))
    expect_equal(page.from_seq, 5, "the lower bound that a page by cursor names")


@claim("page.cursor", "a cursor goes before from_seq", "§10.5")
def cursor(trial: Trial) -> None:
    label = _label(trial)
    for from_seq, at in ((2, 7), (9, 3)):
        page = trial.page(StreamRequest(label, from_seq, cursor=at, max_items=2))
        expect_equal(_seqs(page), [at, at + 1], f"the page at cursor {at} with from_seq {from_seq}")
    page = trial.page(StreamRequest(label, 1, to_seq=7, cursor=6))
    expect_equal(_seqs(page), [6, 7], "the page at cursor 6 up to 7")


@claim("page.next", "next_cursor is there while there is more, and follows the last entry", "§10.5")
def next_cursor(trial: Trial) -> None:
    label, last = _label(trial), len(trial.filled)
    for request, wanted in (
        (StreamRequest(label, 1, max_items=last - 1), last),
        (StreamRequest(label, 1, max_items=last), None),
        (StreamRequest(label, 1, to_seq=6, max_items=5), 6),
        (StreamRequest(label, 1, to_seq=5, max_items=5), None),
        (StreamRequest(label, 3, max_items=2), 5),
    ):
        page = trial.page(request)
        shown = f"from {request.from_seq} to {request.to_seq}, {request.max_items} at most"
        expect_equal(page.next_cursor, wanted, f"next_cursor of the page {shown}")


@claim("page.most", "a page has no more entries than max_items", "§10.5")
def most(trial: Trial) -> None:
    for max_items in (1, 2, 5):
        page = trial.page(StreamRequest(_label(trial), 1, max_items=max_items))
        expect_equal(_seqs(page), list(range(1, max_items + 1)), f"the page of {max_items}")


@claim("page.follow", "following the cursor reads every entry once, whatever the size of a page", "§10.5")
def follow(trial: Trial) -> None:
    last = len(trial.filled)
    for max_items in (1, 2, 5, last, last + 1):
        found = [item.stream_seq for item in trial.pages(_label(trial), max_items)]
        expect_equal(found, list(range(1, last + 1)), f"what pages of {max_items} give")


@claim("page.empty", "a range beyond the end is an empty page and the end", "§10.5")
def empty(trial: Trial) -> None:
    label, last = _label(trial), len(trial.filled)
    for request in (
        StreamRequest(label, last + 1),
        StreamRequest(label, _U64_MAX),
        StreamRequest(label, 5, to_seq=4),
        StreamRequest(label, 1, cursor=last + 1),
    ):
        page = trial.page(request)
        expect_equal((page.items, page.next_cursor), ((), None), "entries and next_cursor beyond the end")


@claim("page.receipts", "receipts come along when they are asked for, and only then", "§10.4.2")
def receipts(trial: Trial) -> None:
    label = _label(trial)
    page = trial.page(StreamRequest(label, 1, with_receipts=True))
    expect_equal(len(page.items), len(trial.filled), "the number of entries")
    for item, accepted in zip(page.items, trial.filled, strict=True):
        expect(item.receipt is not None, f"the entry at {item.stream_seq} came without its receipt")
        expect(item.receipt == accepted.receipt, f"the receipt at {item.stream_seq} is another")
    for request in (StreamRequest(label, 1), StreamRequest(label, 1, with_receipts=False)):
        expect(all(item.receipt is None for item in trial.page(request).items), "a receipt came along unasked")


@claim("page.proof", "a page proves its last entry when it is asked to, and only then", "§10.4.2, §5.4")
def page_proof(trial: Trial) -> None:
    label = _label(trial)
    for last in range(1, len(trial.filled) + 1):
        page = trial.page(StreamRequest(label, 1, to_seq=last, with_mmr_proof=True))
        if page.mmr_proof is None:
            raise Failed("a page came without the proof that was asked for")
        expect_equal(_seqs(page), list(range(1, last + 1)), f"the page up to {last}")
        proof.verify_in_receipt(page.mmr_proof, trial.filled[last - 1].receipt)
    expect(trial.page(StreamRequest(label, 1)).mmr_proof is None, "a proof came along unasked")


CHECKS = (bounds, echo, cursor, next_cursor, most, follow, empty, receipts, page_proof)
