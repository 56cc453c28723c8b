"""`veen version`."""

import platform

from plumbing.cli.command import command, single
from veen import __version__
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.core.limits import WIRE_VERSION

app = single("version")


@command(app, "version", "veen version", "veen version --json")
def version(as_json: JsonOption = False) -> None:
    """Show the versions of this program and of its protocols."""
    from importlib import metadata

    rows: dict[str, output.Value] = {
        "veen": __version__,
        "wire": WIRE_VERSION,
        "python": platform.python_version(),
        "pynacl": metadata.version("pynacl"),  # its libsodium verifies signatures
        "system": f"{platform.system()} {platform.machine()}",
    }
    output.facts(rows, as_json)
