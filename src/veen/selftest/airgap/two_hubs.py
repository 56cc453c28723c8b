"""Two hubs and the roles of a bridge between them, for the air-gap claims."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import TypeVar

from veen.bridge import reconciliation
from veen.bridge.bundle_export import BundleSizes, Exporter
from veen.bridge.bundle_import import Importer, ImportOutcome
from veen.bridge.reconciliation import ReconcileReport, reconcile
from veen.bridge.zone_roles import StreamMapping
from veen.client import ClientDir, capabilities
from veen.client.client import Client
from veen.client.draft import Draft, Sent
from veen.client.entry import Entry
from veen.client.trust import FIRST_USE, Pin
from veen.core import DhKey, SigningKey, naming
from veen.overlays.event import Event
from veen.selftest.verdict import Skipped
from veen.state import HubSource

T = TypeVar("T")
_GRANT_SEC = 86_400
ROLES = ("producer", "exporter", "importer", "analyst")


@dataclass(frozen=True, slots=True)
class Zone:
    """A hub, its expected id, and the issuer key that it trusts."""

    url: str
    pin: bytes | None = None
    issuer: SigningKey | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """The streams of one run."""

    run: str = field(default_factory=lambda: token_hex(8))

    @property
    def record(self) -> str:
        return f"record/selftest/{self.run}"

    @property
    def arrived(self) -> str:
        return f"import/selftest/{self.run}"

    @property
    def online_log(self) -> str:
        return f"bridge/online/log/{self.run}"

    @property
    def offline_log(self) -> str:
        return f"bridge/offline/log/{self.run}"

    @property
    def mapping(self) -> StreamMapping:
        return StreamMapping((("record/", "import/"),))


class BridgeRun:
    """A bridge from one zone to the other with its own keys and capabilities. Call `close` at the end."""

    def __init__(self, root: Path, zones: tuple[Zone, Zone], seed: int, count: int) -> None:
        self.names = Names()
        self.online, self.offline = zones
        self.count = count
        self.rng = Random(seed)
        self.drop = root / "drop"
        self.drop.mkdir()
        self._root = root
        now = int(time.time())
        self.folders = {person: ClientDir.create(root / person, None, now) for person in ROLES}
        self._grant_roles()

    def close(self) -> None:
        for folder in self.folders.values():
            folder.close()

    def _grant_roles(self) -> None:
        """Give each role the keys and capabilities it needs, and none that would let events flow back."""
        names, people = self.names, self.folders
        for stream, readers, writers in (
            (names.record, ("importer", "analyst"), ("producer",)),
            (names.arrived, ("analyst",), ("importer",)),
            (names.online_log, ("exporter", "analyst"), ()),
            (names.offline_log, ("importer", "analyst"), ()),
        ):
            key = DhKey.generate()
            for reader in readers:
                people[reader].stream_keys.import_secret(stream, key)
            for writer in writers:
                people[writer].stream_keys.add_public(stream, key.public_key)
        self._allow(self.online, "producer", names.record)
        self._allow(self.online, "exporter", names.online_log)
        self._allow(self.offline, "importer", names.arrived, names.offline_log)

    def _allow(self, zone: Zone, person: str, *streams: str) -> None:
        if zone.issuer is not None:
            named, card = [naming.stream_id(stream) for stream in streams], self.folders[person].card
            for token in capabilities.issue(zone.issuer, card, named, _GRANT_SEC):
                self.folders[person].caps.add(token)

    @asynccontextmanager
    async def client(self, person: str, zone: Zone) -> AsyncIterator[Client]:
        pin = FIRST_USE if zone.pin is None else Pin(key=zone.pin)
        async with Client(zone.url, self.folders[person], pin=pin) as client:
            if client.session.status.admission != "open" and zone.issuer is None:
                raise Skipped("a hub requires capabilities, and no issuer key was given")
            yield client

    def do(self, work: Callable[["BridgeRun"], Awaitable[T]]) -> T:
        return asyncio.run(self._done(work))

    async def _done(self, work: Callable[["BridgeRun"], Awaitable[T]]) -> T:
        return await work(self)

    # Actions of the roles.

    async def produce(self, *events: Event) -> list[Sent]:
        async with self.client("producer", self.online) as client:
            sender = client.sender(self.names.record)
            drafts = [Draft(event.encode(), event.SCHEMA) for event in events]
            return list(await asyncio.gather(*(sender.put(draft) for draft in drafts)))

    async def export(self, events: int) -> list[bytes]:
        """Export everything new, in bundles of at most `events` events."""
        async with self.client("exporter", self.online) as client:
            exporter = Exporter(client, self.drop, operator="selftest", log=self.names.online_log)
            made = [found async for found in exporter.run(self.names.record, BundleSizes(events=events))]
        return [(self.drop / found.bundle.name).read_bytes() for found in made]

    async def import_bundle(self, data: bytes) -> ImportOutcome:
        async with self.client("importer", self.offline) as client:
            trusted = {await self.source_id()}
            names = self.names
            importer = Importer(client, trusted, mapping=names.mapping, operator="selftest", log=names.offline_log)
            return await importer.take(data)

    async def source_id(self) -> bytes:
        async with self.client("analyst", self.online) as client:
            return client.hub_id

    async def read(self, zone: Zone, stream: str) -> list[Entry]:
        async with self.client("analyst", zone) as client:
            return [entry async for entry in client.read(stream)]

    async def report(self) -> ReconcileReport:
        async with self.client("analyst", self.online) as client:
            left = await reconciliation.exports_of(HubSource(client), self.names.online_log)
        async with self.client("analyst", self.offline) as client:
            return reconcile(await reconciliation.read_input(HubSource(client), left, self.names.offline_log))
