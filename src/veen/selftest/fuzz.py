"""The fuzz suite: damaged messages and requests are refused, each with a word, and the hub goes on. Spec §8, §10."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from veen.core import Malformed, Msg, SigningKey, Unavailable, cap_token, strict_json, wire_json
from veen.core.cbor import Wire
from veen.core.cbor.value import read_value
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
)
from veen.core.hashing import U64_MAX
from veen.core.tooling_messages import ConsistencyRequest, ProofAtRequest, ProofAtResponse
from veen.selftest import faulty_messages
from veen.selftest.check import Check, claim
from veen.selftest.check_context import CheckContext
from veen.selftest.probe import OK, SUBMIT_HEAD, ProbeReply
from veen.selftest.verdict import Failed, expect, expect_equal
from veen.selftest.writer import AcceptedMessage, Writer

# One-byte items of every type, an indefinite one of each that can be, tags, floats, and heads that claim too much.
_TELLING = (
    *(b"\x00", b"\x17", b"\x20", b"\x40", b"\x60", b"\x80", b"\xa0", b"\xf4", b"\xf5", b"\xf6", b"\xf7", b"\xff"),
    *(b"\x5f\xff", b"\x7f\xff", b"\x9f\xff", b"\xbf\xff", b"\xc0\x00", b"\xd9\xd9\xf7\x00", b"\xf9\x00\x00"),
    *(b"\x18\x00", b"\x19\x00\x01", b"\x1b" + b"\xff" * 8, b"\x3b" + b"\xff" * 8, b"\xfb" + bytes(8), b"\xf8\xff"),
    *(b"\x5b" + b"\xff" * 8, b"\x7a\xff\xff\xff\xff", b"\x9b" + b"\xff" * 8, b"\xbb" + b"\xff" * 8, b"\x81" * 64),
    *(b"\x58\x20" + bytes(32), b"\x58\x1f" + bytes(31), b"\x58\x40" + bytes(64), b"\x62\xff\xff"),
)
_SNIPPETS = (
    *(b"null", b"true", b"0", b"1", b"2", b"-1", b"-0", b"1.0", b"1e3", b"NaN", b"01", b'""', b"{}", b"[]", b"[[]]"),
    *(b"%d" % U64_MAX, b"%d" % (U64_MAX + 1), b"9" * 400, b'"\\ud800"', b'"\xff"', b'"AB"', b'"abc"', b'"ver"'),
    *(b'{"":0}', b"\xef\xbb\xbf", b"[" * 300, b'{"a":' * 300),
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.\w]+|[^\s]')
_LONGEST = 40


def bytewise(rng: Random, data: bytes) -> bytes:
    """One bit, byte or stretch otherwise."""
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.randint(1, _LONGEST))
    match rng.randrange(7):
        case 0:
            return data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
        case 1:
            return data[:start] + rng.randbytes(1) + data[start + 1 :]
        case 2:
            return data[:start] + data[end:]
        case 3:
            return data[:end] + data[start:end] + data[end:]
        case 4:
            return data[:start] + rng.randbytes(end - start) + data[start:]
        case 5:
            return data[:start]
    return data[:start] + rng.choice(_TELLING) + data[start:]


def itemwise(rng: Random, data: bytes) -> bytes:
    """One item of the outermost array or map dropped, doubled, exchanged for another, or for a telling one."""
    spans = _spans(data)
    start, end = rng.choice(spans)
    match rng.randrange(5):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:end] + data[start:end] + data[end:]
        case 2:
            other_start, other_end = rng.choice(spans)
            return data[:start] + data[other_start:other_end] + data[end:]
        case 3:
            return bytes([data[0] & 0xE0 | rng.randrange(24)]) + data[1:]
    return data[:start] + rng.choice(_TELLING) + data[end:]


def tokenwise(rng: Random, data: bytes) -> bytes:
    """One token of a JSON text dropped, doubled, or exchanged for another."""
    tokens = [found.span() for found in _TOKEN.finditer(data)]
    start, end = rng.choice(tokens)
    match rng.randrange(4):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:end] + data[start:end] + data[end:]
        case 2:
            other_start, other_end = rng.choice(tokens)
            return data[:start] + data[other_start:other_end] + data[end:]
    return data[:start] + rng.choice(_SNIPPETS) + data[end:]


def item(rng: Random) -> bytes:
    """An item that is not what it stands in for."""
    return rng.choice(_TELLING)


def _spans(data: bytes) -> list[tuple[int, int]]:
    """Where the items of the outermost array or map are, its keys and values alike."""
    spans, pos = [], 1
    try:
        while pos < len(data):
            _, end = read_value(data, pos)
            spans.append((pos, end))
            pos = end
    except Malformed:
        spans.append((pos, len(data)))
    return spans or [(0, len(data))]


Make: TypeAlias = Callable[[Random], bytes]
Ask: TypeAlias = Callable[[bytes], ProbeReply]

_SHOWN_BYTES = 96
_BURST = 20


@dataclass(frozen=True, slots=True)
class Ground:
    """A label with a few entries, and the message that would be accepted next: what the damage is done to."""

    writer: Writer
    entries: tuple[AcceptedMessage, ...]
    good: Msg


def ground(trial: CheckContext) -> Ground:
    writer = trial.writer()
    entries = tuple(writer.send() for _ in range(3))
    return Ground(writer, entries, writer.message(b"the next"))


def _throw(trial: CheckContext, make: Make, ask: Ask, answer: type[Wire] | None = None) -> str:
    """Ask with damaged input, over and over. `answer` is what a request that is still good is answered with."""
    for number in range(trial.count):
        body = make(trial.rng)
        try:
            _check_answer(ask(body), answer)
        except (Failed, Unavailable) as error:
            shown = body[:_SHOWN_BYTES].hex() + ("…" if len(body) > _SHOWN_BYTES else "")
            raise Failed(f"{error}; input {number}, of {len(body)} bytes, was {shown}") from None
    return f"{trial.count} inputs"


def _check_answer(reply: ProbeReply, answer: type[Wire] | None) -> None:
    if reply.status == OK and answer is not None:
        reply.read(answer)
    else:
        reply.error()  # which is under the status of its code, so never under a 5xx but 503


def _other(good: bytes, *ways: Callable[[Random, bytes], bytes]) -> Make:
    """Good bytes damaged in one of these ways, and not by chance what they were."""

    def make(rng: Random) -> bytes:
        while (damaged := rng.choice(ways)(rng, good)) == good:
            pass
        return damaged

    return make


@claim("fuzz.messages", "a damaged message is refused, with a word on why", "§7 I10, §8.1–8.2")
def messages(trial: CheckContext) -> str:
    good = trial.once(ground).good.encode()
    make = _other(good, bytewise, itemwise)
    return _throw(trial, make, lambda body: trial.probe.post("/v1/submit", SUBMIT_HEAD + body))


@claim("fuzz.envelopes", "a damaged submit request is refused, with a word on why", "§10.4.1, §8.2")
def envelopes(trial: CheckContext) -> str:
    good = SUBMIT_HEAD + trial.once(ground).good.encode()
    make = _other(good, bytewise, itemwise)
    return _throw(trial, make, lambda body: trial.probe.post("/v1/submit", body))


@claim("fuzz.signed", "a message that is wrong, and signed as it is, is refused, with a word on why", "§7, §8.2")
def signed(trial: CheckContext) -> str:
    stand = trial.once(ground)
    most = trial.facts.limits["max_hdr_bytes"]

    def make(rng: Random) -> bytes:
        return faulty_messages.signed_wrong(rng, stand.good, stand.writer.key, most)

    return _throw(trial, make, lambda body: trial.probe.post("/v1/submit", SUBMIT_HEAD + body))


def _reads(trial: CheckContext) -> list[tuple[str, Wire, type[Wire]]]:
    label = trial.once(ground).writer.label
    return [
        ("/v1/stream", StreamRequest(label, 1, 3, 2, 1, True, True), StreamResponse),
        ("/v1/receipt", ReceiptRequest(label, 2), ReceiptResponse),
        ("/v1/proof", ProofRequest(label, 2), ProofResponse),
        ("/v1/checkpoint", CheckpointRequest(label, 2), CheckpointResponse),
    ]


@claim("fuzz.reads", "a damaged read request is answered or refused, with a word on why", "§10.4, §10.6")
def reads(trial: CheckContext) -> str:
    for path, request, answer in _reads(trial):
        make = _other(request.encode(), bytewise, itemwise)
        _throw(trial, make, lambda body, path=path: trial.probe.post(path, body), answer)  # type: ignore[misc]
    return f"{trial.count} inputs for each read"


@claim("fuzz.tooling", "a damaged capability or proof request is refused, or answered where it is none", "§6, §10.6")
def tooling(trial: CheckContext) -> str:
    label = trial.once(ground).writer.label
    issuer = trial.issuer if trial.has_issuer else SigningKey.generate()
    token = cap_token.resign(cap_token.mint(issuer, SigningKey.generate().public_key, [label], 60), issuer)
    make = _other(token.encode(), bytewise, itemwise)
    _throw(trial, make, lambda body: trial.probe.post("/tooling/authorize", body))
    make = _other(ProofAtRequest(label, 1, 2).encode(), bytewise, itemwise)
    _throw(trial, make, lambda body: trial.probe.post("/tooling/proof", body), ProofAtResponse)
    make = _other(ConsistencyRequest(label, 1, 2).encode(), bytewise, itemwise)
    _throw(trial, make, lambda body: trial.probe.post("/tooling/consistency", body), ProofAtResponse)
    return f"{trial.count} inputs for each"


@claim("fuzz.json", "a damaged request in JSON is refused, with a word on why", "§10.3, §10.6")
def in_json(trial: CheckContext) -> str:
    good = wire_json.encode(SubmitRequest(trial.once(ground).good))
    make = _other_text(good)
    _throw(trial, make, lambda body: trial.probe.post_json("/v1/submit", body))
    for path, request, answer in _reads(trial):
        make = _other_text(wire_json.encode(request))
        _throw(trial, make, lambda body, path=path: trial.probe.post_json(path, body), answer)  # type: ignore[misc]
    return f"{trial.count} inputs for each path"


def _other_text(good: bytes) -> Make:
    """JSON text damaged so that it says something else: spaces between tokens say nothing."""
    said = strict_json.decode(good, "request")

    def make(rng: Random) -> bytes:
        while _says(damaged := rng.choice((bytewise, tokenwise))(rng, good)) == said:
            pass
        return damaged

    return make


def _says(text: bytes) -> strict_json.Json:
    try:
        return strict_json.decode(text, "request")
    except Malformed:
        return None


@claim("fuzz.afterwards", "after damage the log is what it was, and the next message is accepted", "§7 I13, §8.1")
def afterwards(trial: CheckContext) -> None:
    new = ground(trial)  # of its own: the label that the others damaged messages for may have run out since
    make = _other(SUBMIT_HEAD + new.good.encode(), bytewise)
    for _ in range(_BURST):
        trial.probe.post("/v1/submit", make(trial.rng))
    for stand in (trial.once(ground), new):
        found = [(item.msg, item.receipt) for item in trial.pages(stand.writer.label, with_receipts=True)]
        expect(found == list(stand.entries), "the log is not what it was before")
    receipt = new.writer.accept(new.good).receipt
    expect_equal(receipt.stream_seq, len(new.entries) + 1, "stream_seq of the next message")
    expect(trial.probe.get("/readyz").status == OK, "the hub is not ready any more")


CHECKS: tuple[Check, ...] = (messages, envelopes, signed, reads, tooling, in_json, afterwards)
