"""Running an input: what it takes in is spooled or read, and sent, until it ends or someone ends it."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, suppress
from pathlib import Path

from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.recorder.recorder_options import advised
from veen.client import ClientDir
from veen.client.client import Client
from veen.core import Unavailable
from veen.core.hashing import h
from veen.overlays.record import RecordEvent
from veen.recorder import Routes, SetAside, Shipper, durable, routes_of
from veen.recorder.json_lines import JsonLines
from veen.recorder.retry_feed import REFUSED
from veen.recorder.routes import NotSetUp
from veen.recorder.spool import SpoolFeed

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

    def __init__(self, asked: HubOptions, folder: ClientDir) -> None:
        self._asked = asked
        self._folder = folder
        self._call = asked.call()
        self._url = self._call.url()
        if folder.state.hub_of(self._url) is None:
            self._call.run_with(folder, self._url, _nothing)  # whom to believe is settled before anything is sent
        self._shipper: Shipper | None = None
        self._routes: Routes | None = None  # before anything was sent

    def check(self, event: RecordEvent) -> None:
        """Refuse where events like this one would all be set aside. A hub that is away is asked once it is back."""
        try:
            with advised():
                self._routes = self._call.run_with(self._folder, self._url, routes_of)
                self._routes.stream(event)
        except NotSetUp:
            raise
        except Unavailable as error:
            output.remark(f"{error}; whether events of {event.event_type} have a stream is known once it answers")

    def refusal(self, event: RecordEvent) -> str | None:
        """Why an event will be set aside, as far as the map is known by now."""
        routes = (self._shipper and self._shipper.routes) or self._routes
        return routes.refusal(event) if routes else None

    def run(
        self, feed: SpoolFeed | JsonLines, inlet: Inlet | None = None, opened: Callable[[], None] | None = None
    ) -> bool:
        """Until the feed ends, or SIGTERM or SIGINT; then say what became of it. Whether all of it was dealt with.

        `inlet` is open meanwhile, and fills the spool that the feed is of; `opened` hears that it is.
        """
        aside = SetAside(own_folder(self._folder) / REFUSED)
        shipper = Shipper(lambda: Client(self._url, self._folder), feed, aside, output.remark)
        self._shipper = shipper
        with advised(), closing(feed):
            whole = asyncio.run(self._until_told(shipper, feed, inlet, opened))
        count = shipper.count
        rows: dict[str, output.Value] = {"sent": count.sent, "known": count.known, "refused": count.refused}
        if count.refused:
            rows["set_aside"] = str(aside.path)
            output.remark("what was set aside is kept, and not in the log: veen recorder retry sends it again")
        if count.lost:
            rows["lost"] = count.lost
        output.facts(rows, self._asked.as_json)
        return whole

    async def _until_told(
        self,
        shipper: Shipper,
        feed: SpoolFeed | JsonLines,
        inlet: Inlet | None,
        opened: Callable[[], None] | None,
    ) -> bool:
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
            return True
        return False


async def _nothing(client: Client) -> None:
    return None
