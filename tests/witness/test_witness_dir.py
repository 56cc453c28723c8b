"""A witness cosigns one history of a label, whatever hubs ask and whenever it dies."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lab.disk import DEATHS, ERRORS, Died, EverythingSurvives, Fault, Platter, SeededSurvival, SimulatedDisk, at_call
from tests.witness.small_hub import LABEL, NOW, SmallHub, without_proof
from veen.client import evidence
from veen.client.trust import HubRecord
from veen.core import Limits, Refused, SigningKey, Unavailable, Unverified, VeenError, limits, signing
from veen.core.cosignature import Cosignature, Forked, HeldRequest, reset_digest
from veen.core.hashing import h
from veen.core.passphrase import Cost, WrongPassphrase
from veen.witness import witness_dir
from veen.witness.witness_dir import WitnessDir

NONCE = bytes(32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    witness_dir.create(tmp_path / "witness", None)
    return tmp_path / "witness"


@pytest.fixture
def witness(folder: Path) -> Iterator[WitnessDir]:
    opened = WitnessDir(folder, witness_dir.read_key(folder, None), clock=lambda: NOW)
    yield opened
    opened.close()


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(Refused) as found:
        work()
    return found.value.detail_enum or found.value.code


def test_a_cosignature_is_over_the_digest_that_the_hub_signs(witness: WitnessDir) -> None:
    asked = SmallHub().request(3)
    made = witness.cosign(asked)
    signing.verify(witness.key.public_key, asked.checkpoint.signing_digest(), made.sig, "cosignature")


def test_a_label_grows_by_consistency_proofs_only(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(3))
    assert refusal(lambda: witness.cosign(hub.request(8))) == "PROOF"
    assert refusal(lambda: witness.cosign(hub.request(8, 2))) == "PROOF"
    witness.cosign(hub.request(8, 3))
    assert witness.size(hub.identity.hub_id, LABEL) == 8


def test_a_repeated_request_gets_the_same_signature(witness: WitnessDir) -> None:
    hub = SmallHub()
    assert witness.cosign(hub.request(3)) == witness.cosign(hub.request(3))


def test_a_witness_never_goes_back(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(8))
    assert refusal(lambda: witness.cosign(hub.request(7))) == "OLDER"
    assert witness.size(hub.identity.hub_id, LABEL) == 8


def test_a_fork_is_refused_and_kept_as_evidence_that_verifies_offline(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(5))
    with pytest.raises(Forked):
        witness.cosign(hub.forked(3).request(5))
    (found,) = witness_dir.read_forks(witness.folder)
    known = HubRecord(found.identity, found.signature, found.profile, Limits())
    made = evidence.make_evidence(known, "", (found.held, found.offered))
    assert evidence.verify(made.encode(), hub.identity.hub_id).contradictions


def test_a_longer_fork_is_refused(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(5))
    fork = hub.forked(3)
    assert refusal(lambda: witness.cosign(fork.request(9, 3))) == "PROOF"
    assert refusal(lambda: witness.cosign(fork.request(9, 5))) == "PROOF"


def test_only_hubs_that_are_named_are_served(folder: Path) -> None:
    hub, other = SmallHub(), SmallHub()
    opened = WitnessDir(folder, witness_dir.read_key(folder, None), frozenset({hub.identity.hub_id}), clock=lambda: NOW)
    opened.cosign(hub.request(1))
    assert refusal(lambda: opened.cosign(other.request(1))) == "E.FORBIDDEN"
    assert refusal(lambda: opened.held(HeldRequest(other.identity.hub_id, NONCE))) == "E.FORBIDDEN"
    opened.close()


def test_a_checkpoint_of_a_retired_key_is_refused(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(3))
    thief = SmallHub(hub.root, hub.rotate())
    thief.identity = hub.identity
    stolen = replace(hub.request(5, 3), checkpoint=thief.checkpoint(5))
    assert refusal(lambda: witness.cosign(stolen)) == "RETIRED_KEY"
    witness.cosign(hub.request(5, 3))


def test_an_old_record_does_not_make_a_retired_key_current(witness: WitnessDir) -> None:
    hub = SmallHub()
    old = SmallHub(hub.root, hub.key)
    old.identity = hub.identity
    hub.rotate()
    witness.cosign(hub.request(3))
    assert refusal(lambda: witness.cosign(old.request(5, 3))) == "RETIRED_KEY"


def test_two_histories_of_keys_are_refused(witness: WitnessDir) -> None:
    hub = SmallHub()
    other = SmallHub(hub.root, hub.key)
    other.identity = hub.identity
    hub.rotate()
    other.rotate()
    witness.cosign(hub.request(3))
    assert refusal(lambda: witness.cosign(other.request(4, 3))) == "KEY_HISTORY"


def test_a_record_of_another_hub_is_not_accepted(witness: WitnessDir) -> None:
    asked = SmallHub().request(3)
    with pytest.raises(Unverified):
        witness.cosign(replace(SmallHub().request(3), identity=asked.identity))
    with pytest.raises(Unverified):
        witness.cosign(replace(asked, checkpoint=SmallHub().checkpoint(3)))


def test_a_recovery_resets_a_label_and_is_cosigned(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(9))
    after, asked = hub.recovered(5)
    assert refusal(lambda: witness.cosign(after.request(7, 5))) in ("OLDER", "PROOF")
    made = witness.reset(asked)
    signing.verify(witness.key.public_key, reset_digest(asked.recovery.statement.recovery), made.sig)
    assert witness.reset(asked) == made
    assert witness.size(hub.identity.hub_id, LABEL) == 5
    assert refusal(lambda: witness.cosign(without_proof(after.request(7)))) == "PROOF"
    assert refusal(lambda: witness.cosign(hub.request(10, 9))) in ("RETIRED_KEY", "OLD_KEY")
    witness.cosign(after.request(7, 5))


def test_a_recovery_that_lost_everything_resets_to_nothing(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(9))
    after, asked = hub.recovered(0)
    witness.reset(asked)
    witness.cosign(after.request(2))
    assert witness.size(hub.identity.hub_id, LABEL) == 2


def test_a_statement_resets_once(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(9))
    after, asked = hub.recovered(5)
    witness.reset(asked)
    witness.cosign(after.request(7, 5))
    assert refusal(lambda: witness.reset(asked)) == "USED_RESET"
    assert witness.size(hub.identity.hub_id, LABEL) == 7


def test_a_statement_without_the_endorsement_of_the_root_resets_nothing(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(9))
    _, asked = hub.recovered(5)
    stated = asked.recovery.statement
    for other in (SigningKey.generate(), hub.key):
        forged = replace(stated, endorsement=other.sign(stated.recovery.digest()))
        with pytest.raises(Unverified):
            witness.reset(replace(asked, recovery=replace(asked.recovery, statement=forged)))
    assert witness.size(hub.identity.hub_id, LABEL) == 9


def test_a_reset_never_moves_a_label_forward(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(5))
    longer = hub.forked(2).grow(8)
    after, asked = longer.recovered(7)
    witness.reset(asked)
    assert witness.size(hub.identity.hub_id, LABEL) == 5
    assert refusal(lambda: witness.cosign(after.request(8, 5))) == "PROOF"


def test_held_labels_are_signed_for_one_request(witness: WitnessDir) -> None:
    hub = SmallHub()
    for at in range(300):
        witness.cosign(hub.request(1, label=h(bytes([at // 256, at % 256]))))
    asked = HeldRequest(hub.identity.hub_id, NONCE)
    first = witness.held(asked)
    first.verify(asked, witness.key.public_key)
    again = HeldRequest(hub.identity.hub_id, NONCE, first.labels[-1].label)
    rest = witness.held(again)
    rest.verify(again, witness.key.public_key)
    assert (len(first.labels), first.has_more, len(rest.labels), rest.has_more) == (256, True, 44, False)
    for wrong in (replace(asked, nonce=h(b"")), again):
        with pytest.raises(Unverified):
            first.verify(wrong, witness.key.public_key)
    with pytest.raises(Unverified):
        replace(first, labels=first.labels[1:]).verify(asked, witness.key.public_key)


def test_the_number_of_labels_and_hubs_is_bounded(witness: WitnessDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WITNESSED_LABELS", 1)
    monkeypatch.setattr(limits, "MAX_WITNESSED_HUBS", 1)
    hub = SmallHub()
    witness.cosign(hub.request(1))
    assert refusal(lambda: witness.cosign(hub.request(1, label=h(b"other")))) == "E.LIMIT"
    assert refusal(lambda: witness.cosign(SmallHub().request(1))) == "E.LIMIT"
    witness.cosign(hub.request(2, 1))


def test_a_key_is_private_and_may_be_encrypted(tmp_path: Path, folder: Path) -> None:
    assert stat.S_IMODE((folder / witness_dir.PLAIN).stat().st_mode) == 0o600
    (folder / witness_dir.PLAIN).chmod(0o644)
    with pytest.raises(Unavailable):
        witness_dir.read_key(folder, None)
    sealed = tmp_path / "sealed"
    public_key = witness_dir.create(sealed, b"secret", cost=Cost(1, 8_192))
    assert witness_dir.read_key(sealed, b"secret").public_key == public_key
    with pytest.raises(WrongPassphrase):
        witness_dir.read_key(sealed, b"wrong")


def test_two_processes_cannot_use_one_directory(witness: WitnessDir) -> None:
    with pytest.raises(Unavailable):
        WitnessDir(witness.folder, witness.key)


def test_damaged_state_is_never_taken_for_no_state(witness: WitnessDir) -> None:
    hub = SmallHub()
    witness.cosign(hub.request(5))
    path = witness.folder / "hubs" / hub.identity.hub_id.hex() / f"{LABEL.hex()}.cbor"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(VeenError):
        witness.cosign(hub.forked(2).request(5))


SEEDS = range(140)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_witness_that_dies_at_any_call_never_cosigns_two_roots_for_one_size(folder: Path, seed: int) -> None:
    """Two histories of one hub ask in turns; the process dies, the power fails, or a call has an error."""
    rng = Random(seed)
    platter = Platter(folder)
    honest = SmallHub()
    rivals = [honest, honest.forked(2)]
    key = witness_dir.read_key(folder, None)
    signed: dict[int, set[bytes]] = {}
    faults = sorted({*DEATHS, *(fault for found in ERRORS.values() for fault in found)})
    for run in range(7):
        plan = at_call(rng.randrange(1, 30), rng.choice(faults)) if run < 6 else None
        disk = SimulatedDisk(platter, plan, rng)
        with suppress(Died, Unavailable):
            opened = WitnessDir(folder, key, disk=disk, clock=lambda: NOW)
            try:
                _ask(opened, rivals, rng, signed)
            finally:
                with suppress(OSError):
                    opened.close()
        survival = EverythingSurvives() if rng.random() < 0.3 else SeededSurvival(rng)
        disk.cut_power(survival)
    assert signed, "no run reached a signature"
    assert all(len(roots) == 1 for roots in signed.values()), f"seed {seed}: {signed}"


def _ask(opened: WitnessDir, rivals: list[SmallHub], rng: Random, signed: dict[int, set[bytes]]) -> None:
    for _ in range(8):
        hub = rng.choice(rivals)
        with suppress(Refused):
            since = opened.size(hub.identity.hub_id, LABEL)
            size = rng.randrange(max(3, since), since + 4)
            hub.grow(size)
            asked = hub.request(size, since)
            answer: Cosignature = opened.cosign(asked)
            signing.verify(opened.key.public_key, asked.checkpoint.signing_digest(), answer.sig)
            signed.setdefault(size, set()).add(asked.checkpoint.mmr_root)


def test_a_failed_sync_ends_all_cosigning(folder: Path) -> None:
    hub, platter = SmallHub(), Platter(folder)
    plan = lambda call: Fault.EIO if call.name == "sync_folder" and call.number > 6 else None  # noqa: E731
    opened = WitnessDir(
        folder, witness_dir.read_key(folder, None), disk=SimulatedDisk(platter, plan), clock=lambda: NOW
    )
    with pytest.raises(Unavailable):
        opened.cosign(hub.request(3))
    assert refusal(lambda: opened.cosign(hub.request(3))) == "E.UNAVAILABLE"
    opened.close()
    again = WitnessDir(folder, witness_dir.read_key(folder, None), clock=lambda: NOW)
    again.cosign(hub.request(3))
    again.close()
    assert os.listdir(folder / "hubs") == [hub.identity.hub_id.hex()]
