"""A hub in this process, or in one of its own that goes on after the command has ended."""

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

from veen.cli import values
from veen.cli.failures import hinted
from veen.cli.hub import running
from veen.cli.hub.running import Running
from veen.core import Malformed, Unavailable, Unverified
from veen.hub import descriptors
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.storage.directory import has_no_keys
from veen.storage.durable import PRIVATE_FILE, PRIVATE_FOLDER
from veen.storage.folders import Folders

_VOICE = "veen: "
# The entries that wait for the log are tens of thousands of objects without cycles: looking at them all time and
# again costs more than what is ever found.
_COLLECT_EVERY = (20_000, 20, 50)


def serve(config: HubConfig, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` hears the address once it is open."""
    files = descriptors.raise_limit()
    asked, config = config, descriptors.fitting(config, files)
    try:
        service = HubService(config)
    except Unavailable as error:
        raise hinted(error, *_start_hints(config.data_dir)) from None
    except (Malformed, Unverified) as error:
        damaged = type(error)(str(config.data_dir), str(error))
        raise hinted(damaged, f"veen fsck {config.data_dir} says where, and whether it can be mended") from None
    if config is not asked:
        most = config.http.max_connections
        service.log.event("warn", "few_open_files", allowed=files, connections=most, wanted=asked.http.max_connections)
    uvloop.run(_serve(service, config, ready))


async def _serve(service: HubService, config: HubConfig, ready: Callable[[str], None]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    with ExitStack() as held:

        def listening(port: int) -> None:
            url = values.origin("https" if config.tls_cert else "http", config.host, port)
            held.enter_context(running.recorded(Running.here(url, config.data_dir, config.tls_cert)))
            ready(url)
            gc.freeze()
            gc.set_threshold(*_COLLECT_EVERY)

        await service.run_until(stopped, listening)


def _start_hints(data_dir: Path) -> list[str]:
    if running.is_locked(data_dir):
        return [f"veen hub status --data-dir {data_dir} shows it; veen hub stop --data-dir {data_dir} ends it"]
    folders = Folders(data_dir)
    if not folders.identity.exists():
        return [f"veen hub init --data-dir {data_dir} makes one, where there is none"]
    if has_no_keys(folders):
        return ["the keys are gone, and only a backup has them; without them the log can be read, and no hub can run"]
    return [f"veen fsck {data_dir} says what is wrong with it"]


def start(arguments: Sequence[str], log: Path) -> tuple[int, str]:
    """A hub in a process of its own, and its address once it is open. `arguments` are those of `veen hub start`."""
    reader, writer = os.pipe()
    log.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE), "ab") as kept:
        before = kept.tell()
        try:
            hub = subprocess.Popen(
                [sys.executable, "-m", "veen.cli", *arguments, "--foreground", "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=kept,
                stderr=kept,
                pass_fds=[writer],
                start_new_session=True,  # so that closing the terminal does not reach it
            )
        finally:
            os.close(writer)
    try:
        with open(reader, "rb") as answer:
            url = answer.read().decode()  # there once the hub has closed its end: when it is open, or has ended
    except BaseException:
        hub.terminate()
        raise
    if url:
        hub.returncode = 0  # it lives on: there is nothing to wait for
        return hub.pid, url
    raise Ended(hub.wait(), _said(log, before))


class Ended(Exception):
    """The hub ended before it served: with which status, and what it said."""

    def __init__(self, status: int, said: list[str]) -> None:
        super().__init__("\n".join(said))
        self.status = status
        self.said = said


def _said(log: Path, since: int) -> list[str]:
    """What it said to people; the rest of the log is for machines."""
    with log.open("rb") as kept:
        kept.seek(since)
        lines = kept.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.startswith(_VOICE)] or lines[-1:]


def log_file(data_dir: Path) -> Path:
    """Where a background hub's log goes unless it is told otherwise, by the XDG rules."""
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    return base / "veen" / f"{running.name_of(data_dir)}.log"
