"""Stage 0: what a request must show before anything in it is read. Spec §8.1; 001, spec-2 §5.1.

It looks at the request and at settings that stay the same while the hub runs, so the same request always meets the same
verdict. Where work is asked for, the refusal says on what, and the sender can come again with it. It can come with the
same work as often as it likes, as nothing is kept: all it gains is one more check of the same signature.
"""

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address

from plumbing.http.peer_address import Network
from veen.core import Malformed, Unverified
from veen.core.admission import BY_DETAIL
from veen.core.limits import LEAST_MSG_BYTES, MAX_PAGE_ITEMS
from veen.core.proof_of_work import HEADER, PowCookie, challenge_of

_HEADER = HEADER.encode()


class Prefilter:
    """From where messages are taken, and for how much work."""

    def __init__(
        self, hub_id: bytes, difficulty: int, allowed: tuple[Network, ...] = (), denied: tuple[Network, ...] = ()
    ) -> None:
        self._hub_id = hub_id
        self.difficulty = difficulty
        self._allowed = allowed
        self._denied = denied

    @property
    def asks(self) -> bool:
        """Whether it can refuse anything."""
        return bool(self.difficulty or self._allowed or self._denied)

    def check_peer(self, peer: str) -> None:
        """Raise unless messages are taken from that address: from one of the allowed, if any, and from none denied."""
        if not (self._allowed or self._denied):
            return
        try:
            address = ip_address(peer.partition("%")[0])
        except ValueError:
            raise BY_DETAIL["PREFILTER_REJECT"].refused("messages are taken only from known addresses") from None
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        within = not self._allowed or any(address in network for network in self._allowed)
        if not within or any(address in network for network in self._denied):
            raise BY_DETAIL["PREFILTER_REJECT"].refused("no messages are taken from this address")

    def check(self, peer: str, headers: Mapping[bytes, bytes], body: bytes, *, batch: bool = False) -> None:
        """Raise unless the request comes from where it may, and shows the work that is asked of it."""
        self.check_peer(peer)
        if not self.difficulty:
            return
        difficulty = self.difficulty + (_room_bits(body) if batch else 0)
        challenge = challenge_of(self._hub_id, body)
        shown = headers.get(_HEADER)
        try:
            if shown is None:
                raise Unverified("proof of work", "there is none")
            PowCookie.from_header(shown.decode("latin-1")).verify(challenge, difficulty)
        except (Malformed, Unverified) as error:
            raise BY_DETAIL["PREFILTER_REJECT"].refused(
                f"{HEADER}: {error.reason}",
                challenge=challenge.hex(),
                difficulty=difficulty,
                hub_id=self._hub_id.hex(),
            ) from None


def _room_bits(body: bytes) -> int:
    """A batch costs about as much work as the messages it has room for would, one by one."""
    messages = min(max(len(body) // LEAST_MSG_BYTES, 1), MAX_PAGE_ITEMS)
    return messages.bit_length() - 1
