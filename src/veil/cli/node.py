"""`veil node`: create, configure, start, stop and destroy a node."""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from plumbing import service_process
from plumbing.cli.command import Misuse, group, option, options_command
from plumbing.cli.result_output import moment
from plumbing.durable import PRIVATE_FILE
from veil.api.api_server import ApiServer
from veil.cli.options import NodeOptions, node_command, remark
from veil.lanes import Certificate, Unavailable
from veil.runtime import data_directory, groups
from veil.runtime.daemon import Host
from veil.runtime.data_directory import DataDirectory, Settings
from veil.veil_errors import Refused, VeilError

_LOG = "node.log"
_NOISY_LOGGERS = ("aioice", "aioquic", "aiortc", "quic")
_POLL_SECONDS = 0.05
START_SECONDS = 60.0
END_SECONDS = 60.0


def run(path: Path) -> None:
    """Run a node in this process until a signal or the API stops it."""
    asyncio.run(_run(path))


async def _run(path: Path) -> None:
    for name in _NOISY_LOGGERS:  # peers must not be able to fill the disk with log lines; counters record their errors
        logging.getLogger(name).setLevel(logging.CRITICAL)
    host = Host(DataDirectory(path))
    service_process.stop_on_signals(host.stopping.set)
    api = ApiServer(host)
    try:
        await host.start()
        await api.start()
        # The first line gives the log its first block: later lines fit in it even when the disk is full.
        remark(f"node started, local API at {api.url}")
        service_process.ready(f"local API at {api.url}")
        await host.stopping.wait()
    finally:
        await api.stop()
        await host.stop()


def start_process(path: Path) -> str:
    """Start a node in the background and return the URL of its API."""
    directory = DataDirectory(path)
    directory.check()
    directory.lock()  # raises `Refused` if a node is running
    directory.unlock()
    directory.remove("api.json")
    log = os.open(path / _LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        command = [sys.executable, "-m", "veil.cli", "node", "start", "--foreground", "--data-dir", str(path)]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    finally:
        os.close(log)
    return _wait_start(directory, child)


def _wait_start(directory: DataDirectory, child: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        url = directory.read("api.json").get("url")
        if isinstance(url, str):
            return url
        if child.poll() is not None:
            raise _ended(directory.path / _LOG)
        time.sleep(_POLL_SECONDS)
    child.kill()
    raise Unavailable("node", f"did not start within {START_SECONDS:.0f} s; see {directory.path / _LOG}")


def _ended(log: Path) -> VeilError:
    """The error that a node wrote to its log before it ended."""
    lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.startswith("veil: ")]
    reasons = [line.removeprefix("veil: error: ") for line in lines if line.startswith("veil: error: ")]
    error = Unavailable("node", f"ended at start: {reasons[0] if reasons else f'see {log}'}")
    for line in lines:
        if line.startswith("veil: hint: "):
            error.add_note(line.removeprefix("veil: hint: "))
    return error


def wait_end(path: Path) -> None:
    """Wait until the node has released the lock on its data directory."""
    directory = DataDirectory(path)
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        try:
            directory.lock()
        except Refused:
            time.sleep(_POLL_SECONDS)
            continue
        directory.unlock()
        return
    raise Unavailable("node", f"did not end within {END_SECONDS:.0f} s")


app = group(
    "node",
    """Create, configure, start, stop and inspect a node.

    A node is a data directory with keys, and a process while it runs. Other commands send requests to that process.
    """,
)


@dataclass(frozen=True, slots=True)
class SettingsOptions(NodeOptions):
    """The settings of a node. Options that are not given are None."""

    listen: Annotated[
        list[str] | None,
        option("--listen ENDPOINT", "where to listen, one for each lane, like quic://0.0.0.0:4433"),
    ] = None
    announce: Annotated[
        list[str] | None, option("--announce ENDPOINT", "the endpoint for contacts, if it differs from --listen")
    ] = None
    api: Annotated[str | None, option("--api HOST:PORT", "address of the API", default="a free port of 127.0.0.1")] = (
        None
    )
    proxy: Annotated[str | None, option("--proxy HOST:PORT", "the SOCKS5 port of Tor", default="no Tor")] = None
    stun: Annotated[list[str] | None, option("--stun URL", "a STUN server for WebRTC", default="none")] = None
    relay_all: Annotated[bool | None, option("--relay-all/--no-relay-all", "forward every tag, subscribed or not")] = (
        None
    )

    def changed(self, settings: Settings) -> Settings:
        """The settings with the given options."""
        given = ((one.name, getattr(self, one.name)) for one in fields(Settings))
        changes = {name: tuple(one) if isinstance(one, list) else one for name, one in given if one is not None}
        return replace(settings, **changes)  # type: ignore[arg-type]


settings_command = partial(options_command, SettingsOptions)


@settings_command(
    app, "init", "veil node init --listen quic://127.0.0.1:4433", "veil node init --data-dir alice --name alice"
)
def init(options: SettingsOptions, name: Annotated[str, option("--name NAME", "the name in its contact")] = "") -> None:
    """Create a node: its data directory, keys and settings."""
    directory, chosen = options.directory, options.changed(Settings())
    chosen.check()
    ring = groups.Keyring.generate(name)
    directory.make()
    data_directory.save_settings(directory, chosen)
    Certificate.load_or_make(directory.certificate)
    groups.save_keyring(directory, ring)
    options.facts({"data_dir": str(directory.path), "pubkey": ring.signing.public_key, "name": name})


@settings_command(app, "set", "veil node set --proxy 127.0.0.1:9050", "veil node set --listen quic://0.0.0.0:4433")
def set_(options: SettingsOptions) -> None:
    """Change the settings of a node, from its next start on.

    Options that are not given keep their values.
    """
    directory = options.directory
    directory.check()
    chosen = options.changed(data_directory.load_settings(directory))
    data_directory.save_settings(directory, chosen)
    shown = asdict(chosen)
    rows = {name: " ".join(one) if isinstance(one, tuple) else one for name, one in shown.items()}
    options.facts(rows, shown)


@node_command(app, "start", "veil node start", "veil node start --data-dir alice --foreground")
def start(
    node: NodeOptions, foreground: Annotated[bool, option("--foreground", "run in this process, until ctrl-c")] = False
) -> None:
    """Start a node, and return once it runs.

    The command names every lane that cannot listen on its endpoint. If no lane can listen, it stops the node again,
    except with --foreground.
    """
    directory = node.directory.path
    if foreground:
        run(directory)
        return
    url = start_process(directory)
    api = node.client()
    status, found = api.get("/v1/status"), api.get("/v1/lanes")
    lanes = [place for lane in found for place in lane["endpoints"]]
    failed = _failed_lanes(directory, found)
    if failed and not lanes:
        api.post("/v1/stop")
        wait_end(directory)
        raise _cannot_listen(failed)
    for lane, why in failed.items():
        remark(f"{lane} does not listen: {why}")
    rows = {"pubkey": status["pubkey"], "api": url, "listens": " ".join(lanes)}
    node.facts(rows, {**rows, "listens": lanes, "does_not_listen": failed})


def _failed_lanes(directory: Path, found: list[dict[str, Any]]) -> dict[str, str]:
    """The lanes that should listen and do not, with the reason."""
    wanted = {place.partition(":")[0] for place in data_directory.load_settings(DataDirectory(directory)).listen}
    return {one["lane"]: one["why_not"] for one in found if one["lane"] in wanted and one["why_not"]}


def _cannot_listen(failed: dict[str, str]) -> Exception:
    error = Unavailable("node", f"cannot listen: {'; '.join(failed.values())}")
    error.add_note(
        "choose another endpoint with veil node set --listen ENDPOINT; quic://127.0.0.1:0 takes any free port"
    )
    return error


@node_command(app, "stop", "veil node stop", "veil node stop --data-dir alice")
def stop(node: NodeOptions) -> None:
    """Stop a node, and return once it has ended."""
    node.client().post("/v1/stop")
    wait_end(node.directory.path)
    node.facts({"stopped": True})


@node_command(app, "status", "veil node status", "veil node status --json")
def status(node: NodeOptions) -> None:
    """Show the state of a running node."""
    found = node.client().get("/v1/status")
    rows = {**found, "now": moment(found["now"]), "started_at": moment(found["started_at"])}
    fault = rows.pop("store_fault")
    rows["store"] = f"cannot write: {fault['reason']}" if fault else "writes"
    rows["store_failed_since"] = moment(fault["since"] if fault else None)
    node.facts(rows, found)


@node_command(app, "destroy", "veil node destroy --data-dir alice --yes")
def destroy(
    node: NodeOptions, yes: Annotated[bool, option("--yes", "confirm: the keys cannot be recovered")] = False
) -> None:
    """Delete a stopped node with its keys and all its data."""
    directory = node.directory
    directory.check()
    if not yes:
        raise Misuse(f"this deletes {directory.path} with its keys, which cannot be recovered", "confirm with --yes")
    directory.lock()
    shutil.rmtree(directory.path)
    node.facts({"removed": str(Path(directory.path))})
