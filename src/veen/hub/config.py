"""Settings of one run of a hub, as opposed to what is fixed in the data directory."""

import os
import resource
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from hmac import compare_digest
from pathlib import Path

from plumbing.http import HttpSettings, tls_context
from plumbing.http.peer_address import Network, is_loopback
from veen.core import Refused, Unavailable
from veen.core.limits import MAX_POW_DIFFICULTY
from veen.hub.admission_rules import Admission

DEFAULT_PORT = 37411
_MIB = 1 << 20


class ReadAccess(StrEnum):
    """The rule that decides which callers may read."""

    OPEN = "open"
    SIGNED = "signed"
    MTLS = "mtls"


# Settings that a running hub can change. The others decide how it was started.
RELOADABLE = frozenset(
    {
        *("issuers", "readers", "allow_revocation", "log_submits", "disk_reserve_bytes"),
        *("pow_difficulty", "allow_networks", "deny_networks", "tls_cert", "tls_key", "client_ca"),
    }
)
# A new connection displaces one that is idle: otherwise idle ones, also from this machine, could shut everyone out.
HTTP = HttpSettings(makes_room=True)
# Subscriptions and uploads can last for hours, and are never idle. The rest is for short requests: without it, callers
# that are not counted per address, as on this machine, could shut everyone out.
SUBSCRIPTION_SHARE, UPLOAD_SHARE = 3 / 4, 1 / 8
UPLOAD_SHARE_PER_OWNER = 1 / 8  # of the uploads: one slow caller must not keep the others from uploading


@dataclass(frozen=True, slots=True)
class WitnessAddress:
    """A witness that the hub asks."""

    url: str
    witness_pk: bytes


@dataclass(frozen=True, slots=True)
class HubConfig:
    """The settings of one start."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    admission: Admission = Admission.CAPABILITY
    issuers: frozenset[bytes] = frozenset()
    accept_bare_tokens: bool | None = None  # authorize tokens without a presentation; None: as the data directory says
    allow_revocation: bool = False  # let the operator revoke client keys and capabilities
    witnesses: frozenset[bytes] = frozenset()  # keys whose cosignatures are accepted, also if the hub does not ask
    witness_addresses: tuple[WitnessAddress, ...] = ()  # witnesses that the hub asks
    witness_quorum: int | None = None  # how many of them must answer at a start; None: a majority
    operator_token: str | None = None
    workers: int | None = None
    max_in_flight: int = 4096
    open_to_the_network: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None  # the authority of client certificates
    read_access: ReadAccess = ReadAccess.OPEN
    readers: frozenset[bytes] = frozenset()  # keys that may read if read_access is signed
    log_submits: bool = False
    role: str = "authority"  # shown in the logs; a hub under another's authority is a tenant
    upload_bytes_per_sec: int = 16 * _MIB  # per capability, or per address if admission is open
    upload_burst_bytes: int = 1024 * _MIB
    disk_reserve_bytes: int = 256 * _MIB  # attachments leave this much free for the log
    scrub_bytes_per_s: int = _MIB  # at which the log is read again in the background; 0 turns that off
    scrub_pause_s: int = 86_400  # between two passes over the log
    pow_difficulty: int = 0  # zero bits that a proof of work must have; 0 requires none
    allow_networks: tuple[Network, ...] = ()  # accepted source networks; empty means all
    deny_networks: tuple[Network, ...] = ()
    max_clock_step: int = 60  # seconds by which the wall clock may jump before the operator must accept it
    max_start_gap: int = 30 * 86_400  # seconds between the wall clock and the end of the log at a start
    http: HttpSettings = HTTP

    def reloaded(self, found: "HubConfig") -> tuple["HubConfig", list[str]]:
        """This configuration with the reloadable settings of another, and the names of the others that differ."""
        names = [one.name for one in fields(self) if getattr(self, one.name) != getattr(found, one.name)]
        taken = {name: getattr(found, name) for name in names if name in RELOADABLE}
        if (self.tls_cert is None) != (found.tls_cert is None):
            taken = {name: value for name, value in taken.items() if name not in ("tls_cert", "tls_key", "client_ca")}
        return replace(self, **taken), [name for name in names if name not in taken]

    def check(self) -> None:
        """Raise on settings that would let strangers write by accident, or that are impossible."""
        if not 0 <= self.pow_difficulty <= MAX_POW_DIFFICULTY:
            raise Unavailable(f"a proof of work has at most {MAX_POW_DIFFICULTY} bits, not {self.pow_difficulty}")
        if (self.witness_quorum or 0) > len(self.witness_addresses):
            raise Unavailable(f"a quorum of {self.witness_quorum} needs as many witnesses with an address")
        if self.client_ca is not None and self.tls_cert is None:
            raise Unavailable("client certificates need TLS: give tls_cert and tls_key")
        if self.read_access is ReadAccess.MTLS and self.client_ca is None:
            raise Unavailable("read access by client certificates needs client_ca, the authority that signs them")
        if self.max_clock_step < 1 or self.max_start_gap < 1:
            raise Unavailable("max_clock_step and max_start_gap must be at least 1 second")
        if self.admission is Admission.OPEN and not self.open_to_the_network and not is_loopback(self.host):
            raise Unavailable(
                f"open admission on {self.host} lets everyone who can reach it write; "
                "add --open-to-the-network to allow that"
            )

    def tls(self) -> ssl.SSLContext | None:
        """The context for the server; None without TLS. Reads the files. Raises `OSError`."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return tls_context(self.tls_cert, self.tls_key, self.client_ca)

    def witness_keys(self) -> frozenset[bytes]:
        """The keys of all witnesses."""
        return self.witnesses | {one.witness_pk for one in self.witness_addresses}

    def max_subscriptions(self) -> int:
        return max(1, int(self.http.max_connections * SUBSCRIPTION_SHARE))

    def max_uploads(self) -> int:
        """How many attachments may be uploaded at once."""
        return max(1, int(self.http.max_connections * UPLOAD_SHARE))

    def max_uploads_per_owner(self) -> int:
        """How many of them may be of one capability, or of one address if admission is open."""
        return max(1, int(self.max_uploads() * UPLOAD_SHARE_PER_OWNER))

    def start_quorum(self) -> int:
        """How many witnesses must answer before the hub starts."""
        count = len(self.witness_addresses)
        return (count // 2 + 1 if count else 0) if self.witness_quorum is None else self.witness_quorum

    def worker_count(self) -> int:
        """One verification process per core but one; 0 (a thread) on a single core."""
        if self.workers is not None:
            return self.workers
        return max(len(os.sched_getaffinity(0)) - 1, 0)


def need_operator(config: HubConfig, headers: Mapping[bytes, bytes], needed: str = "the operator's token") -> None:
    """Raise unless the request has the operator's token. Compared in constant time."""
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not given:
        raise Refused("E.UNAUTHORIZED", f"this needs {needed}")
    if config.operator_token is None or not compare_digest(given, config.operator_token.encode()):
        raise Refused("E.UNAUTHORIZED", "the token is not the operator's")


# Descriptors that neither connections nor uploads use: the hub keeps them for log, index, readers and workers.
RESERVED_FILES = 128


def hard_file_limit() -> int | None:
    """The hard limit on open files; None if there is none."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def raise_file_limit() -> int | None:
    """Raise the soft limit to the hard limit. Returns the new limit; None if there is none."""
    with suppress(OSError, ValueError):  # some systems refuse although the hard limit allows it
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def fit_connections(config: HubConfig, files: int | None) -> HubConfig:
    """The configuration with `max_connections` reduced to what `files` allows. An upload also has a draft open."""
    if files is None:
        return config
    left = files - RESERVED_FILES
    if left >= config.http.max_connections + config.max_uploads():
        return config
    most = min(int(left / (1 + UPLOAD_SHARE)), left - 1)
    return replace(config, http=replace(config.http, max_connections=max(1, most)))
