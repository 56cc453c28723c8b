"""The options of `veen hub start`. One that is not given is None: the configuration file may have it."""

import os
import ssl
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from plumbing.cli.command import Misuse
from plumbing.http import HttpSettings, tls_context
from veen.cli.kit import values
from veen.cli.kit.exit_status import hinted
from veen.core import Malformed, Unavailable
from veen.core.limits import MAX_POW_DIFFICULTY
from veen.hub import fd_limit
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig

Listen: TypeAlias = Annotated[
    values.Address | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="where to listen; port 0 lets the system choose",
        show_default="127.0.0.1:37411",
        parser=values.address,
    ),
]
Foreground: TypeAlias = Annotated[
    bool, typer.Option("--foreground", help="serve in this process, with the log on standard error")
]
AdmissionOption: TypeAlias = Annotated[
    Literal["open", "capability"] | None,
    typer.Option("--admission", metavar="open|capability", help="who may write", show_default="capability"),
]
Issuer: TypeAlias = Annotated[
    list[bytes] | None,
    typer.Option(
        "--issuer",
        metavar="HEX|PATH",
        help="whose capabilities count: a public key, client directory or card",
        parser=values.card_key,
    ),
]
Witness: TypeAlias = Annotated[
    list[bytes] | None,
    typer.Option("--witness", metavar="HEX", help="whose checkpoint signatures count", parser=values.public_key),
]
Config: TypeAlias = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="settings, in TOML")]
Profile: TypeAlias = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="which [profile.NAME] of the settings to take")
]
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=0, help="verification processes; 0 is a thread", show_default="cores - 1"
    ),
]
TlsCert: TypeAlias = Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="certificate chain, PEM")]
TlsKey: TypeAlias = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="its key, PEM")]
LogSubmits: TypeAlias = Annotated[
    bool | None, typer.Option("--log-submits", help="one line of the log per submit", show_default=False)
]
OpenToTheNetwork: TypeAlias = Annotated[
    bool | None,
    typer.Option("--open-to-the-network", help="mean it: open admission beyond this machine", show_default=False),
]
PowDifficulty: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--pow-difficulty",
        metavar="BITS",
        min=0,
        help="the proof of work that a message must come with; 0 asks for none",
        show_default="0",
    ),
]
AllowNetwork: TypeAlias = Annotated[
    list[Any] | None,  # networks; a list of unions is more than typer takes
    typer.Option("--allow-network", metavar="CIDR", help="from where alone messages are taken", parser=values.network),
]
DenyNetwork: TypeAlias = Annotated[
    list[Any] | None,  # networks; a list of unions is more than typer takes
    typer.Option("--deny-network", metavar="CIDR", help="from where no messages are taken", parser=values.network),
]
LogFile: TypeAlias = Annotated[
    Path | None, typer.Option("--log-file", metavar="FILE", help="where a background hub's log goes")
]
ReadyFd: TypeAlias = Annotated[int | None, typer.Option("--ready-fd", metavar="N", hidden=True)]


# Every setting there is: names are those of `veen hub start`, with underscores; paths are relative to the file.
EXAMPLE = """\
listen = "127.0.0.1:37411"
admission = "capability"   # or "open"
workers = 1
max_in_flight = 4096       # messages between arrival and receipt; beyond it the hub says E.UNAVAILABLE
log_submits = false
open_to_the_network = false
# whose capabilities count, and whose checkpoint signatures
issuers = ["d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"]
witnesses = []
role = "authority"         # what the log says it is
upload_bytes_per_sec = 16777216    # of one capability, or of one address where admission is open
upload_burst_bytes = 1073741824
disk_reserve_bytes = 268435456     # what attachments leave free for the log
pow_difficulty = 0                 # zero bits of the proof of work that a message must come with
allow_networks = []                # from where alone messages are taken; none means from anywhere
deny_networks = []
# tls_cert = "hub.pem"
# tls_key = "hub.key"

[http]                     # bounds of the HTTP front
max_connections = 1024
uncounted_networks = ["127.0.0.0/8", "::1/128"]   # proxies: many callers share their address

[profile.lab]              # any of the above again, for --profile lab
admission = "open"
"""
OPERATOR_TOKEN = "VEEN_OPERATOR_TOKEN"
_PROFILE, _HTTP = "profile", "http"


def config(data_dir: Path, options: Mapping[str, Any], file: Path | None, profile: str | None) -> HubConfig:
    """The configuration of one start. An option that is None was not given."""
    found = _from_file(file, profile) if file else {}
    if profile is not None and file is None:
        raise Misuse("--profile picks a part of a configuration file", "name the file: --config FILE")
    found |= {name: value for name, value in options.items() if value is not None}
    if "listen" in found:
        where = found.pop("listen")
        found |= {"host": where.host, "port": where.port}
    if "admission" in found:
        found["admission"] = Admission(found["admission"])
    for name in ("issuers", "witnesses"):
        found[name] = frozenset(found.get(name, ()))
    for name in ("allow_networks", "deny_networks"):
        found[name] = tuple(found.get(name, ()))
    # Not an option: what is on a command line, everyone on the machine can read.
    made = HubConfig(data_dir, operator_token=os.environ.get(OPERATOR_TOKEN), **found)
    _check(made)
    return made


def _check(made: HubConfig) -> None:
    """Refuse now what would fail later, or would let strangers write without anyone having said so."""
    if made.pow_difficulty > MAX_POW_DIFFICULTY:
        raise Misuse(
            f"--pow-difficulty {made.pow_difficulty} is above {MAX_POW_DIFFICULTY}",
            "each bit doubles the work; 16 is some tens of milliseconds for a sender",
        )
    try:
        made.check()
    except Unavailable:
        raise Misuse(
            f"open admission on {made.host} lets anyone who reaches it write",
            "use --admission capability, or say --open-to-the-network if that is what you want",
        ) from None
    if (made.tls_cert is None) != (made.tls_key is None):
        raise Misuse("TLS needs a certificate and its key", "give both --tls-cert and --tls-key, or neither")
    if made.tls_cert and made.tls_key:
        try:
            tls_context(made.tls_cert, made.tls_key)
        except ssl.SSLError as error:  # which is an OSError too
            fault = Malformed(str(made.tls_cert), f"not a certificate with the key of {made.tls_key}: {error.reason}")
            raise hinted(fault, "both must be PEM, and belong together") from None
        except OSError as error:
            names = f"{made.tls_cert} and {made.tls_key}"
            raise Unavailable(f"{names} cannot both be read: {error.strerror}") from None


def warning(made: HubConfig) -> str | None:
    """What a hub does as it was told, and is hardly meant; or cannot do as it was told."""
    found: list[str] = []
    if made.admission is Admission.CAPABILITY and not made.issuers:
        found.append(
            "no --issuer says whose capabilities count: nobody can write, save with one authorised here before"
        )
    files = fd_limit.hard_limit()
    fits = fd_limit.fit_connections(made, files).http.max_connections
    if fits < made.http.max_connections:
        found.append(
            f"with {files} open files (ulimit -Hn) it takes {fits} connections, not {made.http.max_connections}"
        )
    return "; ".join(found) or None


def _from_file(file: Path, profile: str | None) -> dict[str, Any]:
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise Unavailable(f"{file} cannot be read: {error.strerror}") from None
    try:
        return _settings(tomllib.loads(text), file.parent, profile)
    except ValueError as error:
        hint = f"settings are: {', '.join(READERS)}, and the tables http and profile.NAME"
        raise hinted(Malformed(str(file), str(error)), hint) from None


def _settings(found: dict[str, Any], base: Path, profile: str | None) -> dict[str, Any]:
    """The file's settings with those of the profile over them."""
    profiles = found.pop(_PROFILE, {})
    if not isinstance(profiles, dict) or not all(isinstance(one, dict) for one in profiles.values()):
        raise ValueError("profile must be tables: [profile.NAME]")
    chosen: dict[str, Any] = {}
    if profile is not None:
        if profile not in profiles:
            raise ValueError(f"it has no profile {profile!r}; it has {', '.join(profiles) or 'none'}")
        chosen = profiles[profile]
    http = {**_table(found.pop(_HTTP, {})), **_table(chosen.pop(_HTTP, {}))}
    read = {name: _read(name, value, base) for name, value in {**found, **chosen}.items()}
    if http:
        read[_HTTP] = _http(http)
    return read


def _read(name: str, value: object, base: Path) -> object:
    if name not in READERS:
        raise ValueError(f"there is no setting {name!r}")
    try:
        return READERS[name](value, base)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _name(value: object, base: Path) -> str:
    return _text(value)


def _listen(value: object, base: Path) -> values.Address:
    return values.address(_text(value))


def _admission(value: object, base: Path) -> Admission:
    text = _text(value)
    if text not in set(Admission):
        raise ValueError(f"{text!r} is not one of {', '.join(Admission)}")
    return Admission(text)


def _keys(value: object, base: Path) -> list[bytes]:
    if not isinstance(value, list):
        raise ValueError("a list of public keys is needed")
    return [values.public_key(_text(one)) for one in value]


def _issuers(value: object, base: Path) -> list[bytes]:
    if not isinstance(value, list):
        raise ValueError("a list of public keys is needed")
    return [values.card_key(_text(one), base) for one in value]


def _path(value: object, base: Path) -> Path:
    return base / _text(value)


def _count(value: object, base: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number is needed")
    return value


def _difficulty(value: object, base: Path) -> int:
    bits = _count(value, base)
    if bits > MAX_POW_DIFFICULTY:
        raise ValueError(f"a proof of work has at most {MAX_POW_DIFFICULTY} bits")
    return bits


def _networks(value: object, base: Path) -> list[values.Network]:
    if not isinstance(value, list):
        raise ValueError("a list of networks is needed")
    return [values.network(_text(one)) for one in value]


def _flag(value: object, base: Path) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("text is needed")
    return value


def _table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("http must be a table: [http]")
    return value


def _http(found: dict[str, Any]) -> HttpSettings:
    kinds = {field.name: field.type for field in fields(HttpSettings)}
    unknown = [name for name in found if name not in kinds]
    if unknown:
        raise ValueError(f"there is no setting {unknown[0]!r} under [http]")
    return replace(HttpSettings(), **{name: _bound(name, value, kinds[name]) for name, value in found.items()})


def _bound(name: str, value: object, kind: object) -> Any:
    if kind is int or kind is float:
        fits = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
        if not fits or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"http.{name}: a number above zero is needed")
        return value
    if not isinstance(value, list):
        raise ValueError(f"http.{name}: a list of networks is needed")
    return tuple(ip_network(_text(one)) for one in value)


READERS: dict[str, Callable[[object, Path], object]] = {
    "listen": _listen,
    "admission": _admission,
    "issuers": _issuers,
    "witnesses": _keys,
    "workers": _count,
    "max_in_flight": _count,
    "role": _name,
    "upload_bytes_per_sec": _count,
    "upload_burst_bytes": _count,
    "disk_reserve_bytes": _count,
    "pow_difficulty": _difficulty,
    "allow_networks": _networks,
    "deny_networks": _networks,
    "tls_cert": _path,
    "tls_key": _path,
    "log_submits": _flag,
    "open_to_the_network": _flag,
}
