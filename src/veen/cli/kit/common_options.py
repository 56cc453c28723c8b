"""Options that many commands have. `kit.context_file` supplies the ones that are not given."""

from pathlib import Path
from typing import Annotated, TypeAlias

from plumbing.cli.command import option

JsonOption: TypeAlias = Annotated[bool, option("--json", "the result as JSON")]
DataDir: TypeAlias = Annotated[Path, option("--data-dir DIR", "the hub's data directory")]
LocalDir: TypeAlias = Annotated[
    Path | None, option("--data-dir DIR", "the data directory of a hub on this machine, instead of --hub")
]
HubUrl: TypeAlias = Annotated[
    str | None,
    option("--hub URL", "the hub's address; default: the context's", envvar="VEEN_HUB"),
]
ClientDir: TypeAlias = Annotated[
    Path | None,
    option("--client DIR", "the client directory; default: the context's", envvar="VEEN_CLIENT"),
]
Stream: TypeAlias = Annotated[
    str | None,
    option("--stream NAME", "the stream, by name or 64 hex digits; default: the context's"),
]
Cap: TypeAlias = Annotated[Path | None, option("--cap FILE", "the capability file; default: the context's")]
