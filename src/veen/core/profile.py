"""Settings of a data directory: cryptographic profile (spec §3.2), limits (spec §14.1), admission of capabilities."""

from typing import Annotated

from veen.core import limits
from veen.core.cbor import Bool, Constant, Uint, Wire, int_map, text_map
from veen.core.errors import Malformed
from veen.core.hashing import ht


@int_map(
    "profile",
    Constant("xchacha20poly1305", name="aead"),
    Constant("hkdf-sha256", name="kdf"),
    Constant("ed25519", name="sig"),
    Constant("x25519", name="dh"),
    Constant("X25519-HKDF-SHA256-CHACHA20POLY1305", name="hpke_suite"),
    last=(Constant("sha256", name="mmr_hash"),),
)
class Profile(Wire):
    """The algorithms, which are fixed, and two parameters."""

    epoch_sec: Annotated[int, Uint()] = 0
    pad_block: Annotated[int, Uint(most=limits.MAX_PAD_BLOCK)] = 256

    def profile_id(self) -> bytes:
        return ht("veen/profile", self.encode())

    def epoch(self, unix_time_sec: int) -> int:
        return unix_time_sec // self.epoch_sec if self.epoch_sec else 0

    def epoch_end(self, epoch: int) -> int | None:
        """The first second after an epoch; None if there are no epochs."""
        return (epoch + 1) * self.epoch_sec if self.epoch_sec else None

    def epochs_around(self, hub_ts: int, max_epoch_skew_sec: int) -> range:
        """The epochs whose labels a hub accepts at `hub_ts`. Spec §12."""
        now, skew = self.epoch(hub_ts), max_epoch_skew_sec // self.epoch_sec if self.epoch_sec else 0
        return range(max(0, now - skew), now + skew + 1)

    def accepts_epoch(self, epoch: int, hub_ts: int, max_epoch_skew_sec: int) -> bool:
        """Whether a label of `epoch` is within the window around `hub_ts`. Spec §12."""
        return epoch in self.epochs_around(hub_ts, max_epoch_skew_sec)


@text_map("limits")
class Limits(Wire):
    """The limits of one hub, fixed when its data directory is created. None may exceed its maximum."""

    max_msg_bytes: Annotated[int, Uint(least=limits.LEAST_MSG_BYTES, most=limits.MAX_MSG_BYTES)] = limits.MAX_MSG_BYTES
    max_hdr_bytes: Annotated[int, Uint(most=limits.MAX_HDR_BYTES)] = limits.MAX_HDR_BYTES
    max_body_bytes: Annotated[int, Uint(most=limits.MAX_BODY_BYTES)] = limits.MAX_BODY_BYTES
    max_attachments_per_msg: Annotated[int, Uint(most=limits.MAX_ATTACHMENTS)] = limits.MAX_ATTACHMENTS
    max_attachment_bytes: Annotated[int, Uint(most=limits.MAX_ATTACHMENT_BYTES)] = limits.DEFAULT_ATTACHMENT_BYTES
    max_chunk_bytes: Annotated[int, Uint(least=limits.LEAST_CHUNK_BYTES, most=limits.MAX_CHUNK_BYTES)] = (
        limits.DEFAULT_CHUNK_BYTES
    )
    max_checkpoint_interval: Annotated[int, Uint(least=1, most=limits.MAX_CHECKPOINT_INTERVAL)] = (
        limits.DEFAULT_CHECKPOINT_INTERVAL
    )
    max_cap_rate_per_sec: Annotated[int, Uint(most=limits.MAX_CAP_RATE)] = limits.DEFAULT_CAP_RATE
    max_cap_rate_burst: Annotated[int, Uint(most=limits.MAX_CAP_RATE)] = limits.DEFAULT_CAP_RATE
    max_epoch_skew_sec: Annotated[int, Uint(most=limits.MAX_EPOCH_SKEW_SEC)] = limits.DEFAULT_EPOCH_SKEW_SEC
    # None: closed chunks are not compressed.
    chunk_zstd_level: Annotated[int | None, Uint(least=1, most=limits.MAX_ZSTD_LEVEL, optional=True)] = None
    # Counted from a client key's first message under a label.
    max_client_id_lifetime_sec: Annotated[
        int | None, Uint(least=1, most=limits.MAX_CLIENT_ID_LIFETIME_SEC, optional=True)
    ] = None
    max_msgs_per_client_id_per_label: Annotated[
        int | None, Uint(least=1, most=limits.MAX_CLIENT_ID_MSGS, optional=True)
    ] = None

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


@text_map("admission settings")
class AdmissionSettings(Wire):
    """How a hub authorizes capabilities. A directory without this file was created before presentations existed."""

    bare_tokens: Annotated[bool, Bool()]  # whether a token is accepted without a presentation
