"""Runs one of our programs in this process, with its own home, and captures output and exit status."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of one run."""

    program: str
    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def facts(self) -> dict[str, str]:
        """The name-value lines that a pipe receives."""
        return dict(line.split("\t") for line in self.out.splitlines())

    @property
    def error(self) -> str:
        """The error line; it must have the form of the command line and be followed by a hint."""
        first, *rest = self.err.splitlines()
        assert first.startswith(f"{self.program}: error: ")
        assert rest
        assert all(line.startswith(f"{self.program}: hint: ") for line in rest)
        for line in (first, *rest):
            assert not line.endswith("."), line
        return first.removeprefix(f"{self.program}: error: ")


class Program:
    """Runs commands in isolation. Names with None in `env` are unset."""

    def __init__(self, app: typer.Typer, home: Path, env: Mapping[str, str | None]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.env = {"HOME": str(home), "COLUMNS": "100", "LC_ALL": "C.UTF-8", **env}
        self._app = app
        self._name = str(app.info.name)

    def __call__(self, *arguments: object, env: Mapping[str, str] | None = None) -> Ran:
        result = CliRunner().invoke(self._app, [str(one) for one in arguments], env={**self.env, **(env or {})})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(self._name, result.exit_code, result.stdout, result.stderr)

    def done(self, *arguments: object, env: Mapping[str, str] | None = None) -> Ran:
        """Run a command that must succeed."""
        ran = self(*arguments, env=env)
        assert ran.status == 0, ran.err
        return ran

    def apart(self, *arguments: object) -> Ran:
        """Run in a separate process, which is needed if it starts something that outlives it."""
        command = [sys.executable, "-m", f"{self._name}.cli", *map(str, arguments)]
        env = self.shell_env(os.environ)
        ran = subprocess.run(command, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
        return Ran(self._name, ran.returncode, ran.stdout, ran.stderr)

    def shell_env(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of a separate process with the same home."""
        kept = {name: value for name, value in base.items() if name not in self.env}
        return kept | {name: value for name, value in self.env.items() if value is not None}
