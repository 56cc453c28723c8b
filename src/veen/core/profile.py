"""Settings of a data directory: cryptographic profile (spec §3.2), limits (spec §14.1), admission of capabilities."""

from dataclasses import replace
from typing import Annotated

from veen.core import limits
from veen.core.cbor import Bool, Constant, ListOf, Nested, Uint, VersionField, Wire, int_map, text_map
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
    """The limits of one hub. They are set when its data directory is created. None may exceed its maximum.

    Those in `LOWERABLE` can be lowered later. The others decide where chunks end and which labels an epoch has, for
    every reader of the log.
    """

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

    def refusal(self, after: "Limits") -> str | None:
        """Why these limits cannot be replaced by `after`; None if they can."""
        changed = [name for name in _NAMES if getattr(self, name) != getattr(after, name)]
        for name in changed:
            old, new = getattr(self, name), getattr(after, name)
            if name not in LOWERABLE:
                return f"{name} is fixed when the data directory is created; it is {old}"
            if new is None or (old is not None and new > old):
                return f"{name} is {old} and can only be lowered, not set to {'no limit' if new is None else new}"
        return None if changed else "no limit would change"


_NAMES = tuple(kind.name for kind in Limits.LAYOUT.kinds)
LOWERABLE = (
    "max_msg_bytes",
    "max_hdr_bytes",
    "max_body_bytes",
    "max_attachments_per_msg",
    "max_attachment_bytes",
    "max_cap_rate_per_sec",
    "max_cap_rate_burst",
    "max_client_id_lifetime_sec",
    "max_msgs_per_client_id_per_label",
)


@int_map("lowered limits", VersionField())
class LoweredLimits(Wire):
    """The operator lowered limits: an event of the control stream. It has all limits, so it can be applied alone."""

    before: Annotated[Limits, Nested(Limits)]
    after: Annotated[Limits, Nested(Limits)]

    def flaw(self) -> str | None:
        return self.before.refusal(self.after)


@text_map("earlier limits")
class EarlierLimits(Wire):
    """Limits that applied up to and including `until`, the `hub_ts` of the event that lowered them."""

    until: Annotated[int, Uint()]
    limits: Annotated[Limits, Nested(Limits)]


@text_map("limit registry")
class LimitRegistry(Wire):
    """The limits of a hub over time. Which limits apply to an entry depends on its `hub_ts` alone."""

    limits: Annotated[Limits, Nested(Limits)]
    earlier: Annotated[
        tuple[EarlierLimits, ...],
        ListOf(Nested(EarlierLimits, name="earlier limits"), most=limits.MAX_LIMIT_CHANGES),
    ] = ()

    def at(self, hub_ts: int) -> Limits:
        """The limits for an entry of that time."""
        for row in self.earlier:
            if hub_ts <= row.until:
                return row.limits
        return self.limits

    def lowered(self, event: LoweredLimits, hub_ts: int) -> "LimitRegistry":
        """The registry after an event that is logged at `hub_ts`. Applying it again changes nothing."""
        last = self.earlier[-1] if self.earlier else None
        if last and last.until == hub_ts and self.limits == event.before:  # the second event of this second
            return replace(self, limits=event.after)
        kept = tuple(row for row in self.earlier if row.until < hub_ts)
        return LimitRegistry(event.after, (*kept, EarlierLimits(hub_ts, event.before)))


@text_map("admission settings")
class AdmissionSettings(Wire):
    """How a hub authorizes capabilities. A directory without this file was created before presentations existed."""

    bare_tokens: Annotated[bool, Bool()]  # whether a token is accepted without a presentation
