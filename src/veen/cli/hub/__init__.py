"""`veen hub`: run, maintain and query a hub."""

import os
import sys
import time
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, group, option, options_command, raw_arguments
from veen.cli.hub import clock, limits, stream
from veen.cli.kit import output, values
from veen.cli.kit.common_options import DataDir, HubUrl, JsonOption, LocalDir, PassphraseFile, Stream
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import fields_of

if TYPE_CHECKING:
    from veen.cli.kit.hub_api import HubApi
    from veen.core import Checkpoint, HubIdentity, Limits, Profile
    from veen.core.root_key import RootSecret
    from veen.storage.secret_keys import KeySource

app = group(
    "hub",
    """Run, maintain and query a hub.

    A hub is a data directory and a process that serves it. Commands that query a hub take its URL, or the data
    directory of a hub on this machine.
    """,
)

app.add_typer(clock.app)
app.add_typer(limits.app)
app.add_typer(stream.app)
_STOP_TIMEOUT_S = 60.0
NoRoot: TypeAlias = Annotated[
    bool, option("--no-root", "create no root key: a thief of the first key could take over the hub")
]
RootAtHand: TypeAlias = Annotated[Path | None, option("--root FILE", "the root key file, if it is at hand")]
RootAnswer: TypeAlias = Annotated[
    Path | None, option("--endorsement FILE", "the root's answer to the request, from veen root endorse")
]


@command(
    app,
    "init",
    "veen hub init --data-dir hub --root /media/stick/hub.root",
    "veen hub init --data-dir try-it --no-root",
    "veen hub init --data-dir hub --key-passphrase-file /run/secrets/hub",
    "veen hub init --data-dir hub --incarnate --root /run/hub.root --passphrase-file /run/passphrase",
    "veen hub init --data-dir hub --pkcs11-module hsm.so --pkcs11-token hub --pkcs11-pin-file pin",
    "veen hub init --data-dir hub --epoch-sec 86400 --limit max_attachment_bytes=1048576",
    "veen hub init --data-dir hub --realm example.org --limit max_msgs_per_client_id_per_label=65536",
)
def init(
    data_dir: DataDir,
    epoch_sec: Annotated[
        int, durations.whole_option("--epoch-sec", least=0, help="length of an epoch; 0 means one endless epoch")
    ] = 0,
    pad_block: Annotated[int, option("--pad-block BYTES", "pad sealed payloads to a multiple of this", min=0)] = 256,
    limit: Annotated[
        list[values.Setting] | None, option("--limit NAME=NUMBER", "lower a limit of the hub", parser=values.setting)
    ] = None,
    realm: Annotated[
        bytes | None, option("--realm NAME|HEX", "the realm whose admin streams the hub obeys", parser=values.realm)
    ] = None,
    root: Annotated[
        Path | None,
        option("--root FILE", "the root key file to create", default="DIR.root beside the directory"),
    ] = None,
    no_root: NoRoot = False,
    incarnate: Annotated[
        bool,
        option("--incarnate", "create the next incarnation of the hub of an existing root key, unless it is there"),
    ] = False,
    passphrase_file: PassphraseFile = None,
    key_passphrase_file: Annotated[
        Path | None,
        option("--key-passphrase-file FILE", "encrypt the hub's own keys with the passphrase in this file"),
    ] = None,
    pkcs11_module: Annotated[
        Path | None, option("--pkcs11-module FILE", "keep the hub's own keys in a PKCS#11 token: its library")
    ] = None,
    pkcs11_token: Annotated[str | None, option("--pkcs11-token NAME", "the label of the token")] = None,
    pkcs11_pin_file: Annotated[Path | None, option("--pkcs11-pin-file FILE", "the file with the token's PIN")] = None,
    as_json: JsonOption = False,
) -> None:
    """Create the data directory of a new hub, and its root key in a file outside.

    The hub_id is derived from the root key. The root endorses the keys that the hub signs with, now and at each
    rotation, so a stolen data directory cannot take over the hub's identity. Its file is encrypted with a passphrase.
    Move it off the machine: the hub runs without it.

    The hub's own keys are in keys/: as plain files, encrypted, or as references to a PKCS#11 token. The hub reads the
    file with the passphrase or PIN at each start. Keys of later rotations are kept in the same way.

    Profile and realm cannot change later. Most limits can be lowered later: veen hub limits lower. A folder that is not
    empty is rejected.

    With --incarnate the root key file must exist, and the command can run before every start of a container: if the
    directory is empty, it begins a new incarnation of the hub, with the same hub_id, no entries and a new key that the
    root endorses. Profile and realm must not change. Clients that hold receipts of an earlier incarnation
    reject it until `veen verify --stream NAME --accept-recovery`. Never run two incarnations at once.

    A hub of a realm rejects clients and capabilities that the realm has revoked, and streams that the realm has
    assigned to another hub. Without a realm, only capabilities count.
    """
    from plumbing.durable import Disk
    from veen.cli.kit.exit_status import hinted
    from veen.core import Malformed, Profile, Unavailable
    from veen.storage import metadata
    from veen.storage.paths import Folders

    source = _key_source(key_passphrase_file, pkcs11_module, pkcs11_token, pkcs11_pin_file)
    if no_root and root is not None:
        raise Misuse("--root and --no-root contradict each other", "give one of them")
    if no_root and incarnate:
        raise Misuse("--incarnate and --no-root contradict each other", "an incarnation needs the root key of the hub")
    try:
        profile = Profile(epoch_sec, pad_block)
        profile.encode()  # raises if a value is out of range
    except ValueError as error:
        raise Misuse(str(error), "veen hub init --help lists the options") from None
    try:
        chosen, now = _limits(limit or []), int(time.time())
    except Malformed as error:
        raise Misuse(str(error), "limits can only be lowered, within these bounds") from None
    if no_root:
        file, secret = None, None
    elif incarnate:
        file, secret = _existing_root(root, data_dir, passphrase_file)
    else:
        file, secret = _new_root(root, data_dir, passphrase_file, now)
    exists = incarnate and secret is not None and _has_hub(data_dir, secret)
    if incarnate and secret is not None and not exists:
        now = _begin_later(secret, now)
    try:
        key = secret.key if secret else None
        if exists:
            hub_metadata = metadata.read_metadata(Folders(data_dir))
        else:
            hub_metadata = metadata.create(
                Disk(), data_dir, profile, chosen, now, realm, key, source, incarnates=incarnate
            )
    except Unavailable as error:
        if file is not None and not incarnate:
            file.unlink()  # no hub belongs to it
        hint = "name a folder that does not exist yet" if "not empty" in str(error) else "check the key options"
        raise hinted(error, hint) from None
    rows: dict[str, output.Value] = {
        "hub_id": hub_metadata.identity.hub_id,
        "hub_pk": hub_metadata.identity.newest.hub_pk,
        "profile_id": hub_metadata.profile.profile_id(),
        **({"realm_id": hub_metadata.identity.realm_id} if hub_metadata.identity.realm_id else {}),
        "data_dir": str(data_dir),
        **({"root_file": str(file)} if file else {}),
    }
    output.facts(rows, as_json)
    if exists:
        output.remark(f"{data_dir} has this hub already; nothing was changed")
    elif file is not None:
        from veen.cli.kit import key_files

        output.remark(key_files.ACCEPT_RECOVERY_ADVICE if incarnate else key_files.ROOT_ADVICE.format(file=file))


def _key_source(
    passphrase_file: Path | None, module: Path | None, token: str | None, pin_file: Path | None
) -> "KeySource":
    from veen.storage.secret_keys import PLAIN, PassphraseSource, TokenSource

    if module is None and token is None and pin_file is None:
        return PassphraseSource(passphrase_file.absolute()) if passphrase_file else PLAIN
    if module is None or token is None or pin_file is None or passphrase_file is not None:
        text = "keys in a token need --pkcs11-module, --pkcs11-token and --pkcs11-pin-file, and no passphrase"
        raise Misuse(text, "veen hub init --help has an example")
    return TokenSource(module.absolute(), token, pin_file.absolute())


def _new_root(root: Path | None, data_dir: Path, passphrase_file: Path | None, now: int) -> tuple[Path, "RootSecret"]:
    """Create the root key of a new hub. Its file is durable before a record names the key."""
    from veen.cli.kit import key_files
    from veen.core import SigningKey, naming
    from veen.core.root_key import RootSecret

    file = root or key_files.default_root_file(data_dir)
    key_files.check_new_root(file, data_dir)
    if data_dir.exists() and any(data_dir.iterdir()):
        raise Misuse(f"{data_dir} is not empty", "name a folder that does not exist yet")
    key = SigningKey.generate()
    secret = RootSecret(key.seed, naming.hub_id(key.public_key), now)
    key_files.write_root(file, secret, key_files.new_root_passphrase(passphrase_file, file))
    return file, secret


def _existing_root(root: Path | None, data_dir: Path, passphrase_file: Path | None) -> tuple[Path, "RootSecret"]:
    """The root key of a hub that may have existed before."""
    from veen.cli.kit import key_files
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable, naming

    file = root or key_files.default_root_file(data_dir)
    secret = key_files.read_root(file, passphrase_file)
    if secret.hub_id != naming.hub_id(secret.key.public_key):
        raise hinted(
            Unavailable(f"{file} was adopted by an older hub, whose id is that of its first key"),
            "restore such a hub from a backup: veen hub restore",
        )
    return file, secret


def _has_hub(data_dir: Path, secret: "RootSecret") -> bool:
    """Whether the directory has the hub of a root key. Raises if it has another one."""
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.storage import metadata
    from veen.storage.paths import Folders

    if not Folders(data_dir).identity.exists():
        return False
    found = metadata.read_metadata(Folders(data_dir)).identity
    if found.hub_id != secret.hub_id:
        raise hinted(
            Unavailable(f"{data_dir} has hub {found.hub_id.hex()[:16]}…, not {secret.hub_id.hex()[:16]}…"),
            "give the root key file of that hub, or another --data-dir",
        )
    return True


def _begin_later(secret: "RootSecret", now: int) -> int:
    """The second at which an incarnation begins. Returns when it is over.

    Clients follow an incarnation only if it began in a later second than the one before. The directory is made after
    its second, so the next one that finds it lost begins in another, also if this command is killed.
    """
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable

    if now < secret.created_at:
        text = f"the wall clock ({now}) is before the creation of the root key ({secret.created_at})"
        raise hinted(Unavailable(text), "set the clock: clients reject a hub that began before the one they know")
    began = max(now, secret.created_at + 1)
    while (left_s := began + 1 - time.time()) > 0:
        time.sleep(min(left_s, 1))
    return began


def _limits(lowered: list[values.Setting]) -> "Limits":
    from veen.core import Limits

    known = [kind.name for kind in Limits.LAYOUT.kinds]
    for one in lowered:
        if one.name not in known:
            raise Misuse(f"there is no limit {one.name!r}", f"the limits are: {', '.join(known)}")
    return Limits(**{one.name: one.number for one in lowered})


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of `veen hub start`. Those that the settings file can also set are None if they are not given.

    A field with a setting of the same name overrides it.
    """

    data_dir: DataDir
    listen: Annotated[
        values.Address | None,
        option(
            "--listen HOST:PORT",
            "address to listen on; port 0 lets the system choose",
            show_default="127.0.0.1:37411",
            parser=values.address,
        ),
    ] = None
    foreground: Annotated[bool, option("--foreground", "run in this process, with the log on standard error")] = False
    admission: Annotated[
        Literal["open", "capability"] | None,
        option("--admission open|capability", "who may write", show_default="capability"),
    ] = None
    issuers: Annotated[
        list[bytes] | None,
        option(
            "--issuer HEX|PATH",
            "an issuer whose capabilities are accepted: a public key, client directory or card",
            parser=values.card_key,
        ),
    ] = None
    read_access: Annotated[
        Literal["open", "signed", "mtls"] | None,
        option("--read-access open|signed|mtls", "who may read", show_default="open"),
    ] = None
    readers: Annotated[
        list[bytes] | None,
        option(
            "--reader HEX|PATH",
            "who may read with --read-access signed: a public key, client directory or card",
            parser=values.card_key,
        ),
    ] = None
    client_ca: Annotated[
        Path | None, option("--client-ca FILE", "authority of client certificates in PEM, for --read-access mtls")
    ] = None
    accept_bare_tokens: Annotated[
        bool | None,
        option(
            "--accept-bare-tokens",
            "also accept capabilities that name no hub and no end",
            show_default="only in data directories of older versions",
        ),
    ] = None
    allow_revocation: Annotated[
        bool | None,
        option(
            "--allow-revocation",
            "let the operator revoke client keys and capabilities: veen cap revoke",
            show_default=False,
        ),
    ] = None
    witnesses: Annotated[
        list[values.WitnessValue] | None,
        option(
            "--witness URL=HEX|HEX",
            "a witness to ask for cosignatures; without URL its cosignatures are only accepted",
            parser=values.witness,
        ),
    ] = None
    witness_quorum: Annotated[
        int | None,
        option(
            "--witness-quorum N",
            "how many witnesses must confirm at a start that the log is complete; 0 only warns",
            min=0,
            show_default="a majority",
        ),
    ] = None
    config: Annotated[Path | None, option("--config FILE", "settings in TOML")] = None
    profile: Annotated[str | None, option("--profile NAME", "use [profile.NAME] of the settings file")] = None
    workers: Annotated[
        int | None,
        option("--workers N", "verification processes; 0 verifies in a thread", min=0, show_default="cores - 1"),
    ] = None
    tls_cert: Annotated[Path | None, option("--tls-cert FILE", "certificate chain in PEM")] = None
    tls_key: Annotated[Path | None, option("--tls-key FILE", "key of the certificate in PEM")] = None
    log_submits: Annotated[
        bool | None, option("--log-submits", "write one log line per submit", show_default=False)
    ] = None
    open_to_the_network: Annotated[
        bool | None,
        option("--open-to-the-network", "permit open admission on an address outside this machine", show_default=False),
    ] = None
    pow_difficulty: Annotated[
        int | None,
        option(
            "--pow-difficulty BITS",
            "difficulty of the proof of work for each message; 0 requires none",
            min=0,
            show_default="0",
        ),
    ] = None
    # networks; typer does not support a list of unions
    allow_networks: Annotated[
        list[Any] | None, option("--allow-network CIDR", "accept messages only from here", parser=values.network)
    ] = None
    deny_networks: Annotated[
        list[Any] | None, option("--deny-network CIDR", "reject messages from here", parser=values.network)
    ] = None
    max_clock_step: Annotated[
        int | None,
        durations.whole_option(
            "--max-clock-step",
            least=1,
            show_default="60",
            help="the hub follows the wall clock over smaller jumps than this, and alerts on larger ones",
        ),
    ] = None
    max_start_gap: Annotated[
        int | None,
        durations.whole_option(
            "--max-start-gap",
            least=1,
            show_default="30d",
            help="do not start if the wall clock is further than this from the end of the log",
        ),
    ] = None
    log_file: Annotated[Path | None, option("--log-file FILE", "log file of a background hub")] = None
    ready_fd: Annotated[int | None, option("--ready-fd N", "", hidden=True)] = None
    as_json: JsonOption = False


@options_command(
    StartOptions,
    app,
    "start",
    "veen hub start --data-dir hub --admission open",
    "veen hub start --data-dir hub --issuer operator",
    "veen hub start --data-dir hub --foreground --config hub.toml --profile tenant",
    "veen hub start --data-dir hub --listen 0.0.0.0:443 --tls-cert hub.pem --tls-key hub.key",
)
def start(asked: StartOptions, ctx: typer.Context) -> None:
    """Start a hub on a data directory.

    Without --foreground the hub runs in the background: the command prints its URL and exits when the hub is ready.
    With open admission anyone who can reach the hub can write, so an address outside this machine also needs
    --open-to-the-network.

    With --read-access signed the hub answers reads only to listed readers, its witnesses and the subjects of valid
    capabilities, who sign each request; clients do that by themselves. With mtls it answers clients with a certificate
    of --client-ca. Health, metrics and status stay open.

    The operator token is read from VEEN_OPERATOR_TOKEN. Options override the settings of --config.

    At SIGHUP the hub reads the settings file and the certificate again, and uses those settings that can change while
    it runs. If a file cannot be used, it logs that and goes on with what it has. Connections stay open.
    """
    from veen.cli.hub import hub_process, hub_settings

    given = {field.name: getattr(asked, field.name) for field in fields(asked) if field.name in hub_settings.READERS}
    read = partial(hub_settings.config, asked.data_dir, given, asked.config, asked.profile)
    config = read()
    if asked.foreground:
        from veen.cli.hub import hub_server

        hub_server.serve(config, lambda url: _report_ready(url, asked.ready_fd, hub_settings.warning(config)), read)
        return
    log = asked.log_file or hub_process.default_log_file(asked.data_dir)
    try:
        hub, url = hub_process.start_process(["hub", "start", *raw_arguments(ctx)], log)
    except hub_process.StartFailed as failed:
        sys.stderr.write("".join(f"{line}\n" for line in failed.errors))
        raise typer.Exit(failed.status) from None
    hub.returncode = 0  # it keeps running; without this, Popen would warn
    output.facts({"url": url, "pid": hub.pid, "log": str(log), "data_dir": str(asked.data_dir)}, asked.as_json)
    _warn(hub_settings.warning(config))
    output.remark(f"hint: veen hub stop --data-dir {asked.data_dir} stops it")


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


@command(app, "status", "veen hub status --data-dir hub", "veen hub status --hub http://127.0.0.1:37411 --json")
def status(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Show the identity, admission, size and problems of a hub.

    If no hub runs on the data directory, the content of the directory is shown instead.
    """
    from veen.cli.hub import hub_process

    if data_dir is not None and hub_process.find(data_dir) is None and not hub_process.is_locked(data_dir):
        _show_stopped(data_dir, as_json)
        return
    found = hub_process.find(data_dir) if data_dir is not None else None
    with hub_process.hub(hub, data_dir) as api:
        ready, reason, _ = api.readiness()
        answer = api.status()
    data = {"url": api.url, "state": "ready" if ready else reason, "pid": found.pid if found else None, **answer}
    state = Marked("ready", Tone.GOOD) if ready else Marked(reason or "not ready", Tone.BAD)
    rows: dict[str, output.Value] = {"state": state, "url": api.url}
    if found:
        rows["pid"] = found.pid
    output.facts(rows | _status_rows(answer), as_json, data)


def _status_rows(answer: dict[str, Any]) -> dict[str, output.Value]:
    """The fields of a status answer that people need, most important first."""
    keys = answer["identity"].get("hub_keys", []) if isinstance(answer["identity"], dict) else []
    admission = str(answer.get("admission"))
    rows: dict[str, output.Value] = {
        "admission": Marked(admission, Tone.WARN) if admission == "open" else admission,
        "labels": answer["labels"],
        "entries": answer["entries"],
        "hub_id": answer["hub_id"],
        "hub_pk": answer["hub_pk"],
        "keys": len(keys) or None,
        "epoch": answer.get("epoch"),
        "hub_ts": output.moment(answer.get("hub_ts")),
        "profile_id": answer.get("profile_id"),
        "version": answer.get("server_version"),
    }
    if isinstance(answer.get("scrub"), dict):
        rows["scrub"] = _scrub_row(answer["scrub"], answer["entries"])
    if answer.get("equivocations"):
        rows["equivocations"] = Marked(str(answer["equivocations"]), Tone.BAD)
    if answer.get("trouble"):
        rows["trouble"] = Marked(str(answer["trouble"]), Tone.BAD)
    return rows


def _scrub_row(scrub: dict[str, Any], entries: int) -> output.Value:
    """Damaged files, or how far the log was read again."""
    damaged = {kind: count for kind, count in scrub["damaged"].items() if count}
    if damaged:
        what = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in damaged.items())
        return Marked(f"damaged: {what}; see the hub's log, and run veen fsck", Tone.BAD)
    age = scrub["last_pass_age_s"]
    last = "no full pass yet" if age is None else f"last full pass {age // 3600} h ago"
    share = f"{100 * scrub['pass_entries'] // entries} % of this pass, " if scrub["pass_entries"] and entries else ""
    return f"{share}{last}"


def _show_stopped(data_dir: Path, as_json: bool) -> None:
    from veen.cli.hub import hub_process

    with hub_process.reader(data_dir) as log:
        identity, profile = log.hub_metadata.identity, log.hub_metadata.profile
        sizes = hub_process.sizes(log)
    rows: dict[str, output.Value] = {
        "state": Marked("stopped", Tone.WARN),
        "labels": len(sizes),
        "entries": sum(sizes),
        "hub_id": identity.hub_id,
        "hub_pk": identity.newest.hub_pk,
        "keys": len(identity.signing_keys),
        "profile_id": profile.profile_id(),
        "data_dir": str(data_dir),
    }
    output.facts(rows, as_json)


@command(app, "health", "veen hub health --data-dir hub", "veen hub health && echo ready")
def health(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Check that a hub is alive and accepts messages. The exit status is 6 if it does not."""
    from veen.cli.hub import hub_process
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable

    with hub_process.hub(hub, data_dir) as api:
        ready, reason, states = api.readiness()
    if not ready:
        raise hinted(Unavailable(f"{api.url} is alive but rejects messages: {reason}"), "veen hub status shows more")
    rows: dict[str, output.Value] = {"url": api.url, "ready": Marked("yes", Tone.GOOD)}
    if states:
        rows["bad_states"] = Marked(", ".join(states), Tone.WARN)
    output.facts(rows, as_json, {"url": api.url, "ready": True, "bad_states": list(states)})


@command(app, "metrics", "veen hub metrics --data-dir hub | grep fsync", "veen hub metrics --json")
def metrics(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Print the metrics of a hub in the Prometheus text format."""
    from veen.cli.hub import hub_process

    with hub_process.hub(hub, data_dir) as api:
        text = api.metrics()
    if not as_json:
        sys.stdout.write(text)
        return
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    output.document([{"name": one.name, "labels": one.labels, "value": one.value} for one in samples])


@command(app, "key", "veen hub key --data-dir hub", "veen hub key --hub https://hub.example --json")
def key(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Show the keys of a hub with the fingerprints that clients pin.

    A data directory is read directly, whether a hub runs on it or not. With a URL, the hub sends its key chain, which
    is verified. To know that it is the right hub, compare a fingerprint from another source.
    """
    from veen.cli.hub import hub_process
    from veen.storage.metadata import read_metadata

    if data_dir is not None:
        identity = read_metadata(hub_process.folders(data_dir)).identity
    else:
        with hub_process.hub(hub, None) as api:
            identity = api.identity()
    _show_keys(identity, as_json)


def _show_keys(identity: "HubIdentity", as_json: bool) -> None:
    from veen.core.hashing import h

    keys = [
        {
            **fields_of(one, "key_id", "hub_pk"),
            "fingerprint": h(one.hub_pk),
            **fields_of(one, "valid_from", "valid_until"),
        }
        for one in identity.signing_keys
    ]
    root = identity.root
    shown = {} if root is None else {"root_pk": root.hub_pk, "root_fingerprint": h(root.hub_pk)}
    rows: dict[str, output.Value] = {"hub_id": identity.hub_id, **shown}
    for number, one in enumerate(keys, 1):
        rows |= {
            f"key {number}": one["hub_pk"],
            f"key {number} id": one["key_id"],
            f"key {number} fingerprint": one["fingerprint"],
            f"key {number} signs from": output.moment(one["valid_from"]),
            f"key {number} signs until": output.moment(one["valid_until"]),
        }
    output.facts(rows, as_json, {"hub_id": identity.hub_id, **shown, "keys": keys})


@command(
    app,
    "rotate-key",
    "veen hub rotate-key --data-dir hub --root hub.root",
    "veen hub rotate-key --data-dir hub --request rotate.request",
    "veen hub rotate-key --data-dir hub --endorsement rotate.endorsement --destroy-old",
)
def rotate_key(
    data_dir: DataDir,
    root: RootAtHand = None,
    request: Annotated[
        Path | None, option("--request FILE", "only create the new key, and write the request for the root")
    ] = None,
    endorsement: RootAnswer = None,
    overlap_sec: Annotated[
        int,
        durations.whole_option("--overlap-sec", least=0, help="how long the old key stays valid beside the new one"),
    ] = 0,
    destroy_old: Annotated[
        bool, option("--destroy-old", "then overwrite and remove the secret keys of all retired keys")
    ] = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Give a hub a new key, also while it runs; its hub_id stays.

    A running hub changes its key between two groups of messages, and clients do not wait. The command then needs the
    operator token in VEEN_OPERATOR_TOKEN.

    The root endorses the new key, so clients that pinned the hub continue to trust it. With --root this is one step. If
    the root is on another machine, write a request with --request, endorse it there with `veen root endorse`, and give
    the answer with --endorsement. In a hub without a root the old key endorses the new one.

    Existing signatures stay valid: the new key becomes valid after the last entry of the log. The command also writes a
    hand-over: the size and root of every label, signed by the old key, the new key and the root, which shows later what
    the old key signed in time. The hub does not need retired keys; --destroy-old removes them, so that nobody can steal
    them any more.
    """
    from veen.cli.hub import upkeep

    upkeep.rotate(data_dir, root, request, endorsement, overlap_sec, destroy_old, passphrase_file).show(as_json)


@command(
    app,
    "handover",
    "veen hub handover --data-dir hub",
    "veen hub handover --data-dir hub --request handover.request",
    "veen hub handover --data-dir hub --endorsement handover.endorsement",
)
def handover(
    data_dir: DataDir,
    request: Annotated[
        Path | None, option("--request FILE", "write the request for the root to sign the newest hand-over")
    ] = None,
    endorsement: Annotated[
        Path | None, option("--endorsement FILE", "add the root's signature, from veen root endorse")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the hand-overs of a hub, and get them signed by an offline root.

    A hand-over is the size and root of every label at a change of the key. It shows which signatures of the old key
    belong to the log that the hub handed over. A hub may run meanwhile.
    """
    from veen.cli.hub import upkeep

    upkeep.hand_overs(data_dir, request, endorsement).show(as_json)


@command(
    app,
    "checkpoint",
    "veen hub checkpoint --data-dir hub --stream doors",
    "veen hub checkpoint --data-dir hub --stream doors --cosign",
    "veen hub checkpoint --hub https://hub.example --label 5f1c… --upto 1000 --out doors.checkpoint",
)
def checkpoint(
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    stream: Stream = None,
    label: Annotated[bytes | None, option("--label HEX", "the label, instead of --stream", parser=values.label)] = None,
    upto: Annotated[int | None, option("--upto SEQ", "the last entry to cover", min=1, show_default="all")] = None,
    cosign: Annotated[
        bool, option("--cosign", "store a checkpoint of all entries, and let the hub's witnesses cosign it")
    ] = False,
    out: Annotated[Path | None, option("--out FILE", "also write the checkpoint to this file")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a checkpoint from a hub, verify and show it.

    With epochs it is that of the newest epoch in which the stream has entries.

    With --cosign the hub first logs that it stores a checkpoint, and asks its witnesses. The operator token is read
    from VEEN_OPERATOR_TOKEN; a hub with open admission needs none.

    With --data-dir the checkpoint is verified with the keys of the directory, otherwise with the keys that the hub
    sends. The receipt at the same place must have the same root, and the labels must belong to the stream. If the hub
    uses epochs, --label needs --stream for the check of the labels.
    """
    from veen.cli.hub import hub_process
    from veen.cli.kit import context_file
    from veen.core import naming
    from veen.core.envelopes import CheckpointOrder, CheckpointResponse
    from veen.core.hashing import h

    with hub_process.hub(hub, data_dir) as api:
        name = stream if label is not None else context_file.need_stream(stream)
        wanted = label if label is not None else api.newest_label(naming.stream_id(str(name)))
        if cosign:
            if upto is not None:
                raise Misuse("--cosign and --upto exclude each other", "give one of them")
            token = os.environ.get("VEEN_OPERATOR_TOKEN")
            upto = api.post(
                "/tooling/checkpoint", CheckpointOrder(wanted), CheckpointResponse, token
            ).checkpoint.upto_seq
        found = _fetch_checkpoint(api, data_dir, wanted, upto, name)
    encoded = found.encode()
    if out is not None:
        out.write_bytes(encoded)
    rows: dict[str, output.Value] = {
        "label": found.label_curr,
        "upto_seq": found.upto_seq,
        "mmr_root": found.mmr_root,
        "epoch": found.epoch,
        "label_prev": found.label_prev,
        "witnesses": len(found.witness_sigs or ()),
        "checkpoint_hash": h(encoded),
    }
    # Keys that the hub sends prove only that its statements agree with each other.
    pinned = Marked("with the keys of the data directory", Tone.GOOD)
    by = pinned if data_dir else Marked("with the keys that the hub sent", Tone.WARN)
    output.facts({**rows, "verified": by}, as_json, {**rows, "checkpoint": encoded, "verified": by})


def _fetch_checkpoint(
    api: "HubApi", data_dir: Path | None, label: bytes, upto: int | None, stream: str | None
) -> "Checkpoint":
    """Fetch a checkpoint and verify it against the request, the hub's keys and its receipt."""
    from veen.core import Profile, Unverified, strict_json, wire_json
    from veen.core.envelopes import CheckpointRequest, CheckpointResponse, ReceiptRequest, ReceiptResponse
    from veen.storage.metadata import read_metadata
    from veen.storage.paths import Folders

    upto = upto or api.size(label)
    if not upto:
        raise Misuse("the label has no entries", "check --stream or --label")
    made = api.post("/v1/checkpoint", CheckpointRequest(label, upto), CheckpointResponse).checkpoint
    if (made.label_curr, made.upto_seq) != (label, upto):
        raise Unverified("checkpoint", "it is for another place than requested")
    if data_dir is not None:
        hub_metadata = read_metadata(Folders(data_dir))
        identity, profile = hub_metadata.identity_at(label, upto), hub_metadata.profile
    else:
        identity, profile = api.identity(), wire_json.decode(Profile, strict_json.encode(api.status()["profile"]))
    identity.verify_checkpoint(made, profile)
    receipt = api.post("/v1/receipt", ReceiptRequest(label, upto), ReceiptResponse).receipt
    identity.verify_receipt(receipt)
    if (receipt.label, receipt.stream_seq, receipt.mmr_root) != (label, upto, made.mmr_root):
        raise Unverified("checkpoint", "its mmr_root differs from the receipt at the same place")
    _check_labels(made, profile, identity.routing_key, stream)
    return made


def _check_labels(made: "Checkpoint", profile: "Profile", routing_key: bytes, stream: str | None) -> None:
    """Spec §4.4.1. Without epochs, every checkpoint has one label and epoch 0."""
    from veen.core import Unverified, naming

    if stream is not None:
        made.check_labels(profile, routing_key, naming.stream_id(stream))
    elif profile.epoch_sec:
        output.remark("hint: the labels were not checked against a stream; give --stream NAME with --label")
    if not profile.epoch_sec and (made.epoch or made.label_prev != made.label_curr):
        raise Unverified("checkpoint", "it names an epoch, but the hub has no epochs")


@command(app, "verify", "veen hub verify --data-dir hub")
def verify(data_dir: DataDir, as_json: JsonOption = False) -> None:
    """Verify a data directory and change nothing; same as `veen fsck DIR`."""
    from veen.cli.fsck import check

    check(data_dir, repair=False, as_json=as_json)


@command(
    app,
    "fork",
    "veen hub fork --data-dir hub --into fork --root /media/stick/fork.root",
    "veen hub fork --data-dir hub --into fork --no-root --upto $LABEL:1000",
)
def fork(
    data_dir: DataDir,
    into: Annotated[Path, option("--into DIR", "data directory of the new hub")],
    upto: Annotated[
        list[values.LabelPlace] | None,
        option(
            "--upto LABEL:SEQ",
            "keep this label up to this entry; labels that are not named are left out",
            show_default="all entries of all labels",
            parser=values.label_place,
        ),
    ] = None,
    root: Annotated[
        Path | None, option("--root FILE", "the root key file to create (default DIR.root beside the new directory)")
    ] = None,
    no_root: NoRoot = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Create a new hub that starts with a prefix of another hub's log.

    Entries keep their receipts. The other hub's signed statement on the prefix is stored as the origin of the new hub,
    so both parts can be verified. Authorized capabilities are not copied: the operator of the new hub decides which to
    accept. No hub may run on the forked directory.

    The new hub has a hub_id and keys of its own, and like a hub of `veen hub init` a root key of its own.
    """
    from plumbing.durable import Disk
    from veen.cli.hub import hub_process
    from veen.cli.kit import key_files
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable, VeenError
    from veen.storage import fork as forking

    if no_root and root is not None:
        raise Misuse("--root and --no-root contradict each other", "give one of them")
    kept = {place.label: place.stream_seq for place in upto or ()}
    if len(kept) != len(upto or ()):
        raise Misuse("--upto names a label twice", "give --upto once for each label")
    source, now = hub_process.folders(data_dir), int(time.time())
    file, secret = (None, None) if no_root else _new_root(root, into, passphrase_file, now)
    with output.tally("forking", "entries") as report:
        try:
            key = secret.key if secret else None
            hub_metadata = forking.fork(Disk(), source.root, into, kept or None, now, report, key)
        except VeenError as error:
            if file is not None:
                file.unlink()  # no hub belongs to it
            if not isinstance(error, Unavailable):
                raise
            hint = "the hub of --data-dir must be stopped, --into must not exist yet, and --upto must be in the log"
            raise hinted(error, hint) from None
    with hub_process.reader(into) as log:
        sizes = hub_process.sizes(log)
    rows: dict[str, output.Value] = {
        "hub_id": hub_metadata.identity.hub_id,
        "hub_pk": hub_metadata.identity.newest.hub_pk,
        "labels": len(sizes),
        "entries": sum(sizes),
        "data_dir": str(into),
        **({"root_file": str(file)} if file else {}),
    }
    output.facts(rows, as_json)
    if file is not None:
        output.remark(key_files.ROOT_ADVICE.format(file=file))


@command(
    app,
    "recover",
    "veen hub recover --data-dir hub --root hub.root",
    "veen hub recover --data-dir hub --request recover.request",
    "veen hub recover --data-dir hub --endorsement recover.endorsement",
)
def recover(
    data_dir: DataDir,
    root: RootAtHand = None,
    request: Annotated[
        Path | None, option("--request FILE", "prepare the recovery, and write the request for the root")
    ] = None,
    endorsement: RootAnswer = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Continue with a hub that lost entries, or may have, with a new key.

    A hub never signs two entries for one place with one key. This command keeps every entry that can be proved, writes
    a statement of the size and root of each label, and adds a key that signs from now on. The root endorses both, with
    --root in one step, or on another machine with --request and --endorsement. In a hub without a root the old key
    does.

    Use it if a hub does not start because its journal is incomplete and the missing files cannot be put back, or if the
    directory was replaced by an older copy. Clients that hold later receipts reject the hub until `veen verify --stream
    NAME --accept-recovery`.
    """
    from veen.cli.hub import upkeep

    upkeep.recover(data_dir, root, request, endorsement, passphrase_file).show(as_json)


@command(
    app,
    "backup",
    "veen hub backup --data-dir hub --to /mnt/backups/hub",
    "veen hub backup --data-dir hub --to /mnt/backups/hub --keep 7",
    "veen hub backup --data-dir hub --to /mnt/backups/hub --keep 7 --prune",
    "veen hub backup --data-dir hub --to /media/safe/hub --with-keys",
)
def backup(
    data_dir: DataDir,
    to: Annotated[Path, option("--to DIR", "the folder for the backups of this hub")],
    keep: Annotated[int, option("--keep N", "how many backups to keep, the new one included", min=1)] = 1,
    with_keys: Annotated[bool, option("--with-keys", "also copy the secret keys of the hub")] = False,
    prune: Annotated[bool, option("--prune", "erase from older backups what the hub has pruned since")] = False,
    as_json: JsonOption = False,
) -> None:
    """Back up a hub, also while it runs.

    Each backup is a numbered folder in --to with the form of a data directory, and a statement beside it with the size
    and root of every label. It has every entry whose receipt was sent before the command began. Every chunk and every
    root is verified as it is copied. Closed chunks and attachments are read once: later backups share them with the one
    before by hard links.

    With --prune, payloads and receipts that the hub has pruned are erased from the older backups of the folder, too. An
    older backup with such entries at the end of its log, where no chunk is closed, is removed.

    Without --with-keys nobody can sign with a backup. It can be read and verified, and if the hub has a root key, `veen
    hub restore --root` continues with it. A hub without a root key needs its keys for that.
    """
    from veen.cli.hub import upkeep

    upkeep.backup(data_dir, to, keep, with_keys=with_keys, prune=prune).show(as_json)


@command(app, "upgrade", "veen hub upgrade --data-dir hub --check", "veen hub upgrade --data-dir hub")
def upgrade(
    data_dir: DataDir,
    check: Annotated[bool, option("--check", "verify the directory and say what would change; change nothing")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a data directory of an earlier version to the present format.

    A hub also runs on directories of earlier formats. The upgrade first verifies the directory completely, as `veen
    fsck` does, and then adds what newer directories have. Repeating it after an interruption is safe. No hub may run
    on the directory.

    A directory whose format is newer than this version is rejected by every command; use a later version then.
    """
    from veen.cli.hub import upkeep

    upkeep.upgraded(data_dir, check=check).show(as_json)


@command(
    app,
    "restore",
    "veen hub restore --from backup --data-dir hub --root hub.root",
    "veen hub restore --from backup --data-dir hub --request recover.request",
)
def restore(
    data_dir: DataDir,
    backup: Annotated[Path, option("--from DIR", "a folder of veen hub backup, or a copy of a data directory")],
    root: RootAtHand = None,
    request: Annotated[
        Path | None, option("--request FILE", "copy the backup, and write the request for the root")
    ] = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Create a data directory from a backup, and continue there with a new key.

    Entries that the hub accepted after the backup are lost. The restored hub states how far the backup goes and signs
    with a new key, as after `veen hub recover`. With --request, `veen hub recover --endorsement` completes it. The
    backup stays unchanged.
    """
    from veen.cli.hub import upkeep

    upkeep.restore(data_dir, backup, root, request, passphrase_file).show(as_json)


@command(
    app,
    "install-service",
    "veen hub install-service --data-dir /var/lib/veen/hub",
    "veen hub install-service --data-dir /var/lib/veen/hub --dry-run",
    "veen hub install-service --data-dir /var/lib/veen/witness --program witness",
)
def install_service(
    data_dir: Annotated[Path, option("--data-dir DIR", "the directory of the program")],
    program: Annotated[
        Literal["hub", "witness", "recorder-otlp", "recorder-syslog", "bridge", "query", "veil"],
        option("--program NAME", "hub, witness, recorder-otlp, recorder-syslog, bridge, query or veil"),
    ] = "hub",
    name: Annotated[str | None, option("--name NAME", "the name of the unit", show_default="veen-PROGRAM")] = None,
    user: Annotated[str | None, option("--user NAME", "run as this user", show_default="the owner of DIR")] = None,
    passphrase_file: Annotated[
        Path | None, option("--passphrase-file FILE", "the passphrase of the keystore; only root needs to read it")
    ] = None,
    operator_token_file: Annotated[
        Path | None, option("--operator-token-file FILE", "the operator token of a hub; only root needs to read it")
    ] = None,
    folder: Annotated[
        Path, option("--folder DIR", "the folder of the unit", show_default="/etc/systemd/system")
    ] = Path("/etc/systemd/system"),
    dry_run: Annotated[bool, option("--dry-run", "print the unit instead of writing it")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a systemd unit that runs a program on its directory.

    The program sees the rest of the machine read-only or not at all, and systemd restarts it if it fails or hangs.
    All its other options are in the variable OPTIONS of /etc/veen/NAME.env. The unit passes files with passphrases and
    tokens as credentials, so they can belong to root.

    The directory of recorder and bridge is a client directory. The one of the query service has two folders: queries,
    and client with the client directory.
    """
    from veen.cli.hub import service_unit

    done = service_unit.install(
        program,
        data_dir,
        name or f"veen-{program}",
        folder,
        user,
        passphrase_file,
        operator_token_file,
        dry_run=dry_run,
    )
    if isinstance(done, str):
        sys.stdout.write(done)
    else:
        done.show(as_json)
