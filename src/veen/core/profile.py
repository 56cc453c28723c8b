"""The cryptographic profile: fixed algorithms and two parameters. Spec §3.2."""

from dataclasses import dataclass
from typing import ClassVar

from veen.core import limits
from veen.core.cbor import Constant, Map, Uint, Wire
from veen.core.errors import Malformed
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


def _within(most: int, least: int = 0, *, name: str = "", optional: bool = False) -> Uint:
    return Uint(name=name, least=least, most=most, optional=optional)


@dataclass(frozen=True, slots=True)
class Limits(Wire):
    """The limits of one hub. A deployment may lower any of them; none may exceed its fixed maximum."""

    max_msg_bytes: int = limits.MAX_MSG_BYTES
    max_hdr_bytes: int = limits.MAX_HDR_BYTES
    max_body_bytes: int = limits.MAX_BODY_BYTES
    max_attachments_per_msg: int = limits.MAX_ATTACHMENTS
    max_attachment_bytes: int = limits.DEFAULT_ATTACHMENT_BYTES
    max_chunk_bytes: int = limits.DEFAULT_CHUNK_BYTES
    max_checkpoint_interval: int = limits.DEFAULT_CHECKPOINT_INTERVAL
    max_cap_rate_per_sec: int = limits.DEFAULT_CAP_RATE
    max_cap_rate_burst: int = limits.DEFAULT_CAP_RATE
    max_epoch_skew_sec: int = limits.DEFAULT_EPOCH_SKEW_SEC
    chunk_zstd_level: int | None = None  # None: closed chunks are not compressed
    max_client_id_lifetime_sec: int | None = None  # counted from a client key's first message under a label
    max_msgs_per_client_id_per_label: int | None = None

    LAYOUT: ClassVar = Map(
        "limits",
        {
            kind.name: kind
            for kind in (
                _within(limits.MAX_MSG_BYTES, name="max_msg_bytes", least=limits.LEAST_MSG_BYTES),
                _within(limits.MAX_HDR_BYTES, name="max_hdr_bytes"),
                _within(limits.MAX_BODY_BYTES, name="max_body_bytes"),
                _within(limits.MAX_ATTACHMENTS, name="max_attachments_per_msg"),
                _within(limits.MAX_ATTACHMENT_BYTES, name="max_attachment_bytes"),
                _within(limits.MAX_CHUNK_BYTES, name="max_chunk_bytes", least=limits.LEAST_CHUNK_BYTES),
                _within(limits.MAX_CHECKPOINT_INTERVAL, name="max_checkpoint_interval", least=1),
                _within(limits.MAX_CAP_RATE, name="max_cap_rate_per_sec"),
                _within(limits.MAX_CAP_RATE, name="max_cap_rate_burst"),
                _within(limits.MAX_EPOCH_SKEW_SEC, name="max_epoch_skew_sec"),
                _within(limits.MAX_ZSTD_LEVEL, name="chunk_zstd_level", least=1, optional=True),
                _within(limits.MAX_CLIENT_ID_LIFETIME_SEC, name="max_client_id_lifetime_sec", least=1, optional=True),
                _within(limits.MAX_CLIENT_ID_MSGS, name="max_msgs_per_client_id_per_label", least=1, optional=True),
            )
        },
    )

    def __post_init__(self) -> None:
        for kind in self.LAYOUT.kinds:
            given = getattr(self, kind.name)
            if given is None and kind.optional:
                continue
            try:
                kind.write(given)
            except ValueError as error:
                raise Malformed("limits", str(error)) from None

    def flaw(self) -> str | None:
        room = self.max_chunk_bytes - limits.ENTRY_OVERHEAD_BYTES
        return None if room >= self.max_msg_bytes else "max_chunk_bytes is too small for a message of max_msg_bytes"
