"""A hub, and client directories that act as principals, devices and organizations."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.hub_fixture import HubFixture, hub_fixture
from tests.cli.runner import Ran, Veen
from veen.client import ClientDir
from veen.core import naming
from veen.hub.admission_rules import Admission

PEOPLE = ("ann", "bob", "phone", "tablet", "company", "shop")


class IdentityFixture:
    """Runs `veen id` commands as one of `PEOPLE`, each with its own client directory."""

    def __init__(self, at: HubFixture) -> None:
        self.town = at

    def key(self, person: str) -> bytes:
        with ClientDir.open(self.folder(person)) as folder:
            return folder.card.id_sign

    def folder(self, person: str) -> Path:
        return self.town.root / person

    def card(self, person: str) -> Path:
        return self.folder(person) / "card.cbor"

    def attempt(self, person: str, *arguments: object) -> Ran:
        options = ("--client", self.folder(person), "--hub", self.town.url, "--pin", self.town.hub.data_dir)
        return self.town.veen("id", *arguments, *options)

    def run(self, person: str, *arguments: object) -> Ran:
        ran = self.attempt(person, *arguments)
        assert ran.status == 0, ran.err
        return ran

    def run_on_copy(self, person: str, *arguments: object) -> Ran:
        """Run a command on a copy of the data directory, without the hub."""
        copy = self.town.root / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.town.hub.data_dir, copy)
        return self.town.veen("id", *arguments, "--client", self.folder(person), "--data-dir", copy)

    def share_key(self, person: str, stream_id: bytes, *readers: str) -> None:
        """Give the reader key of a stream to other clients."""
        with ClientDir.open(self.folder(person)) as folder:
            key = folder.stream_keys.secret(stream_id)
        assert key is not None
        for reader in readers:
            with ClientDir.open(self.folder(reader)) as other:
                other.stream_keys.import_secret(stream_id.hex(), key)

    def create_key(self, person: str, stream: str) -> None:
        """Create the key of a stream, if there is none."""
        with ClientDir.open(self.folder(person)) as folder:
            if folder.stream_keys.public(naming.stream_id(stream)) is None:
                folder.stream_keys.create(stream)


@contextmanager
def identity_hub(veen: Veen, root: Path, admission: Admission = Admission.OPEN) -> Iterator[IdentityFixture]:
    now = int(time.time())
    for person in PEOPLE:
        ClientDir.create(root / person, None, now).close()
    with hub_fixture(veen, root, admission=admission) as at:
        yield IdentityFixture(at)
