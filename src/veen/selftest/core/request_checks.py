"""Requests: status, tooling, pages, read requests, and the JSON encoding, which must equal CBOR.

Spec §3.2, §8.4, §10.3 to §10.6, §12, §14.
"""

from collections.abc import Callable
from dataclasses import replace
from secrets import token_bytes
from typing import TypeVar

from veen.core import Receipt, cbor, proof, strict_json, wire_json
from veen.core import attachment as upload_proof
from veen.core.cbor import DeferredFaults, Wire
from veen.core.envelopes import (
    CheckpointList,
    ErrorEnvelope,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.hashing import U64_MAX, h
from veen.selftest.check import Failed, Skipped, Suite, case, expect, expect_equal
from veen.selftest.check_context import OPEN, READS, REGISTRY, CheckContext
from veen.selftest.core import refusals
from veen.selftest.probe import NOT_FOUND, OK, Listener, ProbeReply

CHECKS = Suite[CheckContext]()

W = TypeVar("W", bound=Wire)
_NOT_PROVOKED_IN_JSON = ("SIZE_PREFILTER",)  # hex doubles the size, so each encoding has its own limit


def _seqs(page: StreamResponse) -> list[int]:
    return [item.stream_seq for item in page.items]


def _label(context: CheckContext) -> bytes:
    return context.filled[0].msg.label


@CHECKS.claim("page.bounds", "from_seq and to_seq are inclusive", "§10.5")
def bounds(context: CheckContext) -> None:
    label, last = _label(context), len(context.filled)
    for from_seq, to_seq in ((1, 1), (2, 5), (last, last), (3, last + 9), (0, 2)):
        page = context.page(StreamRequest(label, from_seq, to_seq=to_seq))
        wanted = list(range(max(from_seq, 1), min(to_seq, last) + 1))
        expect_equal(_seqs(page), wanted, f"the page from {from_seq} to {to_seq}")
    expect_equal(_seqs(context.page(StreamRequest(label, 4))), list(range(4, last + 1)), "the page from 4")


@CHECKS.claim("page.echo", "a page names its label and its bounds", "§10.4.2")
def echo(context: CheckContext) -> None:
    label = _label(context)
    page = context.page(StreamRequest(label, 2, to_seq=4))
    expect_equal((page.label, page.from_seq, page.to_seq), (label, 2, 4), "the echo of label, from_seq and to_seq")
    page = context.page(StreamRequest(label, 2, cursor=5, max_items=1))
    expect_equal(page.from_seq, 5, "the lower bound of a page with cursor")


@CHECKS.claim("page.cursor", "a cursor overrides from_seq", "§10.5")
def cursor(context: CheckContext) -> None:
    label = _label(context)
    for from_seq, at in ((2, 7), (9, 3)):
        page = context.page(StreamRequest(label, from_seq, cursor=at, max_items=2))
        expect_equal(_seqs(page), [at, at + 1], f"the page at cursor {at} with from_seq {from_seq}")
    page = context.page(StreamRequest(label, 1, to_seq=7, cursor=6))
    expect_equal(_seqs(page), [6, 7], "the page at cursor 6 up to 7")


@CHECKS.claim("page.next", "next_cursor is present while there is more, and follows the last entry", "§10.5")
def next_cursor(context: CheckContext) -> None:
    label, last = _label(context), len(context.filled)
    for request, wanted in (
        (StreamRequest(label, 1, max_items=last - 1), last),
        (StreamRequest(label, 1, max_items=last), None),
        (StreamRequest(label, 1, to_seq=6, max_items=5), 6),
        (StreamRequest(label, 1, to_seq=5, max_items=5), None),
        (StreamRequest(label, 3, max_items=2), 5),
    ):
        page = context.page(request)
        shown = f"from {request.from_seq} to {request.to_seq}, at most {request.max_items}"
        expect_equal(page.next_cursor, wanted, f"next_cursor of the page {shown}")


@CHECKS.claim("page.most", "a page has at most max_items entries", "§10.5")
def most(context: CheckContext) -> None:
    for max_items in (1, 2, 5):
        page = context.page(StreamRequest(_label(context), 1, max_items=max_items))
        expect_equal(_seqs(page), list(range(1, max_items + 1)), f"the page of {max_items}")


@CHECKS.claim("page.follow", "following the cursor reads every entry once, with any page size", "§10.5")
def follow(context: CheckContext) -> None:
    last = len(context.filled)
    for max_items in (1, 2, 5, last, last + 1):
        found = [item.stream_seq for item in context.pages(_label(context), max_items)]
        expect_equal(found, list(range(1, last + 1)), f"the result of pages of {max_items}")


@CHECKS.claim("page.empty", "a range beyond the end is an empty last page", "§10.5")
def empty(context: CheckContext) -> None:
    label, last = _label(context), len(context.filled)
    for request in (
        StreamRequest(label, last + 1),
        StreamRequest(label, U64_MAX),
        StreamRequest(label, 5, to_seq=4),
        StreamRequest(label, 1, cursor=last + 1),
    ):
        page = context.page(request)
        expect_equal((page.items, page.next_cursor), ((), None), "entries and next_cursor beyond the end")


@CHECKS.claim("page.receipts", "receipts are included only if requested", "§10.4.2")
def receipts(context: CheckContext) -> None:
    label = _label(context)
    page = context.page(StreamRequest(label, 1, with_receipts=True))
    expect_equal(len(page.items), len(context.filled), "the number of entries")
    for item, accepted in zip(page.items, context.filled, strict=True):
        expect(item.receipt is not None, f"the entry at {item.stream_seq} has no receipt")
        expect(item.receipt == accepted.receipt, f"the receipt at {item.stream_seq} differs")
    for request in (StreamRequest(label, 1), StreamRequest(label, 1, with_receipts=False)):
        expect(
            all(item.receipt is None for item in context.page(request).items), "a receipt was included without request"
        )


@CHECKS.claim("page.proof", "a page has an inclusion proof of its last entry only if requested", "§10.4.2, §5.4")
def page_proof(context: CheckContext) -> None:
    label = _label(context)
    for last in range(1, len(context.filled) + 1):
        page = context.page(StreamRequest(label, 1, to_seq=last, with_mmr_proof=True))
        if page.mmr_proof is None:
            raise Failed("the requested proof is missing")
        expect_equal(_seqs(page), list(range(1, last + 1)), f"the page up to {last}")
        proof.verify_in_receipt(page.mmr_proof, context.filled[last - 1].receipt)
    expect(context.page(StreamRequest(label, 1)).mmr_proof is None, "a proof was included without request")


@CHECKS.claim("request.version", "another major version than v1 is E.VERSION", "§10.3, §10.6")
def version(context: CheckContext) -> None:
    for path in ("/v0/stream", "/v2/submit", "/v2/stream", "/v10/receipt"):
        context.probe.post(path, b"\xa1\x01\x01").expect_code("E.VERSION")
        context.probe.post_json(path, b'{"ver":1}').expect_code("E.VERSION")


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


@CHECKS.claim("request.malformed", "a non-canonical read request is E.BAD_REQUEST", "§10.4, §10.6")
def malformed(context: CheckContext) -> str:
    cases = _malformed(token_bytes(32))
    for path in READS:
        for name, body in cases.items():
            with case(name):
                context.probe.post(path, body).expect_code("E.BAD_REQUEST")
    return f"{len(cases)} encodings for each of {len(READS)} reads"


@CHECKS.claim("request.malformed-json", "a non-canonical read request in JSON is E.BAD_REQUEST", "§10.3–10.6")
def malformed_json(context: CheckContext) -> None:
    for path in READS:
        for body in (b"", b"{", b"[]", b'{"ver":2}', b'{"ver":1,"extra":0}'):
            context.probe.post_json(path, body).expect_code("E.BAD_REQUEST")


@CHECKS.claim("request.label", "a label without entries is E.NOT_FOUND", "§10.6")
def unknown_label(context: CheckContext) -> None:
    label = token_bytes(32)
    for path, (request, _) in READS.items():
        context.probe.post(path, request(label, 1)).expect_code("E.NOT_FOUND")
        context.probe.post_json(path, request(label, 1)).expect_code("E.NOT_FOUND")


@CHECKS.claim("request.place", "a place that is not in the log is E.NOT_FOUND", "§5.4, §10.6")
def unknown_place(context: CheckContext) -> None:
    label, size = context.filled[0].msg.label, len(context.filled)
    for seq in (0, size + 1, U64_MAX):
        for path, (request, _) in READS.items():
            if path != "/v1/stream":  # which returns an empty page
                context.probe.post(path, request(label, seq)).expect_code("E.NOT_FOUND")


def _expect_same(context: CheckContext, path: str, request: Wire, cls: type[W]) -> None:
    plain = context.probe.post(path, request).read(cls)
    shown = context.probe.post_json(path, request).read(cls)
    expect(plain == shown, f"{path} answers differently in CBOR and in JSON")


@CHECKS.claim("json.reads", "every read request gets the same answer in JSON as in CBOR", "§10.3–10.4")
def reads(context: CheckContext) -> None:
    label = context.filled[0].msg.label
    full = StreamRequest(label, 2, to_seq=8, max_items=4, with_receipts=True, with_mmr_proof=True)
    _expect_same(context, "/v1/stream", full, StreamResponse)
    for path, (request, answer) in READS.items():
        _expect_same(context, path, request(label, 3), answer)


@CHECKS.claim("json.submit", "a message submitted in JSON is the same message", "§10.3–10.4")
def submit(context: CheckContext) -> None:
    writer = context.writer()
    message = writer.message()
    receipt = context.probe.post_json("/v1/submit", SubmitRequest(message)).read(SubmitResponse).receipt
    receipt.check_binds(message)
    context.facts.verify_receipt(receipt)
    expect(context.receipt(message.label, receipt.stream_seq) == receipt, "the receipt differs in CBOR")


@CHECKS.claim("json.refusals", "a message is rejected in JSON as in CBOR", "§8.2, §10.6")
def refused(context: CheckContext) -> str:
    tried = [fault for fault in refusals.possible(context) if fault not in _NOT_PROVOKED_IN_JSON]
    for fault in tried:
        with case(fault):
            context.probe.post_json("/v1/submit", refusals.draft(context, fault).json()).expect_row(fault)
    return f"{len(tried)} rows"


_INVALID_JSON: dict[str, Callable[[list[strict_json.Json]], bytes]] = {
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


@CHECKS.claim("json.strict", "a non-canonical submit request is rejected in JSON, too", "§10.3–10.4, §3.1")
def strict(context: CheckContext) -> str:
    fields = wire_json.to_json(refusals.any_writer(context).message())
    assert isinstance(fields, list)
    for name, make in _INVALID_JSON.items():
        with case(name):
            context.probe.post_json("/v1/submit", make(fields)).expect_row("CBOR_INVALID")
    return f"{len(_INVALID_JSON)} forms"


STATUS_CHECKS = Suite[CheckContext]()
TOOLING_CHECKS = Suite[CheckContext]()
_CLOCK_SLACK_SEC = 5
_CREATED = 201
_ARRAY_MAJOR = 4
_ATTACHED_BYTES = 100_000


@STATUS_CHECKS.claim("hub.status", "the status names the hub, its profile, its limits and its admission rule", "§12")
def status(context: CheckContext) -> None:
    found, before = context.status(), context.facts
    expect_equal(found.hub_id, before.hub_id, "hub_id in a second status")
    expect_equal(found.profile, before.profile, "the profile in a second status")
    expect_equal(found.limits, before.limits, "the limits in a second status")
    expect_equal(found.admission, before.admission, "admission in a second status")


@STATUS_CHECKS.claim("hub.profile", "profile_id is the id of the profile", "§3.2")
def profile(context: CheckContext) -> None:
    expect_equal(context.facts.profile_id, context.profile.profile_id(), "profile_id")


@STATUS_CHECKS.claim("hub.limits", "no limit exceeds the protocol's maximum", "§14, §14.1")
def limits(context: CheckContext) -> None:
    for name, most in REGISTRY.items():
        expect(context.facts.limits[name] <= most, f"{name} is {context.facts.limits[name]}, the maximum is {most}")


@STATUS_CHECKS.claim("hub.time", "the status has the hub time and its epoch, and neither decreases", "§3.2, §12")
def hub_time(context: CheckContext) -> None:
    first, second = context.status(), context.status()
    expect(first.hub_ts <= second.hub_ts, f"hub_ts decreased from {first.hub_ts} to {second.hub_ts}")
    for one in (first, second):
        expect_equal(one.epoch, one.profile.epoch(one.hub_ts), "epoch")
    if context.may_write:
        stamped = context.writer().send().receipt.hub_ts
        expect(stamped >= second.hub_ts, f"hub_ts {stamped} of a receipt is before {second.hub_ts} of the status")
        now = context.status().hub_ts
        expect(stamped <= now + _CLOCK_SLACK_SEC, f"hub_ts {stamped} of a receipt is ahead of {now} of the status")


@STATUS_CHECKS.claim(
    "hub.identity", "every key of the hub is endorsed by the one before it, back to its hub_id", "§8.4"
)
def identity(context: CheckContext) -> str:
    facts = context.facts
    if facts.identity is None:
        raise Skipped("the status has no identity record, so the hub's key cannot be verified")
    facts.verify_identity(facts.hub_id)
    active = facts.identity.signing_key_at(facts.hub_ts)
    expect_equal((facts.hub_pk, facts.key_id), (active.hub_pk, active.key_id), "the active key")
    return f"{len(facts.identity.hub_keys)} keys"


@STATUS_CHECKS.claim("hub.pin", "the hub is the pinned one", "§8.4")
def pin(context: CheckContext) -> None:
    if context.pin is None:
        raise Skipped("no pin was given")
    context.facts.verify_identity(context.pin)


@STATUS_CHECKS.claim("hub.health", "the hub is alive and ready, and has metrics", "§12")
def health(context: CheckContext) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        reply = context.probe.get(path)
        expect(reply.status == 200, f"GET {path} answered {reply.status}")
    expect(b"# TYPE" in reply.body, "GET /metrics is not in the Prometheus text format")


def _outcomes(body: bytes) -> list[Receipt | ErrorEnvelope]:
    """A CBOR sequence of receipts and error envelopes."""
    found: list[Receipt | ErrorEnvelope] = []
    pos = 0
    while pos < len(body):
        late = DeferredFaults()
        cls: type[Receipt] | type[ErrorEnvelope] = Receipt if body[pos] >> 5 == _ARRAY_MAJOR else ErrorEnvelope
        outcome, pos = cls.read(body, pos, late)
        late.raise_first()
        found.append(outcome)
    return found


@TOOLING_CHECKS.claim(
    "tool.batch", "the messages of a batch are admitted one by one, in order, by the same rules", "§8.1"
)
def batch(context: CheckContext) -> None:
    writer = context.writer()
    first = writer.message(b"first")
    second = writer.message(b"second", client_seq=2)
    forged = replace(writer.message(client_seq=3), sig=bytes(64))
    third = writer.message(b"third", client_seq=3)
    sent = (first, second, first, forged, third)
    reply = context.probe.post("/tooling/submit-batch", b"".join(message.encode() for message in sent)).if_offered()
    expect(reply.status == OK, f"{reply.asked} answered {reply.status}")
    found = [_short(outcome) for outcome in _outcomes(reply.body)]
    expect_equal(found, [1, 2, "DUPLICATE", "SIG_INVALID", 3], "the list of outcomes")
    stored = [item.msg for item in context.pages(writer.label)]
    expect(stored == [first, second, third], "the log differs from the outcomes of the batch")


def _short(outcome: Receipt | ErrorEnvelope) -> int | str | None:
    return outcome.stream_seq if isinstance(outcome, Receipt) else outcome.refused().detail_enum


@TOOLING_CHECKS.claim(
    "tool.subscribe", "a subscriber gets every entry from its start place, in order, as they commit", "§10.2"
)
def subscribe(context: CheckContext) -> None:
    writer = context.writer()
    sent = [writer.send() for _ in range(3)]
    with Listener(context.probe, writer.label, 2) as listener:
        for wanted in sent[1:]:
            _check_item(listener, wanted.msg.encode(), wanted.receipt)
        for _ in range(2):
            new = writer.send()
            _check_item(listener, new.msg.encode(), new.receipt)


def _check_item(listener: Listener, encoded: bytes, receipt: Receipt) -> None:
    item = listener.item()
    expect_equal(item.stream_seq, receipt.stream_seq, "stream_seq of the next entry")
    expect(item.msg.encode() == encoded, f"the message at {item.stream_seq} differs")
    expect(item.receipt in (None, receipt), f"the receipt at {item.stream_seq} differs")


@TOOLING_CHECKS.claim(
    "tool.checkpoints", "listed checkpoints are signed, ascend, and equal those requested one by one", "§4.4"
)
def checkpoints(context: CheckContext) -> str:
    label = context.filled[0].msg.label
    reply = context.probe.get(f"/tooling/checkpoints?label={label.hex()}")
    found = reply.offered(CheckpointList)
    expect_equal(found.label, label, "the label of the list")
    behind = 0
    for checkpoint in found.checkpoints:
        context.facts.verify_checkpoint(checkpoint)
        expect(checkpoint.upto_seq > behind, f"the checkpoint at {checkpoint.upto_seq} is not after {behind}")
        single = context.checkpoint(label, checkpoint.upto_seq)
        expect(replace(checkpoint, witness_sigs=None) == replace(single, witness_sigs=None), "two checkpoints differ")
        behind = checkpoint.upto_seq
    return f"{len(found.checkpoints)} checkpoints"


def _put(context: CheckContext, name: bytes, sealed: bytes) -> ProbeReply:
    """Upload an attachment: without proof if admission is open, else with a capability."""
    path = f"/tooling/attachments/{name.hex()}"
    if context.facts.admission == OPEN:
        return context.probe.put(path, sealed).if_offered()
    writer = context.stranger()
    auth_ref = context.grant(writer).auth_ref()
    proof = upload_proof.sign_upload(
        writer.key,
        hub_id=context.facts.hub_id,
        coid=name,
        auth_ref=auth_ref,
        size=len(sealed),
        made_at=context.status().hub_ts,
    )
    return context.probe.put(path, sealed, proof.header()).if_offered()


@TOOLING_CHECKS.claim(
    "tool.attachment", "an attachment is stored under the hash of its bytes and returned unchanged", "§4.6"
)
def attachment(context: CheckContext) -> None:
    sealed = token_bytes(min(_ATTACHED_BYTES, context.facts.limits["max_attachment_bytes"]))
    path = f"/tooling/attachments/{h(sealed).hex()}"
    for wanted in (_CREATED, OK):
        reply = _put(context, h(sealed), sealed)
        expect(reply.status in (OK, wanted), f"{reply.asked} answered {reply.status}")
    found = context.probe.get(path)
    expect((found.status, found.body) == (OK, sealed), "the attachment was not returned unchanged")


@TOOLING_CHECKS.claim(
    "tool.attachment-name", "bytes under a name that is not their hash are rejected and not stored", "§4.6"
)
def attachment_name(context: CheckContext) -> None:
    name = token_bytes(32)
    reply = _put(context, name, b"something else")
    expect(400 <= reply.status < 500, f"{reply.asked} answered {reply.status} to bytes of another hash")
    found = context.probe.get(f"/tooling/attachments/{name.hex()}")
    expect(found.status == NOT_FOUND, f"{found.asked} answered {found.status} although nothing was stored")


@TOOLING_CHECKS.claim("tool.equivocation", "only two contradicting receipts of the hub are evidence", "§7 I3, §8.4")
def equivocation(context: CheckContext) -> None:
    receipt, other = context.filled[0].receipt, context.filled[1].receipt
    forged = replace(receipt, mmr_root=token_bytes(32))
    pairs = {
        "two that agree": _pair(receipt, receipt),
        "two places": _pair(receipt, other),
        "a forged one": _pair(receipt, forged),
    }
    for name, pair in pairs.items():
        reply = context.probe.post("/tooling/equivocation", pair).if_offered()
        with case(name):
            expect(reply.status < 500, f"{reply.asked} answered {reply.status}")
            reply.error()


def _pair(first: Receipt, second: Receipt) -> bytes:
    """Encoded by hand, because our encoder rejects invalid pairs."""
    return b"\xa3\x01\x01\x02" + first.encode() + b"\x03" + second.encode()
