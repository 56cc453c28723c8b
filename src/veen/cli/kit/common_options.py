"""Options that many commands have, and where they come from when they are not given."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="the result as JSON")]
DataDir: TypeAlias = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="the hub's data directory")]
HubUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--hub", metavar="URL", envvar="VEEN_HUB", help="the hub; else that of the context"),
]
ClientDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--client", metavar="DIR", envvar="VEEN_CLIENT", help="whose keys; else that of the context"),
]
Stream: TypeAlias = Annotated[
    str | None,
    typer.Option("--stream", metavar="NAME", help="the stream, by name or 64 hex digits; else that of the context"),
]
Cap: TypeAlias = Annotated[
    Path | None, typer.Option("--cap", metavar="FILE", help="the capability; else that of the context")
]
