"""Running an input: what it takes in is spooled or read, and sent, until it ends or someone ends it."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, suppress
from pathlib import Path

from veen.cli import output
from veen.cli.client import calling
from veen.cli.recorder.group import AtHub, advised
from veen.client import ClientDir
from veen.client.client import Client
from veen.core.hashing import h
from veen.recorder import SetAside, Shipper, durable
from veen.recorder.jsonlines import JsonLines
from veen.recorder.spoolfeed import SpoolFeed

FINISH_S = 5.0  # to send what is there, once someone has ended it

Inlet = AbstractAsyncContextManager[object]


def own_folder(folder: ClientDir, *names: str) -> Path:
    """Where a producer keeps what it needs to go on: under its client directory."""
    path = folder.path.joinpath("recorder", *names)
    durable.make_folder(path)
    return path


def state_file(folder: ClientDir, path: Path) -> Path:
    """Where it is kept how far a file was read."""
    return own_folder(folder, "places") / f"{h(str(path.absolute()).encode()).hex()[:32]}.cbor"


class Input:
    """One feed of one producer. Without a hub that answers it waits, and what comes in meanwhile is kept."""

    def __init__(self, asked: AtHub, folder: ClientDir) -> None:
        self._asked = asked
        self._folder = folder
        self._call = calling.Call(asked.hub, asked.client, asked.passphrase_file, asked.pin, asked.first_use)
        self._url = self._call.url()
        if folder.state.hub_of(self._url) is None:
            self._call.run_with(folder, self._url, _nothing)  # whom to believe is settled before anything is sent

    def run(
        self, feed: SpoolFeed | JsonLines, inlet: Inlet | None = None, opened: Callable[[], None] | None = None
    ) -> None:
        """Until the feed ends, or SIGTERM or SIGINT; then say what became of it.

        `inlet` is open meanwhile, and fills the spool that the feed is of; `opened` hears that it is.
        """
        aside = SetAside(own_folder(self._folder) / "refused.jsonl")
        shipper = Shipper(lambda: Client(self._url, self._folder), feed, aside, output.remark)
        with advised(), closing(feed):
            asyncio.run(self._until_told(shipper, feed, inlet, opened))
        count = shipper.count
        rows: dict[str, output.Value] = {"sent": count.sent, "known": count.known, "refused": count.refused}
        if count.refused:
            rows["set_aside"] = str(aside.path)
        output.facts(rows, self._asked.as_json)

    async def _until_told(
        self,
        shipper: Shipper,
        feed: SpoolFeed | JsonLines,
        inlet: Inlet | None,
        opened: Callable[[], None] | None,
    ) -> None:
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        async with AsyncExitStack() as stack:
            if inlet is not None:
                await stack.enter_async_context(inlet)
            if opened is not None:
                opened()
            sending = asyncio.create_task(shipper.run())
            waiting = asyncio.create_task(told.wait())
            await asyncio.wait([sending, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        feed.end()
        done, _ = await asyncio.wait([sending], timeout=FINISH_S)
        if not done:
            sending.cancel()
            output.remark("the hub does not answer: what was not sent is kept, and sent next time")
        with suppress(asyncio.CancelledError):
            await sending


async def _nothing(client: Client) -> None:
    return None
