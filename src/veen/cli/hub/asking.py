"""Which hub a command asks: the one at an address, or the one that serves a data directory of this machine."""

from pathlib import Path

from terminalface.command import Misuse
from veen.cli import contextfile, values
from veen.cli.hub import running
from veen.cli.hubapi import HubApi


def hub(url: str | None, data_dir: Path | None) -> HubApi:
    """A data directory that is named comes before an address from the environment or the context."""
    if data_dir is not None:
        found = running.need(data_dir)
        return HubApi(found.url, Path(found.cert) if found.cert else None, local=True)
    try:
        return HubApi(values.url(contextfile.need_hub(url)))
    except ValueError as error:
        raise Misuse(str(error), "give --hub URL, or --data-dir DIR of a hub on this machine") from None
