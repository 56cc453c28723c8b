"""Attachments saved to a folder, under names that their writer cannot use against anyone."""

import re
from pathlib import Path

from veen.cli.client import files
from veen.cli.client.showing import size
from veen.client.client import Client
from veen.client.durable import check_local
from veen.client.entry import Entry
from veen.core import Unverified

# What every file system takes and no shell minds; never a dot or a dash first, since the number stands there.
_STRANGE = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST = 120


def name_for(entry: Entry, index: int) -> str:
    """`12.1-photo.jpg`: the place, which attachment, and what its writer called it."""
    called = _STRANGE.sub("_", entry.attachments[index].name)[-_LONGEST:].strip("._")
    epoch = f"{entry.epoch}." if entry.epoch else ""
    return f"{epoch}{entry.stream_seq}.{index + 1}-{called or 'attachment'}"


class Saver:
    """Saves what entries carry. A file that is there already must be the same."""

    def __init__(self, folder: Path) -> None:
        check_local(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    async def save(self, client: Client, entry: Entry) -> list[Path]:
        """Every attachment of an entry; each is what was sealed, or nothing is written."""
        return [await self._one(client, entry, index) for index in range(len(entry.attachments))]

    async def _one(self, client: Client, entry: Entry, index: int) -> Path:
        path = self._folder / name_for(entry, index)
        content = await client.attachment(entry, index)
        if path.is_symlink() or path.exists():
            if path.is_symlink() or path.read_bytes() != content:
                raise Unverified(str(path), f"it is there already, and is not the {size(len(content))} of the entry")
            return path
        files.write_new(path, content, files.SECRET)
        return path
