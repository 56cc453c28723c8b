"""The hub status (identity, profile, limits, time, health) and the tooling endpoints. Spec §3.2, §8.4, §12, §14."""

from dataclasses import replace
from secrets import token_bytes

from veen.core import Receipt
from veen.core import attachment as upload_proof
from veen.core.cbor import DeferredFaults
from veen.core.envelopes import CheckpointList, ErrorEnvelope
from veen.core.hashing import h
from veen.selftest.check import Skipped, Suite, case, expect, expect_equal
from veen.selftest.check_context import OPEN, REGISTRY, CheckContext
from veen.selftest.probe import NOT_FOUND, OK, Listener, ProbeReply

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
