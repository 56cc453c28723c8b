"""Tags and epochs. Spec §3.

A feed tag never changes. A rendezvous tag lasts one epoch. Near an epoch boundary the tags of both epochs are valid,
so clocks may differ by up to the overlap in either direction.
"""

from dataclasses import dataclass

from veil.hashing import HASH_BYTES, h, u16be, u32be
from veil.veil_errors import Malformed
from veil.veil_limits import EPOCH_HISTORY_SECONDS, EPOCH_OVERLAP_SECONDS, EPOCH_SECONDS, MAX_UINT16, MAX_UINT32


def feed_tag(publisher_pubkey: bytes, namespace: int) -> bytes:
    """The tag of all objects of one publisher in one namespace."""
    return h(b"feed" + _key(publisher_pubkey) + _namespace(namespace))


def rv_tag(recipient_pubkey: bytes, epoch: int, namespace: int) -> bytes:
    """The tag of objects for one recipient during one epoch."""
    if not 0 <= epoch <= MAX_UINT32:
        raise Malformed("tag", f"epoch {epoch} is not a 32-bit number")
    return h(b"rv" + _key(recipient_pubkey) + u32be(epoch) + _namespace(namespace))


@dataclass(frozen=True, slots=True)
class Epochs:
    """The length of an epoch, and the overlap in which the neighbouring epoch is valid too."""

    seconds: int = EPOCH_SECONDS
    overlap_seconds: int = EPOCH_OVERLAP_SECONDS
    # The maximum age of an object on arrival: a node may be offline for days, or a file may travel by hand.
    history_seconds: int = EPOCH_HISTORY_SECONDS

    def at(self, now_s: float) -> int:
        """The epoch of a Unix time, clamped to 32 bits."""
        return min(max(int(now_s // max(self.seconds, 1)), 0), MAX_UINT32)

    def around(self, now_s: float) -> tuple[int, ...]:
        """The valid epochs at a time, ascending: the current one, and its neighbour near the boundary."""
        overlap = min(self.overlap_seconds, self.seconds)
        return tuple(sorted({self.at(now_s + shift) for shift in (-overlap, 0, overlap)}))

    def plausible(self, epoch: int, now_s: float) -> bool:
        """Whether an epoch is neither in the future nor older than the history that nodes accept."""
        oldest = self.at(now_s - self.overlap_seconds - self.history_seconds)
        return oldest <= epoch <= self.at(now_s + min(self.overlap_seconds, self.seconds))


DEFAULT_EPOCHS = Epochs()


def rv_tags(recipient_pubkey: bytes, namespace: int, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, int]:
    """The valid rendezvous tags at a time, each with its epoch."""
    return {rv_tag(recipient_pubkey, epoch, namespace): epoch for epoch in epochs.around(now_s)}


def _key(pubkey: bytes) -> bytes:
    if len(pubkey) != HASH_BYTES:
        raise Malformed("tag", f"the public key has {len(pubkey)} bytes, not {HASH_BYTES}")
    return pubkey


def _namespace(namespace: int) -> bytes:
    if not 0 <= namespace <= MAX_UINT16:
        raise Malformed("tag", f"namespace {namespace} is not a 16-bit number")
    return u16be(namespace)
