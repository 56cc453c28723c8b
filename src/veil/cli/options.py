"""Options that many commands share, and the node that a command is about."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

from plumbing.cli import result_output
from plumbing.cli.command import option, options_command
from plumbing.cli.result_output import Value
from veil.api.api_client import Client
from veil.runtime.data_directory import DataDirectory

JsonOption: TypeAlias = Annotated[bool, option("--json", "the result as JSON")]
DataDir: TypeAlias = Annotated[
    Path | None,
    option("--data-dir DIR", "the data directory of the node", envvar="VEIL_DATA_DIR", default="~/.local/share/veil"),
]
Namespace: TypeAlias = Annotated[
    int | None,
    option("--namespace N", "which namespace", min=0, max=65_535, default="1 for feeds, 2 for the rest"),
]


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The node of a command, and the form of the result."""

    data_dir: DataDir = None
    as_json: JsonOption = False

    @property
    def directory(self) -> DataDirectory:
        """The data directory: the given one, or the default of the user by the XDG rules."""
        if self.data_dir is not None:
            return DataDirectory(self.data_dir.absolute())
        home = os.environ.get("XDG_DATA_HOME", "")
        return DataDirectory((Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share") / "veil")

    def client(self) -> Client:
        """An API client for the running node."""
        return Client(self.directory.path)

    def facts(self, rows: dict[str, Value], data: object = None) -> None:
        """Print names and values. JSON output shows `data` instead, if given."""
        result_output.facts(rows, self.as_json, data)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Value]], data: object = None) -> None:
        """Print rows. JSON output shows `data` instead, if given."""
        result_output.table(columns, rows, self.as_json, data)


node_command = partial(options_command, NodeOptions)


def remark(text: str) -> None:
    """Print a remark on standard error."""
    result_output.remark("veil", text)
