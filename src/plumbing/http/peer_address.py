"""Peer addresses for counting: one IPv4 address, or one IPv6 /64 network, which usually belongs to one customer."""

import ipaddress
import re
from collections.abc import Container, Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

_HOST_BYTES = 8
Network = IPv4Network | IPv6Network


def caller_of(address: str, uncounted: Iterable[Network]) -> bytes | None:
    """The key to count an address under; None if its connections are not counted."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if any(found in network for network in uncounted):
        return None
    return found.packed[:-_HOST_BYTES] if isinstance(found, IPv6Address) else found.packed


_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:@/?#\\]+))(?::\d{1,5})?")
_ORIGIN = re.compile(r"https?://(.+)", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """True for loopback addresses and `localhost`, and for no other name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(authority: str) -> str:
    """The host of HOST or HOST:PORT in lower case, without brackets; empty if it is neither."""
    found = _AUTHORITY.fullmatch(authority)
    return "" if found is None else (found[1] or found[2]).lower()


def authority_of(origin: str) -> str:
    """HOST or HOST:PORT of an origin; empty if it has none, such as `null`."""
    found = _ORIGIN.fullmatch(origin)
    return "" if found is None else found[1].lower()


def is_local_request(host: str, origin: str | None, names: Container[str] = ()) -> bool:
    """Whether a request addresses this machine by one of its names, and does not come from a page of another site."""
    named = [host_of(host), *([] if origin is None else [host_of(authority_of(origin))])]
    return all(is_loopback(one) or one in names for one in named)
