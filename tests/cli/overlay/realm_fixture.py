"""A hub of a realm, an administrator with a capability for the realm's streams, a writer and a reader."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plumbing.durable import Disk
from tests.cli.hub_fixture import STREAM
from tests.cli.runner import Ran, Veen
from tests.hub.client import Hub, running
from tests.hub.disks import QuickDisk
from veen.client import ClientDir
from veen.core import Limits, Profile, admin, naming
from veen.hub.admission_rules import Admission
from veen.storage import metadata

REALM = "town"


@dataclass(frozen=True)
class RealmFixture:
    """Runs commands as one of the clients. `admin.cap` is the capability for the realm's streams."""

    veen: Veen
    root: Path
    hub: Hub

    @property
    def data_dir(self) -> Path:
        return self.hub.data_dir

    @property
    def hub_id(self) -> str:
        return self.hub.service.hub_metadata.identity.hub_id.hex()

    def options(self, person: str) -> tuple[object, ...]:
        url = f"http://127.0.0.1:{self.hub.port}"
        return "--client", self.root / person, "--hub", url, "--pin", self.hub.data_dir

    def attempt(self, person: str, *arguments: object) -> Ran:
        return self.veen(*arguments, *self.options(person))

    def run(self, person: str, *arguments: object) -> Ran:
        """Run a command at the hub. It must succeed."""
        return self.veen.done(*arguments, *self.options(person))

    def run_as_admin(self, *arguments: object) -> Ran:
        """Run a command as the administrator, with its capability. It must succeed."""
        return self.run("admin", *arguments, "--cap", self.root / "admin.cap")

    def run_offline(self, *arguments: object, person: str = "reader") -> Ran:
        """Run a command on the data directory, without the hub."""
        return self.veen(*arguments, "--client", self.root / person, "--data-dir", self.data_dir)

    def send_as_writer(self, body: str = "hello") -> Ran:
        return self.attempt("writer", "send", "--stream", STREAM, "--body", body, "--cap", self.root / "writer.cap")


@contextmanager
def realm(
    veen: Veen, root: Path, *, realm_id: bytes | None = naming.realm_id(REALM), epoch_sec: int = 0
) -> Iterator[RealmFixture]:
    """Start a hub of a realm, or without one, that admits by capability."""
    now = int(time.time())
    metadata.create(Disk(), root / "hub", Profile(epoch_sec), Limits(), now - 60, realm_id=realm_id)
    with (
        ClientDir.create(root / "operator", None, now) as operator,
        ClientDir.create(root / "admin", None, now),
        ClientDir.create(root / "writer", None, now) as writer,
        ClientDir.create(root / "reader", None, now) as reader,
    ):
        writer.stream_keys.add_public(STREAM, reader.stream_keys.create(STREAM).public_key)
        issuers = frozenset({operator.card.id_sign})
    streams = [one.hex() for one in admin.admin_streams(realm_id or admin.GLOBAL_REALM)]
    for person, named in (("admin", streams), ("writer", [STREAM])):
        allowed = [option for stream in named for option in ("--stream", stream)]
        subject = ("--issuer", root / "operator", "--subject", root / person, "--ttl", 3600, "--hub", root / "hub")
        veen.done("cap", "issue", *subject, *allowed, "--out", root / f"{person}.cap")
    with running(root / "hub", time.time, QuickDisk(), admission=Admission.CAPABILITY, issuers=issuers) as hub:
        yield RealmFixture(veen, root, hub)
