"""Scenario C: checkpoints that can be made again, and epochs that follow each other. Spec 001 §20; §4.4, §12."""

from veen.core import Checkpoint, proof
from veen.core.envelopes import CheckpointRequest, CheckpointResponse
from veen.core.tooling_messages import ConsistencyRequest, ProofAtResponse
from veen.selftest.check import claim
from veen.selftest.check_context import CheckContext
from veen.selftest.verdict import Skipped, expect, expect_equal
from veen.selftest.writer import Writer

_LONGEST_WAIT_SEC = 10
_ATTEMPTS = 3


def checkpoint_at(trial: CheckContext, label: bytes, upto_seq: int) -> Checkpoint:
    asked = CheckpointRequest(label, upto_seq)
    return trial.probe.post("/v1/checkpoint", asked).read(CheckpointResponse).checkpoint


@claim("checkpoint.prefix", "there is a checkpoint of any prefix: its place, its root, signed by the hub", "§4.4")
def prefix(trial: CheckContext) -> None:
    for accepted in trial.filled:
        label, upto_seq = accepted.receipt.label, accepted.receipt.stream_seq
        found = checkpoint_at(trial, label, upto_seq)
        expect_equal((found.label_curr, found.upto_seq), (label, upto_seq), "the place of a checkpoint")
        expect_equal(found.mmr_root, accepted.receipt.mmr_root, f"the root of the checkpoint at {upto_seq}")
        trial.facts.verify_checkpoint(found)


@claim("checkpoint.again", "the same prefix gives the same checkpoint, however much was added since", "§4.4")
def again(trial: CheckContext) -> None:
    writer = trial.writer()
    writer.send()
    seq = writer.send().receipt.stream_seq
    first = checkpoint_at(trial, writer.label, seq)
    writer.send()
    expect(checkpoint_at(trial, writer.label, seq) == first, "the checkpoint of the same prefix changed")


@claim("checkpoint.labels", "a checkpoint names its label, its epoch, and the label before it", "§4.4.1")
def labels(trial: CheckContext) -> None:
    writer = trial.writer()
    seq = writer.send().receipt.stream_seq
    found = checkpoint_at(trial, writer.label, seq)
    found.check_labels(trial.profile, trial.facts.routing_key, writer.stream_id)


@claim("checkpoint.grown", "each tree is proved to be a prefix of every later one", "§5.4, §4.4.1")
def grown(trial: CheckContext) -> None:
    new = checkpoint_at(trial, trial.filled[-1].msg.label, len(trial.filled))
    for accepted in trial.filled:
        old = accepted.receipt
        asked = ConsistencyRequest(old.label, old.stream_seq, new.upto_seq)
        found = trial.probe.post("/tooling/consistency", asked).offered(ProofAtResponse).mmr_proof
        proof.verify_consistency(found, old, new)


def _in_epoch(trial: CheckContext, writer: Writer, epoch: int) -> Writer:
    """The same writer under its stream's label of another epoch, where it has not written yet."""
    label = trial.facts.label(writer.stream_id, epoch)
    return Writer(trial.probe, trial.facts, writer.stream_id, label, writer.key, writer.auth_ref)


@claim("epoch.window", "labels are taken from the epochs around the hub's own, and from no others", "§12, §7 I12")
def window(trial: CheckContext) -> str:
    trial.need_epochs()
    reach = trial.facts.window()
    for _ in range(_ATTEMPTS):
        writer = trial.writer()
        before = trial.status().epoch
        outside = [trial.probe.submit(_in_epoch(trial, writer, before + away).message()) for away in _beyond(reach)]
        inside = [trial.probe.submit(_in_epoch(trial, writer, before + away).message()) for away in {-reach, reach}]
        if trial.status().epoch != before:
            continue  # the window moved while it was looked at
        for reply in outside:
            reply.expect_row("EPOCH")
        expect(all(reply.status == 200 for reply in inside), f"a label {reach} epochs away was refused")
        return f"{reach} epochs either way"
    raise Skipped(f"an epoch of {trial.profile.epoch_sec} s is over before its window can be tried")


def _beyond(reach: int) -> tuple[int, ...]:
    return -reach - 1, reach + 1, reach + 1000


@claim("epoch.roll", "in the next epoch a stream goes on under a label that leads back to the one before", "§4.4.1")
def roll(trial: CheckContext) -> None:
    trial.need_epochs()
    writer = trial.writer()
    now = trial.status()
    starts = (now.epoch + 1) * trial.profile.epoch_sec
    if starts - now.hub_ts > _LONGEST_WAIT_SEC:
        raise Skipped(f"the next epoch begins in {starts - now.hub_ts} s, and {_LONGEST_WAIT_SEC} are waited for")
    old = _in_epoch(trial, writer, now.epoch)
    old.send()
    trial.wait_until(starts)
    new = _in_epoch(trial, writer, now.epoch + 1)
    expect_equal(new.send().receipt.stream_seq, 1, "stream_seq of a stream's first message in an epoch")
    for one in (old, new):
        found = checkpoint_at(trial, one.label, 1)
        found.check_labels(trial.profile, trial.facts.routing_key, writer.stream_id)
        trial.facts.verify_checkpoint(found)
    expect_equal(found.label_prev, old.label, "label_prev of the first checkpoint after a rotation")


CHECKS = (prefix, again, labels, grown, window, roll)
