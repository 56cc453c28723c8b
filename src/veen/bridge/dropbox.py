"""A folder in which bundles are put down, and what is made of them.

A file that has its name is whole: whoever puts one down writes it under another name first. What was dealt with is
moved aside, so that a folder on a medium that goes back and forth shows what is left. A crash between an import and
its move is no harm: the bundle is found to be imported.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from veen.bridge import bundle as bundles
from veen.bridge.bundle import SUFFIX
from veen.bridge.importing import Importer, Outcome
from veen.client import durable
from veen.client.durable import DISK
from veen.core import Malformed

IMPORTED, REFUSED = "imported", "refused"


@dataclass(frozen=True, slots=True)
class Dealt:
    """A file, what became of it, and where it is now."""

    path: Path
    outcome: Outcome


def waiting(folder: Path) -> list[Path]:
    """The bundles that are there, in the order of the streams they are of; what is no bundle comes last."""
    return sorted(folder.glob(f"*{SUFFIX}"), key=_order)


def _order(path: Path) -> tuple[bool, str, int, int, str]:
    try:
        header = bundles.decode(durable.read_file(path, bundles.MAX_BUNDLE_BYTES)).header
    except Malformed:
        return True, "", 0, 0, path.name
    return False, header.export_stream, header.epoch, header.export_seq_from, path.name


async def sweep(importer: Importer, folder: Path) -> AsyncIterator[Dealt]:
    """Import all that is there, one by one, and move each aside once it is dealt with."""
    for path in waiting(folder):
        outcome = await importer.take(durable.read_file(path, bundles.MAX_BUNDLE_BYTES))
        aside = folder / (IMPORTED if outcome.ok else REFUSED)
        DISK.make_folder(aside)
        DISK.replace(path, aside / path.name)
        DISK.sync_folder(aside)
        DISK.sync_folder(folder)
        yield Dealt(aside / path.name, outcome)
