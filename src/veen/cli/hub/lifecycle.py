"""`veen hub init|start|stop`."""

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, raw_arguments
from veen.cli.hub import start_options as options
from veen.cli.hub.hub_group import app
from veen.cli.kit import output, values
from veen.cli.kit.common_options import DataDir, JsonOption

if TYPE_CHECKING:
    from veen.core import Limits

_STOP_TIMEOUT_S = 60.0


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
        int, durations.whole_option("--epoch-sec", least=0, help="length of an epoch; 0 means one endless epoch")
    ] = 0,
    pad_block: Annotated[
        int, typer.Option("--pad-block", metavar="BYTES", min=0, help="pad sealed payloads to a multiple of this")
    ] = 256,
    limit: Annotated[
        list[values.Setting] | None,
        typer.Option("--limit", metavar="NAME=NUMBER", help="lower a limit of the hub", parser=values.setting),
    ] = None,
    realm: Annotated[
        bytes | None,
        typer.Option(
            "--realm", metavar="NAME|HEX", help="the realm whose admin streams the hub obeys", parser=values.realm
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create the data directory of a new hub.

    The command creates the first hub key, which determines the hub_id. Profile, limits and realm cannot change later. A
    folder that is not empty is rejected.

    A hub of a realm rejects clients and capabilities that the realm has revoked, and streams that the realm has
    assigned to another hub. Without a realm, only capabilities count.
    """
    from plumbing.durable import Disk
    from veen.cli.kit.exit_status import hinted
    from veen.core import Malformed, Profile, Unavailable
    from veen.storage import metadata

    try:
        profile = Profile(epoch_sec, pad_block)
        profile.encode()  # raises if a value is out of range
    except ValueError as error:
        raise Misuse(str(error), "veen hub init --help lists the options") from None
    try:
        hub_metadata = metadata.create(Disk(), data_dir, profile, _limits(limit or []), int(time.time()), realm)
    except Malformed as error:
        raise Misuse(str(error), "limits can only be lowered, within these bounds") from None
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
            raise Misuse(f"there is no limit {one.name!r}", f"the limits are: {', '.join(known)}")
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
    """Start a hub on a data directory.

    Without --foreground the hub runs in the background: the command prints its URL and exits when the hub is ready.
    With open admission anyone who can reach the hub can write, so an address outside this machine also needs
    --open-to-the-network.

    The operator token is read from VEEN_OPERATOR_TOKEN. Options override the settings of --config.
    """
    from veen.cli.hub import hub_server, hub_settings

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
        hub_server.serve(made, lambda url: _report_ready(url, ready_fd, hub_settings.warning(made)))
        return
    log = log_file or hub_server.default_log_file(data_dir)
    try:
        pid, url = hub_server.start_process(["hub", "start", *raw_arguments(ctx)], log)
    except hub_server.StartFailed as failed:
        sys.stderr.write("".join(f"{line}\n" for line in failed.errors))
        raise typer.Exit(failed.status) from None
    output.facts({"url": url, "pid": pid, "log": str(log), "data_dir": str(data_dir)}, as_json)
    _warn(hub_settings.warning(made))
    output.remark(f"hint: veen hub stop --data-dir {data_dir} stops it")


def _warn(warning: str | None) -> None:
    if warning is not None:
        output.remark(f"warning: {warning}")


def _report_ready(url: str, ready_fd: int | None, warning: str | None) -> None:
    """Report the URL to the process that started this one, or to the terminal."""
    if ready_fd is not None:
        os.write(ready_fd, url.encode())
        os.close(ready_fd)
        return
    _warn(warning)
    if sys.stderr.isatty():
        output.remark(f"serving {url}; press ctrl-c to stop")


@command(app, "stop", "veen hub stop --data-dir hub")
def stop(
    data_dir: DataDir,
    timeout: Annotated[
        float, durations.option("--timeout", least=0, help="how long to wait for the hub to stop")
    ] = _STOP_TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Stop the hub that runs on a data directory and wait for it.

    The hub first finishes the messages it has accepted and sends their receipts. It is never killed.
    """
    from veen.cli.hub import hub_process
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable

    found = hub_process.need(data_dir)
    if not hub_process.stop(found, timeout):
        raise hinted(
            Unavailable(f"the hub on {data_dir} did not stop within {timeout:g} s"),
            f"process {found.pid} is still finishing; repeat the command, or wait longer with --timeout",
        )
    output.facts({"stopped": found.url, "pid": found.pid, "data_dir": str(data_dir)}, as_json)
