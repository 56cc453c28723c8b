"""People of the demo: each types `veen` commands with settings of their own, and sees what comes of them."""

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from typer.main import get_command

from veen.cli.demo.stage import Stage
from veen.cli.demo.surroundings import environment
from veen.core import Unavailable

_OURS = "VEEN_"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str

    def facts(self) -> dict[str, str]:
        """Names and values, as a pipe gets them."""
        return dict(line.split("\t", 1) for line in self.out.splitlines() if "\t" in line)

    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        first = next((line for line in self.err.splitlines() if line.startswith("veen: error: ")), self.err)
        return first.removeprefix("veen: ")


class Person:
    """One of them. `home` keeps their contexts apart from everyone else's, and from those of whoever runs the demo."""

    def __init__(self, name: str, home: Path, stage: Stage) -> None:
        self.name = name
        self._stage = stage
        home.mkdir(parents=True)
        self._own = {name: str(home) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")}
        if path := os.environ.get("PYTHONPATH"):  # which must hold in whatever folder they work
            self._own["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in path.split(os.pathsep))

    def env(self) -> dict[str, str]:
        """What their commands find in the environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        return {**kept, **self._own}

    def does(self, command: str, *, ends: int = 0) -> Ran:
        """A command in this process. Raises where it does not end with the status it must."""
        self._stage.typed(self.name, f"veen {command}")
        return self._checked(command, self.does_unseen(command), ends)

    def does_unseen(self, command: str) -> Ran:
        """A command that is not part of the story, whatever comes of it."""
        return _here(shlex.split(command), self.env())

    def does_apart(
        self, command: str, *, ends: int = 0, cwd: Path | None = None, given: str | None = None, shown: str = ""
    ) -> Ran:
        """A command in a process of its own, which knows nothing but its files and what it is given to read."""
        self._stage.typed(self.name, shown or f"veen {command}")
        ran = subprocess.run(
            [*VEEN, *shlex.split(command)], env=self.env(), cwd=cwd, input=given or "", capture_output=True, text=True
        )
        return self._checked(command, Ran(ran.returncode, ran.stdout, ran.stderr), ends)

    def starts(self, command: str, errors: Path) -> "subprocess.Popen[str]":
        """A command that goes on until it is ended."""
        self._stage.typed(self.name, f"veen {command} &")
        with errors.open("w") as kept:
            return subprocess.Popen(
                [*VEEN, *shlex.split(command)],
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=kept,
                text=True,
            )

    def _checked(self, command: str, ran: Ran, ends: int) -> Ran:
        if ran.status != ends:
            raise Unavailable(f"veen {command} ended with {ran.status}, not {ends}: {ran.err.strip()}")
        return ran


VEEN = (sys.executable, "-m", "veen.cli")


def _here(arguments: list[str], env: Mapping[str, str]) -> Ran:
    from veen.cli.app import app

    out, err, status = io.StringIO(), io.StringIO(), 0
    with environment(env), redirect_stdout(out), redirect_stderr(err):
        try:
            get_command(app).main(arguments, "veen")
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0
    return Ran(status, out.getvalue(), err.getvalue())
