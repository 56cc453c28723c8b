"""The cryptographic profile: fixed algorithms and two parameters. Spec §3.2."""

from dataclasses import dataclass
from typing import ClassVar

from veen.core.cbor import Constant, Map, Uint, Wire
from veen.core.hashing import ht
from veen.core.limits import MAX_PAD_BLOCK


@dataclass(frozen=True, slots=True)
class Profile(Wire):
    """The algorithms and parameters on which a client and a hub must agree."""

    epoch_sec: int = 0
    pad_block: int = 256

    LAYOUT: ClassVar = Map(
        "profile",
        {
            1: Constant("xchacha20poly1305", name="aead"),
            2: Constant("hkdf-sha256", name="kdf"),
            3: Constant("ed25519", name="sig"),
            4: Constant("x25519", name="dh"),
            5: Constant("X25519-HKDF-SHA256-CHACHA20POLY1305", name="hpke_suite"),
            6: Uint(name="epoch_sec"),
            7: Uint(name="pad_block", most=MAX_PAD_BLOCK),
            8: Constant("sha256", name="mmr_hash"),
        },
    )

    def profile_id(self) -> bytes:
        return ht("veen/profile", self.encode())

    def epoch(self, unix_time_sec: int) -> int:
        return unix_time_sec // self.epoch_sec if self.epoch_sec else 0

    def epochs_around(self, hub_ts: int, max_epoch_skew_sec: int) -> range:
        """The epochs whose labels a hub accepts at `hub_ts`. Spec §12."""
        now, skew = self.epoch(hub_ts), max_epoch_skew_sec // self.epoch_sec if self.epoch_sec else 0
        return range(max(0, now - skew), now + skew + 1)

    def accepts_epoch(self, epoch: int, hub_ts: int, max_epoch_skew_sec: int) -> bool:
        """Whether a label of `epoch` is within the window around `hub_ts`. Spec §12."""
        return epoch in self.epochs_around(hub_ts, max_epoch_skew_sec)
