"""Hand-overs, coverage and recoveries: what signatures of older keys prove. Spec §8.4."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.core.trees import LABEL, Tree
from veen.core import (
    Checkpoint,
    Profile,
    Receipt,
    SigningKey,
    checkpoint,
    handover,
    hub_identity,
    naming,
    proof,
    receipt,
)
from veen.core.errors import Malformed, Unverified
from veen.core.handover import (
    AnchoredLog,
    Cover,
    Coverage,
    Dating,
    HandOver,
    LabelSize,
    Link,
    ProvedSize,
    retired_verdict,
)
from veen.core.hub_identity import HubIdentity, lineage
from veen.core.limits import MAX_RECOVERED_LABELS
from veen.core.recovery import LabelRecovery, RecoveredLog, Recovery, RecoveryStatement, check_count, incarnate, root_of
from veen.core.root_key import KeyRequest, RootRequest, RootSecret

ROOT, OLD, NEW, WITNESS, STRANGER = (SigningKey(bytes([number]) * 32) for number in range(1, 6))
BORN, ROTATED = 1_000, 2_000
BEFORE = hub_identity.create(OLD, BORN, root=ROOT)
HUB = hub_identity.rotate(BEFORE, ROOT, NEW, ROTATED)
ROOTLESS = hub_identity.rotate(hub_identity.create(OLD, BORN), OLD, NEW, ROTATED)
HANDED = 5  # entries of the label at the hand-over
OTHER_LABEL = b"\xf0" * 32
SECRET = RootSecret(ROOT.seed, HUB.hub_id, BORN)


def handed_over(tree: Tree, identity: HubIdentity = HUB) -> tuple[HandOver, Cover]:
    """The hand-over of a log with two labels, and the proof of entry 3 in it."""
    rows = [LabelSize(LABEL, HANDED, tree.roots[HANDED - 1]), LabelSize(OTHER_LABEL, 1, b"\x07" * 32)]
    built, nodes = handover.tree_of_labels(rows)
    made = handover.sign(identity.hub_id, OLD, NEW, ROTATED, len(rows), built.root())
    proved = ProvedSize(rows[0], 1, proof.prove(nodes.__getitem__, 1, len(rows)))
    return made, Cover(made, proved, tree.prove(3, HANDED))


TREE = Tree(8)
FORKED = Tree(2)
for number in range(6):
    FORKED.append(bytes([number]) * 32)
HANDOVER, COVER = handed_over(TREE)


def receipt_of(tree: Tree, key: SigningKey, seq: int, hub_ts: int) -> Receipt:
    found = tree.receipt(seq)
    return receipt.sign(
        key, label=LABEL, stream_seq=seq, leaf_hash=found.leaf_hash, mmr_root=found.mmr_root, hub_ts=hub_ts
    )


def checkpoint_of(tree: Tree, key: SigningKey, size: int) -> Checkpoint:
    root = tree.roots[size - 1]
    return checkpoint.sign(key, label_prev=LABEL, label_curr=LABEL, upto_seq=size, mmr_root=root, epoch=0)


def dating(**fields: Any) -> Dating:
    return replace(Dating(lineage(HUB, None), Profile()), **fields)


def anchored(one: Checkpoint, at: int) -> dict[AnchoredLog, int]:
    return {(one.label_curr, one.upto_seq, one.mmr_root): at}


# Hand-overs


def test_a_hand_over_is_signed_by_both_keys_and_by_the_root_if_it_was_attached() -> None:
    HANDOVER.verify(HUB)
    rooted = replace(HANDOVER, root_sig=ROOT.sign(HANDOVER.signing_digest()))
    rooted.verify(HUB)
    assert HandOver.decode(rooted.encode()) == rooted
    with pytest.raises(Unverified, match="the hub has none"):
        replace(
            handed_over(TREE, ROOTLESS)[0], root_sig=ROOT.sign(handed_over(TREE, ROOTLESS)[0].signing_digest())
        ).verify(ROOTLESS)


@pytest.mark.parametrize(
    "change",
    [
        {"hub_id": bytes(32)},
        {"old_pk": STRANGER.public_key},
        {"new_pk": OLD.public_key},
        {"hub_ts": ROTATED - 1},
        {"hub_ts": ROTATED + 1},
        {"labels": 3},
        {"rows_root": bytes(32)},
        {"old_sig": bytes(64)},
        {"new_sig": bytes(64)},
        {"root_sig": bytes(64)},
    ],
)
def test_a_hand_over_with_another_content_is_rejected(change: dict[str, object]) -> None:
    with pytest.raises(Unverified):
        replace(HANDOVER, **change).verify(HUB)  # type: ignore[arg-type]


def test_a_row_is_proved_at_one_place_of_one_statement() -> None:
    proved, stated = COVER.proved, (HANDOVER.labels, HANDOVER.rows_root)
    proved.verify(*stated)
    for wrong in (replace(proved, row=replace(proved.row, size=HANDED + 1)), replace(proved, place=2)):
        with pytest.raises(Unverified):
            wrong.verify(*stated)
    with pytest.raises(Unverified):
        proved.verify(HANDOVER.labels, bytes(32))


# Coverage: the verdict table


def test_a_signature_of_the_newest_key_is_current() -> None:
    assert dating().coverage(receipt_of(TREE, NEW, 6, ROTATED)) is Coverage.CURRENT


def test_a_retired_signature_is_covered_by_a_hand_over_or_by_a_signature_of_a_later_key() -> None:
    old = receipt_of(TREE, OLD, 3, BORN)
    later = checkpoint_of(TREE, NEW, 8)
    same = checkpoint_of(TREE, NEW, 3)
    assert dating().coverage(old) is Coverage.UNCOVERED
    assert dating(covers=(COVER,)).coverage(old) is Coverage.COVERED
    assert dating(statements=(later,)).coverage(old) is Coverage.UNCOVERED
    link = Link(3, 8, TREE.prove(3, 8))
    assert dating(statements=(later,), links=(link,)).coverage(old) is Coverage.COVERED
    wrong = replace(link, mmr_proof=TREE.prove(4, 8))
    assert dating(statements=(later,), links=(wrong,)).coverage(old) is Coverage.UNCOVERED
    assert dating(statements=(same,)).coverage(checkpoint_of(TREE, OLD, 3)) is Coverage.COVERED
    assert dating(statements=(later,)).coverage(checkpoint_of(TREE, OLD, 3)) is Coverage.UNCOVERED
    elsewhere = checkpoint.sign(
        NEW, label_prev=OTHER_LABEL, label_curr=OTHER_LABEL, upto_seq=3, mmr_root=TREE.roots[2], epoch=0
    )
    assert dating(statements=(elsewhere,)).coverage(old) is Coverage.UNCOVERED


def test_a_hand_over_covers_only_a_prefix_of_the_log_that_it_has() -> None:
    assert COVER.covers(HUB, receipt_of(TREE, OLD, 3, BORN))
    assert not COVER.covers(HUB, receipt_of(TREE, OLD, 6, BORN))  # longer than the log that was handed over
    assert not COVER.covers(HUB, receipt_of(FORKED, OLD, 3, BORN))
    assert not replace(COVER, handover=replace(HANDOVER, labels=3)).covers(HUB, receipt_of(TREE, OLD, 3, BORN))
    assert COVER.contradicts(HUB, receipt_of(TREE, OLD, 6, BORN))
    assert not COVER.contradicts(HUB, receipt_of(TREE, OLD, 3, BORN))
    assert not replace(COVER, handover=replace(HANDOVER, labels=3)).contradicts(HUB, receipt_of(TREE, OLD, 6, BORN))


CONFLICT = checkpoint_of(TREE, OLD, 3), checkpoint_of(FORKED, OLD, 3)
STOLEN_OR_FORKED = (
    "contradiction under a retired key: the hub forked before 1970-01-01 00:33:20 UTC, or the key was stolen"
)


def test_a_conflict_under_a_retired_key_does_not_convict_without_a_date() -> None:
    assert dating(covers=(COVER,)).verdict(CONFLICT) == STOLEN_OR_FORKED == retired_verdict(ROTATED)


@pytest.mark.parametrize(
    "dated",
    [
        lambda one: {"existed": (one,)},
        lambda one: {"anchored": anchored(one, ROTATED - 1)},
    ],
    ids=["own record", "anchor"],
)
def test_a_conflict_convicts_if_the_uncovered_signature_existed_before_the_hand_over(
    dated: Callable[[Checkpoint], dict[str, Any]],
) -> None:
    assert dating(covers=(COVER,), **dated(CONFLICT[1])).verdict(CONFLICT) is None
    assert dating(covers=(COVER,), **dated(CONFLICT[0])).verdict(CONFLICT) == STOLEN_OR_FORKED


def test_an_anchor_after_the_hand_over_dates_nothing() -> None:
    late = dating(covers=(COVER,), anchored=anchored(CONFLICT[1], ROTATED))
    assert late.verdict(CONFLICT) == STOLEN_OR_FORKED


def test_an_anchored_root_dates_no_checkpoint_of_another_size_or_label() -> None:
    """A thief signs the anchored root of five entries for three."""
    true, at = checkpoint_of(TREE, OLD, HANDED), ROTATED - 1
    fields: dict[str, Any] = {"label_prev": LABEL, "upto_seq": 3, "mmr_root": true.mmr_root, "epoch": 0}
    forged = checkpoint.sign(OLD, label_curr=LABEL, **fields)
    elsewhere = checkpoint.sign(OLD, label_curr=OTHER_LABEL, **fields)
    known = dating(covers=(COVER,), anchored=anchored(true, at))
    assert known.verdict((CONFLICT[0], forged)) == STOLEN_OR_FORKED
    assert replace(known, anchored=anchored(elsewhere, at)).verdict((CONFLICT[0], forged)) == STOLEN_OR_FORKED
    assert replace(known, anchored=anchored(forged, at)).verdict((CONFLICT[0], forged)) is None


def test_only_own_records_and_anchors_date_a_statement_beyond_the_hand_over() -> None:
    """A thief signs again what a later key and witnesses signed. A witness does not sign which key was used."""
    later = checkpoint_of(TREE, NEW, 7).witnessed(WITNESS)
    again = replace(checkpoint_of(TREE, OLD, 7), witness_sigs=later.witness_sigs)
    receipts = receipt_of(TREE, NEW, 7, ROTATED + 1), receipt_of(TREE, OLD, 7, ROTATED - 1)
    seen = {"witnesses": frozenset({WITNESS.public_key}), "links": (Link(7, 7, TREE.prove(7, 7)),)}
    known = dating(covers=(COVER,), statements=(later, again, *receipts), **seen)
    for framed in (again, receipts[1]):
        assert known.coverage(framed) is Coverage.COVERED
        assert known.verdict([framed], beyond=True) == STOLEN_OR_FORKED
        assert replace(known, existed=(framed,)).verdict([framed], beyond=True) is None
        assert replace(known, anchored=anchored(later, ROTATED - 1)).verdict([framed], beyond=True) is None
        assert replace(known, anchored=anchored(later, ROTATED)).verdict([framed], beyond=True) == STOLEN_OR_FORKED


def test_a_witness_of_the_verifier_dates_a_checkpoint_and_an_unknown_one_does_not() -> None:
    witnessed = (CONFLICT[0], CONFLICT[1].witnessed(WITNESS))
    known = dating(covers=(COVER,), witnesses=frozenset({WITNESS.public_key}))
    assert known.verdict(witnessed) is None
    assert replace(known, witnesses=frozenset({STRANGER.public_key})).verdict(witnessed) == STOLEN_OR_FORKED
    assert known.verdict([receipt_of(FORKED, OLD, 3, BORN)]) == STOLEN_OR_FORKED  # witnesses sign checkpoints


def test_a_receipt_is_dated_by_a_witnessed_log_that_contains_it() -> None:
    fork = receipt_of(FORKED, OLD, 3, BORN)
    log = checkpoint_of(FORKED, OLD, 5).witnessed(WITNESS)
    link = Link(3, 5, FORKED.prove(3, 5))
    known = dating(covers=(COVER,), statements=(fork, log), links=(link,), witnesses=frozenset({WITNESS.public_key}))
    conflict = receipt_of(TREE, OLD, 3, BORN), fork
    assert known.verdict(conflict) is None
    assert replace(known, witnesses=frozenset(), anchored=anchored(log, ROTATED - 1)).verdict(conflict) is None
    lacks: list[dict[str, Any]] = [
        {"witnesses": frozenset()},
        {"links": ()},
        {"links": (replace(link, mmr_proof=TREE.prove(3, 5)),)},
        {"witnesses": frozenset(), "anchored": anchored(log, ROTATED)},
    ]
    for lacking in lacks:
        assert replace(known, **lacking).verdict(conflict) == STOLEN_OR_FORKED


def test_a_proof_dates_a_receipt_only_with_the_root_that_it_states() -> None:
    """A thief signs a true leaf with another root. The leaf is in the later log, the root is not a root of it."""
    true, later = receipt_of(TREE, OLD, 3, BORN), checkpoint_of(TREE, NEW, 8)
    framed = receipt.sign(
        OLD, label=LABEL, stream_seq=3, leaf_hash=true.leaf_hash, mmr_root=FORKED.roots[2], hub_ts=BORN
    )
    known = dating(statements=(later, true, framed), links=(Link(3, 8, TREE.prove(3, 8)),))
    assert (known.coverage(true), known.coverage(framed)) == (Coverage.COVERED, Coverage.UNCOVERED)
    assert known.verdict((true, framed)) == retired_verdict(ROTATED)


def test_a_root_dates_a_receipt_only_with_the_leaf_that_it_states() -> None:
    """A thief signs another message with the true root, which a later key signed for the same size."""
    true, same = receipt_of(TREE, OLD, 3, BORN), checkpoint_of(TREE, NEW, 3)
    framed = receipt.sign(OLD, label=LABEL, stream_seq=3, leaf_hash=b"\x07" * 32, mmr_root=true.mmr_root, hub_ts=BORN)
    for later in (same, receipt_of(TREE, NEW, 3, ROTATED)):
        known = dating(statements=(later, true, framed), links=(Link(3, 3, TREE.prove(3, 3)),))
        assert (known.coverage(true), known.coverage(framed)) == (Coverage.COVERED, Coverage.UNCOVERED)


def test_no_proof_dates_the_time_that_a_receipt_states() -> None:
    """A thief signs a true entry again, with another time. The tree contains no times."""
    true, framed = receipt_of(TREE, OLD, 3, BORN), receipt_of(TREE, OLD, 3, BORN + 1)
    known = dating(covers=(COVER,))
    assert known.verdict((true, framed)) is None  # as if the trees conflicted
    assert known.verdict((true, framed), in_tree=False) == STOLEN_OR_FORKED
    assert replace(known, existed=(true, framed)).verdict((true, framed), in_tree=False) is None
    new = receipt_of(TREE, NEW, 3, ROTATED), receipt_of(TREE, NEW, 3, ROTATED + 1)
    assert known.verdict(new, in_tree=False) is None


# Recoveries


def recovered(identity: HubIdentity = HUB, endorser: SigningKey = ROOT) -> tuple[RecoveryStatement, LabelRecovery]:
    rows = (LabelSize(LABEL, HANDED, TREE.roots[4]), LabelSize(OTHER_LABEL, 1, b"\x07" * 32))
    ids = naming.key_id(OLD.public_key), naming.key_id(NEW.public_key)
    said = Recovery(identity.hub_id, *ids, ROTATED, len(rows), root_of(rows))
    made = RecoveryStatement(said, NEW.sign(said.digest()), endorser.sign(said.digest()))
    assert RecoveredLog.decode(RecoveredLog(made, rows).encode()).labels == rows
    _, nodes = handover.tree_of_labels(rows)
    shown = (ProvedSize(row, at, proof.prove(nodes.__getitem__, at, 2)) for at, row in enumerate(rows, 1))
    return made, LabelRecovery(made, tuple(shown))


def test_a_recovery_is_endorsed_by_the_root_or_by_the_old_key_without_one() -> None:
    made, _ = recovered()
    made.verify(HUB)
    recovered(ROOTLESS, OLD)[0].verify(ROOTLESS)
    with pytest.raises(Unverified, match="endorsement"):
        recovered(HUB, OLD)[0].verify(HUB)
    with pytest.raises(Unverified, match="another hub"):
        made.verify(ROOTLESS)
    first, last = HUB.signing_keys
    assert (made.replaces(HUB, first), made.replaces(HUB, last)) == (True, False)


def test_a_recovery_shows_the_size_of_a_label_by_its_row_and_absence_by_the_rows_around_it() -> None:
    _, shown = recovered()
    low, high = shown.rows
    between, above = b"\x0f" * 32, b"\xff" * 32
    assert LABEL < between < OTHER_LABEL < above
    assert replace(shown, rows=(low,)).size_of(LABEL, HUB) == HANDED
    assert replace(shown, rows=(high,)).size_of(OTHER_LABEL, HUB) == 1
    assert shown.size_of(between, HUB) == 0
    assert replace(shown, rows=(high,)).size_of(above, HUB) == 0
    for label, rows in ((LABEL, ()), (LABEL, (high,)), (between, (low,)), (between, (high,)), (above, (low,))):
        with pytest.raises(Unverified, match="do not show the size"):
            replace(shown, rows=rows).size_of(label, HUB)
    with pytest.raises(Unverified):
        replace(shown, rows=(replace(low, row=replace(low.row, label=between)),)).size_of(between, HUB)


def test_an_incarnation_states_that_it_has_no_entries_and_the_root_endorses_it() -> None:
    began = hub_identity.create(NEW, ROTATED, root=ROOT, incarnates=True)
    made = incarnate(ROOT, NEW, ROTATED)
    made.verify(began)
    assert made.is_incarnation(began)
    assert LabelRecovery(made, ()).size_of(LABEL, began) == 0
    assert not recovered()[0].is_incarnation(HUB)
    for wrong in (
        incarnate(ROOT, NEW, ROTATED + 1),
        replace(made, endorsement=NEW.sign(made.recovery.digest())),
        replace(made, sig=ROOT.sign(made.recovery.digest())),
    ):
        with pytest.raises(Unverified):
            wrong.verify(began)
    with pytest.raises(Unverified, match="only an incarnation"):
        made.verify(hub_identity.create(NEW, ROTATED, root=ROOT))
    said = replace(made.recovery, labels=1)
    with pytest.raises(Unverified, match="only an incarnation"):
        RecoveryStatement(said, NEW.sign(said.digest()), ROOT.sign(said.digest())).verify(began)


@pytest.mark.parametrize("change", [{"old_key_id": bytes(32)}, {"new_key_id": naming.key_id(OLD.public_key)}])
def test_a_recovery_names_two_keys_of_the_hub_in_order(change: dict[str, bytes]) -> None:
    made, _ = recovered()
    with pytest.raises(Unverified, match=r"not a key of the hub|not after the old one"):
        replace(made, recovery=replace(made.recovery, **change)).verify(HUB)  # type: ignore[arg-type]


def test_a_recovered_log_lists_the_labels_of_its_statement_in_order() -> None:
    made, _ = recovered()
    rows = (LabelSize(OTHER_LABEL, 1, bytes(32)), LabelSize(LABEL, 1, bytes(32)))
    with pytest.raises(ValueError, match="ascending"):
        RecoveredLog(made, rows).encode()
    with pytest.raises(ValueError, match="do not match the statement"):
        RecoveredLog(made, rows[:1]).encode()
    check_count(MAX_RECOVERED_LABELS)
    with pytest.raises(Malformed, match="a statement can list"):
        check_count(MAX_RECOVERED_LABELS + 1)


# What the root endorses


def request(**fields: Any) -> RootRequest:
    return replace(RootRequest(HUB.hub_id, ROOT.public_key, KeyRequest(NEW.public_key, ROTATED)), **fields)


def test_the_root_endorses_a_key_a_hand_over_and_a_recovery() -> None:
    endorsed = request().endorse(SECRET)
    endorsed.verify(HUB, request().digest())
    added = hub_identity.add_key(BEFORE, NEW.public_key, ROTATED, endorsed.sig, ROTATED)
    assert added == HUB
    handed = RootRequest.of_handover(HUB, HANDOVER)
    signed = handed.endorse(SECRET)
    replace(HANDOVER, root_sig=signed.sig).verify(HUB)
    said = recovered()[0].recovery
    together = request(recovery=said).endorse(SECRET)
    assert together.recovery_sig == ROOT.sign(said.digest())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hub_id": bytes(32)}, "it is for hub"),
        ({"root_pk": bytes(32)}, "it names root key"),
        ({"handover": replace(HANDOVER, hub_id=bytes(32))}, "another hub"),
        ({"recovery": replace(recovered()[0].recovery, new_key_id=bytes(32))}, "another hub or another key"),
    ],
)
def test_the_root_signs_nothing_for_another_hub(change: dict[str, object], why: str) -> None:
    with pytest.raises(Unverified, match=why):
        request(**change).endorse(SECRET)


def test_an_endorsement_answers_one_request_of_one_hub() -> None:
    endorsed = request().endorse(SECRET)
    with pytest.raises(Unverified, match="no root key"):
        endorsed.verify(ROOTLESS, request().digest())
    with pytest.raises(Unverified, match="it is for hub"):
        replace(endorsed, hub_id=bytes(32)).verify(HUB, request().digest())
    with pytest.raises(Unverified, match="another request"):
        endorsed.verify(HUB, bytes(32))
    with pytest.raises(Unverified):
        replace(endorsed, sig=bytes(64)).verify(HUB, request().digest())
