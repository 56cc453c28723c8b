"""JSON says what CBOR says: the same names, bytes as lowercase hex. Spec §10.3, §10.4."""

from collections.abc import Callable
from secrets import token_bytes
from typing import TypeVar

from veen.core import cbor, proof, strict_json, wire_json
from veen.core.cbor import Wire
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.selftest import faulty_messages
from veen.selftest.check import claim
from veen.selftest.check_context import CheckContext
from veen.selftest.verdict import Failed, expect, expect_equal

W = TypeVar("W", bound=Wire)
_NOT_PROVOKED_IN_JSON = ("SIZE_PREFILTER",)  # digits take twice the room, so each form has a cap of its own


def _both(trial: CheckContext, path: str, request: Wire, cls: type[W]) -> None:
    plain = trial.probe.post(path, request).read(cls)
    shown = trial.probe.post_json(path, request).read(cls)
    expect(plain == shown, f"{path} says one thing in CBOR and another in JSON")


@claim("json.reads", "every read gives the same answer in JSON as in CBOR", "§10.3–10.4")
def reads(trial: CheckContext) -> None:
    label = trial.filled[0].msg.label
    _both(trial, "/v1/stream", StreamRequest(label, 1), StreamResponse)
    full = StreamRequest(label, 2, to_seq=8, max_items=4, with_receipts=True, with_mmr_proof=True)
    _both(trial, "/v1/stream", full, StreamResponse)
    _both(trial, "/v1/receipt", ReceiptRequest(label, 3), ReceiptResponse)
    _both(trial, "/v1/proof", ProofRequest(label, 7), ProofResponse)
    _both(trial, "/v1/checkpoint", CheckpointRequest(label, 5), CheckpointResponse)


@claim("json.submit", "a message submitted in JSON is the same message", "§10.3–10.4")
def submit(trial: CheckContext) -> None:
    writer = trial.writer()
    message = writer.message()
    receipt = trial.probe.post_json("/v1/submit", SubmitRequest(message)).read(SubmitResponse).receipt
    receipt.check_binds(message)
    trial.facts.verify_receipt(receipt)
    asked = ReceiptRequest(message.label, receipt.stream_seq)
    again = trial.probe.post("/v1/receipt", asked).read(ReceiptResponse).receipt
    expect(again == receipt, "the receipt is another one in CBOR")


@claim("json.refusals", "a message is refused in JSON as it is in CBOR", "§8.2, §10.6")
def refusals(trial: CheckContext) -> str:
    tried = [fault for fault in faulty_messages.possible(trial) if fault not in _NOT_PROVOKED_IN_JSON]
    for fault in tried:
        try:
            trial.probe.post_json("/v1/submit", faulty_messages.draft(trial, fault).json()).expect_row(fault)
        except Failed as failed:
            raise Failed(f"{fault}: {failed}") from None
    return f"{len(tried)} rows"


_BENT: dict[str, Callable[[list[strict_json.Json]], bytes]] = {
    "empty": lambda fields: b"",
    "not JSON": lambda fields: b"{",
    "an array": lambda fields: strict_json.encode([1, fields]),
    "another version": lambda fields: _request(fields, ver=2),
    "true for 1": lambda fields: _request(fields, ver=True),
    "an unknown name": lambda fields: _request(fields, more=1),
    "no message": lambda fields: b'{"ver":1}',
    "a field less": lambda fields: _request(fields[:-1]),
    "a field more": lambda fields: _request([*fields, 1]),
    "a negative number": lambda fields: _request([*fields[:4], -1, *fields[5:]]),
    "a float": lambda fields: _request(fields).replace(b'"ver":1', b'"ver":1.0'),
    "capital digits": lambda fields: _request([*fields[:-1], "AB" * 64]),
    "half a byte": lambda fields: _request([*fields[:-1], str(fields[-1])[:-1]]),
    "text for a number": lambda fields: _request([*fields[:4], "01", *fields[5:]]),
}


def _request(fields: list[strict_json.Json], **more: strict_json.Json) -> bytes:
    return strict_json.encode({"ver": 1, "msg": fields, **more})


@claim("json.strict", "a submit request that is not in the one form is refused in JSON, too", "§10.3–10.4, §3.1")
def strict(trial: CheckContext) -> str:
    fields = wire_json.to_json(faulty_messages.anyone(trial).message())
    assert isinstance(fields, list)
    for name, bend in _BENT.items():
        try:
            trial.probe.post_json("/v1/submit", bend(fields)).expect_row("CBOR_INVALID")
        except Failed as failed:
            raise Failed(f"{name}: {failed}") from None
    return f"{len(_BENT)} forms"


JSON_FORM_CHECKS = (reads, submit, refusals, strict)


_U64_MAX = (1 << 64) - 1


def _seqs(page: StreamResponse) -> list[int]:
    return [item.stream_seq for item in page.items]


def _label(trial: CheckContext) -> bytes:
    return trial.filled[0].msg.label


@claim("page.bounds", "from_seq and to_seq are both part of the range", "§10.5")
def bounds(trial: CheckContext) -> None:
    label, last = _label(trial), len(trial.filled)
    for from_seq, to_seq in ((1, 1), (2, 5), (last, last), (3, last + 9), (0, 2)):
        page = trial.page(StreamRequest(label, from_seq, to_seq=to_seq))
        wanted = list(range(max(from_seq, 1), min(to_seq, last) + 1))
        expect_equal(_seqs(page), wanted, f"the page from {from_seq} to {to_seq}")
    expect_equal(_seqs(trial.page(StreamRequest(label, 4))), list(range(4, last + 1)), "the page from 4")


@claim("page.echo", "a page names its label and the bounds it was read by", "§10.4.2")
def echo(trial: CheckContext) -> None:
    label = _label(trial)
    page = trial.page(StreamRequest(label, 2, to_seq=4))
    expect_equal((page.label, page.from_seq, page.to_seq), (label, 2, 4), "the echo of label, from_seq and to_seq")
    page = trial.page(StreamRequest(label, 2, cursor=5, max_items=1))
    expect_equal(page.from_seq, 5, "the lower bound that a page by cursor names")


@claim("page.cursor", "a cursor goes before from_seq", "§10.5")
def cursor(trial: CheckContext) -> None:
    label = _label(trial)
    for from_seq, at in ((2, 7), (9, 3)):
        page = trial.page(StreamRequest(label, from_seq, cursor=at, max_items=2))
        expect_equal(_seqs(page), [at, at + 1], f"the page at cursor {at} with from_seq {from_seq}")
    page = trial.page(StreamRequest(label, 1, to_seq=7, cursor=6))
    expect_equal(_seqs(page), [6, 7], "the page at cursor 6 up to 7")


@claim("page.next", "next_cursor is there while there is more, and follows the last entry", "§10.5")
def next_cursor(trial: CheckContext) -> None:
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
def most(trial: CheckContext) -> None:
    for max_items in (1, 2, 5):
        page = trial.page(StreamRequest(_label(trial), 1, max_items=max_items))
        expect_equal(_seqs(page), list(range(1, max_items + 1)), f"the page of {max_items}")


@claim("page.follow", "following the cursor reads every entry once, whatever the size of a page", "§10.5")
def follow(trial: CheckContext) -> None:
    last = len(trial.filled)
    for max_items in (1, 2, 5, last, last + 1):
        found = [item.stream_seq for item in trial.pages(_label(trial), max_items)]
        expect_equal(found, list(range(1, last + 1)), f"what pages of {max_items} give")


@claim("page.empty", "a range beyond the end is an empty page and the end", "§10.5")
def empty(trial: CheckContext) -> None:
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
def receipts(trial: CheckContext) -> None:
    label = _label(trial)
    page = trial.page(StreamRequest(label, 1, with_receipts=True))
    expect_equal(len(page.items), len(trial.filled), "the number of entries")
    for item, accepted in zip(page.items, trial.filled, strict=True):
        expect(item.receipt is not None, f"the entry at {item.stream_seq} came without its receipt")
        expect(item.receipt == accepted.receipt, f"the receipt at {item.stream_seq} is another")
    for request in (StreamRequest(label, 1), StreamRequest(label, 1, with_receipts=False)):
        expect(all(item.receipt is None for item in trial.page(request).items), "a receipt came along unasked")


@claim("page.proof", "a page proves its last entry when it is asked to, and only then", "§10.4.2, §5.4")
def page_proof(trial: CheckContext) -> None:
    label = _label(trial)
    for last in range(1, len(trial.filled) + 1):
        page = trial.page(StreamRequest(label, 1, to_seq=last, with_mmr_proof=True))
        if page.mmr_proof is None:
            raise Failed("a page came without the proof that was asked for")
        expect_equal(_seqs(page), list(range(1, last + 1)), f"the page up to {last}")
        proof.verify_in_receipt(page.mmr_proof, trial.filled[last - 1].receipt)
    expect(trial.page(StreamRequest(label, 1)).mmr_proof is None, "a proof came along unasked")


PAGE_CHECKS = (bounds, echo, cursor, next_cursor, most, follow, empty, receipts, page_proof)


_READS = ("/v1/stream", "/v1/receipt", "/v1/proof", "/v1/checkpoint")


@claim("request.version", "another major version than v1 is E.VERSION", "§10.3, §10.6")
def version(trial: CheckContext) -> None:
    for path in ("/v0/stream", "/v2/submit", "/v2/stream", "/v10/receipt"):
        trial.probe.post(path, b"\xa1\x01\x01").expect_code("E.VERSION")
        trial.probe.post_json(path, b'{"ver":1}').expect_code("E.VERSION")


def _malformed(label: bytes) -> dict[str, bytes]:
    good: dict[int, cbor.Value] = {1: 1, 2: label, 3: 1}
    return {
        "empty": b"",
        "not CBOR": b"\xff",
        "an array": cbor.encode([1, label, 1]),
        "another version": cbor.encode({**good, 1: 2}),
        "no label": cbor.encode({1: 1, 3: 1}),
        "no place": cbor.encode({1: 1, 2: label}),
        "a short label": cbor.encode({**good, 2: label[1:]}),
        "a label in text": cbor.encode({**good, 2: "a" * 32}),
        "a negative place": cbor.encode({**good, 3: -1}),
        "null for a place": cbor.encode({**good, 3: None}),
        "an unknown key": cbor.encode({**good, 99: 1}),
        "a text key": b"\xa4" + cbor.encode(good)[1:] + b"\x61x\x01",
        "a long head": b"\xb8\x03" + cbor.encode(good)[1:],
        "a map without end": b"\xbf" + cbor.encode(good)[1:] + b"\xff",
        "bytes after its end": cbor.encode(good) + b"\x00",
    }


@claim("request.malformed", "a read request that is not in the one form is E.BAD_REQUEST", "§10.4, §10.6")
def malformed(trial: CheckContext) -> str:
    cases = _malformed(token_bytes(32))
    for path in _READS:
        for name, body in cases.items():
            try:
                trial.probe.post(path, body).expect_code("E.BAD_REQUEST")
            except Failed as failed:
                raise Failed(f"{name}: {failed}") from None
    return f"{len(cases)} forms for each of {len(_READS)} reads"


@claim("request.malformed-json", "a read request in JSON that is not in the one form is E.BAD_REQUEST", "§10.3–10.6")
def malformed_json(trial: CheckContext) -> None:
    for path in _READS:
        for body in (b"", b"{", b"[]", b'{"ver":2}', b'{"ver":1,"extra":0}'):
            trial.probe.post_json(path, body).expect_code("E.BAD_REQUEST")


@claim("request.label", "a label nobody wrote to is E.NOT_FOUND", "§10.6")
def unknown_label(trial: CheckContext) -> None:
    label = token_bytes(32)
    for path, request in _requests(label, 1):
        trial.probe.post(path, request).expect_code("E.NOT_FOUND")
        trial.probe.post_json(path, request).expect_code("E.NOT_FOUND")


@claim("request.place", "a place that is not in the log is E.NOT_FOUND", "§5.4, §10.6")
def unknown_place(trial: CheckContext) -> None:
    label, size = trial.filled[0].msg.label, len(trial.filled)
    for seq in (0, size + 1, _U64_MAX):
        for path, request in _requests(label, seq):
            if path != "/v1/stream":  # where it is an empty page
                trial.probe.post(path, request).expect_code("E.NOT_FOUND")


def _requests(label: bytes, seq: int) -> list[tuple[str, Wire]]:
    return [
        ("/v1/stream", StreamRequest(label, seq)),
        ("/v1/receipt", ReceiptRequest(label, seq)),
        ("/v1/proof", ProofRequest(label, seq)),
        ("/v1/checkpoint", CheckpointRequest(label, seq)),
    ]


REQUEST_CHECKS = (version, malformed, malformed_json, unknown_label, unknown_place)
