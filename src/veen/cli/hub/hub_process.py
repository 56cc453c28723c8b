"""Which hub a command asks: the one at an address, or the one that serves a data directory of this machine."""

import json
import os
import select
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from plumbing.cli.command import Misuse
from veen.cli.kit import context_file, output, values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.hub_api import HubApi
from veen.core import Malformed, Receipt, Unavailable
from veen.core.hashing import h
from veen.storage import journal
from veen.storage.directory_reader import LogReader
from veen.storage.durable import PRIVATE_FILE, PRIVATE_FOLDER, Disk
from veen.storage.index import Index
from veen.storage.lock import is_held
from veen.storage.paths import Folders


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
                if not rows.sum_matches(index.most_rows()):
                    wrong = Malformed("index", "its sum is not that of its rows")
                    raise hinted(wrong, f"veen fsck {data_dir} --repair makes it again")
                latest = rows.number("hub_ts")
        finally:
            index.close()
    for group in journal.read(found.journal, 0):
        if not isinstance(group, journal.Torn):
            latest = max(latest, *(Receipt.decode(entry.receipt).hub_ts for entry in group[1]))
    return latest


@dataclass(frozen=True, slots=True)
class HubProcess:
    """One hub that serves."""

    pid: int
    started: int  # the process's start time in the system's own ticks: a number that is used again has another
    url: str
    data_dir: str
    cert: str | None

    @classmethod
    def here(cls, url: str, data_dir: Path, cert: Path | None) -> "HubProcess":
        pid = os.getpid()
        kept = None if cert is None else str(cert.absolute())
        return cls(pid, _start_time(pid) or 0, url, str(data_dir.resolve()), kept)

    def is_alive(self) -> bool:
        return _start_time(self.pid) == self.started


@contextmanager
def recorded(running: HubProcess) -> Iterator[None]:
    """Keep the record for as long as the block runs. A hub serves also where none can be kept."""
    path = _place() / f"{name_of(Path(running.data_dir))}.json"
    try:
        Disk().make_folder(path.parent, PRIVATE_FOLDER)
        if not _is_ours(path.parent):
            raise PermissionError(f"{path.parent} belongs to someone else")
        _sweep(path.parent)
        Disk().write_file(path, json.dumps(asdict(running)).encode(), PRIVATE_FILE)
    except OSError as error:
        output.remark(f"warning: no record of this process is kept, so veen hub stop will not find it: {error}")
    try:
        yield
    finally:
        _forget(path, running)


def find(data_dir: Path) -> HubProcess | None:
    """The hub that serves the directory, if one does."""
    for place in _places():
        path = place / f"{name_of(data_dir)}.json"
        try:
            found = _read(path) if _is_ours(place) else None
        except OSError:
            continue
        if found is not None and found.is_alive():
            return found
    return None


def is_locked(data_dir: Path) -> bool:
    """Whether any process holds the directory."""
    return is_held(Folders(data_dir).lock)


def need(data_dir: Path) -> HubProcess:
    """The hub that serves the directory."""
    found = find(data_dir)
    if found is not None:
        return found
    if is_locked(data_dir):
        raise hinted(
            Unavailable(f"a process holds {data_dir}, and it is not known which"),
            "it may be another user's, in another container, or a check that is under way",
        )
    raise hinted(Unavailable(f"no hub runs on {data_dir}"), f"veen hub start --data-dir {data_dir} starts one")


def stop(running: HubProcess, timeout_s: float) -> bool:
    """Ask it to end and wait until it has. False where it has not within the time."""
    try:
        fd = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return True
    try:
        # Looked at after it is held: from here on the number cannot come to mean another process.
        if not running.is_alive():
            return True
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        ended, _, _ = select.select([fd], [], [], timeout_s)
        return bool(ended)
    finally:
        os.close(fd)


def _start_time(pid: int) -> int | None:
    """None where there is no such process, or it has ended and nobody has asked how."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = told.rpartition(")")[2].split()
    return None if state == "Z" else int(fields[18])


def name_of(data_dir: Path) -> str:
    """What files about the hub of a directory are called, outside of it."""
    return f"hub-{h(str(data_dir.resolve()).encode()).hex()[:16]}"


def _places() -> list[Path]:
    """Where a record may be: sessions differ in what they know of the user's runtime folder."""
    uid = os.getuid()
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    folders = [Path(given)] if os.path.isabs(given) else []
    folders.append(Path(f"/run/user/{uid}"))
    return [*(folder / "veen" for folder in folders), Path(tempfile.gettempdir()) / f"veen-{uid}"]


def _place() -> Path:
    return next((place for place in _places()[:-1] if place.parent.is_dir()), _places()[-1])


def _is_ours(folder: Path) -> bool:
    """A folder in a place that all can write to may be someone's trap."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _read(path: Path) -> HubProcess | None:
    """None where it is no record."""
    try:
        return HubProcess(**json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        return None


def _sweep(folder: Path) -> None:
    """Remove what hubs that were killed have left."""
    for path in folder.glob("hub-*.json"):
        found = _read(path)
        if found is None or not found.is_alive():
            path.unlink(missing_ok=True)


def _forget(path: Path, running: HubProcess) -> None:
    try:
        if json.loads(path.read_bytes()) == asdict(running):
            path.unlink()
    except (OSError, ValueError):
        return


def hub(url: str | None, data_dir: Path | None) -> HubApi:
    """A data directory that is named comes before an address from the environment or the context."""
    if data_dir is not None:
        found = need(data_dir)
        return HubApi(found.url, Path(found.cert) if found.cert else None, local=True)
    try:
        return HubApi(values.url(context_file.need_hub(url)))
    except ValueError as error:
        raise Misuse(str(error), "give --hub URL, or --data-dir DIR of a hub on this machine") from None
