"""A receiver that is killed at any moment loses nothing, and counts and stores nothing twice, when it runs again."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.bridge.gossip_fixture import STREAM, Side, between
from veen.bridge.veil_gossip.exchange import Publisher
from veen.bridge.veil_gossip.gossip_inbox import BUNDLES, EVIDENCE, Inbox, PartStore
from veen.bridge.veil_gossip.gossip_items import PART_BYTES, GossipItem, ItemKind

Stored = tuple[dict[str, int], list[str], list[str], int, int]


async def _process(side: Side, inbox: Path, moment: int) -> tuple[int | None, bytes]:
    hub = f"http://127.0.0.1:{side.hub.port}"
    given = [side.node.url, side.node.token, hub, side.folder.path, inbox, moment]
    command = [sys.executable, "-m", "tests.bridge.receive_process", *map(str, given)]
    ran = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await ran.communicate()
    return ran.returncode, said


def _stored(side: Side) -> Stored:
    """Everything that a receiver has stored at its end."""
    with Inbox(side.inbox, side.hub_id) as inbox:
        files = [path.name for name in (BUNDLES, EVIDENCE) for path in (side.inbox / name).iterdir()]
        rows = [inbox.rows.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in ("heads", "seen")]
        found = [one.reason for one in inbox.found() if not one.untold]
        return inbox.counts(), sorted(files), sorted(found), rows[0], PartStore(inbox).bytes_held()


async def _publish_all(alice: Side, bob: Side) -> None:
    await bob.read()
    async with alice.client() as client, alice.group() as group:
        publisher = Publisher(group, client.session.trust.known)
        await publisher.checkpoint(client, await client.checkpoint(STREAM))
        for number in range(3):
            await client.send(STREAM, bytes((number,)) * 40_000)
        await publisher.checkpoint(client, await client.checkpoint(STREAM, 4))
        large = (await client.evidence(STREAM, [4, 5, 6])).encode()
        assert len(large) > PART_BYTES
        said = await publisher.evidence(large)
    await alice.put(b"junk", GossipItem(bytes(32), ItemKind.PART, b""), b"more junk")
    await bob.wait_received(2 + len(said.message_ids) + 3)


def _assert_survives_kills(place: Path, moments: int) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await bob.write(b"for bob")
        await _publish_all(alice, bob)
        bob.inbox = place / "whole"
        status, said = await _process(bob, bob.inbox, 0)
        assert status == 0
        wanted = _stored(bob)
        assert wanted[0] == {"checkpoints": 2, "evidence": 1, "refused foreign": 1, "refused malformed": 2}
        assert (len(wanted[1]), len(wanted[2]), wanted[3:]) == (1, 1, (2, 0))
        for number in range(1, moments + 1):
            bob.inbox = place / f"inbox-{number}"
            status, _ = await _process(bob, bob.inbox, int(said) * number // (moments + 1))
            assert status == -signal.SIGKILL
            await bob.receive()
            assert _stored(bob) == wanted
            assert await bob.receive() == []

    between(place, work, forked=True)


def test_a_receiver_killed_in_the_middle_loses_and_repeats_nothing(place: Path) -> None:
    _assert_survives_kills(place, 2)


@pytest.mark.slow
def test_a_receiver_killed_at_many_moments_loses_and_repeats_nothing(place: Path) -> None:
    _assert_survives_kills(place, 60)
