"""Who calls, as far as counting goes: one IPv4 address, or the 64-bit network that one IPv6 customer has whole."""

from collections.abc import Iterable
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
