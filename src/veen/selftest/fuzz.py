"""The fuzz suite: damaged messages and requests are refused, each with a word, and the hub goes on. Spec §8, §10."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from veen.core import Malformed, Msg, SigningKey, Unavailable, captoken, jsonform, jsontext
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
)
from veen.core.tooling import ConsistencyRequest, ProofAtRequest, ProofAtResponse
from veen.selftest import damage, drafts
from veen.selftest.check import Check, claim
from veen.selftest.probe import OK, SUBMIT_HEAD, Reply
from veen.selftest.trial import Trial
from veen.selftest.verdict import Failed, expect, expect_equal
from veen.selftest.writer import Accepted, Writer

Make: TypeAlias = Callable[[Random], bytes]
Ask: TypeAlias = Callable[[bytes], Reply]

_SHOWN_BYTES = 96
_BURST = 20


@dataclass(frozen=True, slots=True)
class Ground:
    """A label with a few entries, and the message that would be accepted next: what the damage is done to."""

    writer: Writer
    entries: tuple[Accepted, ...]
    good: Msg


def ground(trial: Trial) -> Ground:
    writer = trial.writer()
    entries = tuple(writer.send() for _ in range(3))
    return Ground(writer, entries, writer.message(b"the next"))


def _throw(trial: Trial, make: Make, ask: Ask, answer: type[Wire] | None = None) -> str:
    """Ask with damaged input, over and over. `answer` is what a request that is still good is answered with."""
    for number in range(trial.count):
        body = make(trial.rng)
        try:
            _check_answer(ask(body), answer)
        except (Failed, Unavailable) as error:
            shown = body[:_SHOWN_BYTES].hex() + ("…" if len(body) > _SHOWN_BYTES else "")
            raise Failed(f"{error}; input {number}, of {len(body)} bytes, was {shown}") from None
    return f"{trial.count} inputs"


def _check_answer(reply: Reply, answer: type[Wire] | None) -> None:
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
def messages(trial: Trial) -> str:
    good = trial.once(ground).good.encode()
    make = _other(good, damage.bytewise, damage.itemwise)
    return _throw(trial, make, lambda body: trial.probe.post("/v1/submit", SUBMIT_HEAD + body))


@claim("fuzz.envelopes", "a damaged submit request is refused, with a word on why", "§10.4.1, §8.2")
def envelopes(trial: Trial) -> str:
    good = SUBMIT_HEAD + trial.once(ground).good.encode()
    make = _other(good, damage.bytewise, damage.itemwise)
    return _throw(trial, make, lambda body: trial.probe.post("/v1/submit", body))


@claim("fuzz.signed", "a message that is wrong, and signed as it is, is refused, with a word on why", "§7, §8.2")
def signed(trial: Trial) -> str:
    stand = trial.once(ground)
    most = trial.facts.limits["max_hdr_bytes"]

    def make(rng: Random) -> bytes:
        return drafts.signed_wrong(rng, stand.good, stand.writer.key, most)

    return _throw(trial, make, lambda body: trial.probe.post("/v1/submit", SUBMIT_HEAD + body))


def _reads(trial: Trial) -> list[tuple[str, Wire, type[Wire]]]:
    label = trial.once(ground).writer.label
    return [
        ("/v1/stream", StreamRequest(label, 1, 3, 2, 1, True, True), StreamResponse),
        ("/v1/receipt", ReceiptRequest(label, 2), ReceiptResponse),
        ("/v1/proof", ProofRequest(label, 2), ProofResponse),
        ("/v1/checkpoint", CheckpointRequest(label, 2), CheckpointResponse),
    ]


@claim("fuzz.reads", "a damaged read request is answered or refused, with a word on why", "§10.4, §10.6")
def reads(trial: Trial) -> str:
    for path, request, answer in _reads(trial):
        make = _other(request.encode(), damage.bytewise, damage.itemwise)
        _throw(trial, make, lambda body, path=path: trial.probe.post(path, body), answer)  # type: ignore[misc]
    return f"{trial.count} inputs for each read"


@claim("fuzz.tooling", "a damaged capability or proof request is refused, or answered where it is none", "§6, §10.6")
def tooling(trial: Trial) -> str:
    label = trial.once(ground).writer.label
    issuer = trial.issuer if trial.has_issuer else SigningKey.generate()
    token = captoken.resign(captoken.mint(issuer, SigningKey.generate().public_key, [label], 60), issuer)
    make = _other(token.encode(), damage.bytewise, damage.itemwise)
    _throw(trial, make, lambda body: trial.probe.post("/tooling/authorize", body))
    make = _other(ProofAtRequest(label, 1, 2).encode(), damage.bytewise, damage.itemwise)
    _throw(trial, make, lambda body: trial.probe.post("/tooling/proof", body), ProofAtResponse)
    make = _other(ConsistencyRequest(label, 1, 2).encode(), damage.bytewise, damage.itemwise)
    _throw(trial, make, lambda body: trial.probe.post("/tooling/consistency", body), ProofAtResponse)
    return f"{trial.count} inputs for each"


@claim("fuzz.json", "a damaged request in JSON is refused, with a word on why", "§10.3, §10.6")
def in_json(trial: Trial) -> str:
    good = jsonform.encode(SubmitRequest(trial.once(ground).good))
    make = _other_text(good)
    _throw(trial, make, lambda body: trial.probe.post_json("/v1/submit", body))
    for path, request, answer in _reads(trial):
        make = _other_text(jsonform.encode(request))
        _throw(trial, make, lambda body, path=path: trial.probe.post_json(path, body), answer)  # type: ignore[misc]
    return f"{trial.count} inputs for each path"


def _other_text(good: bytes) -> Make:
    """JSON text damaged so that it says something else: spaces between tokens say nothing."""
    said = jsontext.decode(good, "request")

    def make(rng: Random) -> bytes:
        while _says(damaged := rng.choice((damage.bytewise, damage.tokenwise))(rng, good)) == said:
            pass
        return damaged

    return make


def _says(text: bytes) -> jsontext.Json:
    try:
        return jsontext.decode(text, "request")
    except Malformed:
        return None


@claim("fuzz.afterwards", "after damage the log is what it was, and the next message is accepted", "§7 I13, §8.1")
def afterwards(trial: Trial) -> None:
    new = ground(trial)  # of its own: the label that the others damaged messages for may have run out since
    make = _other(SUBMIT_HEAD + new.good.encode(), damage.bytewise)
    for _ in range(_BURST):
        trial.probe.post("/v1/submit", make(trial.rng))
    for stand in (trial.once(ground), new):
        found = [(item.msg, item.receipt) for item in trial.pages(stand.writer.label, with_receipts=True)]
        expect(found == list(stand.entries), "the log is not what it was before")
    receipt = new.writer.accept(new.good).receipt
    expect_equal(receipt.stream_seq, len(new.entries) + 1, "stream_seq of the next message")
    expect(trial.probe.get("/readyz").status == OK, "the hub is not ready any more")


CHECKS: tuple[Check, ...] = (messages, envelopes, signed, reads, tooling, in_json, afterwards)
