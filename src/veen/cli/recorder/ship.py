"""Runs an input of a recorder: reads events from a feed and sends them until the feed ends or a signal arrives."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, suppress
from pathlib import Path

from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.recorder.recorder_options import with_hints
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.local_files import DISK
from veen.core import Unavailable
from veen.core.hashing import h
from veen.overlays.record import RecordEvent
from veen.recorder import Routes, SetAside, Shipper, routes_of
from veen.recorder.json_lines import JsonLines
from veen.recorder.routes import NotSetUp
from veen.recorder.shipper import REFUSED
from veen.recorder.spool import SpoolFeed

FINISH_S = 5.0  # time to send the rest after a signal

Inlet = AbstractAsyncContextManager[object]


def own_folder(folder: ClientDir, *names: str) -> Path:
    """A folder for the state of inputs, in the client directory."""
    path = folder.path.joinpath("recorder", *names)
    DISK.make_folder(path, parents=True)
    return path


def state_file(folder: ClientDir, path: Path) -> Path:
    """The file that stores how far `path` has been read."""
    return own_folder(folder, "places") / f"{h(str(path.absolute()).encode()).hex()[:32]}.cbor"


class Input:
    """Sends one feed of one producer. While the hub does not answer, events stay in the feed."""

    def __init__(self, asked: HubOptions, folder: ClientDir) -> None:
        self._asked = asked
        self._folder = folder
        self._call = asked.call()
        self._url = self._call.url()
        if folder.state.hub_of(self._url) is None:
            self._call.run_with(folder, self._url, _connect_only)  # pin the hub before anything is sent
        self._shipper: Shipper | None = None
        self._routes: Routes | None = None  # as of check(); the shipper has newer ones

    def check(self, event: RecordEvent) -> None:
        """Raise if events like this one would be set aside. If the hub does not answer, only remark on it."""
        try:
            with with_hints():
                self._routes = self._call.run_with(self._folder, self._url, routes_of)
                self._routes.stream(event)
        except NotSetUp:
            raise
        except Unavailable as error:
            output.remark(f"{error}; the stream of {event.event_type} events is checked once the hub answers")

    def refusal(self, event: RecordEvent) -> str | None:
        """Why an event will be set aside, according to the newest known routes."""
        routes = (self._shipper and self._shipper.routes) or self._routes
        return routes.refusal(event) if routes else None

    def run(
        self, feed: SpoolFeed | JsonLines, inlet: Inlet | None = None, opened: Callable[[], None] | None = None
    ) -> bool:
        """Send until the feed ends or SIGTERM or SIGINT arrives, and print the counts. True if the feed is finished.

        `inlet` is open meanwhile and fills the spool of the feed; `opened` is called once it is open.
        """
        aside = SetAside(own_folder(self._folder) / REFUSED)
        shipper = Shipper(lambda: Client(self._url, self._folder), feed, aside, output.remark)
        self._shipper = shipper
        with with_hints(), closing(feed):
            finished = asyncio.run(self._run_until_signal(shipper, feed, inlet, opened))
        count = shipper.count
        rows: dict[str, output.Value] = {"sent": count.sent, "known": count.known, "refused": count.refused}
        if count.refused:
            rows["set_aside"] = str(aside.path)
            output.remark("events that were set aside are not in the log; veen recorder retry sends them again")
        if count.lost:
            rows["lost"] = count.lost
        output.facts(rows, self._asked.as_json)
        return finished

    async def _run_until_signal(
        self,
        shipper: Shipper,
        feed: SpoolFeed | JsonLines,
        inlet: Inlet | None,
        opened: Callable[[], None] | None,
    ) -> bool:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with AsyncExitStack() as stack:
            if inlet is not None:
                await stack.enter_async_context(inlet)
            if opened is not None:
                opened()
            sending = asyncio.create_task(shipper.run())
            waiting = asyncio.create_task(stop.wait())
            await asyncio.wait([sending, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        feed.end()
        done, _ = await asyncio.wait([sending], timeout=FINISH_S)
        if not done:
            sending.cancel()
            output.remark("the hub does not answer: the remaining events are kept and sent next time")
        with suppress(asyncio.CancelledError):
            await sending
            return True
        return False


async def _connect_only(client: Client) -> None:
    return None
