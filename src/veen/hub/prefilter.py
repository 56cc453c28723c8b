"""Stage 0: checks that precede reading a request. Spec §8.1; 001, spec-2 §5.1.

They depend only on the request and on fixed settings, so the same request always gets the same result. If proof of work
is required, the rejection contains the challenge, and the client can retry with it. Reusing the same proof is possible,
because nothing is stored; it only gains another check of the same signature.
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
    """Checks the source address and the proof of work."""

    def __init__(
        self, hub_id: bytes, difficulty: int, allowed: tuple[Network, ...] = (), denied: tuple[Network, ...] = ()
    ) -> None:
        self._hub_id = hub_id
        self.difficulty = difficulty
        self._allowed = allowed
        self._denied = denied

    @property
    def is_active(self) -> bool:
        """Whether it can reject anything."""
        return bool(self.difficulty or self._allowed or self._denied)

    def check_peer(self, peer: str) -> None:
        """Raise unless the address is in an allowed network, if there are any, and in no denied one."""
        if not (self._allowed or self._denied):
            return
        try:
            address = ip_address(peer.partition("%")[0])
        except ValueError:
            raise BY_DETAIL["PREFILTER_REJECT"].refused(
                "the source address is unknown, but this hub filters by address"
            ) from None
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        within = not self._allowed or any(address in network for network in self._allowed)
        if not within or any(address in network for network in self._denied):
            raise BY_DETAIL["PREFILTER_REJECT"].refused("this hub does not accept messages from your address")

    def check(self, peer: str, headers: Mapping[bytes, bytes], body: bytes, *, batch: bool = False) -> None:
        """Raise unless address and proof of work are acceptable."""
        self.check_peer(peer)
        if not self.difficulty:
            return
        difficulty = self.difficulty + (_batch_bits(body) if batch else 0)
        challenge = challenge_of(self._hub_id, body)
        shown = headers.get(_HEADER)
        try:
            if shown is None:
                raise Unverified("proof of work", "the header is missing")
            PowCookie.from_header(shown.decode("latin-1")).verify(challenge, difficulty)
        except (Malformed, Unverified) as error:
            raise BY_DETAIL["PREFILTER_REJECT"].refused(
                f"{HEADER}: {error.reason}",
                challenge=challenge.hex(),
                difficulty=difficulty,
                hub_id=self._hub_id.hex(),
            ) from None


def _batch_bits(body: bytes) -> int:
    """Extra difficulty of a batch: it costs about as much work as its messages would one by one."""
    messages = min(max(len(body) // LEAST_MSG_BYTES, 1), MAX_PAGE_ITEMS)
    return messages.bit_length() - 1
