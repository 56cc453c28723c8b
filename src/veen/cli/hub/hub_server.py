"""A hub that serves in this process, and a hub started in a background process."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop

from plumbing.durable import PRIVATE_FILE, PRIVATE_FOLDER
from veen.cli.hub import hub_process
from veen.cli.hub.hub_process import HubProcess
from veen.cli.kit import values
from veen.cli.kit.exit_status import hinted
from veen.core import Malformed, Unavailable, Unverified
from veen.hub.config import HubConfig, fit_connections, raise_file_limit
from veen.hub.service import HubService
from veen.storage.metadata import has_no_keys
from veen.storage.paths import Folders

_ERROR_PREFIX = "veen: "
# Entries that wait for the log are tens of thousands of objects without cycles. Collecting rarely saves the time of
# traversing them.
_GC_THRESHOLDS = (20_000, 20, 50)


def serve(config: HubConfig, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. Calls `ready` with the URL once the port is open."""
    files = raise_file_limit()
    wanted, config = config, fit_connections(config, files)
    try:
        service = HubService(config)
    except Unavailable as error:
        raise hinted(error, *_start_hints(config.data_dir)) from None
    except (Malformed, Unverified) as error:
        damaged = type(error)(str(config.data_dir), str(error))
        raise hinted(damaged, f"veen fsck {config.data_dir} shows the damage and whether it is repairable") from None
    if config is not wanted:
        fits = config.http.max_connections
        service.log.event("warn", "few_open_files", allowed=files, connections=fits, wanted=wanted.http.max_connections)
    uvloop.run(_serve(service, config, ready))


async def _serve(service: HubService, config: HubConfig, ready: Callable[[str], None]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    with ExitStack() as stack:

        def listening(port: int) -> None:
            url = values.origin("https" if config.tls_cert else "http", config.host, port)
            stack.enter_context(hub_process.recorded(HubProcess.here(url, config.data_dir, config.tls_cert)))
            ready(url)
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)

        await service.run_until(stopped, listening)


def _start_hints(data_dir: Path) -> list[str]:
    if hub_process.is_locked(data_dir):
        return [f"veen hub status --data-dir {data_dir} shows the hub; veen hub stop --data-dir {data_dir} stops it"]
    folders = Folders(data_dir)
    if not folders.identity.exists():
        return [f"veen hub init --data-dir {data_dir} creates a new one"]
    if has_no_keys(folders):
        return ["restore the keys from a backup; without them the log can be read, but no hub can run"]
    return [f"veen fsck {data_dir} shows the damage"]


def start_process(arguments: Sequence[str], log: Path) -> tuple[int, str]:
    """Start a background hub and return its pid and URL once its port is open. `arguments` start with `hub start`."""
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
                start_new_session=True,  # closing the terminal must not stop the hub
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
        hub.returncode = 0  # it keeps running; without this, Popen would warn
        return hub.pid, url
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
    return base / "veen" / f"{hub_process.name_of(data_dir)}.log"
