"""Options that many commands have, and where they come from when they are not given."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from veil.api.api_client import Client

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="the result as JSON")]
DataDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar="VEIL_DATA_DIR",
        help="the node's folder",
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
    """The folder that is meant: the one that was given, or that of the user, by the XDG rules."""
    if given is not None:
        return given.absolute()
    home = os.environ.get("XDG_DATA_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share") / "veil"


def client(given: Path | None) -> "Client":
    """The running node of a folder."""
    from veil.api.api_client import Client

    return Client(data_dir(given))
