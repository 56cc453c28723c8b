"""The decisions of a witness and of its policies, as functions without state."""

from dataclasses import replace

import pytest

from tests.witness.small_hub import LABEL, NOW, SmallHub, without_proof
from veen.core import Refused, SigningKey, Unverified, signing
from veen.core.cosignature import (
    CosignRequest,
    Forked,
    HeldLabels,
    HeldRequest,
    ResetRequest,
    WitnessedLabel,
    WitnessPolicy,
    cosigned,
    reset,
    reset_digest,
)
from veen.core.envelopes import CheckpointOrder
from veen.core.hashing import h
from veen.core.hub_identity import HubIdentity
from veen.core.recovery import LabelRecovery

HUB_ID, NONCE = h(b"hub"), h(b"nonce")


def held_at(hub: SmallHub, size: int) -> WitnessedLabel:
    return WitnessedLabel(LABEL, hub.checkpoint(size))


def refused(known: HubIdentity | None, held: WitnessedLabel | None, asked: CosignRequest) -> str:
    with pytest.raises(Refused) as found:
        cosigned(known, held, asked, NOW)
    return found.value.detail_enum or found.value.code


def refused_reset(known: HubIdentity | None, held: WitnessedLabel | None, asked: ResetRequest) -> str:
    with pytest.raises(Refused) as found:
        reset(known, held, asked)
    return found.value.detail_enum or found.value.code


def test_a_witness_holds_the_size_and_root_of_its_last_checkpoint_or_reset() -> None:
    hub = SmallHub()
    nothing = WitnessedLabel(LABEL)
    assert (nothing.size, nothing.mmr_root) == (0, None)
    held = held_at(hub, 5)
    assert (held.size, held.mmr_root) == (5, hub.roots[4])
    _, asked = hub.recovered(3)
    back = replace(held, reset=asked.recovery)
    assert (back.size, back.mmr_root) == (3, hub.roots[2])
    _, asked = hub.recovered(0)
    assert (replace(held, reset=asked.recovery).size, replace(held, reset=asked.recovery).mmr_root) == (0, None)


def test_a_first_checkpoint_and_one_that_continues_the_held_one_are_cosigned() -> None:
    hub = SmallHub()
    assert cosigned(None, None, hub.request(3), NOW) == hub.identity
    assert cosigned(hub.identity, WitnessedLabel(LABEL), hub.request(3), NOW) == hub.identity
    assert cosigned(hub.identity, held_at(hub, 3), hub.request(3), NOW) == hub.identity
    assert cosigned(hub.identity, held_at(hub, 3), hub.request(8, 3), NOW) == hub.identity


def test_a_checkpoint_that_does_not_continue_the_held_one_is_refused() -> None:
    hub = SmallHub()
    held, fork = held_at(hub, 5), hub.forked(3)
    assert refused(hub.identity, held, hub.request(4)) == "OLDER"
    assert refused(hub.identity, held, without_proof(hub.request(9, 5))) == "PROOF"
    assert refused(hub.identity, held, fork.request(9, 5)) == "PROOF"
    with pytest.raises(Forked) as found:
        cosigned(hub.identity, held, fork.request(5), NOW)
    assert (found.value.proof.held, found.value.proof.offered) == (held.checkpoint, fork.checkpoint(5))


def test_a_retired_key_gets_no_cosignature_and_an_earlier_key_cannot_go_behind_a_later_one() -> None:
    hub = SmallHub()
    early = hub.request(3)
    old = hub.rotate()
    late = replace(early, identity=hub.identity, signature=hub.request(3).signature)
    assert refused(hub.identity, None, late) == "RETIRED_KEY"
    before = WitnessedLabel(LABEL, early.checkpoint)
    assert cosigned(hub.identity, before, late, NOW) == hub.identity, "the witness cosigned this one before"
    other = replace(late, checkpoint=SmallHub(hub.root, old, b"b").checkpoint(3))
    assert refused(hub.identity, before, other) == "RETIRED_KEY"
    hub = SmallHub(key=old)
    early = hub.request(5)
    hub.rotate(overlap_sec=10_000)
    overlapping = replace(hub.request(5), checkpoint=early.checkpoint)
    assert cosigned(hub.identity, None, overlapping, NOW) == hub.identity
    assert refused(hub.identity, held_at(hub, 4), overlapping) == "OLD_KEY"


def test_the_newer_record_of_a_hub_is_kept_and_two_key_histories_are_refused() -> None:
    hub = SmallHub()
    first, asked = hub.identity, hub.request(3)
    hub.rotate(overlap_sec=10_000)
    assert cosigned(first, None, hub.request(3), NOW) == hub.identity
    assert cosigned(hub.identity, None, asked, NOW) == hub.identity
    other = SmallHub(hub.root)
    other.identity = first
    other.rotate()
    assert refused(hub.identity, None, other.request(3)) == "KEY_HISTORY"


def test_a_recovery_takes_a_label_back_once() -> None:
    hub = SmallHub()
    held = held_at(hub, 5)
    after, asked = hub.recovered(3)
    identity, state = reset(hub.identity, held, asked)
    assert identity == after.identity
    assert state is not None
    assert state.size == 3
    assert reset(identity, state, asked) == (identity, None), "the same statement changes nothing"
    assert reset(hub.identity, held_at(hub, 2), asked) == (identity, None), "the witness holds less than was kept"
    assert reset(hub.identity, None, asked) == (identity, None)
    assert refused_reset(identity, held_at(after, 6), asked) == "USED_RESET"
    assert cosigned(identity, state, after.request(6, 3), NOW) == identity
    assert refused(identity, state, hub.request(6, 3)) in ("RETIRED_KEY", "OLD_KEY")


def test_a_label_that_was_lost_whole_begins_again_without_a_proof() -> None:
    hub = SmallHub()
    after, asked = hub.recovered(0)
    identity, state = reset(hub.identity, held_at(hub, 5), asked)
    assert state is not None
    assert cosigned(identity, state, after.request(2), NOW) == identity


def test_an_answer_about_held_labels_is_bound_to_its_request() -> None:
    key, hub = SigningKey.generate(), SmallHub()
    asked = HeldRequest(HUB_ID, NONCE)
    answer = HeldLabels.sign(key, asked, (held_at(hub, 3),), has_more=False)
    answer.verify(asked, key.public_key)
    for other in (replace(asked, nonce=HUB_ID), replace(asked, hub_id=NONCE)):
        with pytest.raises(Unverified, match="does not answer this request"):
            answer.verify(other, key.public_key)
    with pytest.raises(Unverified, match="ascending"):
        answer.verify(replace(asked, after=LABEL), key.public_key)
    swapped = WitnessedLabel(h(b"another label"), hub.checkpoint(3))
    with pytest.raises(Unverified, match="another label"):
        HeldLabels.sign(key, asked, (swapped,), has_more=False).verify(asked, key.public_key)
    with pytest.raises(Unverified):
        replace(answer, has_more=True).verify(asked, key.public_key)


def test_a_policy_counts_each_witness_once_and_never_the_hub() -> None:
    hub = SmallHub()
    one, two, three = (SigningKey.generate() for _ in range(3))
    names = {"one": one.public_key, "two": two.public_key, "three": three.public_key, "hub": hub.key.public_key}
    made = hub.checkpoint(3)
    digest = made.signing_digest()
    policy = WitnessPolicy(2, names)
    with pytest.raises(Unverified, match="cosigned by none, but the policy requires 2 of 4"):
        policy.check(made, hub.identity)
    sigs = tuple(sorted((one.sign(digest), hub.key.sign(digest))))
    with pytest.raises(Unverified, match="cosigned by one"):
        policy.check(replace(made, witness_sigs=sigs), hub.identity)
    sigs = tuple(sorted((one.sign(digest), three.sign(digest))))
    assert policy.check(replace(made, witness_sigs=sigs), hub.identity) == ("one", "three")
    for others in (one.sign(digest), SigningKey.generate().sign(digest), two.sign(hub.checkpoint(2).signing_digest())):
        with pytest.raises(Unverified, match="cosigned by one"):
            policy.check(replace(made, witness_sigs=(one.sign(digest), others)), hub.identity)


def test_a_policy_counts_the_cosignatures_of_a_reset() -> None:
    hub, one = SmallHub(), SigningKey.generate()
    after, asked = hub.recovered(2)
    stated = asked.recovery.statement
    cosigned_by = replace(stated, witness_sigs=(one.sign(reset_digest(stated.recovery)),))
    policy = WitnessPolicy(1, {"one": one.public_key})
    assert policy.reset_signers(asked.recovery, after.identity) == ()
    assert policy.reset_signers(LabelRecovery(cosigned_by, asked.recovery.rows), after.identity) == ("one",)


def test_an_order_of_a_checkpoint_is_signed_for_one_hub() -> None:
    key = SigningKey.generate()
    order = CheckpointOrder.signed(key, HUB_ID, LABEL, NONCE, NOW)
    assert order.sig is not None
    assert signing.is_valid(key.public_key, order.digest(HUB_ID), order.sig)
    assert not signing.is_valid(key.public_key, order.digest(NONCE), order.sig)
