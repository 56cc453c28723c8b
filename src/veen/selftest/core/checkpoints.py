"""Scenario C: reproducible checkpoints, and epochs that follow each other. Spec 001 §20; §4.4, §12."""

from veen.core import Checkpoint, proof
from veen.core.envelopes import CheckpointRequest, CheckpointResponse
from veen.core.tooling_messages import ConsistencyRequest, ProofAtResponse
from veen.selftest.check import claim
from veen.selftest.check_context import CheckContext
from veen.selftest.verdict import Skipped, expect, expect_equal
from veen.selftest.writer import Writer

_MAX_WAIT_SEC = 10
_ATTEMPTS = 3


def checkpoint_at(context: CheckContext, label: bytes, upto_seq: int) -> Checkpoint:
    asked = CheckpointRequest(label, upto_seq)
    return context.probe.post("/v1/checkpoint", asked).read(CheckpointResponse).checkpoint


@claim("checkpoint.prefix", "every prefix has a checkpoint with its place and root, signed by the hub", "§4.4")
def prefix(context: CheckContext) -> None:
    for accepted in context.filled:
        label, upto_seq = accepted.receipt.label, accepted.receipt.stream_seq
        found = checkpoint_at(context, label, upto_seq)
        expect_equal((found.label_curr, found.upto_seq), (label, upto_seq), "the place of a checkpoint")
        expect_equal(found.mmr_root, accepted.receipt.mmr_root, f"the root of the checkpoint at {upto_seq}")
        context.facts.verify_checkpoint(found)


@claim("checkpoint.again", "the checkpoint of a prefix does not change when the log grows", "§4.4")
def again(context: CheckContext) -> None:
    writer = context.writer()
    writer.send()
    seq = writer.send().receipt.stream_seq
    first = checkpoint_at(context, writer.label, seq)
    writer.send()
    expect(checkpoint_at(context, writer.label, seq) == first, "the checkpoint of the same prefix changed")


@claim("checkpoint.labels", "a checkpoint names its label, its epoch and the previous label", "§4.4.1")
def labels(context: CheckContext) -> None:
    writer = context.writer()
    seq = writer.send().receipt.stream_seq
    found = checkpoint_at(context, writer.label, seq)
    found.check_labels(context.profile, context.facts.routing_key, writer.stream_id)


@claim("checkpoint.grown", "a consistency proof exists from each tree to every later one", "§5.4, §4.4.1")
def grown(context: CheckContext) -> None:
    new = checkpoint_at(context, context.filled[-1].msg.label, len(context.filled))
    for accepted in context.filled:
        old = accepted.receipt
        asked = ConsistencyRequest(old.label, old.stream_seq, new.upto_seq)
        found = context.probe.post("/tooling/consistency", asked).offered(ProofAtResponse).mmr_proof
        proof.verify_consistency(found, old, new)


def _in_epoch(context: CheckContext, writer: Writer, epoch: int) -> Writer:
    """The same writer under its stream's label of another epoch, where it has not written yet."""
    label = context.facts.label(writer.stream_id, epoch)
    return Writer(context.probe, context.facts, writer.stream_id, label, writer.key, writer.auth_ref)


@claim("epoch.window", "labels of the epochs around the hub's own are accepted, and no others", "§12, §7 I12")
def window(context: CheckContext) -> str:
    context.need_epochs()
    reach = context.facts.window()
    for _ in range(_ATTEMPTS):
        writer = context.writer()
        before = context.status().epoch
        outside = [context.probe.submit(_in_epoch(context, writer, before + away).message()) for away in _beyond(reach)]
        inside = [context.probe.submit(_in_epoch(context, writer, before + away).message()) for away in {-reach, reach}]
        if context.status().epoch != before:
            continue  # the epoch changed during the check
        for reply in outside:
            reply.expect_row("EPOCH")
        expect(all(reply.status == 200 for reply in inside), f"a label {reach} epochs away was rejected")
        return f"{reach} epochs in each direction"
    raise Skipped(f"an epoch of {context.profile.epoch_sec} s ends before its window can be tested")


def _beyond(reach: int) -> tuple[int, ...]:
    return -reach - 1, reach + 1, reach + 1000


@claim("epoch.roll", "in the next epoch a stream continues under a label that refers to the previous one", "§4.4.1")
def roll(context: CheckContext) -> None:
    context.need_epochs()
    writer = context.writer()
    now = context.status()
    starts = (now.epoch + 1) * context.profile.epoch_sec
    if starts - now.hub_ts > _MAX_WAIT_SEC:
        raise Skipped(f"the next epoch begins in {starts - now.hub_ts} s; the check waits at most {_MAX_WAIT_SEC} s")
    old = _in_epoch(context, writer, now.epoch)
    old.send()
    context.wait_until(starts)
    new = _in_epoch(context, writer, now.epoch + 1)
    expect_equal(new.send().receipt.stream_seq, 1, "stream_seq of a stream's first message in an epoch")
    for one in (old, new):
        found = checkpoint_at(context, one.label, 1)
        found.check_labels(context.profile, context.facts.routing_key, writer.stream_id)
        context.facts.verify_checkpoint(found)
    expect_equal(found.label_prev, old.label, "label_prev of the first checkpoint after a rotation")


CHECKS = (prefix, again, labels, grown, window, roll)
