"""A hub that lies in its checkpoints, receipts, proofs or status is always caught."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.client.hostile import START, HostileHub
from tests.client.pair import STREAM, Pair, pair, read_all, send_all
from veen.client import ClientDir, evidence
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.client.trust import FIRST_USE, Pin
from veen.core import Checkpoint, Malformed, Profile, Receipt, Refused, SigningKey, Unverified
from veen.core import hub_identity as identities
from veen.core.retention import PRUNED, Level, Segment, Tombstone, sign_manifest
from veen.core.wire_json import to_json

KNOWN = 6
Arrange = Callable[[HostileHub], None]


async def _with_history(place: Path, then: Callable[[HostileHub, Pair, Client], Awaitable[None]]) -> None:
    """Six entries, and a reader that knows all of them."""
    with pair(place) as people:
        async with HostileHub() as hub:
            people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
            async with people.writer() as writer:
                await send_all(writer, *(b"%d" % number for number in range(KNOWN)))
            async with people.reader() as reader:
                await read_all(reader)
                hub.lying = True
                await then(hub, people, reader)


# Checkpoints.


def _on_checkpoint(**changes: Any) -> Arrange:
    def arrange(hub: HostileHub) -> None:
        log = hub.log(hub.label(STREAM))
        hub.on_checkpoint = lambda made: hub.checkpoint_of(log, **changes)

    return arrange


def _older(hub: HostileHub) -> None:
    log = hub.log(hub.label(STREAM))
    hub.on_checkpoint = lambda made: hub.checkpoint_of(log.cut(4))


def _unsigned(hub: HostileHub) -> None:
    hub.on_checkpoint = lambda made: replace(made, hub_sig=bytes(64))


def _strangers(hub: HostileHub) -> None:
    key = SigningKey.generate()
    hub.on_checkpoint = lambda made: hub.checkpoint_of(hub.log(hub.label(STREAM)), key)
    hub.on_status = lambda shown: shown.update(hub_pk=key.public_key.hex())


def _gone(hub: HostileHub) -> None:
    hub.logs[hub.label(STREAM)] = hub.log(hub.label(STREAM)).cut(3)


CHECKPOINTS: list[tuple[str, Arrange, Lie, bool]] = [
    ("an older one", _older, Lie.STALE_CHECKPOINT, False),
    ("one of another label", _on_checkpoint(label_curr=bytes(32)), Lie.STALE_CHECKPOINT, False),
    ("one without a valid signature", _unsigned, Lie.SIGNATURE, False),
    ("one that a stranger signed", _strangers, Lie.WRONG_KEY, False),
    ("one with another root", _on_checkpoint(mmr_root=bytes(32)), Lie.FORKED_HISTORY, True),
    ("none any more", _gone, Lie.TRUNCATED_STREAM, False),
]


@pytest.mark.parametrize(
    ("arrange", "lie", "shown"), [case[1:] for case in CHECKPOINTS], ids=[case[0] for case in CHECKPOINTS]
)
def test_a_wrong_checkpoint_is_caught_and_named(place: Path, arrange: Arrange, lie: Lie, shown: bool) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        arrange(hub)
        with pytest.raises(Contradiction) as caught:
            await reader.checkpoint(STREAM, KNOWN)
        assert caught.value.lie is lie
        assert (caught.value.evidence is not None) is shown
        if caught.value.evidence:
            assert evidence.verify(caught.value.evidence.read_bytes(), hub.identity.hub_id).contradictions
        assert people.reader_dir.state.checkpoint(reader.hub_id, reader.label(STREAM)) is None

    asyncio.run(_with_history(place, then))


def test_an_ordered_checkpoint_has_all_entries_that_the_client_knows(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        assert (await reader.order_checkpoint(STREAM)).upto_seq == KNOWN
        _older(hub)
        with pytest.raises(Contradiction) as caught:
            await reader.order_checkpoint(STREAM)
        assert caught.value.lie is Lie.STALE_CHECKPOINT

    asyncio.run(_with_history(place, then))


def test_two_checkpoints_of_one_size_are_evidence(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        with ClientDir.create(place / "auditor", None, START) as folder:
            async with Client(hub.url, folder, pin=people.pin) as auditor:
                first = await auditor.checkpoint(STREAM, KNOWN)  # all that the auditor knows
                hub.fork(hub.label(STREAM), 2)
                with pytest.raises(Contradiction) as caught:
                    await auditor.checkpoint(STREAM, KNOWN)
        assert caught.value.lie is Lie.FORKED_HISTORY
        assert caught.value.statements[0] == first
        assert caught.value.evidence is not None
        assert evidence.verify(caught.value.evidence.read_bytes(), hub.identity.hub_id).contradictions

    asyncio.run(_with_history(place, then))


@pytest.mark.parametrize(
    ("changes", "reason"), [({"epoch": 7}, "no epochs"), ({"label_prev": bytes(32)}, "label_prev")]
)
def test_a_checkpoint_with_the_wrong_epoch_or_labels_is_refused(
    place: Path, changes: dict[str, Any], reason: str
) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        _on_checkpoint(**changes)(hub)
        with pytest.raises(Unverified, match=reason):
            await reader.checkpoint(STREAM, KNOWN)

    asyncio.run(_with_history(place, then))


# Receipts and proofs.


def _another_place(hub: HostileHub) -> None:
    hub.on_receipt = lambda found: hub.log(hub.label(STREAM)).entries[0][1]


def _another_root(hub: HostileHub) -> None:
    hub.on_receipt = lambda found: hub.signed(found, mmr_root=bytes(32))


def _unsigned_receipt(hub: HostileHub) -> None:
    hub.on_receipt = lambda found: replace(found, hub_sig=bytes(64))


@pytest.mark.parametrize(
    ("arrange", "lie"),
    [
        (_another_place, Lie.REPLAYED_RECEIPT),
        (_another_root, Lie.FORKED_HISTORY),
        (_unsigned_receipt, Lie.SIGNATURE),
        (lambda hub: hub.fork(hub.label(STREAM), 0), Lie.FORKED_HISTORY),
    ],
)
@pytest.mark.parametrize("seq", [3, KNOWN])
def test_a_wrong_receipt_is_caught_and_named(place: Path, arrange: Arrange, lie: Lie, seq: int) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        arrange(hub)
        with pytest.raises(Contradiction) as caught:
            await reader.receipt(STREAM, seq)
        assert caught.value.lie is lie

    asyncio.run(_with_history(place, then))


@pytest.mark.parametrize("upto", [None, KNOWN])
def test_a_wrong_proof_is_refused(place: Path, upto: int | None) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        hub.on_proof = lambda made: replace(made, leaf_hash=bytes(32))
        with pytest.raises(Contradiction) as caught:
            await reader.proof(STREAM, 3, upto)
        assert caught.value.lie is Lie.ROOT

    asyncio.run(_with_history(place, then))


def test_an_honest_proof_holds(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        proved = await reader.proof(STREAM, 3, KNOWN)
        assert proved.receipt.stream_seq == 3
        assert proved.head.mmr_root == hub.log(hub.label(STREAM)).tree.root()

    asyncio.run(_with_history(place, then))


# Resync.


def _pruned(hub: HostileHub, tombstone: Tombstone | None = None) -> None:
    """The hub says that it pruned all receipts."""

    def refuse(receipt: Receipt) -> Receipt:
        detail: dict[str, int | str] = {"tombstone": tombstone.encode().hex() if tombstone else ""}
        raise Refused("E.NOT_FOUND", "these entries were pruned", detail_enum=PRUNED, detail=detail)

    hub.on_receipt = refuse


def _tombstone(hub: HostileHub) -> Tombstone:
    log = hub.log(hub.label(STREAM))
    hash_ = bytes(32)
    pruned = Segment(1, log.tree.size, log.tree.root(), hash_, 1, START, Level.RECEIPTS, hash_, START, 1)
    return sign_manifest(hub.key, hub.identity.hub_id, log.label, 0, START, [pruned]).tombstone(0)


def _pruned_without_checkpoint(hub: HostileHub) -> None:
    def refuse(made: Checkpoint) -> Checkpoint:
        raise Refused("E.NOT_FOUND", "there is no checkpoint")

    _pruned(hub, _tombstone(hub))
    hub.on_checkpoint = refuse


def _pruned_fork(hub: HostileHub) -> None:
    hub.fork(hub.label(STREAM), 4)
    _pruned(hub, _tombstone(hub))


@pytest.mark.parametrize(
    ("arrange", "lie", "shown"),
    [
        (lambda hub: hub.fork(hub.label(STREAM), 4), Lie.FORKED_HISTORY, True),
        (lambda hub: hub.fork(hub.label(STREAM), 0), Lie.FORKED_HISTORY, True),
        (_gone, Lie.TRUNCATED_STREAM, False),
        (_pruned, Lie.TRUNCATED_STREAM, False),
        (_pruned_without_checkpoint, Lie.TRUNCATED_STREAM, False),
        (_pruned_fork, Lie.FORKED_HISTORY, True),
        (_on_checkpoint(mmr_root=bytes(32)), Lie.FORKED_HISTORY, True),
        (_older, Lie.STALE_CHECKPOINT, False),
    ],
)
def test_a_resync_never_takes_up_another_history(place: Path, arrange: Arrange, lie: Lie, shown: bool) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        root = reader.follower(STREAM).tree.root()
        arrange(hub)
        with pytest.raises(Contradiction) as caught:
            await reader.resync(STREAM)
        assert caught.value.lie is lie
        assert (caught.value.evidence is not None) is shown
        if caught.value.evidence:
            assert evidence.verify(caught.value.evidence.read_bytes(), hub.identity.hub_id).contradictions
        assert (reader.follower(STREAM).tree.size, reader.follower(STREAM).tree.root()) == (KNOWN, root)

    asyncio.run(_with_history(place, then))


def test_a_resync_goes_to_the_end_by_proofs_alone(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        log = hub.log(hub.label(STREAM))
        for _ in range(50):
            log.append(hub.key, hub.forged(log.label), START)
        hub.asked.clear()
        found = await reader.resync(STREAM)
        assert (found.before, found.size) == (KNOWN, KNOWN + 50)
        assert found.checkpoint
        assert found.checkpoint.mmr_root == reader.follower(STREAM).tree.root()
        assert "/v1/stream" not in hub.asked
        again = await reader.resync(STREAM, replay_from=2)
        assert again.replayed == KNOWN + 49

    asyncio.run(_with_history(place, then))


def test_starting_over_accepts_the_new_history(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        hub.fork(hub.label(STREAM), 2)
        with pytest.raises(Contradiction):
            await reader.resync(STREAM)
        await reader.forget(STREAM)
        assert (await reader.resync(STREAM)).size == KNOWN + 1
        shown = [evidence.verify(path.read_bytes(), reader.hub_id) for path in people.reader_dir.evidence.iterdir()]
        assert [report for report in shown if report.contradictions]

    asyncio.run(_with_history(place, then))


def test_what_the_hub_signed_outlives_the_decision_to_start_over(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        signed = await reader.checkpoint(STREAM, 4)
        await reader.forget(STREAM)
        (kept,) = people.reader_dir.evidence.iterdir()
        report = evidence.verify(kept.read_bytes(), reader.hub_id)
        assert report.checkpoints == (signed,)
        assert report.contradictions == ()

    asyncio.run(_with_history(place, then))


def test_an_empty_stream_has_nothing_to_resync(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        found = await reader.resync("another")
        assert (found.before, found.size, found.checkpoint) == (0, 0, None)

    asyncio.run(_with_history(place, then))


# The hub itself.


def _another_hub(hub: HostileHub) -> None:
    other = SigningKey.generate()
    record = identities.create(other, START)
    hub.on_status = lambda shown: shown.update(
        identity=to_json(record), identity_sig=to_json(identities.sign(record, other)), hub_id=record.hub_id.hex()
    )


def _key_without_endorsement(hub: HostileHub) -> None:
    """A new key that the old one did not endorse."""
    new = SigningKey.generate()
    rotated = identities.rotate(hub.identity, hub.key, new, START + 1)
    last = replace(rotated.newest, endorsement=bytes(64))
    record = replace(rotated, hub_keys=(*rotated.hub_keys[:-1], last))
    hub.on_status = lambda shown: shown.update(
        identity=to_json(record), identity_sig=to_json(identities.sign(record, new))
    )


def _unsigned_record(hub: HostileHub) -> None:
    new = SigningKey.generate()
    rotated = identities.rotate(hub.identity, hub.key, new, START + 1)
    hub.on_status = lambda shown: shown.update(
        identity=to_json(rotated), identity_sig=to_json(identities.sign(rotated, SigningKey.generate()))
    )


@pytest.mark.parametrize("arrange", [_another_hub, _key_without_endorsement, _unsigned_record])
def test_a_hub_that_is_not_the_pinned_one_is_rejected(place: Path, arrange: Arrange) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        arrange(hub)
        with pytest.raises(Contradiction) as caught:
            await reader.status()
        assert caught.value.lie is Lie.WRONG_KEY
        with pytest.raises(Contradiction) as again:
            async with people.reader():
                pass
        assert again.value.lie is Lie.WRONG_KEY

    asyncio.run(_with_history(place, then))


def test_a_key_history_that_forks_is_refused(place: Path) -> None:
    """Two keys, each endorsed by the first: a thief of the first key can make the second."""

    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        first, key = hub.identity, hub.key
        hub.key = SigningKey.generate()
        hub.identity = identities.rotate(first, key, hub.key, START + 10)
        await reader.status()
        other = SigningKey.generate()
        hub.identity, hub.key = identities.rotate(first, key, other, START + 20), other
        with pytest.raises(Contradiction) as caught:
            await reader.status()
        assert caught.value.lie is Lie.WRONG_KEY

    asyncio.run(_with_history(place, then))


def test_an_older_record_of_the_same_hub_is_accepted_and_ignored(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        first, key = hub.identity, hub.key
        hub.key = SigningKey.generate()
        hub.identity = identities.rotate(first, key, hub.key, START + 10)
        await reader.status()
        rotated = hub.identity
        hub.identity, hub.key = first, key
        await reader.status()
        assert reader.session.trust.known.identity == rotated

    asyncio.run(_with_history(place, then))


def test_a_hub_keeps_its_profile(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        hub.profile = Profile(pad_block=512)
        with pytest.raises(Unverified, match="profile"):
            await reader.status()

    asyncio.run(_with_history(place, then))


def _without(name: str) -> Arrange:
    def arrange(hub: HostileHub) -> None:
        hub.on_status = lambda shown: shown.pop(name)

    return arrange


def _as(**said: Any) -> Arrange:
    def arrange(hub: HostileHub) -> None:
        hub.on_status = lambda shown: shown.update(said)

    return arrange


@pytest.mark.parametrize(
    "arrange",
    [_without(name) for name in ("identity", "identity_sig", "profile", "limits", "hub_ts", "hub_pk", "admission")]
    + [_as(hub_ts=-1), _as(hub_ts="now"), _as(epoch=True), _as(hub_pk="AB"), _as(profile_id="00" * 32)]
    + [_as(hub_id="00" * 32), _as(admission=1), _as(limits={}), _as(identity=[])],
)
def test_a_malformed_status_is_rejected(place: Path, arrange: Arrange) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        arrange(hub)
        with pytest.raises(Malformed, match="hub status"):
            await reader.status()

    asyncio.run(_with_history(place, then))


def test_a_hub_without_a_pin_is_rejected(place: Path) -> None:
    async def run() -> None:
        async with HostileHub() as hub:
            people.url = hub.url
            with pytest.raises(Unverified, match="the hub is unknown"):
                async with people.reader(pin=None):
                    pass
            async with people.reader(pin=FIRST_USE):
                pass
            async with people.reader(pin=None) as reader:  # the hub is known now
                assert reader.hub_id == hub.identity.hub_id
        async with HostileHub() as other:
            people.reader_dir.state.put_hub_of(other.url, hub.identity.hub_id)
            people.url = other.url
            for pin in (None, FIRST_USE):  # the first use was another hub
                with pytest.raises(Contradiction) as caught:
                    async with people.reader(pin=pin):
                        pass
                assert caught.value.lie is Lie.WRONG_KEY

    with pair(place) as people:
        asyncio.run(run())


def test_a_refusal_is_passed_on(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, reader: Client) -> None:
        with pytest.raises(Refused) as caught:
            await reader.receipt(STREAM, KNOWN + 1)
        assert caught.value.code == "E.NOT_FOUND"

    asyncio.run(_with_history(place, then))
