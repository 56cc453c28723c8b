"""A data directory that is looked at or changed while no hub serves it."""

from pathlib import Path

from veen.cli.failures import hinted
from veen.core import Malformed, Receipt, Unavailable
from veen.storage import journal
from veen.storage.folders import Folders
from veen.storage.index import Index
from veen.storage.reader import LogReader


def folders(data_dir: Path) -> Folders:
    """The names in a directory that is a hub's."""
    found = Folders(data_dir)
    if not found.identity.exists():
        raise hinted(
            Unavailable(f"{data_dir} is not a hub's data directory"), f"veen hub init --data-dir {data_dir} makes one"
        )
    return found


def reader(data_dir: Path) -> LogReader:
    """What its log has."""
    return LogReader(folders(data_dir).root)


def sizes(log: LogReader) -> list[int]:
    """How many entries each label has; none where no hub has run on the directory yet."""
    try:
        return [head.size for _, head in log.labels()]
    except Unavailable:
        return []


def last_hub_ts(data_dir: Path) -> int:
    """The latest time that anything in the directory is signed for, in log and journal alike; 0 where nothing is."""
    found = folders(data_dir)
    latest = 0
    if any(found.log.iterdir()):
        try:
            index = Index(found.index, readonly=True)
        except Unavailable as error:
            raise hinted(error, f"veen fsck {data_dir} --repair makes it again") from None
        try:
            with index.read() as rows:
                if not rows.holds(index.most_rows()):
                    wrong = Malformed("index", "its sum is not that of its rows")
                    raise hinted(wrong, f"veen fsck {data_dir} --repair makes it again")
                latest = rows.number("hub_ts")
        finally:
            index.close()
    for group in journal.read(found.journal, 0):
        if not isinstance(group, journal.Torn):
            latest = max(latest, *(Receipt.decode(entry.receipt).hub_ts for entry in group[1]))
    return latest
