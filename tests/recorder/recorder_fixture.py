"""A real hub that requires capabilities, with a recorder, its administrator and a producer, on loopback."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from plumbing.durable import Disk
from tests.hub.client import PATIENCE_S, Hub, running
from tests.hub.disks import QuickDisk
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.transport import RetryPolicy
from veen.client.trust import Pin
from veen.core import Limits, Profile
from veen.hub.admission_rules import Admission
from veen.overlays.record import RecordEvent
from veen.recorder import Enrolment, ReplayedEvent, Replayer, ReplaySpan, SetAside, SetupPlan, Shipper, enrol, init
from veen.recorder.feed import EventFeed
from veen.recorder.shipper import Count
from veen.state import HubSource
from veen.storage import metadata

T = TypeVar("T")

WEB, LOGIN = "record/app/web", "record/security/login"
TYPES = {"http.request": WEB, "login": LOGIN}
ORIGIN = "shop"
QUICK = RetryPolicy(
    attempts=3, first_wait_s=0.001, longest_wait_s=0.05, poll_s=0.01, connect_s=PATIENCE_S, answer_s=PATIENCE_S
)
PLAN = SetupPlan(TYPES, every_sec=300, every_events=10)


def event(number: int, event_type: str = "http.request", origin: str = ORIGIN) -> RecordEvent:
    return RecordEvent(f"user-{number % 7}", event_type, 1_700_000_000_000 + number, origin, f'{{"n":{number}}}')


@dataclass
class RecorderSetup:
    """The folders, clients and hub of a test."""

    root: Path
    hub: Hub

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.hub.port}"

    @property
    def data_dir(self) -> Path:
        return self.hub.data_dir

    @property
    def hub_id(self) -> bytes:
        return self.hub.service.hub_metadata.identity.hub_id

    @asynccontextmanager
    async def client(self, who: str) -> AsyncIterator[Client]:
        with ClientDir.open(self.root / who) as folder:
            async with Client(self.url, folder, pin=Pin(key=self.hub_id), retry_policy=QUICK) as client:
                yield client

    def does(self, who: str, work: Callable[[Client], Awaitable[T]]) -> T:
        async def run() -> T:
            async with self.client(who) as client:
                return await work(client)

        return asyncio.run(run())

    def enrol(self, who: str, *origins: str, streams: tuple[str, ...] = (WEB, LOGIN)) -> None:
        """Create an identity and enrol it as a producer."""
        with ClientDir.create(self.root / who, None, int(time.time())) as folder:
            card = folder.card
            kit = self.does("admin", lambda client: _enrol(client, Enrolment(who, card, origins, streams, 86_400)))
            kit.join(folder)

    def ship(self, who: str, feed: EventFeed) -> Count:
        shipper = Shipper(lambda: self.client(who), feed, SetAside(self.root / f"{who}.refused"))
        return asyncio.run(shipper.run())

    def entries(self, stream: str) -> list[ReplayedEvent]:
        """All entries of a stream, replayed by the administrator."""

        async def read(client: Client) -> list[ReplayedEvent]:
            replayer = Replayer(HubSource(client), stream)
            last = await replayer.last_seq(0)
            return [one async for one in replayer.replay(ReplaySpan(0, 1, last))] if last else []

        return self.does("admin", read)

    def numbers(self, stream: str = WEB) -> list[int]:
        """The numbers in the events of a stream, in log order."""
        found = []
        for one in self.entries(stream):
            assert one.event is not None, one.flaw
            value = one.event.value()
            assert isinstance(value, dict)
            found.append(value["n"])
        return found  # type: ignore[return-value]


async def _enrol(client: Client, who: Enrolment):  # type: ignore[no-untyped-def]
    return await enrol(client, who, client.dir.identity.id_sign)


@contextmanager
def recorder_setup(
    root: Path,
    *,
    plan: SetupPlan = PLAN,
    clock: Callable[[], float] = time.time,
    profile: Profile | None = None,
    limits: Limits | None = None,
) -> Iterator[RecorderSetup]:
    """A recorder with one producer called `shop`."""
    now = int(clock())
    data_dir = root / "hub"
    metadata.create(Disk(), data_dir, profile or Profile(), limits or Limits(), now - 60)
    with ClientDir.create(root / "admin", None, now) as folder:
        issuers = frozenset({folder.card.id_sign})
    with running(data_dir, clock, QuickDisk(), admission=Admission.CAPABILITY, issuers=issuers) as hub:
        made = RecorderSetup(root, hub)
        made.does("admin", lambda client: init(client, plan, client.dir.identity.id_sign))
        made.enrol("shop", ORIGIN)
        yield made
