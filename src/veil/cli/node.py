"""`veil node`: a node's life, from its folder to its end."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse, command, group
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, client, data_dir
from veil.lanes import Unavailable
from veil.lanes.durable import PRIVATE_FILE
from veil.runtime.data_directory import Folder
from veil.veil_errors import Refused, VeilError

if TYPE_CHECKING:
    from veil.runtime.node_settings import Settings


_LOG = "node.log"
_CHATTY = ("aioice", "aioquic", "aiortc", "quic")
_LOOK_SECONDS = 0.05
START_SECONDS = 60.0
END_SECONDS = 60.0


def run(path: Path) -> None:
    """Run a node in this process, until it is told to stop."""
    asyncio.run(_run(path))


async def _run(path: Path) -> None:
    from veil.api.api_server import ApiServer
    from veil.runtime.daemon import Host

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


def start_process(path: Path) -> str:
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


app = group(
    "node",
    """Make a node, start it, stop it, and ask it how it is.

    A node is a folder with its keys, and a process while it runs. Other commands talk to that process.
    """,
)

Listen: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--listen", metavar="ENDPOINT", help="where to listen, one for each lane, like quic://0.0.0.0:4433"),
]
Announce: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--announce", metavar="ENDPOINT", help="where others reach it, if that is elsewhere"),
]
Api: TypeAlias = Annotated[
    str | None,
    typer.Option("--api", metavar="HOST:PORT", help="where the local API is", show_default="a free port of 127.0.0.1"),
]
Proxy: TypeAlias = Annotated[
    str | None, typer.Option("--proxy", metavar="HOST:PORT", help="the SOCKS5 port of Tor", show_default="no Tor")
]
Stun: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--stun", metavar="URL", help="a STUN server for WebRTC", show_default="none is asked"),
]
RelayAll: TypeAlias = Annotated[
    bool | None, typer.Option("--relay-all/--no-relay-all", help="pass on every tag, subscribed or not")
]


def _chosen(
    now: "Settings",
    listen: list[str] | None,
    announce: list[str] | None,
    api: str | None,
    proxy: str | None,
    stun: list[str] | None,
    relay_all: bool | None,
) -> "Settings":
    from dataclasses import replace

    changes: dict[str, object] = {
        "listen": None if listen is None else tuple(listen),
        "announce": None if announce is None else tuple(announce),
        "api": api,
        "proxy": proxy,
        "stun": None if stun is None else tuple(stun),
        "relay_all": relay_all,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(now, **given)  # type: ignore[arg-type]


@command(app, "init", "veil node init --listen quic://127.0.0.1:4433", "veil node init --data-dir alice --name alice")
def init(
    given: DataDir = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="what it calls itself in its contact")] = "",
    listen: Listen = None,
    announce: Announce = None,
    api: Api = None,
    proxy: Proxy = None,
    stun: Stun = None,
    relay_all: RelayAll = None,
    as_json: JsonOption = False,
) -> None:
    """Make a node: its folder and its keys."""
    from veil.lanes import Certificate
    from veil.runtime import keyring, node_settings
    from veil.runtime.data_directory import Folder

    folder = Folder(data_dir(given))
    chosen = _chosen(node_settings.Settings(), listen, announce, api, proxy, stun, relay_all)
    chosen.check()
    ring = keyring.Keyring.generate(name)
    folder.make()
    node_settings.save(folder, chosen)
    Certificate.load_or_make(folder.certificate)
    keyring.save(folder, ring)
    output.facts({"data_dir": str(folder.path), "pubkey": ring.signing.public_key, "name": name}, as_json)


@command(app, "set", "veil node set --proxy 127.0.0.1:9050", "veil node set --listen quic://0.0.0.0:4433")
def set_(
    given: DataDir = None,
    listen: Listen = None,
    announce: Announce = None,
    api: Api = None,
    proxy: Proxy = None,
    stun: Stun = None,
    relay_all: RelayAll = None,
    as_json: JsonOption = False,
) -> None:
    """Change what was chosen for a node; it counts from its next start.

    What is not given stays as it is.
    """
    from dataclasses import asdict

    from veil.runtime import node_settings
    from veil.runtime.data_directory import Folder

    folder = Folder(data_dir(given))
    folder.check()
    chosen = _chosen(node_settings.load(folder), listen, announce, api, proxy, stun, relay_all)
    node_settings.save(folder, chosen)
    shown = asdict(chosen)
    rows = {name: " ".join(one) if isinstance(one, tuple) else one for name, one in shown.items()}
    output.facts(rows, as_json, data=shown)


@command(app, "start", "veil node start", "veil node start --data-dir alice --foreground")
def start(
    given: DataDir = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="run here, until ctrl-c")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a node, and return once it runs.

    A lane that cannot listen where it was told to is named. Where none can, the node is stopped again, unless it was
    started with --foreground.
    """

    folder = data_dir(given)
    if foreground:
        run(folder)
        return
    url = start_process(folder)
    with client(folder) as api:
        status, found = api.get("/v1/status"), api.get("/v1/lanes")
        lanes = [place for lane in found for place in lane["endpoints"]]
        deaf = _deaf(folder, found)
        if deaf and not lanes:
            api.post("/v1/stop")
    if deaf and not lanes:
        wait_end(folder)
        raise _cannot_listen(deaf)
    for lane, why in deaf.items():
        output.remark(f"{lane} does not listen: {why}")
    rows = {"pubkey": status["pubkey"], "api": url, "listens": " ".join(lanes)}
    output.facts(rows, as_json, data={**rows, "listens": lanes, "does_not_listen": deaf})


def _deaf(folder: Path, found: list[dict[str, Any]]) -> dict[str, str]:
    """The lanes that were told to listen and do not, and why."""
    from veil.runtime import node_settings
    from veil.runtime.data_directory import Folder

    wanted = {place.partition(":")[0] for place in node_settings.load(Folder(folder)).listen}
    return {one["lane"]: one["why_not"] for one in found if one["lane"] in wanted and one["why_not"]}


def _cannot_listen(deaf: dict[str, str]) -> Exception:
    from veil.lanes import Unavailable

    error = Unavailable("node", f"it cannot listen: {'; '.join(deaf.values())}")
    error.add_note("veil node set --listen ENDPOINT names another place, and port 0, as in quic://127.0.0.1:0, any")
    return error


@command(app, "stop", "veil node stop", "veil node stop --data-dir alice")
def stop(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Stop a node, and return once it has ended."""

    folder = data_dir(given)
    with client(folder) as api:
        api.post("/v1/stop")
    wait_end(folder)
    output.facts({"stopped": True}, as_json)


@command(app, "status", "veil node status", "veil node status --json")
def status(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Show a running node at a glance."""
    with client(given) as api:
        found = api.get("/v1/status")
    rows = {**found, "now": output.moment(found["now"]), "started_at": output.moment(found["started_at"])}
    fault = rows.pop("store_fault")
    rows["store"] = f"cannot write: {fault['reason']}" if fault else "writes"
    rows["store_failed_since"] = output.moment(fault["since"] if fault else None)
    output.facts(rows, as_json, data=found)


@command(app, "destroy", "veil node destroy --data-dir alice --yes")
def destroy(
    given: DataDir = None,
    yes: Annotated[bool, typer.Option("--yes", help="do it: the keys cannot be had back")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a node that does not run, with its keys and all that it keeps."""
    import shutil

    from veil.runtime.data_directory import Folder

    folder = Folder(data_dir(given))
    folder.check()
    if not yes:
        raise Misuse(f"{folder.path} would be gone for good, keys and all", "give --yes to do it")
    folder.lock()
    shutil.rmtree(folder.path)
    output.facts({"removed": str(Path(folder.path))}, as_json)
