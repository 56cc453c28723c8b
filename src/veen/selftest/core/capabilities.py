"""Scenario D: capabilities, from authorize to the message that names one. Spec 001 §20; §6."""

import time
from dataclasses import replace
from secrets import token_bytes

from veen.core import CapToken, Rate, SigningKey, cap_token, cbor
from veen.core.envelopes import StreamRequest, SubmitResponse
from veen.selftest.check import claim
from veen.selftest.check_context import CheckContext
from veen.selftest.hub_facts import OPEN
from veen.selftest.probe import ProbeReply
from veen.selftest.verdict import Failed, Skipped, expect, expect_equal, only

_TTL_SEC = 3600
_BURST = 3
_LONGEST_WAIT_SEC = 5
_SLOW = 10


def _token(trial: CheckContext, subject_pk: bytes | None = None, issuer: SigningKey | None = None) -> CapToken:
    """A capability nobody has seen, for a stream of its own."""
    subject_pk = subject_pk or SigningKey.generate().public_key
    return cap_token.mint(issuer or trial.issuer, subject_pk, [token_bytes(32)], _TTL_SEC)


def _shown(trial: CheckContext, token: CapToken | bytes) -> ProbeReply:
    return trial.probe.post("/tooling/authorize", token)


@claim("cap.authorize", "a capability that is shown is named, dated and receipted", "§6, §6.1")
def authorize(trial: CheckContext) -> None:
    token = _token(trial)
    found = trial.authorize(token)
    expect_equal(found.auth_ref, token.auth_ref(), "auth_ref")
    expect_equal(found.expires_at, found.receipt.hub_ts + _TTL_SEC, "expires_at")
    trial.facts.verify_receipt(found.receipt)


@claim("cap.logged", "the receipt of an authorisation is that of an entry anyone can read", "§6.1")
def logged(trial: CheckContext) -> None:
    receipt = trial.authorize(_token(trial)).receipt
    page = trial.page(StreamRequest(receipt.label, receipt.stream_seq, to_seq=receipt.stream_seq, with_receipts=True))
    item = only(page.items, "entries at the receipt's place")
    expect(item.receipt == receipt, "the log holds another receipt at that place")
    receipt.check_binds(item.msg)
    item.msg.verify_signature()


@claim("cap.again", "showing a capability again changes nothing, its expiry neither", "§6 issued_at")
def again(trial: CheckContext) -> None:
    token = _token(trial)
    first = trial.authorize(token)
    trial.wait_until(first.receipt.hub_ts + 1)
    expect(trial.authorize(token) == first, "the second answer is another than the first")


@claim("cap.admits", "the subject of a capability writes to its streams", "§6, §7 I7")
def admits(trial: CheckContext) -> None:
    writer = trial.stranger()
    writer.auth_ref = trial.grant(writer, writer.stream_id, token_bytes(32)).auth_ref()
    receipt = writer.send().receipt
    trial.facts.verify_receipt(receipt)


@claim("cap.needed", "where capabilities are needed, a message without one is refused", "§8.2")
def needed(trial: CheckContext) -> None:
    if trial.facts.admission == OPEN:
        raise Skipped("the hub admits anyone")
    trial.probe.submit(trial.stranger().message()).expect_row("CAP_MISSING")


@claim("cap.unknown", "a capability that was not shown to the hub admits nothing", "§8.2")
def unknown(trial: CheckContext) -> None:
    writer = trial.stranger()
    writer.auth_ref = token_bytes(32)
    trial.probe.submit(writer.message()).expect_row("CAP_MISSING")


@claim("cap.subject", "a capability admits no other key", "§6, §8.2")
def subject(trial: CheckContext) -> None:
    owner = trial.stranger()
    owner.auth_ref = trial.grant(owner).auth_ref()
    thief = replace(owner, key=SigningKey.generate())
    trial.probe.submit(thief.message()).expect_row("AUTH_REF")
    owner.send()


@claim("cap.streams", "a capability admits to no other stream", "§6, §8.2")
def streams(trial: CheckContext) -> None:
    owner, other = trial.stranger(), trial.stranger()
    trial.grant(other)  # so that the hub knows the other stream, with epochs too
    owner.auth_ref = trial.grant(owner).auth_ref()
    trial.probe.submit(replace(owner, label=other.label).message()).expect_row("AUTH_REF")
    owner.send()


@claim("cap.chain", "a capability may be signed again, and every link of the chain must hold", "§6")
def chain(trial: CheckContext) -> None:
    writer = trial.stranger()
    token = cap_token.mint(trial.issuer, writer.key.public_key, [writer.stream_id], _TTL_SEC)
    longer = cap_token.resign(cap_token.resign(token, trial.issuer), trial.issuer)
    for number, link in enumerate(longer.sig_chain):
        links = list(longer.sig_chain)
        links[number] = bytes([link[0] ^ 1]) + link[1:]
        _shown(trial, replace(longer, sig_chain=tuple(links))).expect_row("CAP_INVALID")
    swapped = replace(longer, sig_chain=longer.sig_chain[1:])
    _shown(trial, swapped).expect_row("CAP_INVALID")
    writer.auth_ref = trial.authorize(longer).auth_ref
    writer.send()


@claim("cap.altered", "nothing of a capability can be changed after it was signed", "§6")
def altered(trial: CheckContext) -> None:
    token = _token(trial)
    changes = [
        replace(token, subject_pk=SigningKey.generate().public_key),
        replace(token, allow=replace(token.allow, ttl=token.allow.ttl + 1)),
        replace(token, allow=replace(token.allow, stream_ids=(token_bytes(32),))),
        replace(token, allow=replace(token.allow, rate=Rate(1, 1))),
    ]
    for changed in changes:
        _shown(trial, changed).expect_row("CAP_INVALID")


@claim("cap.issuer", "a capability counts only from an issuer the operator trusts", "§6.1")
def issuer(trial: CheckContext) -> None:
    _ = trial.issuer  # without one that is trusted, a refusal would prove nothing
    stranger = SigningKey.generate()
    token = _token(trial, issuer=stranger)
    reply = _shown(trial, token)
    expect(reply.status in (401, 403), f"a stranger's capability was answered with {reply.status}")
    reply.refused()


def _bent(token: CapToken) -> dict[str, bytes]:
    """A capability in forms that no issuer may give it."""
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


@claim("cap.form", "a capability that is not in the one form is refused", "§6, §3.1")
def form(trial: CheckContext) -> None:
    for name, bent in _bent(_token(trial)).items():
        try:
            _shown(trial, bent).expect_code("E.BAD_REQUEST")
        except Failed as failed:
            raise Failed(f"{name}: {failed}") from None


@claim("cap.ttl", "a capability admits until its time is over, and not after", "§6, §8.2")
def ttl(trial: CheckContext) -> None:
    trial.probe.submit(trial.expired.idle.owner.message()).expect_row("CAP_TTL")


@claim("cap.burst", "a capability admits as many at once as its burst says", "§6, §8.2; 001 OP0.3")
def burst(trial: CheckContext) -> None:
    writer = trial.stranger()
    writer.auth_ref = trial.grant(writer, rate=Rate(0, _BURST)).auth_ref()
    for _ in range(_BURST):
        trial.probe.submit(writer.message(client_seq=9), patient=False)  # what is refused spends nothing
        writer.send()
    trial.probe.submit(writer.message(), patient=False).expect_row("CAP_RATE")


@claim("cap.refill", "a spent capability says how long to wait, and admits again then", "§6, §8.2; 001 OP0.3")
def refill(trial: CheckContext) -> None:
    writer, once = trial.stranger(), Rate(1, 1)
    writer.auth_ref = trial.grant(writer, rate=once).auth_ref()
    accepted: list[int] = []
    while (reply := trial.probe.submit(writer.message(), patient=False)).status == 200:
        accepted.append(reply.read(SubmitResponse).receipt.hub_ts)
        _check_possible(once, accepted)
        if len(accepted) == _SLOW:
            raise Skipped("the hub is too slow to be sent two messages in a second")
        writer.client_seq += 1
    wait = reply.expect_row("CAP_RATE").retry_after
    if wait is None:
        raise Failed("the refusal has no retry_after, though the bucket refills")
    expect(1 <= wait <= _LONGEST_WAIT_SEC, f"retry_after is {wait} for a rate of one a second")
    expect_equal(reply.headers.get("retry-after"), str(wait), "the header Retry-After")
    time.sleep(wait)
    expect(trial.probe.submit(writer.message()).status == 200, f"still refused after the {wait} s it asked for")


def _check_possible(allowed: Rate, accepted: list[int]) -> None:
    try:
        cap_token.replay(allowed, accepted)
    except ValueError:
        raise Failed(f"{len(accepted)} messages were admitted by hub_ts {accepted[-1]}, above the rate") from None


CHECKS = (
    authorize,
    logged,
    again,
    admits,
    needed,
    unknown,
    subject,
    streams,
    chain,
    altered,
    issuer,
    form,
    ttl,
    burst,
    refill,
)
