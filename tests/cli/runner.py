"""Runs `veen` in tests."""

from pathlib import Path

from tests.program_run import Program, Ran
from veen.cli.app import app

__all__ = ["Ran", "Veen"]


class Veen(Program):
    """`veen` with its own home folder and without hub, client or passphrase from the environment."""

    def __init__(self, home: Path) -> None:
        folders = {
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "XDG_STATE_HOME": str(home / "state"),
        }
        own = ("HUB", "CLIENT", "CONTEXT", "OPERATOR_TOKEN", "PASSPHRASE", "PASSPHRASE_FILE")
        super().__init__(app, home, {**folders, **{f"VEEN_{name}": None for name in own}})
        (home / "run").mkdir()
