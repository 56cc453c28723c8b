"""A recorder checkpoint: the position of each of its streams at one moment, signed. 001, products-spec-1 §3.2.4.

It contains checkpoints signed by the hub, so its maker need not be trusted for them. The administrator's signature
states that these are all streams of the recorder, under that profile, at that time.

    position    Ht("veen/recorder-position", stream name's id || the hub's CHECKPOINT)
    log_root    the root of the tree whose leaves are the positions, in the order they are listed
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from veen.core import Checkpoint, Mmr, SigningKey, Unverified, mmr, naming, signing
from veen.core.cbor import Bstr, Constant, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.hashing import h, ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.origin import lineage
from veen.core.signing import SIGNATURE_BYTES
from veen.overlays import At
from veen.overlays.kept_fold import LogPrefix
from veen.overlays.record import CHANGES, MAX_LISTED, RECORDER_CHANGES, RecorderProfile, stream_flaw
from veen.recorder.replay import Replayer, ReplaySpan
from veen.state.entry_source import EntrySource, NoEntry, folded

MAX_POSITIONS = 1 << 16
SUFFIX = ".checkpoint"


@int_map("position")
class StreamPosition(Wire):
    """The position of one stream in one epoch, as a checkpoint of the hub."""

    stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    checkpoint: Annotated[Checkpoint, Nested(Checkpoint)]

    @property
    def last_seq(self) -> int:
        return self.checkpoint.upto_seq

    @property
    def order(self) -> tuple[str, int]:
        return self.stream, self.checkpoint.epoch

    def leaf(self) -> bytes:
        return ht("veen/recorder-position", naming.stream_id(self.stream) + self.checkpoint.encode())


@int_map("recorder checkpoint", VersionField(), Constant("veen/recorder-checkpoint", name="kind"))
class RecorderCheckpoint(Wire):
    """`empty` are the streams without entries; `previous` is the hash of the checkpoint before it."""

    hub_id: Annotated[bytes, Bstr()]
    hub_pk: Annotated[bytes, Bstr()]
    profile_id: Annotated[bytes, Bstr()]
    created_at: Annotated[int, Uint()]  # milliseconds since 1970, by the administrator's clock
    log_root: Annotated[bytes, Bstr()]
    positions: Annotated[
        tuple[StreamPosition, ...], ListOf(Nested(StreamPosition, name="position"), most=MAX_POSITIONS)
    ]
    empty: Annotated[tuple[str, ...], ListOf(Text(MAX_TEXT_BYTES, name="stream"), most=MAX_LISTED)]
    admin_pk: Annotated[bytes, Bstr()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    previous: Annotated[bytes | None, Bstr(optional=True)] = None

    def flaw(self) -> str | None:
        if not all(a.order < b.order for a, b in pairwise(self.positions)):
            return "positions are not in strictly ascending order"
        if not all(a < b for a, b in pairwise(self.empty)) or {one.stream for one in self.positions} & set(self.empty):
            return "empty streams are not in strictly ascending order or have a position"
        flaws = (stream_flaw(one) for one in self.streams)
        return next((flaw for flaw in flaws if flaw is not None), None)

    @property
    def streams(self) -> tuple[str, ...]:
        """Every covered stream, ascending."""
        return tuple(sorted({*self.empty, *(one.stream for one in self.positions)}))

    def last_seq(self, stream: str, epoch: int | None = None) -> int:
        """The last covered entry of a stream in an epoch, by default the latest; 0 if there is none."""
        found = [one for one in self.positions if one.stream == stream and epoch in (None, one.checkpoint.epoch)]
        return found[-1].last_seq if found else 0

    def hash(self) -> bytes:
        """The hash that the next checkpoint names as `previous`."""
        return h(self.encode())

    def digest(self) -> bytes:
        """The digest of everything except the signature."""
        return ht("veen/recorder-checkpoint", replace(self, sig=bytes(SIGNATURE_BYTES)).encode())

    def verify(self) -> None:
        """Check the administrator's signature and `log_root`. The hub's signatures are not checked here."""
        signing.verify(self.admin_pk, self.digest(), self.sig, "recorder checkpoint")
        if self.log_root != root_of(self.positions):
            raise Unverified("recorder checkpoint", "log_root does not match its positions")

    def check_follows(self, previous: "RecorderCheckpoint") -> None:
        """Raise `Unverified` if it does not extend the previous checkpoint, or belongs to another recorder."""
        same = (self.hub_id, self.admin_pk) == (previous.hub_id, previous.admin_pk)
        if not same or self.previous != previous.hash():
            raise Unverified("recorder checkpoint", "it does not follow the previous one")
        if self.created_at < previous.created_at:
            raise Unverified("recorder checkpoint", "it is older than the previous one")
        if not set(previous.streams) <= set(self.streams):
            raise Unverified("recorder checkpoint", "it lacks a stream of the previous one")
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
    """Sign a checkpoint with the administrator's key."""
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


_WHAT = "recorder checkpoint"


@dataclass(frozen=True, slots=True)
class VerifiedPosition:
    """The result for one position. `read` counts entries that were verified one by one, if requested."""

    stream: str
    epoch: int
    last_seq: int
    last_hub_ts: int
    next_hub_ts: int | None  # of the next entry, if there is one
    read: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """A valid checkpoint and what follows from it."""

    checkpoint: RecorderCheckpoint
    held: tuple[VerifiedPosition, ...]
    profile: RecorderProfile | None  # None if it could not be read

    @property
    def safe_until(self) -> int | None:
        """The last second for which the checkpoint covers every entry of every stream; None if there is none.

        A window that ends there gives the same entries whenever it is replayed.
        """
        open_ends = [one.next_hub_ts - 1 for one in self.held if one.next_hub_ts is not None]
        return min(open_ends) if open_ends else max((one.last_hub_ts for one in self.held), default=None)


async def verify(source: EntrySource, checkpoint: RecorderCheckpoint, *, full: bool = False) -> CheckpointVerdict:
    """Raise `Unverified` unless the log still matches the checkpoint. `full` reads every covered entry."""
    checkpoint.verify()
    identity = source.known.identity
    if checkpoint.hub_id != identity.hub_id:
        raise Unverified(
            _WHAT, f"it belongs to hub {checkpoint.hub_id.hex()[:16]}…, but this is {identity.hub_id.hex()[:16]}…"
        )
    if checkpoint.hub_pk not in {key.hub_pk for key in identity.hub_keys}:
        raise Unverified(_WHAT, "its hub_pk was never a key of this hub")
    profile = await _profile(source, checkpoint)
    held = [await _verify_position(source, position, full) for position in checkpoint.positions]
    return CheckpointVerdict(checkpoint, tuple(held), profile)


async def _verify_position(source: EntrySource, position: StreamPosition, full: bool) -> VerifiedPosition:
    signed, stream_id = position.checkpoint, naming.stream_id(position.stream)
    where = f"{position.stream} up to entry {signed.upto_seq}"
    _check_signed(source, signed, stream_id)
    bound = LogPrefix(signed.label_curr, signed.epoch, signed.upto_seq, signed.mmr_root)
    found = await source.root_at(stream_id, bound)
    if found is None:
        raise Unverified(_WHAT, f"{where}: the log ends before that: entries are missing")
    if found != signed.mmr_root:
        raise Unverified(_WHAT, f"{where}: the root of the log differs from the signed one")
    last = await source.receipt(stream_id, At(signed.epoch, signed.upto_seq))
    if last.mmr_root != signed.mmr_root:
        raise Unverified(_WHAT, f"{where}: the receipt there signs another root")
    read = await _read(source, position) if full else 0
    after = await _next(source, stream_id, At(signed.epoch, signed.upto_seq + 1))
    return VerifiedPosition(position.stream, signed.epoch, signed.upto_seq, last.hub_ts, after, read)


def _check_signed(source: EntrySource, signed: Checkpoint, stream_id: bytes) -> None:
    """Check that the hub signed the checkpoint, and that it is for this stream."""
    known = source.known
    signed.check_labels(known.profile, known.identity.routing_key, stream_id)
    signer = lineage(known.identity, known.origin).identity_at(signed.label_curr, signed.upto_seq)
    signer.verify_checkpoint(signed, known.profile)


async def _read(source: EntrySource, position: StreamPosition) -> int:
    """Read every entry in order. A skipped or replaced entry changes the root."""
    count, signed = 0, position.checkpoint
    tree = Mmr()
    replay = Replayer(source, position.stream).replay(ReplaySpan(signed.epoch, 1, signed.upto_seq))
    async with aclosing(replay) as entries:
        async for one in entries:
            count += 1
            if one.entry.stream_seq != count:
                raise Unverified(_WHAT, f"{position.stream}: got entry {one.entry.stream_seq} instead of {count}")
            tree.append(one.receipt.leaf_hash)
    if tree.root() != signed.mmr_root:
        raise Unverified(_WHAT, f"{position.stream}: the entries returned do not yield the signed root")
    return count


async def _next(source: EntrySource, stream_id: bytes, at: At) -> int | None:
    try:
        return (await source.receipt(stream_id, at)).hub_ts
    except NoEntry:
        return None


async def _profile(source: EntrySource, checkpoint: RecorderCheckpoint) -> RecorderProfile | None:
    """The named profile from the log. Raises `Unverified` if it is missing or lists other streams."""
    if source.key(naming.stream_id(CHANGES)) is None:
        return None
    found = await _recorded(source, checkpoint.profile_id)
    if found is None:
        raise Unverified(_WHAT, f"{CHANGES} has no profile {checkpoint.profile_id.hex()[:16]}…")
    if found.admin_pk != checkpoint.admin_pk:
        raise Unverified(_WHAT, "it is not signed by the administrator of its profile")
    if checkpoint.streams != found.streams:
        different = sorted(set(found.streams) ^ set(checkpoint.streams))
        raise Unverified(_WHAT, f"its streams differ from those of its profile: {', '.join(different)}")
    return found


async def _recorded(source: EntrySource, profile_id: bytes) -> RecorderProfile | None:
    stream_id = naming.stream_id(CHANGES)
    for epoch in await source.epochs(stream_id, None):
        async with aclosing(source.read(stream_id, epoch, Mmr())) as pages:
            async for page in pages:
                for entry in map(folded, page):
                    steps = RECORDER_CHANGES.read(entry)
                    event = steps[0].event if isinstance(steps, tuple) and steps else None
                    if isinstance(event, RecorderProfile) and event.profile_id() == profile_id:
                        return event
    return None
