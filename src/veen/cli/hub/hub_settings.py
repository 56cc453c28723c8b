"""The configuration of a hub: options of `veen hub start` over the settings of a TOML file."""

import os
import ssl
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from plumbing.cli.command import Misuse
from plumbing.http import HttpSettings
from veen.cli.kit import values
from veen.cli.kit.exit_status import hinted
from veen.core import Malformed, Unavailable
from veen.core.limits import MAX_POW_DIFFICULTY
from veen.hub.admission_rules import Admission
from veen.hub.config import HTTP, HubConfig, ReadAccess, WitnessAddress, fit_connections, hard_file_limit
from veen.storage.secret_keys import credential

# All settings, named as the options of `veen hub start`, with underscores. Paths are relative to the file.
EXAMPLE = """\
listen = "127.0.0.1:37411"
admission = "capability"   # or "open"
workers = 1
max_in_flight = 4096       # messages between arrival and receipt; above it the hub rejects with E.UNAVAILABLE
read_access = "open"       # or "signed": readers, witnesses and holders of capabilities; or "mtls"
readers = []               # keys that may read a hub with read_access = "signed"
# client_ca = "clients.pem"   # the authority of client certificates
log_submits = false
open_to_the_network = false
# keys whose capabilities are accepted, and keys whose cosignatures of checkpoints are accepted
issuers = ["d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"]
witnesses = []             # "URL=KEY" to ask a witness, or "KEY" to accept its cosignatures
# witness_quorum = 1         # witnesses that must answer at a start; default: a majority; 0 only warns
# accept_bare_tokens = true   # tokens without presentation; by default only in directories of older versions
allow_revocation = false   # let the operator revoke client keys and capabilities: veen cap revoke
role = "authority"         # the role field of log lines
upload_bytes_per_sec = 16777216    # per capability, or per client address with open admission
upload_burst_bytes = 1073741824
disk_reserve_bytes = 268435456     # disk space that attachments leave free for the log
scrub_bytes_per_s = 1048576        # how fast the log is read again to find damage; 0 turns that off
scrub_pause_s = 86400              # between two passes over the log
pow_difficulty = 0                 # zero bits of the proof of work that each message needs
allow_networks = []                # accept messages only from these; empty means from anywhere
deny_networks = []
max_clock_step = 60                # seconds; the hub alerts if the wall clock jumps further
max_start_gap = 2592000            # seconds between the wall clock and the end of the log at a start
# tls_cert = "hub.pem"
# tls_key = "hub.key"

[http]                     # limits of the HTTP server
max_connections = 1024
makes_room = true          # a new connection displaces the one that is idle for longest, if there is one
uncounted_networks = ["127.0.0.0/8", "::1/128"]   # proxies: many clients share their address

[profile.lab]              # overrides for --profile lab; any of the above
admission = "open"
"""
OPERATOR_TOKEN = "VEEN_OPERATOR_TOKEN"
OPERATOR_CREDENTIAL = "operator-token"  # which a systemd unit loads
_PROFILE, _HTTP = "profile", "http"


def config(data_dir: Path, options: Mapping[str, Any], file: Path | None, profile: str | None) -> HubConfig:
    """The configuration from options and file. An option that is None was not given."""
    found = _from_file(file, profile) if file else {}
    if profile is not None and file is None:
        raise Misuse("--profile needs a configuration file", "give --config FILE")
    found |= {name: value for name, value in options.items() if value is not None}
    if "listen" in found:
        address = found.pop("listen")
        found |= {"host": address.host, "port": address.port}
    if "admission" in found:
        found["admission"] = Admission(found["admission"])
    for name in ("issuers", "readers"):
        found[name] = frozenset(found.get(name, ()))
    if "read_access" in found:
        found["read_access"] = ReadAccess(found["read_access"])
    given = found.pop("witnesses", ())
    found["witnesses"] = frozenset(one.witness_pk for one in given)
    found["witness_addresses"] = tuple(WitnessAddress(one.url, one.witness_pk) for one in given if one.url)
    for name in ("allow_networks", "deny_networks"):
        found[name] = tuple(found.get(name, ()))
    # The token is not an option, because every user of the machine can read command lines.
    loaded = credential(OPERATOR_CREDENTIAL)
    token = os.environ.get(OPERATOR_TOKEN) if loaded is None else loaded.decode("ascii", "replace")
    made = HubConfig(data_dir, operator_token=token, **found)
    _check(made)
    return made


def operator_token() -> str:
    """The operator token of a command that changes a running hub."""
    token = os.environ.get(OPERATOR_TOKEN, "")
    if not token or not (token.isascii() and token.isprintable()):
        raise Misuse(
            f"{OPERATOR_TOKEN} has no operator token",
            "set it to the token that the hub was started with; a hub without a token must be restarted instead",
        )
    return token


def _check(made: HubConfig) -> None:
    """Reject settings that would fail later, and open admission that was not confirmed."""
    if made.pow_difficulty > MAX_POW_DIFFICULTY:
        raise Misuse(
            f"--pow-difficulty {made.pow_difficulty} is above {MAX_POW_DIFFICULTY}",
            "each bit doubles the work; 16 bits cost a sender some tens of milliseconds",
        )
    if (made.witness_quorum or 0) > len(made.witness_addresses):
        raise Misuse(
            f"--witness-quorum {made.witness_quorum} is above the number of witnesses with a URL",
            "give --witness URL=HEX for each witness that must answer",
        )
    if made.client_ca is not None and made.tls_cert is None:
        raise Misuse("client certificates need TLS", "give --tls-cert and --tls-key with --client-ca")
    if made.read_access is ReadAccess.MTLS and made.client_ca is None:
        raise Misuse("--read-access mtls needs the authority of the clients", "give --client-ca FILE")
    try:
        made.check()
    except Unavailable:
        raise Misuse(
            f"open admission on {made.host} lets anyone who can reach it write",
            "use --admission capability, or confirm with --open-to-the-network",
        ) from None
    if (made.tls_cert is None) != (made.tls_key is None):
        raise Misuse("TLS needs a certificate and its key", "give both --tls-cert and --tls-key, or neither")
    if made.tls_cert and made.tls_key:
        try:
            made.tls()
        except ssl.SSLError as error:  # a subclass of OSError, so it comes first
            fault = Malformed(str(made.tls_cert), f"not a certificate for the key {made.tls_key}: {error.reason}")
            raise hinted(fault, "both files must be PEM and belong together") from None
        except OSError as error:
            files = [str(one) for one in (made.tls_cert, made.tls_key, made.client_ca) if one]
            raise Unavailable(f"cannot read {', '.join(files)}: {error.strerror}") from None


def warning(made: HubConfig) -> str | None:
    """A warning about settings that are probably a mistake, or that the system cannot meet."""
    warnings: list[str] = []
    if made.admission is Admission.CAPABILITY and not made.issuers:
        warnings.append("no --issuer given: only clients with a capability authorized here before can write")
    files = hard_file_limit()
    fits = fit_connections(made, files).http.max_connections
    if fits < made.http.max_connections:
        warnings.append(
            f"the limit of {files} open files (ulimit -Hn) allows {fits} connections, not {made.http.max_connections}"
        )
    return "; ".join(warnings) or None


def _from_file(file: Path, profile: str | None) -> dict[str, Any]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise Unavailable(f"cannot read {file}: {error.strerror}") from None
    try:
        return _settings(tomllib.loads(data.decode()), file.parent, profile)
    except (ValueError, RecursionError) as error:
        hint = f"settings are: {', '.join(READERS)}, and the tables http and profile.NAME"
        raise hinted(Malformed(str(file), str(error)), hint) from None


def _settings(found: dict[str, Any], base: Path, profile: str | None) -> dict[str, Any]:
    """The settings of the file, overridden by those of the profile."""
    profiles = found.pop(_PROFILE, {})
    if not isinstance(profiles, dict) or not all(isinstance(one, dict) for one in profiles.values()):
        raise ValueError("profile must consist of tables: [profile.NAME]")
    chosen: dict[str, Any] = {}
    if profile is not None:
        if profile not in profiles:
            raise ValueError(f"there is no profile {profile!r}; the file has {', '.join(profiles) or 'none'}")
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


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _texts(value: object, what: str) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list of {what}")
    return [_text(one) for one in value]


def _one_of(kind: type[StrEnum]) -> Callable[[object, Path], StrEnum]:
    def read(value: object, base: Path) -> StrEnum:
        text = _text(value)
        if text not in set(kind):
            raise ValueError(f"{text!r} is not one of {', '.join(kind)}")
        return kind(text)

    return read


def _count(value: object, base: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("must be a whole number, 0 or more")
    return value


def _seconds(value: object, base: Path) -> int:
    if (seconds := _count(value, base)) < 1:
        raise ValueError("must be at least 1 second")
    return seconds


def _difficulty(value: object, base: Path) -> int:
    bits = _count(value, base)
    if bits > MAX_POW_DIFFICULTY:
        raise ValueError(f"a proof of work has at most {MAX_POW_DIFFICULTY} bits")
    return bits


def _networks(value: object, base: Path) -> list[values.Network]:
    return [values.network(one) for one in _texts(value, "networks")]


def _flag(value: object, base: Path) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
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
    return replace(HTTP, **{name: _bound(name, value, kinds[name]) for name, value in found.items()})


def _bound(name: str, value: object, kind: object) -> Any:
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"http.{name}: must be true or false")
        return value
    if kind is int or kind is float:
        fits = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
        if not fits or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"http.{name}: must be a number above zero")
        return value
    if not isinstance(value, list):
        raise ValueError(f"http.{name}: must be a list of networks")
    return tuple(ip_network(_text(one)) for one in value)


# How each setting is read from its TOML value; the path is the folder of the file.
READERS: dict[str, Callable[[object, Path], object]] = {
    "listen": lambda value, base: values.address(_text(value)),
    "admission": _one_of(Admission),
    "issuers": lambda value, base: [values.card_key(one, base) for one in _texts(value, "public keys")],
    "readers": lambda value, base: [values.card_key(one, base) for one in _texts(value, "public keys")],
    "read_access": _one_of(ReadAccess),
    "client_ca": lambda value, base: base / _text(value),
    "accept_bare_tokens": _flag,
    "allow_revocation": _flag,
    "witnesses": lambda value, base: [values.witness(one) for one in _texts(value, "witnesses")],
    "witness_quorum": _count,
    "workers": _count,
    "max_in_flight": _count,
    "role": lambda value, base: _text(value),
    "upload_bytes_per_sec": _count,
    "upload_burst_bytes": _count,
    "disk_reserve_bytes": _count,
    "scrub_bytes_per_s": _count,
    "scrub_pause_s": _count,
    "pow_difficulty": _difficulty,
    "allow_networks": _networks,
    "deny_networks": _networks,
    "max_clock_step": _seconds,
    "max_start_gap": _seconds,
    "tls_cert": lambda value, base: base / _text(value),
    "tls_key": lambda value, base: base / _text(value),
    "log_submits": _flag,
    "open_to_the_network": _flag,
}
