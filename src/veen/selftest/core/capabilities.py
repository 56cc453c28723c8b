"""Scenario D: capabilities, from authorize to the message that names one. Spec 001 §20; §6."""

import time
from dataclasses import replace
from secrets import token_bytes

from veen.core import CapToken, Rate, SigningKey, cap_token, cbor
from veen.core.envelopes import AuthorizeResponse, StreamRequest, SubmitResponse
from veen.selftest.check import Failed, Skipped, Suite, case, expect, expect_equal, only
from veen.selftest.check_context import OPEN, CheckContext
from veen.selftest.probe import ProbeReply

CHECKS = Suite[CheckContext]()

_TTL_SEC = 3600
_BURST = 3
_MAX_WAIT_SEC = 5
_MAX_ACCEPTED = 10


def _token(context: CheckContext, subject_pk: bytes | None = None, issuer: SigningKey | None = None) -> CapToken:
    """A new capability for a new stream."""
    subject_pk = subject_pk or SigningKey.generate().public_key
    return cap_token.mint(issuer or context.issuer, subject_pk, [token_bytes(32)], _TTL_SEC)


def _present(context: CheckContext, token: CapToken | bytes) -> ProbeReply:
    shown = token if isinstance(token, bytes) else context.presented(token)
    return context.probe.post("/tooling/authorize", shown)


@CHECKS.claim("cap.authorize", "an authorized capability gets its auth_ref, an expiry and a receipt", "§6, §6.1")
def authorize(context: CheckContext) -> None:
    token = _token(context)
    found = context.authorize(token)
    expect_equal(found.auth_ref, token.auth_ref(), "auth_ref")
    expect_equal(found.expires_at, found.receipt.hub_ts + _TTL_SEC, "expires_at")
    context.facts.verify_receipt(found.receipt)


@CHECKS.claim("cap.logged", "the receipt of an authorization belongs to an entry that anyone can read", "§6.1")
def logged(context: CheckContext) -> None:
    receipt = context.authorize(_token(context)).receipt
    page = context.page(StreamRequest(receipt.label, receipt.stream_seq, to_seq=receipt.stream_seq, with_receipts=True))
    item = only(page.items, "entries at the receipt's place")
    expect(item.receipt == receipt, "the log has another receipt at that place")
    receipt.check_binds(item.msg)
    item.msg.verify_signature()


@CHECKS.claim("cap.again", "authorizing a capability again changes nothing, including its expiry", "§6 issued_at")
def again(context: CheckContext) -> None:
    token = _token(context)
    first = context.authorize(token)
    context.wait_until(first.receipt.hub_ts + 1)
    expect(context.authorize(token) == first, "the second answer differs from the first")


@CHECKS.claim("cap.admits", "the subject of a capability can write to its streams", "§6, §7 I7")
def admits(context: CheckContext) -> None:
    writer = context.stranger()
    writer.auth_ref = context.grant(writer, writer.stream_id, token_bytes(32)).auth_ref()
    receipt = writer.send().receipt
    context.facts.verify_receipt(receipt)


@CHECKS.claim("cap.needed", "if capabilities are required, a message without one is rejected", "§8.2")
def needed(context: CheckContext) -> None:
    if context.facts.admission == OPEN:
        raise Skipped("the hub has open admission")
    context.probe.submit(context.stranger().message()).expect_row("CAP_MISSING")


@CHECKS.claim("cap.unknown", "a capability that was not presented to the hub admits nothing", "§8.2")
def unknown(context: CheckContext) -> None:
    writer = context.stranger()
    writer.auth_ref = token_bytes(32)
    context.probe.submit(writer.message()).expect_row("CAP_MISSING")


@CHECKS.claim("cap.subject", "a capability admits no other key", "§6, §8.2")
def subject(context: CheckContext) -> None:
    owner = context.stranger()
    owner.auth_ref = context.grant(owner).auth_ref()
    thief = replace(owner, key=SigningKey.generate())
    context.probe.submit(thief.message()).expect_row("AUTH_REF")
    owner.send()


@CHECKS.claim("cap.streams", "a capability admits no other stream", "§6, §8.2")
def streams(context: CheckContext) -> None:
    owner, other = context.stranger(), context.stranger()
    context.grant(other)  # with epochs, the hub must know the other stream
    owner.auth_ref = context.grant(owner).auth_ref()
    context.probe.submit(replace(owner, label=other.label).message()).expect_row("AUTH_REF")
    owner.send()


@CHECKS.claim("cap.chain", "a capability may be signed again, and every link of the chain must verify", "§6")
def chain(context: CheckContext) -> None:
    writer = context.stranger()
    token = cap_token.mint(context.issuer, writer.key.public_key, [writer.stream_id], _TTL_SEC)
    longer = cap_token.resign(cap_token.resign(token, context.issuer), context.issuer)
    for number, link in enumerate(longer.sig_chain):
        links = list(longer.sig_chain)
        links[number] = bytes([link[0] ^ 1]) + link[1:]
        _present(context, replace(longer, sig_chain=tuple(links))).expect_row("CAP_INVALID")
    swapped = replace(longer, sig_chain=longer.sig_chain[1:])
    _present(context, swapped).expect_row("CAP_INVALID")
    writer.auth_ref = context.authorize(longer).auth_ref
    writer.send()


@CHECKS.claim("cap.altered", "no field of a capability can be changed after it was signed", "§6")
def altered(context: CheckContext) -> None:
    token = _token(context)
    changes = [
        replace(token, subject_pk=SigningKey.generate().public_key),
        replace(token, allow=replace(token.allow, ttl=token.allow.ttl + 1)),
        replace(token, allow=replace(token.allow, stream_ids=(token_bytes(32),))),
        replace(token, allow=replace(token.allow, rate=Rate(1, 1))),
    ]
    for changed in changes:
        _present(context, changed).expect_row("CAP_INVALID")


@CHECKS.claim("cap.issuer", "only capabilities of an issuer that the operator trusts are accepted", "§6.1")
def issuer(context: CheckContext) -> None:
    _ = context.issuer  # without a trusted issuer a rejection would prove nothing
    stranger = SigningKey.generate()
    token = _token(context, issuer=stranger)
    reply = _present(context, token)
    expect(reply.status in (401, 403), f"the capability of an unknown issuer was answered with {reply.status}")
    reply.refused()


def _need_presentations(context: CheckContext) -> None:
    if not context.facts.knows_presentations:
        raise Skipped("the hub is older than presentations")


@CHECKS.claim("cap.audience", "a capability that was presented for another hub is rejected", "§6")
def audience(context: CheckContext) -> None:
    _need_presentations(context)
    elsewhere = context.presented(_token(context), hub_id=token_bytes(32))
    context.probe.post("/tooling/authorize", elsewhere).expect_row("CAP_INVALID")


@CHECKS.claim(
    "cap.date",
    "a capability ends at the date of its presentation, also if it was never used",
    "§6",
)
def date(context: CheckContext) -> None:
    _need_presentations(context)
    now = context.status().hub_ts
    late = context.presented(_token(context), not_after=max(now - 1, 0))
    context.probe.post("/tooling/authorize", late).expect_row("CAP_TTL")
    sooner = context.presented(_token(context), not_after=now + _TTL_SEC // 2)
    found = context.probe.post("/tooling/authorize", sooner).offered(AuthorizeResponse)
    expect_equal(found.expires_at, now + _TTL_SEC // 2, "expires_at")


def _invalid_encodings(token: CapToken) -> dict[str, bytes]:
    """A capability in encodings that no issuer may use."""
    ids = sorted(token_bytes(32) for _ in range(2))

    def built(allow: cbor.Value, links: cbor.Value = token.sig_chain) -> bytes:
        return cbor.encode({1: 1, 2: token.issuer_pk, 3: token.subject_pk, 4: allow, 5: links})

    return {
        "no streams": built({1: [], 2: 1}),
        "streams out of order": built({1: [ids[1], ids[0]], 2: 1}),
        "a stream twice": built({1: [ids[0], ids[0]], 2: 1}),
        "null for a rate": built({1: ids, 2: 1, 3: None}),
        "an unknown key in allow": built({1: ids, 2: 1, 4: 1}),
        "an unknown key in rate": built({1: ids, 2: 1, 3: {1: 1, 2: 1, 3: 1}}),
        "no signature": built({1: ids, 2: 1}, []),
        "nine signatures": built({1: ids, 2: 1}, [token.sig_chain[0]] * 9),
        "bytes after its end": token.encode() + b"\x00",
    }


@CHECKS.claim("cap.form", "a capability in a non-canonical encoding is rejected", "§6, §3.1")
def form(context: CheckContext) -> None:
    for name, encoded in _invalid_encodings(_token(context)).items():
        with case(name):
            _present(context, encoded).expect_code("E.BAD_REQUEST")


@CHECKS.claim("cap.ttl", "a capability admits until it expires, and not after", "§6, §8.2")
def ttl(context: CheckContext) -> None:
    context.probe.submit(context.expired.idle.owner.message()).expect_row("CAP_TTL")


@CHECKS.claim("cap.burst", "a capability admits as many messages at once as its burst", "§6, §8.2; 001 OP0.3")
def burst(context: CheckContext) -> None:
    writer = context.stranger()
    writer.auth_ref = context.grant(writer, rate=Rate(0, _BURST)).auth_ref()
    for _ in range(_BURST):
        context.probe.submit(writer.message(client_seq=9), patient=False)  # a rejected message uses no rate
        writer.send()
    context.probe.submit(writer.message(), patient=False).expect_row("CAP_RATE")


@CHECKS.claim(
    "cap.refill", "an exhausted capability states how long to wait, and admits again then", "§6, §8.2; 001 OP0.3"
)
def refill(context: CheckContext) -> None:
    writer, once = context.stranger(), Rate(1, 1)
    writer.auth_ref = context.grant(writer, rate=once).auth_ref()
    accepted: list[int] = []
    while (reply := context.probe.submit(writer.message(), patient=False)).status == 200:
        accepted.append(reply.read(SubmitResponse).receipt.hub_ts)
        _check_possible(once, accepted)
        if len(accepted) == _MAX_ACCEPTED:
            raise Skipped("the hub is too slow to receive two messages within a second")
        writer.client_seq += 1
    wait = reply.expect_row("CAP_RATE").retry_after
    if wait is None:
        raise Failed("the rejection has no retry_after although the rate refills")
    expect(1 <= wait <= _MAX_WAIT_SEC, f"retry_after is {wait} for a rate of one a second")
    expect_equal(reply.headers.get("retry-after"), str(wait), "the header Retry-After")
    time.sleep(wait)
    expect(context.probe.submit(writer.message()).status == 200, f"still rejected after the stated {wait} s")


def _check_possible(allowed: Rate, accepted: list[int]) -> None:
    try:
        cap_token.replay(allowed, accepted)
    except ValueError:
        raise Failed(f"{len(accepted)} messages were accepted by hub_ts {accepted[-1]}, above the rate") from None
