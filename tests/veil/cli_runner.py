"""`veil` as tests run it."""

from pathlib import Path

from tests.program_run import Program
from veil.cli.app import app


class Veil(Program):
    """With no node but those that a test names."""

    def __init__(self, home: Path) -> None:
        super().__init__(app, home, {"XDG_DATA_HOME": str(home / "data"), "VEIL_DATA_DIR": None})
