"""Options that many commands have. `kit.context_file` supplies the ones that are not given."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="the result as JSON")]
DataDir: TypeAlias = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="the hub's data directory")]
HubUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--hub", metavar="URL", envvar="VEEN_HUB", help="the hub's address; default: the context's"),
]
ClientDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--client", metavar="DIR", envvar="VEEN_CLIENT", help="the client directory; default: the context's"),
]
Stream: TypeAlias = Annotated[
    str | None,
    typer.Option("--stream", metavar="NAME", help="the stream, by name or 64 hex digits; default: the context's"),
]
Cap: TypeAlias = Annotated[
    Path | None, typer.Option("--cap", metavar="FILE", help="the capability file; default: the context's")
]
