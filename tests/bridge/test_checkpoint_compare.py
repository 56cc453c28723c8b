"""Comparing another client's checkpoint with what this client knows: what is proved, what is open, what is harmless."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bridge.forked_histories import KNOWN, ForkedHub, with_forked_hub
from tests.client.hostile import START, Log
from tests.client.pair import QUICK
from tests.hub.client import Clock
from veen.bridge.veil_gossip import gossip_items
from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer, ComparedCheckpoint, ComparisonResult
from veen.bridge.veil_gossip.gossip_items import ItemRejected, RejectReason, ShownCheckpoint
from veen.client import ClientDir, evidence
from veen.client.client import Client
from veen.core import Receipt, Refused, SigningKey
from veen.core import hub_identity as identities
from veen.core.envelopes import ReceiptRequest, ReceiptResponse


@pytest.mark.parametrize("size", [1, KNOWN - 1, KNOWN, KNOWN + 1, KNOWN + 5])
def test_an_honest_hub_agrees_at_every_size(place: Path, size: int) -> None:
    async def then(at: ForkedHub) -> None:
        at.grow(KNOWN + 5)
        assert await at.compare(at.log.cut(size)) == ComparedCheckpoint(ComparisonResult.AGREES)
        assert [*at.people.reader_dir.evidence.glob("*")] == []

    with_forked_hub(place, then)


@pytest.mark.parametrize("size", [3, KNOWN - 1, KNOWN, KNOWN + 1, KNOWN + 5])
def test_two_roots_for_one_size_are_proof_at_any_size(place: Path, size: int) -> None:
    async def then(at: ForkedHub) -> None:
        at.grow(KNOWN + 5)
        compared = await at.compare(at.other(2, size))
        assert compared.standing is ComparisonResult.FORKED
        assert at.proves(compared)

    with_forked_hub(place, then)


def test_a_known_size_needs_no_hub(place: Path) -> None:
    """Going offline does not protect a lying hub."""

    async def then(at: ForkedHub) -> None:
        at.hub.asked.clear()
        assert at.proves(await at.compare(at.other(5, KNOWN), ask=False))
        assert (await at.compare(at.log, ask=False)).standing is ComparisonResult.AGREES
        assert (await at.compare(at.log.cut(3), ask=False)).standing is ComparisonResult.UNASKED
        assert at.hub.asked == []

    with_forked_hub(place, then)


def test_two_received_checkpoints_are_proof_even_for_an_unfollowed_label(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        label = at.hub.label("elsewhere")
        one, two = Log(label), Log(label)
        for log in (one, two):
            log.append(at.hub.key, at.hub.forged(label), START)
        assert (await at.compare(one)).standing is ComparisonResult.UNFOLLOWED
        assert (await at.compare(one, one)).standing is ComparisonResult.UNFOLLOWED
        assert at.proves(await at.compare(one, two))

    with_forked_hub(place, then)


def test_signing_more_than_shown_is_not_yet_proof(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        other = at.other(4, KNOWN + 3)
        compared = await at.compare(other)
        assert compared.standing is ComparisonResult.UNSHOWN
        assert compared.evidence is None
        assert "not proved yet" in compared.reason
        assert f"signed {KNOWN + 3} entries" in compared.reason
        assert f"shows {KNOWN}" in compared.reason
        assert f"at most {KNOWN} entries" in compared.reason
        at.grow(KNOWN + 3)  # now it must show one of the histories
        assert at.proves(await at.compare(other))

    with_forked_hub(place, then)


def test_switching_to_the_other_history_contradicts_stored_receipts(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        other = at.other(4, KNOWN + 3)
        at.hub.logs[other.label] = other
        compared = await at.compare(other)
        assert compared.standing is ComparisonResult.FORKED
        assert at.proves(compared)

    with_forked_hub(place, then)


def test_a_hidden_fork_point_is_proved_at_the_next_entry(place: Path) -> None:
    """It shows its first history up to what the client knows, and the second one after that."""

    async def then(at: ForkedHub) -> None:
        mine, other = at.log.cut(KNOWN), at.other(4, KNOWN + 3)
        at.hub.logs[other.label] = other

        def forged_receipt(asked: Receipt) -> Receipt:
            return mine.entries[asked.stream_seq - 1][1] if asked.stream_seq <= KNOWN else asked

        at.hub.lying, at.hub.on_receipt = True, forged_receipt
        compared = await at.compare(other)
        assert compared.standing is ComparisonResult.FORKED
        assert at.proves(compared)

    with_forked_hub(place, then)


def test_a_failed_proof_is_doubt_and_not_an_accusation(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        other = at.other(4, KNOWN + 3)
        mine, at.hub.logs[other.label] = at.log, other

        def receipt(asked: ReceiptRequest) -> ReceiptResponse:
            if asked.stream_seq == KNOWN + 1:
                raise Refused("E.NOT_FOUND", "not this one")
            log = mine if asked.stream_seq <= KNOWN else other
            return ReceiptResponse(log.entries[asked.stream_seq - 1][1])

        at.hub.receipt = receipt  # type: ignore[method-assign]
        compared = await at.compare(other)
        assert compared.standing is ComparisonResult.DOUBTED
        assert compared.evidence is None
        assert "not proved to others" in compared.reason

    with_forked_hub(place, then)


def test_a_silent_hub_is_waited_for_once_and_asked_again_later(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        clock = Clock(0)
        at.reader.session.link.retry_policy = QUICK
        at.hub.mute = lambda path: path == "/v1/receipt"
        comparer = CheckpointComparer(at.people.reader_dir, at.reader.session.trust.known, at.reader, clock=clock)
        compared = await comparer.compare(at.verified(at.other(4, 5)))
        assert compared.standing is ComparisonResult.UNASKED
        assert "did not answer" in compared.reason
        at.hub.asked.clear()
        for size in range(1, 5):
            assert "was not asked" in (await comparer.compare(at.verified(at.log.cut(size)))).reason
        assert at.hub.asked == []
        at.hub.mute, clock.now = (lambda path: False), 60
        assert at.proves(await comparer.compare(at.verified(at.other(4, 5))))

    with_forked_hub(place, then)


def test_without_old_receipts_a_hub_proves_by_its_tree_or_is_doubted(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        true = at.hub.receipt

        def receipt(asked: ReceiptRequest) -> ReceiptResponse:
            if asked.stream_seq < KNOWN:
                raise Refused("E.NOT_FOUND", "it was pruned")
            return true(asked)

        at.hub.receipt = receipt  # type: ignore[method-assign]
        assert await at.compare(at.log.cut(3)) == ComparedCheckpoint(ComparisonResult.AGREES)
        assert (await at.compare(at.other(1, 3))).standing is ComparisonResult.DOUBTED
        with ClientDir.create(place / "auditor", None, START) as folder:
            async with Client(at.hub.url, folder, pin=at.people.pin) as client:
                comparer = CheckpointComparer(folder, client.session.trust.known, client, [at.log.label])
                assert (await comparer.compare(at.verified(at.log.cut(3)))).standing is ComparisonResult.UNSHOWN

    with_forked_hub(place, then)


# Statements that the hub did not sign.


def _reject_reason(at: ForkedHub, body: bytes) -> RejectReason:
    with pytest.raises(ItemRejected) as caught:
        gossip_items.verify_checkpoint(body, at.reader.session.trust.known)
    return caught.value.reason


def test_a_checkpoint_that_the_hub_did_not_sign_is_rejected(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        true = at.hub.checkpoint_of(at.log)
        wrong = [
            replace(true, mmr_root=bytes(32)),
            replace(true, upto_seq=KNOWN + 1),
            replace(true, hub_sig=bytes(64)),
            at.hub.checkpoint_of(at.log, SigningKey.generate()),
        ]
        assert {_reject_reason(at, at.shown(one)) for one in wrong} == {RejectReason.SIGNATURE}
        assert gossip_items.verify_checkpoint(at.shown(true), at.reader.session.trust.known).checkpoint == true

    with_forked_hub(place, then)


def test_a_record_of_another_incarnation_is_rejected_as_forked(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        root, keys = SigningKey.generate(), (SigningKey.generate(), SigningKey.generate())
        one, other = (identities.create(key, START + n, root=root, incarnates=True) for n, key in enumerate(keys))
        known = replace(at.reader.session.trust.known, identity=one)
        with pytest.raises(ItemRejected, match=r"forked: the hub's incarnation of 20.* knows the one of 20"):
            gossip_items.newer(known, other, identities.sign(other, keys[1]))

    with_forked_hub(place, then)


def test_a_foreign_identity_record_is_rejected(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        hub, thief = at.hub, SigningKey.generate()
        true, stolen = hub.checkpoint_of(at.log), identities.create(SigningKey.generate(), START)
        mine = identities.sign(hub.identity, hub.key)
        # The comparer of a retired key can endorse another key with it and write another key history.
        moved = identities.rotate(hub.identity, hub.key, SigningKey.generate(), START)
        forked = identities.rotate(hub.identity, hub.key, thief, START + 1)
        wrong = [
            ShownCheckpoint(stolen, identities.sign(stolen, thief), true),
            ShownCheckpoint(hub.identity, replace(mine, sig=bytes(64)), true),
            ShownCheckpoint(forked, identities.sign(forked, hub.key), true),
        ]
        assert {_reject_reason(at, one.encode()) for one in wrong} == {RejectReason.IDENTITY}
        known = replace(at.reader.session.trust.known, identity=moved)
        longer = identities.rotate(forked, thief, thief2 := SigningKey.generate(), START + 2)
        for hub_metadata, key in ((forked, thief), (longer, thief2)):
            with pytest.raises(ItemRejected, match="identity"):
                gossip_items.verify_checkpoint(
                    ShownCheckpoint(hub_metadata, identities.sign(hub_metadata, key), true).encode(), known
                )

    with_forked_hub(place, then)


def test_a_new_key_is_accepted_if_a_known_hub_key_endorses_it(place: Path) -> None:
    """A client that knows the new key shows a checkpoint to one that does not; neither asks the hub."""

    async def then(at: ForkedHub) -> None:
        hub, key = at.hub, SigningKey.generate()
        rotated = identities.rotate(hub.identity, hub.key, key, START + 1)
        body = ShownCheckpoint(
            rotated, identities.sign(rotated, key), hub.checkpoint_of(at.other(4, KNOWN), key)
        ).encode()
        judged = gossip_items.verify_checkpoint(body, at.reader.session.trust.known)
        assert judged.record.identity == rotated
        compared = await CheckpointComparer(at.people.reader_dir, at.reader.session.trust.known).compare(judged)
        assert compared.standing is ComparisonResult.FORKED, "this client has its own record of the old statement"
        assert compared.evidence is not None
        (verdict,) = evidence.verify(compared.evidence.read_bytes(), hub.identity.hub_id).retired
        assert "or the key was stolen" in verdict, "others cannot know when the old key signed"

    with_forked_hub(place, then)


def test_evidence_that_is_foreign_or_does_not_verify_is_rejected(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        known = at.reader.session.trust.known
        compared = await at.compare(at.other(4, KNOWN))
        assert compared.evidence
        data = compared.evidence.read_bytes()
        report, _ = gossip_items.verify_evidence(data, known)
        assert report.contradictions
        changed = bytearray(data)
        changed[-40] ^= 1
        stranger = identities.create(SigningKey.generate(), START)
        for body, whose, reason in (
            (bytes(changed), known, RejectReason.EVIDENCE),
            (data[:-1], known, RejectReason.MALFORMED),
            (data, replace(known, identity=stranger), RejectReason.IDENTITY),
            (data, replace(known, profile=replace(known.profile, pad_block=512)), RejectReason.IDENTITY),
        ):
            with pytest.raises(ItemRejected) as caught:
                gossip_items.verify_evidence(body, whose)
            assert caught.value.reason is reason

    with_forked_hub(place, then)


def test_an_unknown_label_is_compared_if_the_caller_lists_it(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        with ClientDir.create(place / "auditor", None, START) as folder:
            async with Client(at.hub.url, folder, pin=at.people.pin) as client:
                judged, known = at.verified(at.other(4, KNOWN)), client.session.trust.known
                assert (
                    await CheckpointComparer(folder, known, client).compare(judged)
                ).standing is ComparisonResult.UNFOLLOWED
                compared = await CheckpointComparer(folder, known, client, [at.log.label]).compare(judged)
                assert at.proves(compared)

    with_forked_hub(place, then)
