"""A checkpoint from someone else, held against what a client knows: what is proved, what is not, and what is no lie."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bridge.forked_histories import KNOWN, Scene, scene
from tests.client.hostile import START, Log
from tests.client.pair import QUICK
from tests.hub.client import Clock
from veen.bridge.veil_gossip import item_verify
from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer, ComparedCheckpoint, ComparisonResult
from veen.bridge.veil_gossip.gossip_items import ShownCheckpoint
from veen.bridge.veil_gossip.item_verify import ItemRejected, RejectReason
from veen.client import ClientDir
from veen.client.client import Client
from veen.core import Receipt, Refused, SigningKey
from veen.core import hub_identity as identities
from veen.core.envelopes import ReceiptRequest, ReceiptResponse


@pytest.mark.parametrize("size", [1, KNOWN - 1, KNOWN, KNOWN + 1, KNOWN + 5])
def test_an_honest_hub_agrees_at_every_size(place: Path, size: int) -> None:
    async def then(at: Scene) -> None:
        at.grow(KNOWN + 5)
        assert await at.hold(at.log.cut(size)) == ComparedCheckpoint(ComparisonResult.AGREES)
        assert [*at.people.reader_dir.evidence.glob("*")] == []

    scene(place, then)


@pytest.mark.parametrize("size", [3, KNOWN - 1, KNOWN, KNOWN + 1, KNOWN + 5])
def test_two_roots_for_one_size_are_proved_whether_or_not_the_size_is_known_here(place: Path, size: int) -> None:
    async def then(at: Scene) -> None:
        at.grow(KNOWN + 5)
        held = await at.hold(at.other(2, size))
        assert held.standing is ComparisonResult.FORKED
        assert at.proves(held)

    scene(place, then)


def test_a_known_size_needs_no_hub(place: Path) -> None:
    """A hub that hides does not help it."""

    async def then(at: Scene) -> None:
        at.hub.asked.clear()
        assert at.proves(await at.hold(at.other(5, KNOWN), ask=False))
        assert (await at.hold(at.log, ask=False)).standing is ComparisonResult.AGREES
        assert (await at.hold(at.log.cut(3), ask=False)).standing is ComparisonResult.UNASKED
        assert at.hub.asked == []

    scene(place, then)


def test_two_checkpoints_that_others_sent_are_proof_even_of_a_label_nobody_here_follows(place: Path) -> None:
    async def then(at: Scene) -> None:
        label = at.hub.label("elsewhere")
        one, two = Log(label), Log(label)
        for log in (one, two):
            log.append(at.hub.key, at.hub.forged(label), START)
        assert (await at.hold(one)).standing is ComparisonResult.UNFOLLOWED
        assert (await at.hold(one, one)).standing is ComparisonResult.UNFOLLOWED
        assert at.proves(await at.hold(one, two))

    scene(place, then)


def test_a_hub_that_signed_for_more_than_it_shows_is_not_proved_to_lie_yet(place: Path) -> None:
    async def then(at: Scene) -> None:
        other = at.other(4, KNOWN + 3)
        held = await at.hold(other)
        assert held.standing is ComparisonResult.UNSHOWN
        assert held.evidence is None
        assert "not proved yet" in held.reason
        assert f"signed for {KNOWN + 3} entries" in held.reason
        assert f"shows {KNOWN}" in held.reason
        assert f"at most {KNOWN} entries" in held.reason
        at.grow(KNOWN + 3)  # and now it has to say which
        assert at.proves(await at.hold(other))

    scene(place, then)


def test_a_hub_that_goes_over_to_the_other_history_is_caught_by_what_it_said_before(place: Path) -> None:
    async def then(at: Scene) -> None:
        other = at.other(4, KNOWN + 3)
        at.hub.logs[other.label] = other
        held = await at.hold(other)
        assert held.standing is ComparisonResult.FORKED
        assert at.proves(held)

    scene(place, then)


def test_a_hub_that_hides_where_its_histories_part_is_caught_at_the_next_entry(place: Path) -> None:
    """It gives out its first word on what the client knows, and its second on all that comes after."""

    async def then(at: Scene) -> None:
        mine, other = at.log.cut(KNOWN), at.other(4, KNOWN + 3)
        at.hub.logs[other.label] = other

        def told(asked: Receipt) -> Receipt:
            return mine.entries[asked.stream_seq - 1][1] if asked.stream_seq <= KNOWN else asked

        at.hub.lying, at.hub.on_receipt = True, told
        held = await at.hold(other)
        assert held.standing is ComparisonResult.FORKED
        assert at.proves(held)

    scene(place, then)


def test_a_hub_that_proves_nothing_is_doubted_and_not_accused(place: Path) -> None:
    async def then(at: Scene) -> None:
        other = at.other(4, KNOWN + 3)
        mine, at.hub.logs[other.label] = at.log, other

        def receipt(asked: ReceiptRequest) -> ReceiptResponse:
            if asked.stream_seq == KNOWN + 1:
                raise Refused("E.NOT_FOUND", "not this one")
            log = mine if asked.stream_seq <= KNOWN else other
            return ReceiptResponse(log.entries[asked.stream_seq - 1][1])

        at.hub.receipt = receipt  # type: ignore[method-assign]
        held = await at.hold(other)
        assert held.standing is ComparisonResult.DOUBTED
        assert held.evidence is None
        assert "not proved to others" in held.reason

    scene(place, then)


def test_a_hub_that_does_not_answer_is_waited_for_once_and_asked_again_later(place: Path) -> None:
    async def then(at: Scene) -> None:
        clock = Clock(0)
        at.reader.contact.link.patience = QUICK
        at.hub.mute = lambda path: path == "/v1/receipt"
        holder = CheckpointComparer(at.people.reader_dir, at.reader.contact.trust.known, at.reader, clock=clock)
        held = await holder.hold(at.judged(at.other(4, 5)))
        assert held.standing is ComparisonResult.UNASKED
        assert "no answer" in held.reason
        at.hub.asked.clear()
        for size in range(1, 5):
            assert "silent" in (await holder.hold(at.judged(at.log.cut(size)))).reason
        assert at.hub.asked == []
        at.hub.mute, clock.now = (lambda path: False), 60
        assert at.proves(await holder.hold(at.judged(at.other(4, 5))))

    scene(place, then)


def test_a_hub_that_keeps_no_receipts_so_old_proves_by_its_tree_or_is_doubted(place: Path) -> None:
    async def then(at: Scene) -> None:
        true = at.hub.receipt

        def receipt(asked: ReceiptRequest) -> ReceiptResponse:
            if asked.stream_seq < KNOWN:
                raise Refused("E.NOT_FOUND", "it was pruned")
            return true(asked)

        at.hub.receipt = receipt  # type: ignore[method-assign]
        assert await at.hold(at.log.cut(3)) == ComparedCheckpoint(ComparisonResult.AGREES)
        assert (await at.hold(at.other(1, 3))).standing is ComparisonResult.DOUBTED
        with ClientDir.create(place / "auditor", None, START) as folder:
            async with Client(at.hub.url, folder, pin=at.people.pin) as client:
                holder = CheckpointComparer(folder, client.contact.trust.known, client, [at.log.label])
                assert (await holder.hold(at.judged(at.log.cut(3)))).standing is ComparisonResult.UNSHOWN

    scene(place, then)


# What is not the hub's word at all.


def _refusal(at: Scene, body: bytes) -> RejectReason:
    with pytest.raises(ItemRejected) as caught:
        item_verify.checkpoint(body, at.reader.contact.trust.known)
    return caught.value.reason


def test_a_checkpoint_that_the_hub_did_not_sign_is_refused(place: Path) -> None:
    async def then(at: Scene) -> None:
        true = at.hub.checkpoint_of(at.log)
        wrong = [
            replace(true, mmr_root=bytes(32)),
            replace(true, upto_seq=KNOWN + 1),
            replace(true, hub_sig=bytes(64)),
            at.hub.checkpoint_of(at.log, SigningKey.generate()),
        ]
        assert {_refusal(at, at.shown(one)) for one in wrong} == {RejectReason.SIGNATURE}
        assert item_verify.checkpoint(at.shown(true), at.reader.contact.trust.known).checkpoint == true

    scene(place, then)


def test_papers_that_are_not_the_hubs_are_refused(place: Path) -> None:
    async def then(at: Scene) -> None:
        hub, thief = at.hub, SigningKey.generate()
        true, stolen = hub.checkpoint_of(at.log), identities.create(SigningKey.generate(), START)
        mine = identities.sign(hub.identity, hub.key)
        # Whoever has a key that was retired can endorse another one with it, and write another history of keys.
        moved = identities.rotate(hub.identity, hub.key, SigningKey.generate(), START)
        forked = identities.rotate(hub.identity, hub.key, thief, START + 1)
        wrong = [
            ShownCheckpoint(stolen, identities.sign(stolen, thief), true),
            ShownCheckpoint(hub.identity, replace(mine, sig=bytes(64)), true),
            ShownCheckpoint(forked, identities.sign(forked, hub.key), true),
        ]
        assert {_refusal(at, one.encode()) for one in wrong} == {RejectReason.IDENTITY}
        known = replace(at.reader.contact.trust.known, identity=moved)
        longer = identities.rotate(forked, thief, thief2 := SigningKey.generate(), START + 2)
        for hub_metadata, key in ((forked, thief), (longer, thief2)):
            with pytest.raises(ItemRejected, match="identity"):
                item_verify.checkpoint(
                    ShownCheckpoint(hub_metadata, identities.sign(hub_metadata, key), true).encode(), known
                )

    scene(place, then)


def test_a_key_that_is_new_to_the_client_counts_where_the_hubs_own_key_endorses_it(place: Path) -> None:
    """One who was told of the new key shows its word to one who was not, and neither asks the hub."""

    async def then(at: Scene) -> None:
        hub, key = at.hub, SigningKey.generate()
        rotated = identities.rotate(hub.identity, hub.key, key, START + 1)
        body = ShownCheckpoint(
            rotated, identities.sign(rotated, key), hub.checkpoint_of(at.other(4, KNOWN), key)
        ).encode()
        judged = item_verify.checkpoint(body, at.reader.contact.trust.known)
        assert judged.record.identity == rotated
        held = await CheckpointComparer(at.people.reader_dir, at.reader.contact.trust.known).hold(judged)
        assert at.proves(held)

    scene(place, then)


def test_evidence_of_another_hub_or_with_other_keys_or_that_does_not_hold_is_refused(place: Path) -> None:
    async def then(at: Scene) -> None:
        known = at.reader.contact.trust.known
        held = await at.hold(at.other(4, KNOWN))
        assert held.evidence
        data = held.evidence.read_bytes()
        report, _ = item_verify.evidence(data, known)
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
                item_verify.evidence(body, whose)
            assert caught.value.reason is reason

    scene(place, then)


def test_a_client_that_knows_nothing_of_a_label_still_compares_it_where_it_is_told_to(place: Path) -> None:
    async def then(at: Scene) -> None:
        with ClientDir.create(place / "auditor", None, START) as folder:
            async with Client(at.hub.url, folder, pin=at.people.pin) as client:
                judged, known = at.judged(at.other(4, KNOWN)), client.contact.trust.known
                assert (
                    await CheckpointComparer(folder, known, client).hold(judged)
                ).standing is ComparisonResult.UNFOLLOWED
                held = await CheckpointComparer(folder, known, client, [at.log.label]).hold(judged)
                assert at.proves(held)

    scene(place, then)
