"""A hub on loopback with three clients: an operator that it trusts as issuer, a writer and a reader."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from plumbing.durable import Disk
from tests.cli.runner import Ran, Veen
from tests.cli.test_edges import COMMAND
from tests.client.hostile import HostileHub
from tests.hub.client import Hub, running
from tests.hub.disks import QuickDisk
from veen.client import ClientDir
from veen.core import Limits, Profile
from veen.hub.admission_rules import Admission
from veen.hub.config import WitnessAddress
from veen.storage import metadata

STREAM = "doors"
EPOCHS = Profile(epoch_sec=1_500_000_000)  # epoch 1 is the current one and outlasts any test


@dataclass(frozen=True)
class HubFixture:
    """The hub and the folder with the client directories, which are named for their owners."""

    veen: Veen
    root: Path
    hub: Hub

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.hub.port}"

    @property
    def hub_id(self) -> str:
        return self.hub.service.hub_metadata.identity.hub_id.hex()

    def of(self, person: str) -> tuple[object, ...]:
        """The options that select a client, the hub and the stream."""
        return "--client", self.root / person, "--hub", self.url, "--stream", STREAM

    def does(self, person: str, command: str, *arguments: object) -> Ran:
        """Run a command that must succeed, with the hub pinned by its data directory."""
        return self.veen.done(command, *arguments, *self.of(person), "--pin", self.hub.data_dir)

    def fails(self, person: str, command: str, *arguments: object) -> Ran:
        ran = self.veen(command, *arguments, *self.of(person), "--pin", self.hub.data_dir)
        assert ran.status != 0
        return ran

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.does("writer", "send", "--body", body)

    def apart(
        self, *arguments: object, given: bytes = b"", env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run a command in its own process."""
        merged = {**self.veen.shell_env(os.environ), **(env or {})}
        return subprocess.run([*COMMAND, *map(str, arguments)], input=given, capture_output=True, env=merged)


@contextmanager
def hub_fixture(
    veen: Veen,
    root: Path,
    *,
    admission: Admission = Admission.OPEN,
    profile: Profile | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.time,
    witness_addresses: tuple[WitnessAddress, ...] = (),
) -> Iterator[HubFixture]:
    """Start the fixture. Keys are created without commands, which other tests cover."""
    now = int(clock())
    metadata.create(Disk(), root / "hub", profile or Profile(), limits or Limits(), now - 60)
    with (
        ClientDir.create(root / "operator", None, now) as operator,
        ClientDir.create(root / "writer", None, now) as writer,
        ClientDir.create(root / "reader", None, now) as reader,
    ):
        writer.stream_keys.add_public(STREAM, reader.stream_keys.create(STREAM).public_key)
        issuers = frozenset({operator.card.id_sign})
    settings = {"admission": admission, "issuers": issuers, "witness_addresses": witness_addresses}
    with running(root / "hub", clock, QuickDisk(), **settings) as hub:
        yield HubFixture(veen, root, hub)


@contextmanager
def hostile_hub() -> Iterator[HostileHub]:
    """A hub that can be made to lie, on its own event loop."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    hub = HostileHub()
    try:
        asyncio.run_coroutine_threadsafe(hub.__aenter__(), loop).result()
        yield hub
        asyncio.run_coroutine_threadsafe(hub.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
