"""Agreed groups: members that got the secret elsewhere find each other, and no invitation can change the secret."""

import asyncio
from pathlib import Path

import pytest

from tests.veil.api_hosts import linked_nodes, make, running
from veil.encryption import GroupSecret
from veil.hashing import h
from veil.node import Destination
from veil.runtime.data_directory import DataDirectory
from veil.runtime.groups import Invitation
from veil.veil_errors import Refused

SECRET, NAMESPACE = h(b"what we both know"), 77


def test_nodes_with_the_same_secret_are_in_the_same_group_under_any_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            one = await alice.post("/v1/groups", name="here", secret=SECRET.hex(), namespace=NAMESPACE)
            two = await bob.post("/v1/groups", name="there", secret=SECRET.hex(), namespace=NAMESPACE)
            assert one["group_id"] == two["group_id"]
            assert SECRET.hex() not in str(one)
            await alice.post("/v1/publish", text="hello", group="here", namespace=NAMESPACE)
            assert await bob.said(1) == [b"hello"]
            assert {one["namespace"] for one in await bob.get("/v1/subscriptions") if one["kind"] == "group"} == {77}

    asyncio.run(work())


def test_joining_again_changes_nothing_and_a_used_name_gets_a_suffix(tmp_path: Path) -> None:
    folder = make(tmp_path, "alice")

    async def first() -> None:
        async with running(folder) as alice:
            other = await alice.post("/v1/groups", name="taken")
            mine = [await alice.post("/v1/groups", name="taken", secret=SECRET.hex()) for _ in range(2)]
            assert mine[0] == mine[1]
            assert mine[0]["name"] == f"taken-{mine[0]['group_id'][:8]}"
            assert other["group_id"] != mine[0]["group_id"]

    async def then() -> None:
        async with running(DataDirectory(folder.path)) as alice:
            assert len(await alice.get("/v1/groups")) == 2

    asyncio.run(first())
    asyncio.run(then())


@pytest.mark.parametrize("secret", ["", "00", "zz" * 32, "00" * 33])
def test_an_invalid_secret_creates_no_group(secret: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with running(make(tmp_path, "alice")) as alice:
            answer = await alice.ask("POST", "/v1/groups", json={"name": "x", "secret": secret})
            assert answer.status_code == (200 if not secret else 400)

    asyncio.run(work())


def test_an_agreed_group_cannot_be_moved_to_another_secret(tmp_path: Path) -> None:
    """Otherwise a contact could move members to a secret of its own."""

    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            await bob.post("/v1/groups", name="ours", secret=SECRET.hex())
            agreed = GroupSecret.agreed(SECRET)
            to = bob.host.groups.ring.delivery.public_key
            invitation = Invitation("ours", agreed.rotate()).encode()
            alice.host.node.publish(Destination.private(to, 2), invitation)
            alice.host.wake_timers()
            await bob.said(1)
            assert bob.host.groups.ring.group("ours").group.secrets == (agreed,)
            with pytest.raises(Refused, match="cannot be rotated"):
                bob.host.groups.rotate("ours", ())

    asyncio.run(work())


def test_only_the_first_generation_with_the_id_of_its_secret_is_agreed() -> None:
    agreed = GroupSecret.agreed(SECRET)
    assert agreed.is_agreed
    assert not GroupSecret.create().is_agreed
    assert not agreed.rotate().is_agreed
    assert not agreed.ratchet().is_agreed
    assert GroupSecret.decode(agreed.encode()).is_agreed
