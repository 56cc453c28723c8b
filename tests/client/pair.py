"""A writer and a reader of one stream, each with its own client directory."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hub.client import PATIENCE_S
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.reader import Entry
from veen.client.sender import Draft, Sent
from veen.client.transport import RetryPolicy
from veen.client.trust import Pin

STREAM = "news"
# Gives up soon on a hub that rejects or disconnects, but not on a slow one.
QUICK = RetryPolicy(
    attempts=3, first_wait_s=0.001, longest_wait_s=0.01, poll_s=0.01, connect_s=PATIENCE_S, answer_s=PATIENCE_S
)
NOW = 1_750_000_000


@dataclass
class Pair:
    """The two clients, and what they need to connect to a hub."""

    writer_dir: ClientDir
    reader_dir: ClientDir
    url: str = ""
    pin: Pin | None = None

    @asynccontextmanager
    async def writer(self, **options: Any) -> AsyncIterator[Client]:
        async with Client(self.url, self.writer_dir, **({"pin": self.pin, "retry_policy": QUICK} | options)) as client:
            yield client

    @asynccontextmanager
    async def reader(self, **options: Any) -> AsyncIterator[Client]:
        async with Client(self.url, self.reader_dir, **({"pin": self.pin, "retry_policy": QUICK} | options)) as client:
            yield client


@contextmanager
def pair(place: Path, stream: str = STREAM, now: int = NOW) -> Iterator[Pair]:
    with (
        ClientDir.create(place / "writer", None, now) as writer,
        ClientDir.create(place / "reader", None, now) as reader,
    ):
        reader.stream_keys.import_secret(stream, writer.stream_keys.create(stream))
        yield Pair(writer, reader)


async def send_all(client: Client, *bodies: bytes, stream: str = STREAM) -> list[Sent]:
    """Send them at once, so that they form one batch."""
    sender = client.sender(stream)
    return await asyncio.gather(*(sender.put(Draft(body)) for body in bodies))


async def read_all(client: Client, stream: str = STREAM, **options: Any) -> list[Entry]:
    return [entry async for entry in client.read(stream, **options)]


def bodies(entries: list[Entry]) -> list[bytes | None]:
    return [entry.body for entry in entries]
