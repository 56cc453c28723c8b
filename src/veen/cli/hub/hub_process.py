"""Hub processes on this machine: their records, how to find, start and stop them, and the API of a hub."""

import json
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from plumbing.cli.command import Misuse
from plumbing.durable import PRIVATE_FILE, PRIVATE_FOLDER, Disk
from veen.cli.kit import context_file, output, values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.hub_api import HubApi
from veen.core import Malformed, Receipt, Unavailable
from veen.core.hashing import h
from veen.storage import journal
from veen.storage.directory_reader import LogReader
from veen.storage.index import Index
from veen.storage.lock import is_held
from veen.storage.paths import Folders


def folders(data_dir: Path) -> Folders:
    """The paths in a data directory. Raises if it is not one."""
    found = Folders(data_dir)
    if not found.identity.exists():
        raise hinted(
            Unavailable(f"{data_dir} is not a hub's data directory"), f"veen hub init --data-dir {data_dir} creates one"
        )
    return found


def reader(data_dir: Path) -> LogReader:
    return LogReader(folders(data_dir).root)


def sizes(log: LogReader) -> list[int]:
    """Number of entries of each label. Empty if no hub has run on the directory yet."""
    try:
        return [head.size for _, head in log.labels()]
    except Unavailable:
        return []


def last_hub_ts(data_dir: Path) -> int:
    """The latest hub time of any receipt in log and journal, or 0."""
    found = folders(data_dir)
    latest = 0
    if any(found.log.iterdir()):
        try:
            index = Index(found.index, readonly=True)
        except Unavailable as error:
            raise hinted(error, f"veen fsck {data_dir} --repair rebuilds it") from None
        try:
            with index.read() as rows:
                if not rows.sum_matches(index.most_rows()):
                    wrong = Malformed("index", "the checksum does not match the rows")
                    raise hinted(wrong, f"veen fsck {data_dir} --repair rebuilds it")
                latest = rows.number("hub_ts")
        finally:
            index.close()
    for group in journal.read(found.journal, 0):
        if not isinstance(group, journal.Torn):
            latest = max(latest, *(Receipt.decode(entry.receipt).hub_ts for entry in group[1]))
    return latest


@dataclass(frozen=True, slots=True)
class HubProcess:
    """The record of a serving hub."""

    pid: int
    started: int  # start time in clock ticks; it distinguishes a reused pid
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
    """Keep the record while the block runs. A hub also serves if the record cannot be written."""
    path = _record_folder() / f"{name_of(Path(running.data_dir))}.json"
    try:
        Disk().make_folder(path.parent, PRIVATE_FOLDER)
        if not _is_ours(path.parent):
            raise PermissionError(f"{path.parent} belongs to another user")
        _remove_stale(path.parent)
        Disk().write_file(path, json.dumps(asdict(running)).encode(), PRIVATE_FILE)
    except OSError as error:
        output.remark(f"warning: cannot record this process, so veen hub stop will not find it: {error}")
    try:
        yield
    finally:
        _remove(path, running)


def find(data_dir: Path) -> HubProcess | None:
    """The running hub of a data directory, if its record can be found."""
    for folder in _record_folders():
        path = folder / f"{name_of(data_dir)}.json"
        try:
            found = _read(path) if _is_ours(folder) else None
        except OSError:
            continue
        if found is not None and found.is_alive():
            return found
    return None


def is_locked(data_dir: Path) -> bool:
    """Whether a process has locked the directory."""
    return is_held(Folders(data_dir).lock)


def need(data_dir: Path) -> HubProcess:
    """The running hub of a data directory. Raises if there is none."""
    found = find(data_dir)
    if found is not None:
        return found
    if is_locked(data_dir):
        raise hinted(
            Unavailable(f"{data_dir} is locked by another process (pid unknown)"),
            "it may belong to another user, run in another container, or be a running veen fsck",
        )
    raise hinted(Unavailable(f"no hub runs on {data_dir}"), f"veen hub start --data-dir {data_dir} starts one")


def stop(running: HubProcess, timeout_s: float) -> bool:
    """Terminate the hub and wait for it. False if it has not stopped in time."""
    try:
        fd = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return True
    try:
        # Check after pidfd_open: the pidfd cannot refer to another process later.
        if not running.is_alive():
            return True
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        ended, _, _ = select.select([fd], [], [], timeout_s)
        return bool(ended)
    finally:
        os.close(fd)


def _start_time(pid: int) -> int | None:
    """Start time in clock ticks. None if the process does not exist or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state == "Z" else int(fields[18])


def name_of(data_dir: Path) -> str:
    """Base name of the record and log files of the hub of a data directory."""
    return f"hub-{h(str(data_dir.resolve()).encode()).hex()[:16]}"


def _record_folders() -> list[Path]:
    """Folders that may have the record. Sessions of one user may differ in XDG_RUNTIME_DIR."""
    uid = os.getuid()
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    folders = [Path(given)] if os.path.isabs(given) else []
    folders.append(Path(f"/run/user/{uid}"))
    return [*(folder / "veen" for folder in folders), Path(tempfile.gettempdir()) / f"veen-{uid}"]


def _record_folder() -> Path:
    *runtime, fallback = _record_folders()
    return next((folder for folder in runtime if folder.parent.is_dir()), fallback)


def _is_ours(folder: Path) -> bool:
    """Whether only this user can write to the folder: another user could plant one in /tmp."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _read(path: Path) -> HubProcess | None:
    try:
        return HubProcess(**json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        return None


def _remove_stale(folder: Path) -> None:
    """Remove the records of hubs that were killed."""
    for path in folder.glob("hub-*.json"):
        found = _read(path)
        if found is None or not found.is_alive():
            path.unlink(missing_ok=True)


def _remove(path: Path, running: HubProcess) -> None:
    try:
        if json.loads(path.read_bytes()) == asdict(running):
            path.unlink()
    except (OSError, ValueError):
        return


def hub(url: str | None, data_dir: Path | None) -> HubApi:
    """The API of a hub. A given data directory takes precedence over a URL from the environment or context."""
    if data_dir is not None:
        found = need(data_dir)
        return HubApi(found.url, Path(found.cert) if found.cert else None, local=True)
    try:
        return HubApi(values.url(context_file.need_hub(url)))
    except ValueError as error:
        raise Misuse(str(error), "give --hub URL, or --data-dir DIR of a hub on this machine") from None


_ERROR_PREFIX = "veen: "


def start_process(
    arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None, *, detached: bool = True
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a background hub; return it and its URL once its port is open. `arguments` start with `hub start`."""
    reader, writer = os.pipe()
    log.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE), "ab") as log_file:
        log_start = log_file.tell()
        try:
            hub = subprocess.Popen(
                [sys.executable, "-m", "veen.cli", *arguments, "--foreground", "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                pass_fds=[writer],
                env=env,
                start_new_session=detached,  # closing the terminal then does not stop the hub
            )
        finally:
            os.close(writer)
    try:
        with open(reader, "rb") as ready:
            url = ready.read().decode()  # returns when the hub closes its end: its port is open, or it has exited
    except BaseException:
        hub.terminate()
        raise
    if url:
        return hub, url
    raise StartFailed(hub.wait(), _errors(log, log_start))


class StartFailed(Exception):
    """The hub exited before it served."""

    def __init__(self, status: int, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.status = status
        self.errors = errors


def _errors(log: Path, start: int) -> list[str]:
    """The error lines of the log since `start`, or else its last line."""
    with log.open("rb") as log_file:
        log_file.seek(start)
        lines = log_file.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.startswith(_ERROR_PREFIX)] or lines[-1:]


def default_log_file(data_dir: Path) -> Path:
    """The log file of a background hub, in the XDG state folder."""
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    return base / "veen" / f"{name_of(data_dir)}.log"
