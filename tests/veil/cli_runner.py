"""`veil` as tests run it: in this process, with a home of its own, and what it printed and how it ended."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from veil.cli.app import app


@dataclass(frozen=True, slots=True)
class Ran:
    """One run."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def facts(self) -> dict[str, str]:
        """The names and values that a pipe gets."""
        return dict(line.split("\t") for line in self.out.splitlines())

    @property
    def error(self) -> str:
        """The error, which is one line in the voice of the command line, with a hint after it."""
        first, *rest = self.err.splitlines()
        assert first.startswith("veil: error: ")
        assert rest
        assert all(line.startswith("veil: hint: ") for line in rest)
        for line in (first, *rest):
            assert not line.endswith("."), line
        return first.removeprefix("veil: error: ")


class Veil:
    """Runs commands, each as if alone on the machine."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.home = home
        self.env = {
            "HOME": str(home),
            "XDG_DATA_HOME": str(home / "data"),
            "VEIL_DATA_DIR": None,
            "COLUMNS": "100",
        }

    def __call__(self, *arguments: object) -> Ran:
        result = CliRunner().invoke(app, [str(one) for one in arguments], env=self.env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    def done(self, *arguments: object) -> Ran:
        """A run that must succeed."""
        ran = self(*arguments)
        assert ran.status == 0, ran.err
        return ran

    def apart(self, *arguments: object) -> Ran:
        """A run in a process of its own, as it must be where what it starts outlives it."""
        command = [sys.executable, "-m", "veil.cli", *map(str, arguments)]
        env = {name: value for name, value in {**os.environ, **self.env}.items() if value is not None}
        ran = subprocess.run(command, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
        return Ran(ran.returncode, ran.stdout, ran.stderr)
