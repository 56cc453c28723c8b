"""A recorder's checkpoint: where each of its streams was at one moment, signed. 001, products-spec-1 §3.2.4.

The hub's own signed checkpoints are in it, so it needs no trust in whoever made it; the administrator's signature says
that these are all the streams of that recorder, under that profile, at that time.

    position    Ht("veen/recorder-position", stream name's id || the hub's CHECKPOINT)
    log_root    the root of the tree whose leaves are the positions, in the order they are listed
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from veen.core import Checkpoint, SigningKey, Unverified, mmr, naming, signing
from veen.core.cbor import Bstr, Constant, ListOf, Map, Nested, Text, Uint, Version, Wire
from veen.core.hashing import h, ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.overlays.record.events import MAX_LISTED, stream_flaw

MAX_POSITIONS = 1 << 16
SUFFIX = ".checkpoint"


@dataclass(frozen=True, slots=True)
class StreamPosition(Wire):
    """How far one stream is in one epoch, in the hub's own words."""

    stream: str
    checkpoint: Checkpoint

    LAYOUT: ClassVar = Map("position", {1: Text("stream", MAX_TEXT_BYTES), 2: Nested("checkpoint", Checkpoint)})

    @property
    def last_seq(self) -> int:
        return self.checkpoint.upto_seq

    @property
    def order(self) -> tuple[str, int]:
        return self.stream, self.checkpoint.epoch

    def leaf(self) -> bytes:
        return ht("veen/recorder-position", naming.stream_id(self.stream) + self.checkpoint.encode())


@dataclass(frozen=True, slots=True)
class RecorderCheckpoint(Wire):
    """`empty` are the streams in which nothing was written; `previous` is the hash of the checkpoint before it."""

    hub_id: bytes
    hub_pk: bytes
    profile_id: bytes
    created_at: int  # milliseconds since 1970, by the clock of whoever made it
    log_root: bytes
    positions: tuple[StreamPosition, ...]
    empty: tuple[str, ...]
    admin_pk: bytes
    sig: bytes
    previous: bytes | None = None

    LAYOUT: ClassVar = Map(
        "recorder checkpoint",
        {
            1: Version(),
            2: Constant("kind", "veen/recorder-checkpoint"),
            3: Bstr("hub_id"),
            4: Bstr("hub_pk"),
            5: Bstr("profile_id"),
            6: Uint("created_at"),
            7: Bstr("log_root"),
            8: ListOf("positions", Nested("position", StreamPosition), most=MAX_POSITIONS),
            9: ListOf("empty", Text("stream", MAX_TEXT_BYTES), most=MAX_LISTED),
            10: Bstr("admin_pk"),
            11: Bstr("sig", SIGNATURE_BYTES),
            12: Bstr("previous", optional=True),
        },
    )

    def flaw(self) -> str | None:
        if not all(a.order < b.order for a, b in pairwise(self.positions)):
            return "positions are not in ascending order, each once"
        if not all(a < b for a, b in pairwise(self.empty)) or {one.stream for one in self.positions} & set(self.empty):
            return "empty streams are not in ascending order, each once and without a position"
        flaws = (stream_flaw(one) for one in self.streams)
        return next((flaw for flaw in flaws if flaw is not None), None)

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream it covers, ascending."""
        return tuple(sorted({*self.empty, *(one.stream for one in self.positions)}))

    def last_seq(self, stream: str, epoch: int | None = None) -> int:
        """The last entry of a stream that it covers, in an epoch or in the latest; 0 where there is none."""
        found = [one for one in self.positions if one.stream == stream and epoch in (None, one.checkpoint.epoch)]
        return found[-1].last_seq if found else 0

    def hash(self) -> bytes:
        """What the next one names as its `previous`."""
        return h(self.encode())

    def digest(self) -> bytes:
        """All of it but the signature."""
        return ht("veen/recorder-checkpoint", replace(self, sig=bytes(SIGNATURE_BYTES)).encode())

    def verify(self) -> None:
        """Raise unless the administrator signed it and `log_root` is that of its positions: all but the hub's word."""
        signing.verify(self.admin_pk, self.digest(), self.sig, "recorder checkpoint")
        if self.log_root != root_of(self.positions):
            raise Unverified("recorder checkpoint", "log_root is not the root of its positions")

    def check_follows(self, previous: "RecorderCheckpoint") -> None:
        """Raise where it goes back behind the one before it, or is of another recorder."""
        same = (self.hub_id, self.admin_pk) == (previous.hub_id, previous.admin_pk)
        if not same or self.previous != previous.hash():
            raise Unverified("recorder checkpoint", "it does not follow on the one before it")
        if self.created_at < previous.created_at:
            raise Unverified("recorder checkpoint", "it was made before the one before it")
        if not set(previous.streams) <= set(self.streams):
            raise Unverified("recorder checkpoint", "a stream of the one before it is missing")
        known = {one.order: one for one in previous.positions}
        for one in self.positions:
            if one.order in known:
                one.checkpoint.check_follows(known[one.order].checkpoint)


def root_of(positions: Sequence[StreamPosition]) -> bytes:
    return mmr.root(position.leaf() for position in positions)


def sign(
    key: SigningKey,
    *,
    hub_id: bytes,
    hub_pk: bytes,
    profile_id: bytes,
    created_at: int,
    positions: Sequence[StreamPosition],
    empty: Sequence[str],
    previous: RecorderCheckpoint | None = None,
) -> RecorderCheckpoint:
    """A checkpoint by the administrator whose key it is."""
    listed = tuple(sorted(positions, key=lambda one: one.order))
    unsigned = RecorderCheckpoint(
        hub_id,
        hub_pk,
        profile_id,
        created_at,
        root_of(listed),
        listed,
        tuple(sorted(empty)),
        key.public_key,
        bytes(SIGNATURE_BYTES),
        previous.hash() if previous else None,
    )
    return replace(unsigned, sig=key.sign(unsigned.digest()))
