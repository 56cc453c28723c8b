"""A town whose people are principals, devices and organizations, with the command line."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.runner import Ran, Veen
from tests.cli.town import Town, town
from veen.client import ClientDir
from veen.core import naming
from veen.hub.admission_rules import Admission

PEOPLE = ("ann", "bob", "phone", "tablet", "company", "shop")


class Society:
    """Each person has a folder of keys; `streams` are handed from whoever made their key to the others."""

    def __init__(self, at: Town) -> None:
        self.town = at

    def key(self, person: str) -> bytes:
        with ClientDir.open(self.folder(person)) as folder:
            return folder.card.id_sign

    def folder(self, person: str) -> Path:
        return self.town.root / person

    def card(self, person: str) -> Path:
        return self.folder(person) / "card.cbor"

    def tries(self, person: str, *arguments: object) -> Ran:
        options = ("--client", self.folder(person), "--hub", self.town.url, "--pin", self.town.hub.data_dir)
        return self.town.veen("id", *arguments, *options)

    def does(self, person: str, *arguments: object) -> Ran:
        ran = self.tries(person, *arguments)
        assert ran.status == 0, ran.err
        return ran

    def reads_copy(self, person: str, *arguments: object) -> Ran:
        """The same from a copy of the data directory, without the hub."""
        copy = self.town.root / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.town.hub.data_dir, copy)
        return self.town.veen("id", *arguments, "--client", self.folder(person), "--data-dir", copy)

    def shares(self, person: str, stream_id: bytes, *readers: str) -> None:
        """Hand the reader key of a stream to others."""
        with ClientDir.open(self.folder(person)) as folder:
            key = folder.stream_keys.secret(stream_id)
        assert key is not None
        for reader in readers:
            with ClientDir.open(self.folder(reader)) as other:
                other.stream_keys.import_secret(stream_id.hex(), key)

    def begins(self, person: str, stream: str) -> None:
        """Make the key of a stream."""
        with ClientDir.open(self.folder(person)) as folder:
            if folder.stream_keys.public(naming.stream_id(stream)) is None:
                folder.stream_keys.create(stream)


@contextmanager
def society(veen: Veen, root: Path, admission: Admission = Admission.OPEN) -> Iterator[Society]:
    now = int(time.time())
    for person in PEOPLE:
        ClientDir.create(root / person, None, now).close()
    with town(veen, root, admission=admission) as at:
        yield Society(at)
