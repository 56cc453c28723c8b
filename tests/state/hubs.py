"""Hubs with a writer and a reader of one stream: one in memory that can lie, one on a real data directory."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.client.hostile import HostileHub
from tests.client.pair import STREAM, Pair, pair
from tests.hub.client import START, Clock, Hub, make_dir, running
from tests.hub.disks import QuickDisk
from veen.client.client import Client
from veen.client.sender import Draft, Sent
from veen.client.trust import Pin
from veen.core import Limits, Profile
from veen.overlays import Event

SMALL = Limits(max_checkpoint_interval=4)


def at_a_liar(place: Path, work: Callable[[HostileHub, Pair], Awaitable[None]]) -> None:
    """A hub in memory that can be switched to lie, and records its requests."""

    async def run() -> None:
        async with HostileHub() as hub:
            people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
            await work(hub, people)

    with pair(place) as people:
        asyncio.run(run())


def at_a_hub(
    place: Path,
    work: Callable[[Hub, Pair], Awaitable[None]],
    *,
    profile: Profile | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
) -> Path:
    """A real hub; its data directory is returned, closed."""
    data_dir = make_dir(place, profile, limits, START)
    with pair(place, now=START) as people, running(data_dir, clock or Clock(), QuickDisk()) as hub:
        people.url = f"http://127.0.0.1:{hub.port}"
        people.pin = Pin(key=hub.service.hub_metadata.identity.hub_id)
        asyncio.run(_done(work, hub, people))
    return data_dir


async def _done(work: Callable[[Hub, Pair], Awaitable[None]], hub: Hub, people: Pair) -> None:
    await work(hub, people)


async def say(client: Client, *events: Event, stream: str = STREAM) -> Sequence[Sent]:
    """In one go, whatever the state says of them."""
    sender = client.sender(stream)
    return await asyncio.gather(*(sender.put(Draft(event.encode(), event.SCHEMA)) for event in events))


async def say_bytes(client: Client, *bodies: bytes, schema: bytes, stream: str = STREAM) -> Sequence[Sent]:
    sender = client.sender(stream)
    return await asyncio.gather(*(sender.put(Draft(body, schema)) for body in bodies))
