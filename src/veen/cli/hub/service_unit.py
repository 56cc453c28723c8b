"""Units of systemd for the programs that run as services, each closed off from the rest of the machine.

A unit names the interpreter that wrote it. Its options beside the directory are in OPTIONS of an environment file, so
that a change needs no new unit.
"""

import os
import pwd
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from plumbing.cli.command import Misuse
from plumbing.durable import replace_file
from veen.cli.hub import hub_process, hub_settings
from veen.cli.kit.result import Result
from veen.storage import secret_keys
from veen.storage.secret_keys import PassphraseSource, TokenSource

ENVIRONMENT_FOLDER = Path("/etc/veen")
_UNIT_MODE = 0o644
_FIRST_LINE = "# Written by veen hub install-service, which replaces this file."
# A unit sees none of these, except the folders that it names.
_HIDDEN = tuple(Path("/", one) for one in ("home", "root", "run/user", "tmp", "var/tmp"))


@dataclass(frozen=True, slots=True)
class ServiceProgram:
    """A program that can run as a service. DIR in its words is its directory."""

    about: str
    words: tuple[str, ...]
    module: str = "veen.cli"
    has_passphrase: bool = True  # of its keystore, by --passphrase-file


PROGRAMS: Mapping[str, ServiceProgram] = {
    "hub": ServiceProgram("hub", ("hub", "start", "--foreground", "--data-dir", "DIR"), has_passphrase=False),
    "witness": ServiceProgram("witness", ("witness", "run", "--dir", "DIR")),
    "recorder-otlp": ServiceProgram("recorder for OpenTelemetry", ("recorder", "otlp", "--client", "DIR")),
    "recorder-syslog": ServiceProgram("recorder for syslog", ("recorder", "syslog", "--client", "DIR")),
    "bridge": ServiceProgram("bridge between hubs", ("bridge", "mirror", "--follow", "--client", "DIR")),
    "query": ServiceProgram("query service", ("query", "serve", "DIR/queries", "--client", "DIR/client")),
    "veil": ServiceProgram(
        "node", ("node", "start", "--foreground", "--data-dir", "DIR"), module="veil.cli", has_passphrase=False
    ),
}

# Children end with their sockets: a signal to them would let the hub replace them while it stops.
_SERVICE = """\
Type=notify
NotifyAccess=main
WatchdogSec=60
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=2 3 4 70
TimeoutStartSec=infinity
TimeoutStopSec=120
KillMode=mixed
LimitNOFILE=65536
UMask=0077
"""
_SANDBOX = """\
AmbientCapabilities=
CapabilityBoundingSet=
DevicePolicy=closed
KeyringMode=private
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateIPC=yes
PrivateTmp=yes
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=tmpfs
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
"""


def unit(
    program: str, name: str, directory: Path, user: str, credentials: Mapping[str, Path], words: Iterable[str]
) -> str:
    """The text of a unit. `words` follow those of the program; credentials are files that systemd reads as root."""
    chosen, place = PROGRAMS[program], str(directory)
    given = [_word(one.replace("DIR", place, 1) if one.startswith("DIR") else one) for one in chosen.words]
    command = [_word(sys.executable), "-m", chosen.module, *given, *words, "$OPTIONS"]
    lines = [f"LoadCredential={_path(f'{credential}:{file}')}" for credential, file in credentials.items()]
    lines += [f"ReadWritePaths={_path(place)}"]
    lines += [f"BindPaths={_path(place)}"] if _is_hidden(directory) else []
    lines += [f"BindReadOnlyPaths={_path(one)}" for one in _hidden_code()]
    reload = "ExecReload=/bin/kill -HUP $MAINPID\n" if program == "hub" else ""
    bound = "\n".join(lines)
    return f"""\
{_FIRST_LINE}
[Unit]
Description=VEEN {chosen.about} on {_path(place)}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
EnvironmentFile=-{ENVIRONMENT_FOLDER / name}.env
ExecStart={" ".join(command)}
{reload}{_SERVICE}{bound}
{_SANDBOX}
[Install]
WantedBy=multi-user.target
"""


def install(
    program: str,
    directory: Path,
    name: str,
    folder: Path,
    user: str | None,
    passphrase_file: Path | None,
    operator_token_file: Path | None,
    *,
    dry_run: bool,
) -> Result | str:
    """Write the unit of a program, or with `dry_run` return its text."""
    directory, words = directory.absolute(), list[str]()
    if program == "hub":
        credentials = _key_credentials(directory)
    else:
        credentials = {}
        if not directory.is_dir():
            raise Misuse(f"{directory} is not a directory", "create what the program needs first; see its --help")
    if operator_token_file is not None:
        if program != "hub":
            raise Misuse("only a hub has an operator token", "leave out --operator-token-file")
        credentials[hub_settings.OPERATOR_CREDENTIAL] = operator_token_file.absolute()
    if passphrase_file is not None:
        if not PROGRAMS[program].has_passphrase:
            text = f"a {program} has no --passphrase-file"
            raise Misuse(text, "a hub that has encrypted keys finds the file by itself: veen hub init --help")
        credentials["passphrase"] = passphrase_file.absolute()
        words = ["--passphrase-file", "%d/passphrase"]
    text = unit(program, name, directory, user or _owner(directory), credentials, words)
    if dry_run:
        return text
    file = folder / f"{name}.service"
    if file.exists() and not file.read_text("utf-8", "replace").startswith(_FIRST_LINE):
        raise Misuse(f"{file} was written by someone else", "give another --name, or move it away")
    replace_file(file, text.encode(), _UNIT_MODE)
    data = {"unit": str(file), "options": str(ENVIRONMENT_FOLDER / f"{name}.env"), "credentials": len(credentials)}
    return Result(data, remarks=(f"hint: systemctl daemon-reload && systemctl enable --now {name} starts it",))


def _key_credentials(data_dir: Path) -> dict[str, Path]:
    """The files with passphrases and PINs of a hub's own keys, by the names that the hub looks for."""
    found: dict[str, Path] = {}
    for path in secret_keys.key_files(hub_process.folders(data_dir).keys):
        source = secret_keys.source_of(path)
        if isinstance(source, PassphraseSource | TokenSource):
            file = source.passphrase_file if isinstance(source, PassphraseSource) else source.pin_file
            if found.setdefault(file.name, file) != file:
                raise Misuse(
                    f"{found[file.name]} and {file} have the same name", "a credential needs a name of its own"
                )
    return found


def _owner(directory: Path) -> str:
    owner = pwd.getpwuid(directory.stat().st_uid).pw_name
    if owner == pwd.getpwuid(0).pw_name:
        raise Misuse(
            f"{directory} belongs to {owner}, and a service should not run as {owner}",
            f"useradd --system veen && chown -R veen: {directory} gives it to a user of its own",
        )
    return owner


def _is_hidden(path: Path) -> bool:
    return any(path.is_relative_to(one) for one in _HIDDEN)


def _hidden_code() -> list[str]:
    """Folders of Python and of our code that the unit would hide."""
    folders = {Path(one) for one in (sys.prefix, sys.base_prefix, *sys.path) if one and os.path.isdir(one)}
    hidden = sorted(one for one in folders if _is_hidden(one))
    return [str(one) for one in hidden if not any(other in one.parents for other in hidden)]


def _path(text: str) -> str:
    """Text of a setting: a percent sign would start a specifier."""
    if not text.isprintable():
        raise Misuse(f"{text!r} cannot be in a unit", "use a path without control characters")
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """One word of a command."""
    quoted = _path(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{quoted}"' if any(one.isspace() or one in "'\"\\;" for one in text) else quoted
