"""The data directory of a node: its files, their permissions, the lock of the running process, and the settings.

identity.json   0600   secret keys and group secrets
lanes.pem       0600   certificate and key of the lanes
settings.json   0600   `Settings`
contacts.json   0600   contacts
api.token       0600   bearer token of the local API
api.json        0600   URL of the local API, while the node runs
store/          0700   shards, outbox and events
lock                   locked by the running process
"""

import fcntl
import ipaddress
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plumbing.durable import PRIVATE_FOLDER, in_use, replace_file
from veil.lanes.lane import Endpoint
from veil.veil_errors import Malformed, Refused, Unavailable

_TOKEN_BYTES = 32
# The files of a node before it has an identity, which is written last.
_UNFINISHED = ("api.token", "lanes.pem", "settings.json")
_DRAFT = ".draft"


class DataDirectory:
    """The data directory of one node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def make(self) -> None:
        """Create the directory, or continue one without identity. Raise `Refused` if it has a node or other files."""
        if self.exists():
            exists = Refused(str(self.path), "there is already a node in this directory")
            exists.add_note("choose another directory with --data-dir, or delete this node with veil node destroy")
            raise exists
        in_use().make_durable_folder(self.path, PRIVATE_FOLDER)
        if any(one.name not in _UNFINISHED and one.suffix != _DRAFT for one in self.path.iterdir()):
            raise Refused(str(self.path), "the directory is not empty")
        self.path.chmod(PRIVATE_FOLDER)
        replace_file(self.path / "api.token", secrets.token_hex(_TOKEN_BYTES).encode() + b"\n")

    def exists(self) -> bool:
        return (self.path / "identity.json").exists()

    def check(self) -> None:
        if not self.exists():
            missing = Unavailable(str(self.path), "there is no node in this directory")
            missing.add_note(f"create one with: veil node init --data-dir {self.path}")
            raise missing

    @property
    def certificate(self) -> Path:
        return self.path / "lanes.pem"

    @property
    def store(self) -> Path:
        return self.path / "store"

    def token(self) -> str:
        try:
            return (self.path / "api.token").read_text("ascii").strip()
        except OSError as error:
            raise Unavailable(str(self.path), f"cannot read api.token: {error.strerror}") from None

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON object from a file. A missing file gives an empty one."""
        path = self.path / name
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Unavailable(str(path), error.strerror or str(error)) from None
        except (ValueError, RecursionError):
            raise Malformed(str(path), "not JSON") from None
        if not isinstance(found, dict):
            raise Malformed(str(path), "not a JSON object")
        return found

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Replace a JSON file atomically. If that fails, raise `Unavailable`; the old file remains."""
        path = self.path / name
        try:
            replace_file(path, json.dumps(data, indent=1).encode() + b"\n")
        except OSError as error:
            raise Unavailable(str(path), f"cannot write: {error.strerror or error}") from None

    def remove(self, name: str) -> None:
        in_use().unlink(self.path / name)

    def lock(self) -> None:
        """Lock the directory for this process. Raise `Refused` if another process has the lock."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            running = Refused(str(self.path), "the node is already running")
            running.add_note(f"stop it with: veil node stop --data-dir {self.path}")
            raise running from None
        self._lock = handle

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


_FILE = "settings.json"
# Any free port; `api.json` has it while the node runs.
DEFAULT_API = "127.0.0.1:0"
MAX_LISTENERS = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """`listen` and `announce` are endpoints; `proxy` is the SOCKS5 address of Tor."""

    listen: tuple[str, ...] = ()
    announce: tuple[str, ...] = ()
    api: str = DEFAULT_API
    proxy: str = ""
    stun: tuple[str, ...] = ()
    relay_all: bool = False

    def check(self) -> None:
        """Raise `Malformed` if a setting is invalid."""
        if not all(isinstance(text, str) for text in (*self.listen, *self.announce, *self.stun)):
            raise Malformed("settings", "listen, announce and stun are lists of strings")
        for text in (*self.listen, *self.announce):
            Endpoint.parse(text)
        if len(self.listen) + len(self.announce) > MAX_LISTENERS:
            raise Malformed("settings", f"more than {MAX_LISTENERS} endpoints")
        for text in (self.api, *filter(None, (self.proxy,))):
            host_port(text)
        if not is_loopback(host_port(self.api)[0]):
            raise Malformed("settings", f"the local API needs a loopback address, not {self.api}")


def save_settings(directory: DataDirectory, settings: Settings) -> None:
    settings.check()
    directory.write(_FILE, {"version": 1, **asdict(settings)})


def load_settings(directory: DataDirectory) -> Settings:
    data: dict[str, Any] = directory.read(_FILE)
    data.pop("version", None)
    try:
        found = Settings(
            listen=tuple(data.get("listen", ())),
            announce=tuple(data.get("announce", ())),
            api=str(data.get("api", DEFAULT_API)),
            proxy=str(data.get("proxy", "")),
            stun=tuple(data.get("stun", ())),
            relay_all=bool(data.get("relay_all", False)),
        )
    except TypeError:
        raise Malformed(_FILE, "not valid settings") from None
    found.check()
    return found


def host_port(text: str) -> tuple[str, int]:
    """Parse HOST:PORT. An IPv6 host is in brackets."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if (
        not bare
        or not port.isascii()
        or not port.isdigit()
        or len(port) > 5
        or int(port) > 0xFFFF
        or (":" in bare and bare == host)
    ):
        raise Malformed("address", f"{text!r} is not HOST:PORT")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address or `localhost`. Other names are never loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
