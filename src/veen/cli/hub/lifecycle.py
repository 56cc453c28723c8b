"""`veen hub init|start|stop`: from an empty folder to a hub that serves, and back."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, raw_arguments
from veen.cli.hub import hub_process
from veen.cli.hub import hub_settings as options
from veen.cli.hub.hub_group import app
from veen.cli.hub.hub_process import HubProcess
from veen.cli.kit import output, values
from veen.cli.kit.common_options import DataDir, JsonOption
from veen.cli.kit.exit_status import hinted
from veen.core import Malformed, Unavailable, Unverified
from veen.hub import fd_limit
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.storage.durable import PRIVATE_FILE, PRIVATE_FOLDER
from veen.storage.metadata import has_no_keys
from veen.storage.paths import Folders

if TYPE_CHECKING:
    from veen.core import Limits


_VOICE = "veen: "
# The entries that wait for the log are tens of thousands of objects without cycles: looking at them all time and
# again costs more than what is ever found.
_COLLECT_EVERY = (20_000, 20, 50)


def serve(config: HubConfig, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` hears the address once it is open."""
    files = fd_limit.raise_limit()
    asked, config = config, fd_limit.fit_connections(config, files)
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
            held.enter_context(hub_process.recorded(HubProcess.here(url, config.data_dir, config.tls_cert)))
            ready(url)
            gc.freeze()
            gc.set_threshold(*_COLLECT_EVERY)

        await service.run_until(stopped, listening)


def _start_hints(data_dir: Path) -> list[str]:
    if hub_process.is_locked(data_dir):
        return [f"veen hub status --data-dir {data_dir} shows it; veen hub stop --data-dir {data_dir} ends it"]
    folders = Folders(data_dir)
    if not folders.identity.exists():
        return [f"veen hub init --data-dir {data_dir} makes one, where there is none"]
    if has_no_keys(folders):
        return ["the keys are gone, and only a backup has them; without them the log can be read, and no hub can run"]
    return [f"veen fsck {data_dir} says what is wrong with it"]


def start_process(arguments: Sequence[str], log: Path) -> tuple[int, str]:
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
    raise HubEnded(hub.wait(), _said(log, before))


class HubEnded(Exception):
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


def default_log_file(data_dir: Path) -> Path:
    """Where a background hub's log goes unless it is told otherwise, by the XDG rules."""
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    return base / "veen" / f"{hub_process.name_of(data_dir)}.log"


_STOP_S = 60.0


@command(
    app,
    "init",
    "veen hub init --data-dir hub",
    "veen hub init --data-dir hub --epoch-sec 86400 --limit max_attachment_bytes=1048576",
    "veen hub init --data-dir hub --realm example.org --limit max_msgs_per_client_id_per_label=65536",
)
def init(
    data_dir: DataDir,
    epoch_sec: Annotated[
        int, durations.whole_option("--epoch-sec", least=0, help="how long a label lasts; 0 is for ever")
    ] = 0,
    pad_block: Annotated[
        int, typer.Option("--pad-block", metavar="BYTES", min=0, help="sealed payloads are padded to a multiple of it")
    ] = 256,
    limit: Annotated[
        list[values.Setting] | None,
        typer.Option("--limit", metavar="NAME=NUMBER", help="lower one of the hub's limits", parser=values.setting),
    ] = None,
    realm: Annotated[
        bytes | None,
        typer.Option("--realm", metavar="NAME|HEX", help="whose admin streams the hub goes by", parser=values.realm),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a data directory for a new hub.

    It makes the hub's first key, from which its hub_id follows. Profile, limits and realm are fixed from then on. A
    folder that has anything in it is left alone.

    A hub of a realm refuses what that realm has revoked, and streams that the realm has given to another hub. Without
    one it goes by capabilities alone.
    """
    from veen.cli.kit.exit_status import hinted
    from veen.core import Malformed, Profile, Unavailable
    from veen.storage import metadata
    from veen.storage.durable import Disk

    try:
        profile = Profile(epoch_sec, pad_block)
        profile.encode()  # refuses what no client would take
    except ValueError as error:
        raise Misuse(str(error), "veen hub init --help lists the options") from None
    try:
        hub_metadata = metadata.create(Disk(), data_dir, profile, _limits(limit or []), int(time.time()), realm)
    except Malformed as error:
        raise Misuse(str(error), "limits can be set lower within these bounds, never higher") from None
    except Unavailable as error:
        raise hinted(error, "name a folder that does not exist yet") from None
    rows: dict[str, output.Value] = {
        "hub_id": hub_metadata.identity.hub_id,
        "hub_pk": hub_metadata.identity.newest.hub_pk,
        "profile_id": hub_metadata.profile.profile_id(),
        **({"realm_id": hub_metadata.identity.realm_id} if hub_metadata.identity.realm_id else {}),
        "data_dir": str(data_dir),
    }
    output.facts(rows, as_json)


def _limits(lowered: list[values.Setting]) -> "Limits":
    from veen.core import Limits

    known = [kind.name for kind in Limits.LAYOUT.kinds]
    for one in lowered:
        if one.name not in known:
            raise Misuse(f"there is no limit {one.name!r}", f"there are: {', '.join(known)}")
    return Limits(**{one.name: one.number for one in lowered})


@command(
    app,
    "start",
    "veen hub start --data-dir hub --admission open",
    "veen hub start --data-dir hub --issuer operator",
    "veen hub start --data-dir hub --foreground --config hub.toml --profile tenant",
    "veen hub start --data-dir hub --listen 0.0.0.0:443 --tls-cert hub.pem --tls-key hub.key",
)
def start(
    ctx: typer.Context,
    data_dir: DataDir,
    listen: options.Listen = None,
    foreground: options.Foreground = False,
    admission: options.AdmissionOption = None,
    issuer: options.Issuer = None,
    witness: options.Witness = None,
    config: options.Config = None,
    profile: options.Profile = None,
    workers: options.Workers = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    log_submits: options.LogSubmits = None,
    open_to_the_network: options.OpenToTheNetwork = None,
    pow_difficulty: options.PowDifficulty = None,
    allow_network: options.AllowNetwork = None,
    deny_network: options.DenyNetwork = None,
    log_file: options.LogFile = None,
    ready_fd: options.ReadyFd = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a data directory.

    In the background unless told otherwise: the command ends when the hub is ready, and prints its address. Open
    admission lets anyone who reaches the hub write, so beyond this machine it needs --open-to-the-network as well.

    The operator's token is taken from VEEN_OPERATOR_TOKEN. Options win over the settings of --config.
    """
    from veen.cli.hub import hub_settings

    chosen = {
        "listen": listen,
        "admission": admission,
        "issuers": issuer,
        "witnesses": witness,
        "workers": workers,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "log_submits": log_submits,
        "open_to_the_network": open_to_the_network,
        "pow_difficulty": pow_difficulty,
        "allow_networks": allow_network,
        "deny_networks": deny_network,
    }
    made = hub_settings.config(data_dir, chosen, config, profile)
    if foreground:
        serve(made, lambda url: _ready(url, ready_fd, hub_settings.warning(made)))
        return
    log = log_file or default_log_file(data_dir)
    try:
        pid, url = start_process(["hub", "start", *raw_arguments(ctx)], log)
    except HubEnded as ended:
        sys.stderr.write("".join(f"{line}\n" for line in ended.said))
        raise typer.Exit(ended.status) from None
    output.facts({"url": url, "pid": pid, "log": str(log), "data_dir": str(data_dir)}, as_json)
    _warn(hub_settings.warning(made))
    output.remark(f"hint: veen hub stop --data-dir {data_dir} ends it")


def _warn(warning: str | None) -> None:
    if warning is not None:
        output.remark(f"warning: {warning}")


def _ready(url: str, ready_fd: int | None, warning: str | None) -> None:
    """Tell whoever waits: the command that started this process, or the person who did."""
    if ready_fd is not None:
        os.write(ready_fd, url.encode())
        os.close(ready_fd)
        return
    _warn(warning)
    if sys.stderr.isatty():
        output.remark(f"serving {url}; ctrl-c ends it")


@command(app, "stop", "veen hub stop --data-dir hub")
def stop(
    data_dir: DataDir,
    timeout: Annotated[float, durations.option("--timeout", least=0, help="how long to wait for it to end")] = _STOP_S,
    as_json: JsonOption = False,
) -> None:
    """End the hub that serves a data directory, and wait until it has.

    What is under way is finished first: whoever was promised a receipt gets it. Nothing is killed.
    """
    from veen.cli.hub import hub_process
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable

    found = hub_process.need(data_dir)
    if not hub_process.stop(found, timeout):
        raise hinted(
            Unavailable(f"the hub on {data_dir} was asked to end and has not within {timeout:g} s"),
            f"process {found.pid} is still finishing; ask again, or wait longer with --timeout",
        )
    output.facts({"stopped": found.url, "pid": found.pid, "data_dir": str(data_dir)}, as_json)
