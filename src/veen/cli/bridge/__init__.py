"""`veen bridge`: events across an air gap, mirrors between hubs that can see each other, and clients that compare."""

from veen.cli.bridge import carrying, comparing, exporting, hearing, importing, mirroring, printing, reconciling
from veen.cli.bridge.group import app

app.add_typer(carrying.app)

__all__ = [
    "app",
    "carrying",
    "comparing",
    "exporting",
    "hearing",
    "importing",
    "mirroring",
    "printing",
    "reconciling",
]
