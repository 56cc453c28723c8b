"""What the signatures of a retired key prove: coverage, and the verdict on statements that conflict."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.client.hostile import START, HostileHub, Log
from tests.client.pair import STREAM, Pair, pair, send_all
from veen.client import evidence
from veen.client.client import Client
from veen.client.contradiction import Caught, Contradiction
from veen.client.evidence import EvidenceReport, Knowledge
from veen.client.trust import HubRecord, KeyHistory, Pin
from veen.core import Checkpoint, HubIdentity, Limits, Profile, Receipt, SigningKey, handover, mmr, proof
from veen.core import hub_identity as identities
from veen.core import receipt as receipts
from veen.core.handover import Cover, Coverage, HandOver, LabelSize, ProvedSize
from veen.core.proof import Head

ROOT, OLD, NEW, WITNESS = (SigningKey(bytes([n]) * 32) for n in range(1, 5))
RETIRED = START + 50
VERDICT = "contradiction under a retired key: the hub forked before 2025-06-15 15:07:30 UTC, or the key was stolen"
SIZE = 5


class Handed:
    """A hub that gave its log of five entries over to a new key, and then accepted three more."""

    def __init__(self, root: SigningKey | None = ROOT) -> None:
        self.hub = HostileHub()
        self.hub.key = OLD
        self.before = identities.create(OLD, START - 1000, root=root)
        self.hub.identity = self.before
        self.label = self.hub.label(STREAM)
        self.log = self.hub.log(self.label)
        self._grow(OLD, SIZE, START)
        self.row = LabelSize(self.label, SIZE, self.log.tree.root())
        tree, nodes = handover.tree_of_labels([self.row])
        made = handover.sign(self.before.hub_id, OLD, NEW, RETIRED, 1, tree.root())
        self.handover = replace(made, root_sig=root.sign(made.signing_digest())) if root else made
        self.place = ProvedSize(self.row, 1, proof.prove(nodes.__getitem__, 1, 1))
        self.identity = identities.rotate(self.before, root or OLD, NEW, RETIRED)
        self.hub.identity, self.hub.key = self.identity, NEW
        self._grow(NEW, 3, RETIRED + 1)

    def _grow(self, key: SigningKey, count: int, hub_ts: int) -> None:
        for _ in range(count):
            self.log.append(key, self.hub.forged(self.label), hub_ts)

    @property
    def known(self) -> HubRecord:
        return HubRecord(self.identity, identities.sign(self.identity, NEW), Profile(), Limits())

    def receipt(self, seq: int) -> Receipt:
        return self.log.entries[seq - 1][1]

    def checkpoint(self, size: int, key: SigningKey = OLD) -> Checkpoint:
        return self.hub.checkpoint_of(self.log.cut(size), key)

    def forged(self, size: int = SIZE) -> Checkpoint:
        """A checkpoint of another history, signed with the old key."""
        return self.hub.checkpoint_of(Log(self.label), OLD, upto_seq=size, mmr_root=b"\x07" * 32)

    def cover(self, size: int) -> Cover:
        return Cover(self.handover, self.place, self.log.prove(size, SIZE))

    def report(
        self, *statements: Head, covers: tuple[Cover, ...] = (), knowledge: Knowledge = evidence.NOTHING
    ) -> EvidenceReport:
        made = evidence.make_evidence(self.known, "", statements, covers=covers)
        return evidence.verify(made.encode(), self.identity.hub_id, knowledge=knowledge)


@pytest.fixture(params=[ROOT, None], ids=["with a root", "without a root"])
def handed(request: pytest.FixtureRequest) -> Handed:
    return Handed(request.param)


def coverage(report: EvidenceReport) -> list[Coverage]:
    return [found for _, found in report.coverage]


# Coverage


def test_a_signature_of_the_current_key_needs_no_cover(handed: Handed) -> None:
    assert coverage(handed.report(handed.receipt(SIZE + 1))) == [Coverage.CURRENT]


@pytest.mark.parametrize("size", range(1, SIZE + 1))
def test_a_proof_to_the_hand_over_covers_receipts_and_checkpoints(handed: Handed, size: int) -> None:
    for head in (handed.receipt(size), handed.checkpoint(size)):
        assert coverage(handed.report(head)) == [Coverage.UNCOVERED]
        assert coverage(handed.report(head, covers=(handed.cover(size),))) == [Coverage.COVERED]
        other = handed.cover(size % SIZE + 1)
        assert coverage(handed.report(head, covers=(other,))) == [Coverage.UNCOVERED]


def test_a_later_keys_checkpoint_of_the_same_prefix_covers(handed: Handed) -> None:
    old, new = handed.checkpoint(3), handed.checkpoint(3, NEW)
    assert dict(handed.report(old, new).coverage) == {old: Coverage.COVERED, new: Coverage.CURRENT}


def test_a_later_keys_checkpoint_covers_a_receipt_that_it_includes(handed: Handed) -> None:
    receipt, head = handed.receipt(2), handed.checkpoint(SIZE + 3, NEW)
    tie = evidence.Tie(handed.label, 2, SIZE + 3, handed.log.prove(2, SIZE + 3))
    made = evidence.make_evidence(handed.known, "", (receipt, head), ties=[tie])
    report = evidence.verify(made.encode(), handed.identity.hub_id)
    assert dict(report.coverage)[receipt] is Coverage.COVERED


Spoil: TypeAlias = Callable[[HandOver], HandOver]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: replace(made, old_sig=bytes(64)),
        lambda made: replace(made, new_sig=bytes(64)),
        lambda made: replace(made, root_sig=bytes(64)),
        lambda made: replace(made, hub_ts=RETIRED + 1),
        lambda made: handover.sign(made.hub_id, OLD, OLD, RETIRED, made.labels, made.rows_root),
    ],
    ids=["old key", "new key", "root", "another time", "signed by the thief alone"],
)
def test_a_hand_over_that_the_keys_did_not_sign_covers_nothing(spoil: Spoil) -> None:
    handed = Handed()
    cover = replace(handed.cover(2), handover=spoil(handed.handover))
    assert coverage(handed.report(handed.receipt(2), covers=(cover,))) == [Coverage.UNCOVERED]


# Verdicts: what is known about the conflicting statement, and what follows


def anchored(one: Checkpoint, at: int) -> Knowledge:
    return Knowledge(anchored={(one.label_curr, one.upto_seq, one.mmr_root): at})


Known: TypeAlias = Callable[[Handed, Checkpoint], tuple[Checkpoint, Knowledge]]

VERDICTS: dict[str, tuple[Known, bool]] = {
    "stolen after: nothing shows that it existed": (lambda _, cp: (cp, evidence.NOTHING), False),
    "forked before: a witness signed it": (
        lambda _, cp: (cp.witnessed(WITNESS), Knowledge(witnesses=frozenset({WITNESS.public_key}))),
        True,
    ),
    "a witness that the verifier does not know": (lambda _, cp: (cp.witnessed(WITNESS), evidence.NOTHING), False),
    "a witness that signed something else": (
        lambda handed, cp: (
            replace(cp, witness_sigs=handed.checkpoint(2).witnessed(WITNESS).witness_sigs),
            Knowledge(witnesses=frozenset({WITNESS.public_key})),
        ),
        False,
    ),
    "forked before: an anchor shows it": (lambda _, cp: (cp, anchored(cp, RETIRED - 1)), True),
    "an anchor that came later": (lambda _, cp: (cp, anchored(cp, RETIRED)), False),
    "forked before: the verifier has it": (lambda _, cp: (cp, Knowledge(existed=[cp])), True),
}


@pytest.mark.parametrize(("known", "is_full"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_on_a_conflict_under_a_retired_key(handed: Handed, known: Known, is_full: bool) -> None:
    forged, knowledge = known(handed, handed.forged())
    report = handed.report(handed.receipt(SIZE), forged, covers=(handed.cover(SIZE),), knowledge=knowledge)
    assert bool(report.contradictions) is is_full
    assert report.retired == (() if is_full else (VERDICT,))
    assert (report.conflicts or report.contradictions)[0].startswith("two different roots are signed")


def test_two_statements_that_nothing_dates_do_not_convict(handed: Handed) -> None:
    report = handed.report(handed.checkpoint(SIZE), handed.forged())
    assert (report.contradictions, report.retired) == ((), (VERDICT,))


def test_a_conflict_with_the_current_key_does_not_convict_if_the_other_is_undated(handed: Handed) -> None:
    report = handed.report(handed.checkpoint(SIZE, NEW), handed.forged())
    assert (report.contradictions, report.retired) == ((), (VERDICT,))


def test_two_statements_of_the_current_key_convict(handed: Handed) -> None:
    lie = handed.hub.checkpoint_of(handed.log, NEW, mmr_root=bytes(32))
    report = handed.report(handed.checkpoint(SIZE + 3, NEW), lie)
    assert report.contradictions
    assert report.retired == ()


def test_a_prefix_that_is_longer_than_the_hand_over_conflicts_with_it(handed: Handed) -> None:
    """Without the row of the label it is only uncovered."""
    future = handed.forged(1000)
    assert handed.report(future).retired == ()
    assert coverage(handed.report(future)) == [Coverage.UNCOVERED]
    report = handed.report(future, covers=(handed.cover(SIZE),))
    assert report.retired == (VERDICT,)
    assert "handed over only 5 entries" in report.conflicts[0]


def test_a_thief_who_signs_an_entry_of_the_next_key_again_does_not_convict_the_hub(handed: Handed) -> None:
    size, seen = SIZE + 2, Knowledge(witnesses=frozenset({WITNESS.public_key}))
    true, log = handed.receipt(size), handed.checkpoint(size, NEW).witnessed(WITNESS)
    entry = receipts.sign(
        OLD,
        label=true.label,
        stream_seq=size,
        leaf_hash=true.leaf_hash,
        mmr_root=true.mmr_root,
        hub_ts=RETIRED - 1,
    )
    again = replace(handed.checkpoint(size), witness_sigs=log.witness_sigs)
    for statements in ((true, entry), (log, again), (true, again), (log, entry)):
        report = handed.report(*statements, covers=(handed.cover(SIZE),), knowledge=seen)
        assert (report.contradictions, report.retired) == ((), (VERDICT,))
        assert "handed over only 5 entries" in " ".join(report.conflicts)
    before = replace(anchored(log, RETIRED - 1), existed=(entry,))
    for statements in ((true, entry), (log, again)):
        assert handed.report(*statements, covers=(handed.cover(SIZE),), knowledge=before).contradictions


def test_peaks_of_a_root_that_a_thief_signed_do_not_convict_the_hub(handed: Handed) -> None:
    size = SIZE + 2
    true, after = handed.receipt(size), handed.receipt(size + 1)
    peaks = tuple(bytes([n]) * 32 for n in range(size.bit_count()))
    forged = handed.hub.checkpoint_of(Log(handed.label), OLD, upto_seq=size, mmr_root=mmr.root_of(peaks))

    def report(*statements: Head, shown: tuple[bytes, ...] = peaks) -> EvidenceReport:
        made = evidence.make_evidence(handed.known, "", statements, peaks=(evidence.Peaks(handed.label, size, shown),))
        return evidence.verify(made.encode(), handed.identity.hub_id)

    found = report(true, forged, after)
    assert (found.contradictions, found.retired) == ((), (VERDICT,))
    assert "does not follow" in " ".join(found.conflicts)
    lie = handed.hub.checkpoint_of(Log(handed.label), NEW, upto_seq=size, mmr_root=mmr.root_of(peaks))
    convicted = report(forged, lie, after).contradictions
    assert "does not follow" in " ".join(convicted), "the newest key signed the root, too"


def test_a_thief_who_signs_an_anchored_root_for_another_size_does_not_convict_the_hub(handed: Handed) -> None:
    root = handed.checkpoint(SIZE).mmr_root
    forged = handed.hub.checkpoint_of(Log(handed.label), OLD, upto_seq=4, mmr_root=root)
    knowledge = anchored(handed.checkpoint(SIZE), RETIRED - 1)
    report = handed.report(handed.receipt(4), forged, covers=(handed.cover(4),), knowledge=knowledge)
    assert (report.contradictions, report.retired) == ((), (VERDICT,))


def test_an_older_record_in_the_file_does_not_hide_that_the_key_was_retired(handed: Handed) -> None:
    """A thief embeds the record of the time before the rotation, which the old key signed."""
    older = replace(handed.known, identity=handed.before, signature=identities.sign(handed.before, OLD))
    framed = evidence.make_evidence(older, "", (handed.checkpoint(SIZE), handed.forged())).encode()
    hub_id = handed.identity.hub_id
    assert evidence.verify(framed, hub_id).contradictions, "the id alone does not show that the key was retired"
    report = evidence.verify(framed, hub_id, knowledge=Knowledge(record=handed.identity))
    assert (report.contradictions, report.retired) == ((), (VERDICT,))


def test_a_time_that_a_thief_signs_for_a_true_entry_does_not_convict_the_hub(handed: Handed) -> None:
    true = handed.receipt(2)
    framed = receipts.sign(
        OLD,
        label=true.label,
        stream_seq=2,
        leaf_hash=true.leaf_hash,
        mmr_root=true.mmr_root,
        hub_ts=true.hub_ts + 1,
    )
    report = handed.report(true, framed, covers=(handed.cover(2),))
    assert (report.contradictions, report.retired) == ((), (VERDICT,))
    assert "signed with two times" in report.conflicts[0]


def test_two_key_histories_of_one_root_are_evidence_offline() -> None:
    handed = Handed()
    other = SigningKey.generate()
    rival: HubIdentity = identities.rotate(handed.before, ROOT, other, RETIRED + 7)
    made = evidence.make_evidence(handed.known, "", (), rival=KeyHistory(rival, identities.sign(rival, other)))
    (said,) = evidence.verify(made.encode(), handed.identity.hub_id).contradictions
    assert "two identity records" in said


# The client


async def rotated_hub(people: Pair, hub: HostileHub) -> None:
    """Let a client write two entries under the old key of a hub, which then changes to the new key."""
    people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
    async with people.writer() as writer:
        await send_all(writer, b"1", b"2")
    hub.identity, hub.key = identities.rotate(hub.identity, ROOT, NEW, RETIRED), NEW


def old_hub() -> HostileHub:
    hub = HostileHub()
    hub.key = OLD
    hub.identity = identities.create(OLD, START - 1000, root=ROOT)
    return hub


def test_a_client_keeps_evidence_and_reports_the_verdict(place: Path) -> None:
    """The hub shows an old receipt under its retired key that contradicts the one the client has."""

    async def work(people: Pair) -> None:
        hub = old_hub()
        async with hub:
            await rotated_hub(people, hub)
            hub.lying = True
            hub.on_receipt = lambda found: hub.signed(found, OLD, mmr_root=b"\x07" * 32)
            async with people.writer() as writer:
                with pytest.raises(Contradiction) as caught:
                    await writer.receipt(STREAM, 2)
        error = caught.value
        assert VERDICT in str(error)
        assert not error.proven
        assert error.evidence is not None
        assert evidence.verify(error.evidence.read_bytes(), hub.identity.hub_id).retired == (VERDICT,)
        async with hub:
            people.url = hub.url
            hub.lying = False
            async with people.writer() as writer:
                await writer.status()

    with pair(place) as people:
        asyncio.run(work(people))


def test_a_client_convicts_a_hub_whose_current_key_confirms_the_other_history(place: Path) -> None:
    async def work(people: Pair) -> None:
        hub = old_hub()
        async with hub:
            await rotated_hub(people, hub)
            hub.hub_ts = RETIRED + 1
            hub.fork(hub.label(STREAM), 1)
            async with people.writer() as writer:
                with pytest.raises(Contradiction) as caught:
                    await _resync(writer)
            assert caught.value.proven
            with pytest.raises(Caught):
                async with people.writer():
                    pytest.fail("a caught hub is met as if nothing had happened")

    async def _resync(writer: Client) -> None:
        await writer.resync(STREAM)

    with pair(place) as people:
        asyncio.run(work(people))
