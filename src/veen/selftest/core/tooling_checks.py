"""What a hub says of itself: identity, profile, limits, time, health. Spec §3.2, §8.4, §12, §14."""

from dataclasses import replace
from secrets import token_bytes

from veen.core import Receipt, upload_proof
from veen.core.cbor import DeferredFaults
from veen.core.envelopes import ErrorEnvelope
from veen.core.hashing import h
from veen.core.tooling_messages import CheckpointList
from veen.selftest.check import claim
from veen.selftest.check_context import CheckContext
from veen.selftest.core.checkpoints import checkpoint_at
from veen.selftest.hub_facts import OPEN, REGISTRY
from veen.selftest.probe import METHOD_NOT_ALLOWED, NOT_FOUND, OK, Listener, ProbeReply
from veen.selftest.verdict import Failed, Skipped, expect, expect_equal

_SLACK_SEC = 5


@claim("hub.status", "the hub says which it is, and by which profile, limits and rule of admission it works", "§12")
def status(trial: CheckContext) -> None:
    found, before = trial.status(), trial.facts
    expect_equal(found.hub_id, before.hub_id, "hub_id, asked for again,")
    expect_equal(found.profile, before.profile, "the profile, asked for again,")
    expect_equal(found.limits, before.limits, "the limits, asked for again,")
    expect_equal(found.admission, before.admission, "admission, asked for again,")


@claim("hub.profile", "profile_id is that of the profile the hub names", "§3.2")
def profile(trial: CheckContext) -> None:
    expect_equal(trial.facts.profile_id, trial.profile.profile_id(), "profile_id")


@claim("hub.limits", "no limit is above the protocol's", "§14, §14.1")
def limits(trial: CheckContext) -> None:
    for name, most in REGISTRY.items():
        expect(trial.facts.limits[name] <= most, f"{name} is {trial.facts.limits[name]}, above {most}")


@claim("hub.time", "the hub tells its time and its epoch, which is that time's, and neither goes back", "§3.2, §12")
def hub_time(trial: CheckContext) -> None:
    first, second = trial.status(), trial.status()
    expect(first.hub_ts <= second.hub_ts, f"hub_ts went back from {first.hub_ts} to {second.hub_ts}")
    for one in (first, second):
        expect_equal(one.epoch, one.profile.epoch(one.hub_ts), "epoch")
    if trial.may_write:
        stamped = trial.writer().send().receipt.hub_ts
        expect(stamped >= second.hub_ts, f"a receipt's hub_ts, {stamped}, is before the status's, {second.hub_ts}")
        now = trial.status().hub_ts
        expect(stamped <= now + _SLACK_SEC, f"a receipt's hub_ts, {stamped}, is ahead of the status's, {now}")


@claim("hub.identity", "every key of the hub is endorsed by the one before it, back to its hub_id", "§8.4")
def identity(trial: CheckContext) -> str:
    facts = trial.facts
    if facts.identity is None:
        raise Skipped("the status shows no identity record, so the hub's key is taken on its word")
    facts.verify_identity(facts.hub_id)
    active = facts.identity.signing_key_at(facts.hub_ts)
    expect_equal((facts.hub_pk, facts.key_id), (active.hub_pk, active.key_id), "the active key")
    return f"{len(facts.identity.hub_keys)} keys"


@claim("hub.pin", "it is the hub that was pinned", "§8.4")
def pin(trial: CheckContext) -> None:
    if trial.pin is None:
        raise Skipped("no pin was given")
    trial.facts.verify_identity(trial.pin)


@claim("hub.health", "the hub is alive, ready, and shows its metrics", "§12")
def health(trial: CheckContext) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        reply = trial.probe.get(path)
        expect(reply.status == 200, f"GET {path} answered {reply.status}")
    expect(b"# TYPE" in reply.body, "GET /metrics is not in Prometheus' text format")


HUB_STATUS_CHECKS = (status, profile, limits, hub_time, identity, pin, health)


_CREATED = 201
_ARRAY_MAJOR = 4
_ATTACHED_BYTES = 100_000


def _offered(reply: ProbeReply) -> ProbeReply:
    if reply.status in (NOT_FOUND, METHOD_NOT_ALLOWED):
        raise Skipped(f"the hub does not offer {reply.asked}")
    return reply


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


@claim("tool.batch", "the messages of a batch are judged one by one, in order, by the same rules", "§8.1")
def batch(trial: CheckContext) -> None:
    writer = trial.writer()
    first = writer.message(b"first")
    second = writer.message(b"second", client_seq=2)
    forged = replace(writer.message(client_seq=3), sig=bytes(64))
    third = writer.message(b"third", client_seq=3)
    sent = (first, second, first, forged, third)
    reply = _offered(trial.probe.post("/tooling/submit-batch", b"".join(message.encode() for message in sent)))
    expect(reply.status == OK, f"{reply.asked} answered {reply.status}")
    found = [_short(outcome) for outcome in _outcomes(reply.body)]
    expect_equal(found, [1, 2, "DUPLICATE", "SIG_INVALID", 3], "the row of outcomes")
    stored = [item.msg for item in trial.pages(writer.label)]
    expect(stored == [first, second, third], "the log does not hold what the batch was told")


def _short(outcome: Receipt | ErrorEnvelope) -> int | str | None:
    return outcome.stream_seq if isinstance(outcome, Receipt) else outcome.refused().detail_enum


@claim("tool.subscribe", "a subscriber gets every entry from the place it names, in order, as they commit", "§10.2")
def subscribe(trial: CheckContext) -> None:
    writer = trial.writer()
    sent = [writer.send() for _ in range(3)]
    with Listener(trial.probe, writer.label, 2) as listener:
        for wanted in sent[1:]:
            _check_item(listener, wanted.msg.encode(), wanted.receipt)
        for _ in range(2):
            new = writer.send()
            _check_item(listener, new.msg.encode(), new.receipt)


def _check_item(listener: Listener, encoded: bytes, receipt: Receipt) -> None:
    item = listener.item()
    expect_equal(item.stream_seq, receipt.stream_seq, "stream_seq of the next entry")
    expect(item.msg.encode() == encoded, f"the message at {item.stream_seq} is another")
    expect(item.receipt in (None, receipt), f"the receipt at {item.stream_seq} is another")


@claim("tool.checkpoints", "the checkpoints a hub lists are signed, ascend, and are those it gives one by one", "§4.4")
def checkpoints(trial: CheckContext) -> str:
    label = trial.filled[0].msg.label
    reply = trial.probe.get(f"/tooling/checkpoints?label={label.hex()}")
    found = reply.offered(CheckpointList)
    expect_equal(found.label, label, "the label of the list")
    behind = 0
    for checkpoint in found.checkpoints:
        trial.facts.verify_checkpoint(checkpoint)
        expect(checkpoint.upto_seq > behind, f"the checkpoint at {checkpoint.upto_seq} does not come after {behind}")
        single = checkpoint_at(trial, label, checkpoint.upto_seq)
        expect(replace(checkpoint, witness_sigs=None) == replace(single, witness_sigs=None), "two checkpoints differ")
        behind = checkpoint.upto_seq
    return f"{len(found.checkpoints)} checkpoints"


def _put(trial: CheckContext, name: bytes, sealed: bytes) -> ProbeReply:
    """Bring an attachment: as anyone where admission is open, else as the subject of a capability."""
    path = f"/tooling/attachments/{name.hex()}"
    if trial.facts.admission == OPEN:
        return _offered(trial.probe.put(path, sealed))
    writer = trial.stranger()
    auth_ref = trial.grant(writer).auth_ref()
    proof = upload_proof.sign(
        writer.key,
        hub_id=trial.facts.hub_id,
        coid=name,
        auth_ref=auth_ref,
        size=len(sealed),
        made_at=trial.status().hub_ts,
    )
    return _offered(trial.probe.put(path, sealed, proof.header()))


@claim("tool.attachment", "an attachment is kept under the hash of its bytes, and comes back as it was", "§4.6")
def attachment(trial: CheckContext) -> None:
    sealed = token_bytes(min(_ATTACHED_BYTES, trial.facts.limits["max_attachment_bytes"]))
    path = f"/tooling/attachments/{h(sealed).hex()}"
    for wanted in (_CREATED, OK):
        reply = _put(trial, h(sealed), sealed)
        expect(reply.status in (OK, wanted), f"{reply.asked} answered {reply.status}")
    found = trial.probe.get(path)
    expect((found.status, found.body) == (OK, sealed), "the attachment did not come back as it was")


@claim("tool.attachment-name", "bytes under a name that is not their hash are refused and not kept", "§4.6")
def attachment_name(trial: CheckContext) -> None:
    name = token_bytes(32)
    reply = _put(trial, name, b"something else")
    expect(400 <= reply.status < 500, f"{reply.asked} answered {reply.status} to bytes of another hash")
    found = trial.probe.get(f"/tooling/attachments/{name.hex()}")
    expect(found.status == NOT_FOUND, f"{found.asked} answered {found.status} though nothing was kept there")


@claim("tool.equivocation", "only two receipts of the hub's that contradict each other are evidence", "§7 I3, §8.4")
def equivocation(trial: CheckContext) -> None:
    receipt, other = trial.filled[0].receipt, trial.filled[1].receipt
    forged = replace(receipt, mmr_root=token_bytes(32))
    pairs = {
        "two that agree": _pair(receipt, receipt),
        "two places": _pair(receipt, other),
        "a forged one": _pair(receipt, forged),
    }
    for name, pair in pairs.items():
        reply = _offered(trial.probe.post("/tooling/equivocation", pair))
        try:
            expect(reply.status < 500, f"{reply.asked} answered {reply.status}")
            reply.error()
        except Failed as failed:
            raise Failed(f"{name}: {failed}") from None


def _pair(first: Receipt, second: Receipt) -> bytes:
    """Spelled out, since no encoder of ours writes one that is none."""
    return b"\xa3\x01\x01\x02" + first.encode() + b"\x03" + second.encode()


TOOLING_CHECKS = (batch, subscribe, checkpoints, attachment, attachment_name, equivocation)
