"""A recorder as its people run it: a hub that goes by capabilities, an administrator and a producer, by command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.runner import Ran, Veen
from tests.cli.town import Town, town
from veen.client import ClientDir
from veen.hub.admission_rules import Admission

WEB, LOGIN = "record/app/web", "record/security/login"
ADMIN, SHOP = "operator", "shop"


class Desk:
    """The administrator is the operator whose capabilities the hub takes."""

    def __init__(self, at: Town) -> None:
        self.town = at
        self.root = at.root

    def does(self, who: str, *arguments: object) -> Ran:
        return self.town.veen.done("recorder", *arguments, *self.of(who))

    def tries(self, who: str, *arguments: object) -> Ran:
        return self.town.veen("recorder", *arguments, *self.of(who))

    def of(self, who: str) -> tuple[object, ...]:
        return "--client", self.root / who, "--hub", self.town.url, "--pin", self.town.hub.data_dir

    def reads(self, *arguments: object) -> Ran:
        """As the administrator reads a data directory."""
        where = ("--client", self.root / ADMIN, "--data-dir", self.town.hub.data_dir)
        return self.town.veen.done("recorder", *arguments, *where)

    def enrols(self, name: str, *origins: str, streams: tuple[str, ...] = (WEB, LOGIN)) -> None:
        ClientDir.create(self.root / name, None, 1).close()
        kit = self.root / f"{name}.kit"
        told = [word for one in origins for word in ("--origin", one)]
        told += [word for one in streams for word in ("--stream", one)]
        self.does(ADMIN, "enrol", name, "--card", self.root / name, *told, "--out", kit)
        self.town.veen.done("recorder", "join", kit, "--client", self.root / name)

    def starts(self, who: str, *arguments: object, given: int | None = None) -> "subprocess.Popen[bytes]":
        """An input in a process of its own."""
        command = [sys.executable, "-m", "veen.cli", "recorder", *map(str, arguments), *map(str, self.of(who))]
        env = self.town.veen.shell_env(os.environ)
        return subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


@contextmanager
def desk(veen: Veen, root: Path) -> Iterator[Desk]:
    with town(veen, root, admission=Admission.CAPABILITY) as at:
        made = Desk(at)
        made.does(ADMIN, "init", "--type", f"http.request={WEB}", "--type", f"login={LOGIN}", "--every-events", 5)
        made.enrols(SHOP, "shop")
        yield made
