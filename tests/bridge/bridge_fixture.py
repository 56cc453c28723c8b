"""Two zones, each with a hub that requires capabilities, and the identities of an air-gap bridge between them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.client.pair import QUICK
from tests.hub.client import ISSUER, Hub, make_dir, running
from tests.hub.disks import QuickDisk
from veen.bridge.bundle_export import BundleSizes, Exporter
from veen.bridge.bundle_import import Importer, ImportOutcome
from veen.client import ClientDir, capabilities
from veen.client.client import Client
from veen.client.reader import Entry
from veen.client.sender import Draft, Sent
from veen.client.trust import Pin
from veen.core import DhKey, Limits, Profile, naming
from veen.hub.admission_rules import Admission
from veen.overlays.bridge_logs import OFFLINE_LOG, ONLINE_LOG

EXPORT, IMPORT = "export/zone1/doors", "import/zone1/doors"
PEOPLE = ("producer", "exporter", "importer", "analyst")


@dataclass
class Zones:
    """The hubs and client directories of both zones. `folders` is keyed by role."""

    root: Path
    online: Hub
    offline: Hub
    folders: dict[str, ClientDir]

    @property
    def drop(self) -> Path:
        """The folder that bundles are exported to and imported from."""
        found = self.root / "drop"
        found.mkdir(exist_ok=True)
        return found

    @property
    def source_id(self) -> bytes:
        return self.online.service.hub_metadata.identity.hub_id

    @property
    def target_id(self) -> bytes:
        return self.offline.service.hub_metadata.identity.hub_id

    @asynccontextmanager
    async def client(self, person: str, hub: Hub) -> AsyncIterator[Client]:
        pin = Pin(key=hub.service.hub_metadata.identity.hub_id)
        url = f"http://127.0.0.1:{hub.port}"
        async with Client(url, self.folders[person], pin=pin, retry_policy=QUICK) as client:
            yield client

    async def produce(self, *bodies: bytes, stream: str = EXPORT, schema: bytes | None = None) -> list[Sent]:
        async with self.client("producer", self.online) as client:
            sender = client.sender(stream)
            drafts = [Draft(body) if schema is None else Draft(body, schema) for body in bodies]
            return await asyncio.gather(*(sender.put(draft) for draft in drafts))

    async def export(self, stream: str = EXPORT, sizes: BundleSizes | None = None) -> list[bytes]:
        """Export everything that has not left yet; returns the bundle files."""
        async with self.client("exporter", self.online) as client:
            exporter = Exporter(client, self.drop, operator="test")
            made = [found async for found in exporter.run(stream, sizes or BundleSizes())]
        return [(self.drop / found.bundle.name).read_bytes() for found in made]

    async def take(self, data: bytes, **options: object) -> ImportOutcome:
        async with self.client("importer", self.offline) as client:
            return await Importer(client, {self.source_id}, operator="test", **options).take(data)  # type: ignore[arg-type]

    async def imported(self, stream: str = IMPORT) -> list[Entry]:
        async with self.client("analyst", self.offline) as client:
            return [entry async for entry in client.read(stream)]

    async def audit_entries(self, stream: str = OFFLINE_LOG) -> list[Entry]:
        hub = self.online if stream == ONLINE_LOG else self.offline
        async with self.client("analyst", hub) as client:
            return [entry async for entry in client.read(stream)]


def _share(stream: str, readers: list[ClientDir], writers: list[ClientDir]) -> None:
    key = DhKey.generate()
    for reader in readers:
        reader.stream_keys.import_secret(stream, key)
    for writer in writers:
        writer.stream_keys.add_public(stream, key.public_key)


def grant_roles(folders: dict[str, ClientDir], *pairs: tuple[str, str]) -> None:
    """Give each role the keys and capabilities it needs, and none that would let events flow back."""
    producer, exporter, importer, analyst = (folders[name] for name in PEOPLE)
    for source, target in pairs:
        _share(source, [importer, analyst], [producer])
        _share(target, [analyst], [importer])
    _share(ONLINE_LOG, [exporter, analyst], [])
    _share(OFFLINE_LOG, [importer, analyst], [])
    allow(producer, *(source for source, _ in pairs))
    allow(exporter, ONLINE_LOG)
    allow(importer, *(target for _, target in pairs), OFFLINE_LOG)


def allow(folder: ClientDir, *streams: str, ttl: int = 86_400) -> None:
    for token in capabilities.issue(ISSUER, folder.card, [naming.stream_id(stream) for stream in streams], ttl):
        folder.caps.add(token)


@contextmanager
def zones(
    root: Path,
    *pairs: tuple[str, str],
    admission: Admission = Admission.CAPABILITY,
    profile: Profile | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.time,
    offline_limits: Limits | None = None,
) -> Iterator[Zones]:
    now = int(clock())
    for name in ("online", "offline"):
        (root / name).mkdir()
    folders = {name: ClientDir.create(root / name, None, now) for name in PEOPLE}
    try:
        grant_roles(folders, *(pairs or ((EXPORT, IMPORT),)))
        first = make_dir(root / "online", profile, limits, now - 60)
        second = make_dir(root / "offline", profile, offline_limits or limits, now - 60)
        with (
            running(first, clock, QuickDisk(), admission=admission, accept_bare_tokens=True) as online,
            running(second, clock, QuickDisk(), admission=admission, accept_bare_tokens=True) as offline,
        ):
            yield Zones(root, online, offline, folders)
    finally:
        for folder in folders.values():
            folder.close()
