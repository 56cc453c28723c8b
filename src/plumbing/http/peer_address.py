"""Who calls, as far as counting goes: one IPv4 address, or the 64-bit network that one IPv6 customer has whole."""

import ipaddress
import re
from collections.abc import Container, Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

_HOST_BYTES = 8
Network = IPv4Network | IPv6Network


def caller_of(address: str, uncounted: Iterable[Network]) -> bytes | None:
    """The name to count an address under; None where its connections are not counted."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if any(found in network for network in uncounted):
        return None
    return found.packed[:-_HOST_BYTES] if isinstance(found, IPv6Address) else found.packed


class Callers:
    """How many connections each caller has. Holds no one who has none."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def count(self, caller: bytes | None) -> int:
        return 0 if caller is None else self._counts.get(caller, 0)

    def came(self, caller: bytes | None) -> None:
        if caller is not None:
            self._counts[caller] = self._counts.get(caller, 0) + 1

    def went(self, caller: bytes | None) -> None:
        if caller is not None:
            left = self._counts.pop(caller) - 1
            if left:
                self._counts[caller] = left

    def __len__(self) -> int:
        return len(self._counts)


_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:@/?#\\]+))(?::\d{1,5})?")
_ORIGIN = re.compile(r"https?://(.+)", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """An address, or `localhost`; no other name, whatever it begins with."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(authority: str) -> str:
    """The host of HOST or HOST:PORT, in lower case, without brackets; empty, which no host is, where it is neither."""
    found = _AUTHORITY.fullmatch(authority)
    return "" if found is None else (found[1] or found[2]).lower()


def authority_of(origin: str) -> str:
    """HOST or HOST:PORT of an origin; empty where it has none, as `null` has."""
    found = _ORIGIN.fullmatch(origin)
    return "" if found is None else found[1].lower()


def is_asked_here(host: str, origin: str | None, names: Container[str] = ()) -> bool:
    """Whether a request asks this machine by a name of its own, and comes from no page of another."""
    named = [host_of(host), *([] if origin is None else [host_of(authority_of(origin))])]
    return all(is_loopback(one) or one in names for one in named)
