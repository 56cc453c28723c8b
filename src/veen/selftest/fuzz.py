"""The fuzz suite: damaged input is rejected with an error envelope, and the hub continues. Spec §8, §10."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from veen.core import Malformed, Msg, SigningKey, Unavailable, cap_token, strict_json, wire_json
from veen.core.cbor import Wire
from veen.core.cbor.value import read_value
from veen.core.envelopes import (
    ConsistencyRequest,
    ProofAtRequest,
    ProofAtResponse,
    StreamRequest,
    SubmitRequest,
)
from veen.core.hashing import U64_MAX
from veen.selftest.check import Failed, Suite, expect, expect_equal
from veen.selftest.check_context import READS, AcceptedMessage, CheckContext, Writer
from veen.selftest.core import refusals
from veen.selftest.probe import OK, SUBMIT_HEAD, ProbeReply

CHECKS = Suite[CheckContext]()

# One-byte items of every type, indefinite-length items, tags, floats, and heads that claim too much.
_SUSPICIOUS_ITEMS = (
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
_MAX_RANGE_BYTES = 40


def bytewise(rng: Random, data: bytes) -> bytes:
    """Change one bit, byte or range."""
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.randint(1, _MAX_RANGE_BYTES))
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
    return data[:start] + rng.choice(_SUSPICIOUS_ITEMS) + data[start:]


def itemwise(rng: Random, data: bytes) -> bytes:
    """Drop, double or replace one item of the outermost array or map."""
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
    return data[:start] + rng.choice(_SUSPICIOUS_ITEMS) + data[end:]


def tokenwise(rng: Random, data: bytes) -> bytes:
    """Drop, double or replace one token of a JSON text."""
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
    """A random suspicious item."""
    return rng.choice(_SUSPICIOUS_ITEMS)


def _spans(data: bytes) -> list[tuple[int, int]]:
    """The positions of the keys and items of the outermost array or map."""
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

_SHOWN_BYTES = 96
_BURST = 20


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """A label with a few entries, and the next valid message, which the checks damage."""

    writer: Writer
    entries: tuple[AcceptedMessage, ...]
    good: Msg


def fuzz_target(context: CheckContext) -> FuzzTarget:
    writer = context.writer()
    entries = tuple(writer.send() for _ in range(3))
    return FuzzTarget(writer, entries, writer.message(b"the next"))


def _send_damaged(
    context: CheckContext, path: str, make: Make, answer: type[Wire] | None = None, *, in_json: bool = False
) -> str:
    """Send damaged input repeatedly. `answer` is the type of a successful answer to input that is still valid."""
    post = context.probe.post_json if in_json else context.probe.post
    for number in range(context.count):
        body = make(context.rng)
        try:
            _check_answer(post(path, body), answer)
        except (Failed, Unavailable) as error:
            shown = body[:_SHOWN_BYTES].hex() + ("…" if len(body) > _SHOWN_BYTES else "")
            raise Failed(f"{error}; input {number}, of {len(body)} bytes, was {shown}") from None
    return f"{context.count} inputs"


def _check_answer(reply: ProbeReply, answer: type[Wire] | None) -> None:
    if reply.status == OK and answer is not None:
        reply.read(answer)
    else:
        reply.error()  # checks the status of the code too, so 503 is the only possible 5xx


def _damage(good: bytes, *ways: Callable[[Random, bytes], bytes]) -> Make:
    """Valid bytes damaged in one of these ways, and never unchanged."""

    def make(rng: Random) -> bytes:
        while (damaged := rng.choice(ways)(rng, good)) == good:
            pass
        return damaged

    return make


@CHECKS.claim("fuzz.messages", "a damaged message is rejected with a reason", "§7 I10, §8.1–8.2")
def messages(context: CheckContext) -> str:
    damage = _damage(context.once(fuzz_target).good.encode(), bytewise, itemwise)
    return _send_damaged(context, "/v1/submit", lambda rng: SUBMIT_HEAD + damage(rng))


@CHECKS.claim("fuzz.envelopes", "a damaged submit request is rejected with a reason", "§10.4.1, §8.2")
def envelopes(context: CheckContext) -> str:
    good = SUBMIT_HEAD + context.once(fuzz_target).good.encode()
    return _send_damaged(context, "/v1/submit", _damage(good, bytewise, itemwise))


@CHECKS.claim("fuzz.signed", "an invalid message with a valid signature is rejected with a reason", "§7, §8.2")
def signed(context: CheckContext) -> str:
    target = context.once(fuzz_target)
    most = context.facts.limits["max_hdr_bytes"]

    def make(rng: Random) -> bytes:
        return SUBMIT_HEAD + refusals.signed_wrong(rng, target.good, target.writer.key, most)

    return _send_damaged(context, "/v1/submit", make)


def _reads(context: CheckContext) -> list[tuple[str, Wire, type[Wire]]]:
    label = context.once(fuzz_target).writer.label
    requests = {path: request(label, 2) for path, (request, _) in READS.items()}
    requests["/v1/stream"] = StreamRequest(label, 1, 3, 2, 1, True, True)  # with every field
    return [(path, requests[path], answer) for path, (_, answer) in READS.items()]


@CHECKS.claim("fuzz.reads", "a damaged read request is answered, or rejected with a reason", "§10.4, §10.6")
def reads(context: CheckContext) -> str:
    for path, request, answer in _reads(context):
        _send_damaged(context, path, _damage(request.encode(), bytewise, itemwise), answer)
    return f"{context.count} inputs for each read"


@CHECKS.claim(
    "fuzz.tooling", "a damaged capability or proof request is rejected, or answered if still valid", "§6, §10.6"
)
def tooling(context: CheckContext) -> str:
    label = context.once(fuzz_target).writer.label
    issuer = context.issuer if context.has_issuer else SigningKey.generate()
    token = cap_token.resign(cap_token.mint(issuer, SigningKey.generate().public_key, [label], 60), issuer)
    requests: list[tuple[str, Wire, type[Wire] | None]] = [
        ("/tooling/authorize", token, None),
        ("/tooling/proof", ProofAtRequest(label, 1, 2), ProofAtResponse),
        ("/tooling/consistency", ConsistencyRequest(label, 1, 2), ProofAtResponse),
    ]
    for path, request, answer in requests:
        _send_damaged(context, path, _damage(request.encode(), bytewise, itemwise), answer)
    return f"{context.count} inputs for each"


@CHECKS.claim("fuzz.json", "a damaged JSON request is rejected with a reason", "§10.3, §10.6")
def in_json(context: CheckContext) -> str:
    submit = SubmitRequest(context.once(fuzz_target).good)
    requests: list[tuple[str, Wire, type[Wire] | None]] = [("/v1/submit", submit, None), *_reads(context)]
    for path, request, answer in requests:
        _send_damaged(context, path, _damage_json(wire_json.encode(request)), answer, in_json=True)
    return f"{context.count} inputs for each path"


def _damage_json(good: bytes) -> Make:
    """JSON text damaged so that its value changes; whitespace changes do not count."""
    original = strict_json.decode(good, "request")

    def make(rng: Random) -> bytes:
        while _json_value(damaged := rng.choice((bytewise, tokenwise))(rng, good)) == original:
            pass
        return damaged

    return make


def _json_value(text: bytes) -> strict_json.Json:
    try:
        return strict_json.decode(text, "request")
    except Malformed:
        return None


@CHECKS.claim(
    "fuzz.afterwards", "after damaged input the log is unchanged and the next message is accepted", "§7 I13, §8.1"
)
def afterwards(context: CheckContext) -> None:
    new = fuzz_target(context)  # its own, because the label of the shared one may have expired
    make = _damage(SUBMIT_HEAD + new.good.encode(), bytewise)
    for _ in range(_BURST):
        context.probe.post("/v1/submit", make(context.rng))
    for target in (context.once(fuzz_target), new):
        found = [(item.msg, item.receipt) for item in context.pages(target.writer.label, with_receipts=True)]
        expect(found == list(target.entries), "the log has changed")
    receipt = new.writer.accept(new.good).receipt
    expect_equal(receipt.stream_seq, len(new.entries) + 1, "stream_seq of the next message")
    expect(context.probe.get("/readyz").status == OK, "the hub is no longer ready")
