"""The settings of a node in `settings.json`."""

import ipaddress
from dataclasses import asdict, dataclass
from typing import Any

from veil.lanes.endpoint import Endpoint
from veil.runtime.data_directory import DataDirectory
from veil.veil_errors import Malformed

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
        for text in (*self.listen, *self.announce):
            Endpoint.parse(text)
        if len(self.listen) + len(self.announce) > MAX_LISTENERS:
            raise Malformed("settings", f"more than {MAX_LISTENERS} endpoints")
        for text in (self.api, *filter(None, (self.proxy,))):
            host_port(text)
        if not is_loopback(host_port(self.api)[0]):
            raise Malformed("settings", f"the local API needs a loopback address, not {self.api}")


def save(directory: DataDirectory, settings: Settings) -> None:
    settings.check()
    directory.write(_FILE, {"version": 1, **asdict(settings)})


def load(directory: DataDirectory) -> Settings:
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
    if not bare or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF or (":" in bare and bare == host):
        raise Malformed("address", f"{text!r} is not HOST:PORT")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address or `localhost`. Other names are never loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
