"""A recorder, set up with commands: a hub with capability admission, an administrator and a producer."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.hub_fixture import HubFixture, hub_fixture
from tests.cli.runner import Ran, Veen
from veen.client import ClientDir
from veen.hub.admission_rules import Admission

WEB, LOGIN = "record/app/web", "record/security/login"
ADMIN, SHOP = "operator", "shop"


class RecorderFixture:
    """The administrator is the operator that the hub trusts as issuer."""

    def __init__(self, at: HubFixture) -> None:
        self.hub_fixture = at
        self.root = at.root

    def does(self, who: str, *arguments: object) -> Ran:
        return self.hub_fixture.veen.done("recorder", *arguments, *self.of(who))

    def tries(self, who: str, *arguments: object) -> Ran:
        return self.hub_fixture.veen("recorder", *arguments, *self.of(who))

    def of(self, who: str) -> tuple[object, ...]:
        return "--client", self.root / who, "--hub", self.hub_fixture.url, "--pin", self.hub_fixture.hub.data_dir

    def reads(self, *arguments: object) -> Ran:
        """Run a command of the administrator on the data directory."""
        where = ("--client", self.root / ADMIN, "--data-dir", self.hub_fixture.hub.data_dir)
        return self.hub_fixture.veen.done("recorder", *arguments, *where)

    def enrols(self, name: str, *origins: str, streams: tuple[str, ...] = (WEB, LOGIN)) -> None:
        ClientDir.create(self.root / name, None, 1).close()
        kit = self.root / f"{name}.kit"
        options = [word for one in origins for word in ("--origin", one)]
        options += [word for one in streams for word in ("--stream", one)]
        self.does(ADMIN, "enrol", name, "--card", self.root / name, *options, "--out", kit)
        self.hub_fixture.veen.done("recorder", "join", kit, "--client", self.root / name)

    def starts(self, who: str, *arguments: object, given: int | None = None) -> "subprocess.Popen[bytes]":
        """Start an input in its own process."""
        command = [sys.executable, "-m", "veen.cli", "recorder", *map(str, arguments), *map(str, self.of(who))]
        env = self.hub_fixture.veen.shell_env(os.environ)
        return subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


@contextmanager
def recorder_fixture(veen: Veen, root: Path) -> Iterator[RecorderFixture]:
    with hub_fixture(veen, root, admission=Admission.CAPABILITY) as at:
        made = RecorderFixture(at)
        made.does(ADMIN, "init", "--type", f"http.request={WEB}", "--type", f"login={LOGIN}", "--every-events", 5)
        made.enrols(SHOP, "shop")
        yield made
