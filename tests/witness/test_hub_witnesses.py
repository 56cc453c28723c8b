"""A hub and its witnesses, over real HTTP: cosigned checkpoints, outages, rollback and recovery."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.hub.client import START, TOKEN, Clock, Hub, make_dir, running, until
from tests.witness.small_hub import SmallHub
from tests.witness.witness_fixture import RunningWitness, witnesses
from veen.core import Checkpoint, Limits, Profile, Refused, SigningKey, Unavailable, Unverified, control_stream, naming
from veen.core.checkpoint import RequestedCheckpoint
from veen.core.cosignature import HeldLabels, HeldRequest, WitnessPolicy
from veen.core.envelopes import (
    CheckpointOrder,
    CheckpointRequest,
    CheckpointResponse,
    ErrorEnvelope,
    StreamRequest,
    StreamResponse,
    WitnessRequest,
)
from veen.core.recovery import RecoveryList
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig
from veen.hub.cosigner import RolledBack
from veen.hub.service import HubService
from veen.storage import fsck, metadata, recovery, rotation
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import Folders

OPERATOR = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[RunningWitness]]:
    with witnesses(tmp_path, 3) as found:
        yield found


def policy(found: list[RunningWitness], threshold: int) -> WitnessPolicy:
    return WitnessPolicy(threshold, {f"w{at}": one.key.public_key for at, one in enumerate(found)})


def settings(found: list[RunningWitness]) -> dict[str, Any]:
    return {"witness_addresses": tuple(one.address for one in found)}


def ordered(hub: Hub, label: bytes) -> Checkpoint:
    return hub.post("/tooling/checkpoint", CheckpointOrder(label), **OPERATOR).read(CheckpointResponse).checkpoint


def served(hub: Hub, label: bytes, upto_seq: int) -> Checkpoint:
    return hub.post("/v1/checkpoint", CheckpointRequest(label, upto_seq)).read(CheckpointResponse).checkpoint


def held(witness: RunningWitness, hub_id: bytes) -> dict[bytes, int]:
    asked = HeldRequest(hub_id, bytes(32))
    status, body = witness.ask("POST", "/v1/held", asked)
    assert status == 200
    found = HeldLabels.decode(body)
    found.verify(asked, witness.key.public_key)
    return {one.label: one.size for one in found.labels}


def test_an_ordered_checkpoint_is_cosigned_stored_and_served_with_eight_fields(
    tmp_path: Path, three: list[RunningWitness]
) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir, **settings(three)) as hub:
        writer = hub.writer()
        writer.send_many(5)
        made = ordered(hub, writer.label)
        identity = hub.service.hub_metadata.identity
        assert policy(three, 3).check(made, identity) == ("w0", "w1", "w2")
        assert made.encode()[0] == 0x88, "an array of eight fields"
        assert served(hub, writer.label, 5) == made
        assert ordered(hub, writer.label) == made
        writer.send_many(4)
        later = ordered(hub, writer.label)
        policy(three, 3).check(later, identity)
        assert hub.get(f"/tooling/cosigned?label={writer.label.hex()}").read(Checkpoint) == later
        assert held(three[0], identity.hub_id)[writer.label] == 9
    assert fsck.check(data_dir).verdict is FsckVerdict.CLEAN
    with running(data_dir, **settings(three)) as hub:
        assert served(hub, writer.label, 5) == made


def test_the_log_says_which_checkpoints_are_stored(tmp_path: Path, three: list[RunningWitness]) -> None:
    with running(make_dir(tmp_path), **settings(three)) as hub:
        writer = hub.writer()
        writer.send_many(2)
        made = ordered(hub, writer.label)
        ordered(hub, writer.label)
        rules = hub.service.rules
        page = hub.post("/v1/stream", StreamRequest(hub.label(rules.control_stream), 1)).read(StreamResponse)
        events = [control_stream.event_of(rules.hub_id, item.msg, Limits()) for item in page.items]
        assert events == [RequestedCheckpoint(writer.label, 2, made.mmr_root)]


def test_regular_checkpoints_are_cosigned(tmp_path: Path, three: list[RunningWitness]) -> None:
    data_dir = make_dir(tmp_path, limits=Limits(max_checkpoint_interval=4))
    with running(data_dir, **settings(three)) as hub:
        writer = hub.writer()
        writer.send_many(9)
        until(lambda: len(served(hub, writer.label, 8).witness_sigs or ()) == 3)


def test_only_the_operator_or_a_capability_orders_a_checkpoint(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), admission=Admission.CAPABILITY) as hub:
        writer, other = hub.granted("s"), hub.granted("t")
        writer.send()
        assert hub.post("/tooling/checkpoint", CheckpointOrder(writer.label)).status == 401
        assert hub.post("/tooling/checkpoint", CheckpointOrder(writer.label), authorization="Bearer no").status == 401
        hub_id, now = hub.service.rules.hub_id, int(hub.clock())
        assert writer.auth_ref is not None
        assert other.auth_ref is not None
        good = CheckpointOrder.signed(writer.key, hub_id, writer.label, writer.auth_ref, now)
        assert hub.post("/tooling/checkpoint", good).read(CheckpointResponse).checkpoint.upto_seq == 1
        for bad, status in (
            (CheckpointOrder.signed(other.key, hub_id, writer.label, other.auth_ref, now), 403),
            (CheckpointOrder.signed(other.key, hub_id, writer.label, writer.auth_ref, now), 401),
            (CheckpointOrder.signed(writer.key, bytes(32), writer.label, writer.auth_ref, now), 401),
            (CheckpointOrder.signed(writer.key, hub_id, writer.label, writer.auth_ref, now - 10_000), 401),
            (CheckpointOrder.signed(writer.key, hub_id, writer.label, bytes(32), now), 403),
        ):
            assert hub.post("/tooling/checkpoint", bad).status == status


def test_a_witness_that_is_down_blocks_nothing_and_is_asked_again(tmp_path: Path, three: list[RunningWitness]) -> None:
    with running(make_dir(tmp_path), **settings(three)) as hub:
        writer = hub.writer()
        writer.send_many(3)
        three[0].stop()
        made = ordered(hub, writer.label)
        assert policy(three, 2).check(made, hub.service.hub_metadata.identity) == ("w1", "w2")
        assert writer.send().stream_seq == 4
        assert hub.get("/readyz").status == 200
        assert "witness" in hub.get("/readyz").json()["bad_states"]
        three[0].start()
        until(lambda: len(served(hub, writer.label, 3).witness_sigs or ()) == 3)
        until(lambda: "witness" not in hub.get("/readyz").json()["bad_states"])
        name = three[0].key.public_key.hex()[:16]
        assert f'veen_witness_cosignatures_total{{witness="{name}"}} 1.0' in hub.get("/metrics").body.decode()


def test_a_checkpoint_whose_key_was_retired_is_cosigned_under_the_new_key(
    tmp_path: Path, three: list[RunningWitness]
) -> None:
    data_dir, found = make_dir(tmp_path), three[:1]
    with running(data_dir, **settings(found)) as hub:
        known, missed = hub.writer("known"), hub.writer("missed")
        known.send_many(3)
        ordered(hub, known.label)
        found[0].stop()
        known.send_many(2)
        missed.send_many(3)
        assert [ordered(hub, one.label).witness_sigs for one in (known, missed)] == [None, None]
    rotation.rotate_key(Disk(), Folders(data_dir), START + 5, 0)
    found[0].now = START + 10
    found[0].start()
    with running(data_dir, clock=Clock(START + 10), **settings(found)) as hub:
        identity = hub.service.hub_metadata.identity
        for writer, size in ((known, 5), (missed, 3)):
            made = ordered(hub, writer.label)
            assert (made.upto_seq, policy(found, 1).check(made, identity)) == (size, ("w0",))
            current = served(hub, writer.label, size)
            assert identity.verify_checkpoint(current, Profile()) == identity.newest
            assert current.witness_sigs == made.witness_sigs
            assert hub.get(f"/tooling/cosigned?label={writer.label.hex()}").read(Checkpoint).upto_seq == size
        assert hub.get("/readyz").json()["bad_states"] == []
    assert fsck.check(data_dir).verdict is FsckVerdict.CLEAN


def test_a_checkpoint_that_a_witness_refuses_for_good_does_not_block_the_other_labels(
    tmp_path: Path, three: list[RunningWitness]
) -> None:
    epoch_sec = 1000
    data_dir, found, later = make_dir(tmp_path, Profile(epoch_sec=epoch_sec)), three[:1], START + 2 * epoch_sec
    found[0].stop()
    with running(data_dir, **settings(found), witness_quorum=0) as hub:
        for name in ("refused", "other"):
            hub.register(naming.stream_id(name))
        refused = hub.writer("refused")
        refused.send_many(3)
        assert ordered(hub, refused.label).witness_sigs is None
    rotation.rotate_key(Disk(), Folders(data_dir), later, 0)
    found[0].now = later + 10
    found[0].start()
    with running(data_dir, clock=Clock(later + 10), **settings(found)) as hub:
        identity = hub.service.hub_metadata.identity
        assert ordered(hub, refused.label).witness_sigs is None, "its key is retired, and the new one has another epoch"
        other = hub.writer("other")
        other.send_many(2)
        policy(found, 1).check(ordered(hub, other.label), identity)
        assert "witness" in hub.get("/readyz").json()["bad_states"], "one label still has no cosignature"


def test_two_of_three_hold_offline(tmp_path: Path, three: list[RunningWitness]) -> None:
    with running(make_dir(tmp_path), **settings(three)) as hub:
        writer = hub.writer()
        writer.send_many(3)
        three[2].stop()
        made = ordered(hub, writer.label)
        identity = hub.service.hub_metadata.identity
    policy(three, 2).check(made, identity)
    with pytest.raises(Unverified, match="3 of 3"):
        policy(three, 3).check(made, identity)
    sigs = made.witness_sigs or ()
    with pytest.raises(Unverified):
        policy(three, 2).check(replace(made, witness_sigs=(sigs[0], sigs[0])), identity)


def test_keys_of_the_hub_are_never_witnesses(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        writer = hub.writer()
        writer.send()
        identity = hub.service.hub_metadata.identity
        made = served(hub, writer.label, 1)
        own = replace(made, witness_sigs=(made.hub_sig,))
        assert WitnessPolicy(1, {"hub": identity.newest.hub_pk}).signers(own, identity) == ()
    with pytest.raises(Unavailable, match="key of the hub itself"):
        HubService(HubConfig(data_dir, port=0, witnesses=frozenset({identity.newest.hub_pk})), clocks=Clock().read)


def rolled_back(tmp_path: Path, found: list[RunningWitness]) -> tuple[Path, bytes]:
    """A directory that is a copy made after 3 of 5 entries, all of which are cosigned."""
    data_dir = make_dir(tmp_path)
    with running(data_dir, **settings(found)) as hub:
        writer = hub.writer()
        writer.send_many(3)
        ordered(hub, writer.label)
    shutil.copytree(data_dir, tmp_path / "copy")
    with running(data_dir, **settings(found)) as hub:
        writer.hub = hub
        writer.send_many(2)
        ordered(hub, writer.label)
    shutil.rmtree(data_dir)
    (tmp_path / "copy").rename(data_dir)
    return data_dir, writer.label


def start_error(data_dir: Path, found: list[RunningWitness], **given: Any) -> Exception:
    with pytest.raises((RolledBack, Unavailable)) as error:
        HubService(HubConfig(data_dir, port=0, **settings(found), **given), clocks=Clock().read)
    return error.value


def test_a_hub_that_was_rolled_back_does_not_start(tmp_path: Path, three: list[RunningWitness]) -> None:
    data_dir, label = rolled_back(tmp_path, three)
    for _ in range(2):
        error = start_error(data_dir, three)
        assert isinstance(error, RolledBack)
        assert label.hex() in str(error)
        assert "cosigned 5 entries, but this log has 3 entries" in str(error)
    three[0].stop()
    assert isinstance(start_error(data_dir, three), RolledBack)
    three[1].stop()
    assert isinstance(start_error(data_dir, three, witness_quorum=1), RolledBack)


def test_a_start_needs_a_majority_of_the_witnesses_or_an_explicit_choice(
    tmp_path: Path, three: list[RunningWitness]
) -> None:
    data_dir = make_dir(tmp_path)
    three[0].stop()
    with running(data_dir, **settings(three)):
        pass
    three[1].stop()
    error = start_error(data_dir, three)
    assert isinstance(error, Unavailable)
    assert "1 of 3 witnesses answered, and a start needs 2" in str(error)
    with running(data_dir, **settings(three), witness_quorum=0) as hub:
        assert hub.writer().send().stream_seq == 1


def test_a_hub_that_started_without_its_witness_stops_the_label_when_it_returns(
    tmp_path: Path, three: list[RunningWitness]
) -> None:
    data_dir, label = rolled_back(tmp_path, three)
    for one in three:
        one.stop()
    with running(data_dir, **settings(three), witness_quorum=0) as hub:
        three[0].start()
        ordered(hub, label)
        until(lambda: "lost_entries" in hub.get("/readyz").json()["bad_states"])
        assert hub.submit(hub.writer().message()).error().code == "E.UNAVAILABLE"


def test_a_recovered_hub_starts_and_its_statement_is_cosigned_as_a_reset(
    tmp_path: Path, three: list[RunningWitness]
) -> None:
    data_dir, label = rolled_back(tmp_path, three)
    recovery.recover(Disk(), data_dir, START + 1000)
    with running(data_dir, clock=Clock(START + 2000), **settings(three)) as hub:
        identity = hub.service.hub_metadata.identity
        assert [held(one, identity.hub_id)[label] for one in three] == [3, 3, 3]
        (stated,) = hub.get(f"/tooling/recoveries?label={label.hex()}").read(RecoveryList).recoveries
        assert policy(three, 3).reset_signers(stated, identity) == ("w0", "w1", "w2")
        hub.writer().send()
        policy(three, 3).check(ordered(hub, label), identity)
    assert fsck.check(data_dir).verdict is FsckVerdict.CLEAN


def test_an_incarnation_is_cosigned_and_the_one_before_does_not_start_again(
    tmp_path: Path, three: list[RunningWitness]
) -> None:
    root, asked = SigningKey.generate(), settings(three)
    for name, at in (("first", START), ("second", START + 1)):
        metadata.create(Disk(), tmp_path / name, Profile(), Limits(), at, root_key=root, incarnates=True)
    with running(tmp_path / "first", **asked) as hub:
        writer = hub.writer()
        writer.send_many(3)
        ordered(hub, writer.label)
    for _ in range(2):
        with running(tmp_path / "second", Clock(START + 10), **asked) as hub:
            identity = hub.service.hub_metadata.identity
            hub.writer().send_many(2)
            policy(three, 3).check(ordered(hub, writer.label), identity)
            (stated,) = hub.get(f"/tooling/recoveries?label={writer.label.hex()}").read(RecoveryList).recoveries
            assert policy(three, 3).check_reset(stated, identity) == ("w0", "w1", "w2")
    with pytest.raises(RolledBack), running(tmp_path / "first", Clock(START + 20), **asked):
        pass


def test_a_copy_that_went_another_way_does_not_start(tmp_path: Path, three: list[RunningWitness]) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        hub.writer().send_many(3)
    shutil.copytree(data_dir, tmp_path / "fork")
    with running(data_dir, **settings(three)) as hub:
        writer = hub.writer()
        writer.send_many(2)
        ordered(hub, writer.label)
    with running(tmp_path / "fork") as hub:
        hub.writer().send_many(4)
    error = start_error(tmp_path / "fork", three)
    assert isinstance(error, RolledBack)
    assert "cosigned 5 entries, but this log has another root there" in str(error)


def test_a_pulling_witness_gives_its_cosignature_to_the_hub(tmp_path: Path, three: list[RunningWitness]) -> None:
    known = three[0].key
    with running(make_dir(tmp_path), witnesses=frozenset({known.public_key})) as hub:
        writer = hub.writer()
        writer.send_many(3)
        made = served(hub, writer.label, 3)
        sig = known.sign(made.signing_digest())
        good = WitnessRequest(writer.label, 3, known.public_key, sig)
        assert hub.post("/tooling/witness", replace(good, upto_seq=2)).status == 403
        assert hub.post("/tooling/witness", replace(good, witness_pk=three[1].key.public_key)).status == 403
        hub.post("/tooling/witness", good).read(Checkpoint)
        assert served(hub, writer.label, 3).witness_sigs == (sig,)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xa1" * 100, bytes(1 << 16), b"\xbf\xff", b"\x9b" + b"\xff" * 8])
def test_hostile_requests_get_an_error_and_change_nothing(three: list[RunningWitness], body: bytes) -> None:
    witness, hub = three[0], SmallHub()
    for path in ("/v1/cosign", "/v1/reset", "/v1/held"):
        status, answer = witness.ask("POST", path, body)
        assert (status, ErrorEnvelope.decode(answer).code) == (400, "E.BAD_REQUEST")
    assert witness.ask("GET", "/v1/cosign")[0] == 404
    assert witness.ask("POST", "/v1/cosign", hub.request(2))[0] == 200
    encoded = hub.request(3, 2).encode()
    for at in range(0, len(encoded), 7):
        spoiled = encoded[:at] + bytes([encoded[at] ^ 1]) + encoded[at + 1 :]
        status, _ = witness.ask("POST", "/v1/cosign", spoiled)
        assert status in (400, 403, 409)
    assert witness.ask("POST", "/v1/cosign", bytes(1 << 20))[0] == 413
    assert held(witness, hub.identity.hub_id) == {hub.checkpoint(2).label_curr: 2}


def test_a_refusal_of_a_fork_carries_both_checkpoints(three: list[RunningWitness]) -> None:
    witness, hub = three[0], SmallHub()
    first, second = hub.request(5), hub.forked(2).request(5)
    assert witness.ask("POST", "/v1/cosign", first)[0] == 200
    status, body = witness.ask("POST", "/v1/cosign", second)
    refused: Refused = ErrorEnvelope.decode(body).refused()
    assert (status, refused.detail_enum) == (409, "FORK")
    found = [Checkpoint.decode(bytes.fromhex(str(refused.detail[name]))) for name in ("held", "offered")]
    assert found == [first.checkpoint, second.checkpoint]
    assert "veen_witness_forks 1.0" in witness.ask("GET", "/metrics")[1].decode()
