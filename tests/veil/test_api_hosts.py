"""Running nodes: private messages, groups, shared folders, long offline times, and peers that send invalid frames."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plumbing.sodium import SigningKey
from tests.veil.api_hosts import Running, linked_nodes, make, running
from veil import veil_limits
from veil.encryption import GroupSecret
from veil.lanes.lane import Session
from veil.lanes.session import AuthenticatedLane
from veil.lanes.tls_lane import TlsLane
from veil.node import Destination, Subscription
from veil.runtime.daemon import Host
from veil.runtime.data_directory import DataDirectory, Settings
from veil.runtime.groups import Invitation
from veil.tags import feed_tag
from veil.veil_errors import Refused


def test_a_private_message_reaches_one_node_and_is_acknowledged(tmp_path: Path) -> None:
    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            await alice.post("/v1/publish", text="for bob", to="bob")
            assert await bob.said(1) == [b"for bob"]
            events = await alice.until(lambda found: any(one.kind == "acked" for one in found))
            assert [one.kind for one in events if "message_id" in one.data] == ["queued", "sealed", "acked"]
            (told,) = await bob.get("/v1/feed")
            assert told["data"]["sender_name"] == "alice"

    asyncio.run(work())


def test_a_tier_applies_whichever_node_dialled(tmp_path: Path) -> None:
    """A node is identified by its key, not by its address."""

    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            for one, other in ((alice, "bob"), (bob, "alice")):
                await one.post("/v1/policy", pubkey=other, tier="muted")
                (peer,) = await one.get("/v1/peers")
                assert (peer["name"], peer["tier"]) == (other, "muted")

    asyncio.run(work())


def test_a_member_reads_the_group_until_a_rotation_excludes_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob", "carol") as (alice, bob, carol):
            await alice.post("/v1/groups", name="friends")
            for name in ("bob", "carol"):
                await alice.post("/v1/groups/invite", group="friends", contact=name)
            await bob.until(lambda found: bool(bob.host.groups.ring.groups))
            await carol.until(lambda found: bool(carol.host.groups.ring.groups))
            await bob.post("/v1/publish", text="all of you", group="friends")
            assert b"all of you" in await alice.said(1)
            assert b"all of you" in await carol.said(2)
            await alice.post("/v1/groups/rotate", group="friends", stay=["bob"])
            await bob.until(lambda found: bob.host.groups.ring.groups[0].group.newest.generation == 1)
            await alice.post("/v1/publish", text="not for carol", group="friends", ack=True)
            await alice.until(lambda found: any(one.kind == "acked" and one.data["message_id"] == 4 for one in found))
            assert b"not for carol" in await bob.said(3)
            assert carol.host.groups.ring.groups[0].group.newest.generation == 0
            assert b"not for carol" not in await carol.said(2)

    asyncio.run(work())


def test_an_invitation_from_a_stranger_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            bob.host.remove_contact(alice.pubkey)
            invitation = Invitation("mine", GroupSecret.create()).encode()
            to = bob.host.groups.ring.delivery.public_key
            alice.host.node.publish(Destination.private(to, 2), invitation)
            alice.host.wake_timers()
            await bob.said(1)
            assert bob.host.groups.ring.groups == ()
            assert await bob.get("/v1/feed") == []

    asyncio.run(work())


def test_the_secret_of_a_group_is_not_shown(tmp_path: Path) -> None:
    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            await alice.post("/v1/groups", name="friends")
            await alice.post("/v1/groups/invite", group="friends", contact="bob")
            await bob.said(1)
            secret = alice.host.groups.ring.groups[0].group.newest.secret
            shown = [await bob.ask("GET", path) for path in ("/v1/events", "/v1/feed", "/v1/groups")]
            assert all(secret.hex() not in one.text and "payload_b64" not in one.text for one in shown)

    asyncio.run(work())


def test_a_group_and_its_secret_survive_a_restart(tmp_path: Path) -> None:
    folder = make(tmp_path, "alice")

    async def first() -> bytes:
        async with running(folder) as alice:
            return alice.host.groups.create("friends").group.newest.secret

    async def then(secret: bytes) -> None:
        async with running(DataDirectory(folder.path)) as alice:
            assert alice.host.groups.ring.group("friends").group.newest.secret == secret
            assert any(one.kind.name == "GROUP" for one in alice.host.node.subscriptions())

    asyncio.run(then(asyncio.run(first())))


def test_a_shared_folder_delivers_messages_to_a_node_that_was_never_online_together(tmp_path: Path) -> None:
    """The two nodes never run at the same time; they share only a folder."""
    (tmp_path / "stick").mkdir()
    chosen = Settings(listen=(f"file://{tmp_path}/stick",))
    folders = {name: make(tmp_path, name, chosen) for name in ("alice", "bob")}

    async def contact(name: str) -> str:
        async with running(folders[name]) as node:
            return node.host.contact.text()

    async def say(text: str) -> None:
        async with running(folders["alice"]) as alice:
            await alice.post("/v1/contacts", contact=text)
            await alice.post("/v1/publish", text="by hand", to="bob")
            while not list(tmp_path.glob("stick/*/*.parcel")):
                await asyncio.sleep(0.01)

    async def receive(text: str) -> None:
        async with running(folders["bob"]) as bob:
            await bob.post("/v1/contacts", contact=text)
            assert await bob.said(1) == [b"by hand"]

    theirs = asyncio.run(contact("bob"))
    asyncio.run(say(theirs))
    asyncio.run(receive(asyncio.run(contact("alice"))))


def test_a_message_published_offline_is_sent_after_a_restart(tmp_path: Path) -> None:
    alices, bobs = make(tmp_path, "alice"), make(tmp_path, "bob")

    async def offline() -> None:
        async with running(alices) as alice:
            for number in range(20):
                alice.host.node.publish(Destination.feed(40), b"%d" % number)

    async def online() -> None:
        async with running(DataDirectory(alices.path)) as alice, running(bobs) as bob:
            bob.host.node.subscribe(Subscription.feed(feed_tag(alice.pubkey, 40), 40))
            alice.host.add_contact(bob.host.contact)
            assert sorted(await bob.said(20)) == sorted(b"%d" % number for number in range(20))

    asyncio.run(offline())
    asyncio.run(online())


async def eve_to(node: Running) -> tuple[Session, list[bytes]]:
    """A session of an unknown node, and the frames it sends."""
    lane = AuthenticatedLane(TlsLane(node.host.certificate), SigningKey.generate())
    met = await lane.dial(node.host.contact.endpoints[0], node.pubkey, None)
    return met, []


async def peers_by_name(node: Running) -> dict[str | None, dict[str, Any]]:
    return {one["name"]: one for one in await node.get("/v1/peers")}


NONSENSE = {
    "garbage": b"\x00garbage",
    "a shard cut short": bytes([0x8B]) + bytes(100),
    "the largest frame of zeros": bytes(veil_limits.MAX_FRAME_BYTES),
    "an empty frame": b"",
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_invalid_frames_affect_only_the_peer_that_sent_them(nonsense: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            bob.host.node.subscribe(Subscription.feed(feed_tag(alice.pubkey, 40), 40))
            eve, frames = await eve_to(bob)
            frames += [NONSENSE[nonsense]] * 200
            work = asyncio.ensure_future(eve.run(lambda most: (frames.pop(),) if frames else (), lambda frame: None))
            while frames and not work.done():
                await asyncio.sleep(0.01)
            await alice.post("/v1/publish", text="still here", namespace=40)
            assert await bob.said(1) == [b"still here"]
            peers = await peers_by_name(bob)
            while NONSENSE[nonsense] and not peers[None]["muted_until"]:  # some frames may still be in flight
                peers = await peers_by_name(bob)
            assert peers["alice"]["demerits"] == 0
            await eve.close()
            await asyncio.gather(work, return_exceptions=True)

    asyncio.run(work())


def test_only_one_process_can_use_a_data_directory(tmp_path: Path) -> None:
    folder = make(tmp_path, "alice")

    async def work() -> None:
        async with running(folder):
            with pytest.raises(Refused, match="already running"):
                Host(DataDirectory(folder.path))

    asyncio.run(work())


def test_webrtc_is_set_up_over_another_lane(tmp_path: Path) -> None:
    """Bob's contact has a TLS endpoint and WebRTC without a folder, so the offer travels over TLS."""
    both = Settings(listen=("tls://127.0.0.1:0", "webrtc://"))
    alices, bobs = make(tmp_path, "alice", Settings()), make(tmp_path, "bob", both)

    async def work() -> None:
        async with running(alices) as alice, running(bobs) as bob:
            alice.host.add_contact(bob.host.contact)
            while {lane for lane, _ in bob.host.sessions.all()} != {"tls", "webrtc"}:
                await asyncio.sleep(0.05)
            assert [lane for lane, _ in bob.host.sessions.all()].count("webrtc") == 1

    asyncio.run(work())
