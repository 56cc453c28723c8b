"""Run `veil` in this process, with a home directory of its own."""

from pathlib import Path

from tests.program_run import Program
from veil.cli.app import app


class Veil(Program):
    """The `veil` command without a default node."""

    def __init__(self, home: Path) -> None:
        super().__init__(app, home, {"XDG_DATA_HOME": str(home / "data"), "VEIL_DATA_DIR": None})
