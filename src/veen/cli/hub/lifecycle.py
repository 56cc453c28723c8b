"""`veen hub init|start|stop`: from an empty folder to a hub that serves, and back."""

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from terminalface import durations
from terminalface.command import Misuse, command, given
from veen.cli import output, values
from veen.cli.hub import startoptions as options
from veen.cli.hub.group import app
from veen.cli.options import DataDir, JsonOption

if TYPE_CHECKING:
    from veen.core import Limits

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
    from veen.cli.failures import hinted
    from veen.core import Malformed, Profile, Unavailable
    from veen.storage import directory
    from veen.storage.durable import Disk

    try:
        profile = Profile(epoch_sec, pad_block)
        profile.encode()  # refuses what no client would take
    except ValueError as error:
        raise Misuse(str(error), "veen hub init --help lists the options") from None
    try:
        papers = directory.create(Disk(), data_dir, profile, _limits(limit or []), int(time.time()), realm)
    except Malformed as error:
        raise Misuse(str(error), "limits can be set lower within these bounds, never higher") from None
    except Unavailable as error:
        raise hinted(error, "name a folder that does not exist yet") from None
    rows: dict[str, output.Value] = {
        "hub_id": papers.identity.hub_id,
        "hub_pk": papers.identity.newest.hub_pk,
        "profile_id": papers.profile.profile_id(),
        **({"realm_id": papers.identity.realm_id} if papers.identity.realm_id else {}),
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
    admission: options.Admission = None,
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
    from veen.cli.hub import serving, settings

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
    made = settings.config(data_dir, chosen, config, profile)
    if foreground:
        serving.serve(made, lambda url: _ready(url, ready_fd, settings.warning(made)))
        return
    log = log_file or serving.log_file(data_dir)
    try:
        pid, url = serving.start(["hub", "start", *given(ctx)], log)
    except serving.Ended as ended:
        sys.stderr.write("".join(f"{line}\n" for line in ended.said))
        raise typer.Exit(ended.status) from None
    output.facts({"url": url, "pid": pid, "log": str(log), "data_dir": str(data_dir)}, as_json)
    _warn(settings.warning(made))
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
    from veen.cli.failures import hinted
    from veen.cli.hub import running
    from veen.core import Unavailable

    found = running.need(data_dir)
    if not running.stop(found, timeout):
        raise hinted(
            Unavailable(f"the hub on {data_dir} was asked to end and has not within {timeout:g} s"),
            f"process {found.pid} is still finishing; ask again, or wait longer with --timeout",
        )
    output.facts({"stopped": found.url, "pid": found.pid, "data_dir": str(data_dir)}, as_json)
