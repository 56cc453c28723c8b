"""`veen bridge`: events across an air gap, and mirrors between hubs that can see each other."""

from veen.cli.bridge import comparing, exporting, importing, mirroring, printing, reconciling
from veen.cli.bridge.group import app

__all__ = ["app", "comparing", "exporting", "importing", "mirroring", "printing", "reconciling"]
