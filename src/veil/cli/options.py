"""Options and output that many commands share, and the API client of the chosen node."""

import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import result_output
from veil.api.api_client import Client

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="the result as JSON")]
DataDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar="VEIL_DATA_DIR",
        help="the data directory of the node",
        show_default="~/.local/share/veil",
    ),
]
Namespace: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--namespace",
        metavar="N",
        min=0,
        max=65_535,
        help="which namespace",
        show_default="1 for feeds, 2 for the rest",
    ),
]


def data_dir(given: Path | None) -> Path:
    """The data directory: `given`, or the default of the user by the XDG rules."""
    if given is not None:
        return given.absolute()
    home = os.environ.get("XDG_DATA_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share") / "veil"


def client(given: Path | None) -> Client:
    """An API client for the running node of a data directory."""
    return Client(data_dir(given))


def remark(text: str) -> None:
    """Print a remark on standard error."""
    result_output.remark("veil", text)
