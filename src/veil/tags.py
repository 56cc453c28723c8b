"""Tags and epochs: under which 32 bytes an object is asked for, and when. Spec §3.

A feed tag is for ever. A rendezvous tag lasts one epoch, and around the turn of an epoch two of them count, so that
clocks may differ by up to the overlap, in either direction.
"""

from dataclasses import dataclass

from veil.hashing import HASH_BYTES, h, u16be, u32be
from veil.veil_errors import Malformed
from veil.veil_limits import EPOCH_HISTORY_SECONDS, EPOCH_OVERLAP_SECONDS, EPOCH_SECONDS, MAX_UINT16, MAX_UINT32


def feed_tag(publisher_pubkey: bytes, namespace: int) -> bytes:
    """The tag of everything one publisher says in one namespace."""
    return h(b"feed" + _key(publisher_pubkey) + _namespace(namespace))


def rv_tag(recipient_pubkey: bytes, epoch: int, namespace: int) -> bytes:
    """The tag under which a recipient can be met during one epoch."""
    if not 0 <= epoch <= MAX_UINT32:
        raise Malformed("tag", f"an epoch of {epoch}, not of 32 bits")
    return h(b"rv" + _key(recipient_pubkey) + u32be(epoch) + _namespace(namespace))


@dataclass(frozen=True, slots=True)
class Epochs:
    """How long an epoch is, and how near its ends the neighbour counts too."""

    seconds: int = EPOCH_SECONDS
    overlap_seconds: int = EPOCH_OVERLAP_SECONDS
    # How long an object may have been under way: by hand, say, or with a node that was offline for days.
    history_seconds: int = EPOCH_HISTORY_SECONDS

    def at(self, now_s: float) -> int:
        """The epoch of a time in seconds since 1970; times that 32 bits of epochs do not reach are of the nearest."""
        return min(max(int(now_s // max(self.seconds, 1)), 0), MAX_UINT32)

    def around(self, now_s: float) -> tuple[int, ...]:
        """The epochs that count at a time, ascending: the current one, and its neighbour where the boundary is near."""
        overlap = min(self.overlap_seconds, self.seconds)
        return tuple(sorted({self.at(now_s + shift) for shift in (-overlap, 0, overlap)}))

    def plausible(self, epoch: int, now_s: float) -> bool:
        """Whether an object that arrives now can be of an epoch: neither of the future nor older than our history."""
        oldest = self.at(now_s - self.overlap_seconds - self.history_seconds)
        return oldest <= epoch <= self.at(now_s + min(self.overlap_seconds, self.seconds))


DEFAULT_EPOCHS = Epochs()


def rv_tags(recipient_pubkey: bytes, namespace: int, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, int]:
    """Each rendezvous tag that counts at a time, with its epoch."""
    return {rv_tag(recipient_pubkey, epoch, namespace): epoch for epoch in epochs.around(now_s)}


def _key(pubkey: bytes) -> bytes:
    if len(pubkey) != HASH_BYTES:
        raise Malformed("tag", f"a public key of {len(pubkey)} bytes, not {HASH_BYTES}")
    return pubkey


def _namespace(namespace: int) -> bytes:
    if not 0 <= namespace <= MAX_UINT16:
        raise Malformed("tag", f"a namespace of {namespace}, not of 16 bits")
    return u16be(namespace)
