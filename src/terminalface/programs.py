"""Programs whose libraries come with an extra: without them, one line says how to get them."""

import importlib
import sys

from terminalface.extras import install_hint
from terminalface.root import MISSING_STATUS


def veil() -> None:
    """The `veil` command."""
    _start("veil", "veil.cli.app", install_hint("veil"))


def _start(program: str, module: str, hint: str) -> None:
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == program:
            raise
        sys.stderr.write(f"{program}: error: {error.name} is not installed\n")
        sys.stderr.write(f"{program}: hint: {hint}\n")
        sys.exit(MISSING_STATUS)
    main()
