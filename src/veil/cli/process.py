"""A node as a process: run here, or started in the background and waited for."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from veil.cli import output
from veil.errors import Refused, VeilError
from veil.lanes import Unavailable
from veil.lanes.durable import PRIVATE_FILE
from veil.runtime.folder import Folder

_LOG = "node.log"
_CHATTY = ("aioice", "aioquic", "aiortc", "quic")
_LOOK_SECONDS = 0.05
START_SECONDS = 60.0
END_SECONDS = 60.0


def run(path: Path) -> None:
    """Run a node in this process, until it is told to stop."""
    asyncio.run(_run(path))


async def _run(path: Path) -> None:
    from veil.api.server import ApiServer
    from veil.runtime.host import Host

    for name in _CHATTY:  # what peers do must not fill our disk: it is counted instead
        logging.getLogger(name).setLevel(logging.CRITICAL)
    host = Host(Folder(path))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, host.stopping.set)
    api = ApiServer(host)
    try:
        await host.start()
        await api.start()
        # The first line gives the log its first block: later lines fit in it even when the disk is full.
        output.remark(f"node started, local API at {api.url}")
        await host.stopping.wait()
    finally:
        await api.stop()
        await host.stop()


def start(path: Path) -> str:
    """Start a node in the background; where its API is."""
    folder = Folder(path)
    folder.check()
    folder.lock()  # raises where one runs
    folder.unlock()
    folder.remove("api.json")
    log = os.open(path / _LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        command = [sys.executable, "-m", "veil.cli", "node", "start", "--foreground", "--data-dir", str(path)]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    finally:
        os.close(log)
    return _wait_start(folder, child)


def _wait_start(folder: Folder, child: "subprocess.Popen[bytes]") -> str:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        url = folder.read("api.json").get("url")
        if isinstance(url, str):
            return url
        if child.poll() is not None:
            raise _ended(folder.path / _LOG)
        time.sleep(_LOOK_SECONDS)
    child.kill()
    raise Unavailable("node", f"it did not start within {START_SECONDS:.0f} s")


def _ended(log: Path) -> VeilError:
    """What it said before it ended, which is in our own voice."""
    told = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.startswith("veil: ")]
    reasons = [line.removeprefix("veil: error: ") for line in told if line.startswith("veil: error: ")]
    error = Unavailable("node", f"it ended at once: {reasons[0] if reasons else f'see {log}'}")
    for line in told:
        if line.startswith("veil: hint: "):
            error.add_note(line.removeprefix("veil: hint: "))
    return error


def wait_end(path: Path) -> None:
    """Until nobody has the folder any more."""
    folder = Folder(path)
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        try:
            folder.lock()
        except Refused:
            time.sleep(_LOOK_SECONDS)
            continue
        folder.unlock()
        return
    raise Unavailable("node", f"it did not end within {END_SECONDS:.0f} s")
