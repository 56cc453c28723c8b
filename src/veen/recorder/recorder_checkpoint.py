"""A recorder's checkpoint: where each of its streams was at one moment, signed. 001, products-spec-1 §3.2.4.

The hub's own signed checkpoints are in it, so it needs no trust in whoever made it; the administrator's signature says
that these are all the streams of that recorder, under that profile, at that time.

    position    Ht("veen/recorder-position", stream name's id || the hub's CHECKPOINT)
    log_root    the root of the tree whose leaves are the positions, in the order they are listed
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from veen.core import Checkpoint, Mmr, SigningKey, Unverified, mmr, naming, signing
from veen.core.cbor import Bstr, Constant, ListOf, Map, Nested, Text, Uint, VersionField, Wire
from veen.core.hashing import h, ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.origin import lineage
from veen.core.signing import SIGNATURE_BYTES
from veen.overlays import At
from veen.overlays.kept_fold import LogPrefix
from veen.overlays.record import CHANGES, RECORDER_CHANGES, RecorderProfile
from veen.overlays.record.record_events import MAX_LISTED, stream_flaw
from veen.recorder.replay import Replayer, ReplaySpan
from veen.state.entry_source import EntrySource, NoEntry, folded

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
            1: VersionField(),
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


_WHAT = "recorder checkpoint"


@dataclass(frozen=True, slots=True)
class CheckpointHeld:
    """What was found of one position: `read` entries were verified one by one, where that was asked for."""

    stream: str
    epoch: int
    last_seq: int
    last_hub_ts: int
    next_hub_ts: int | None  # of the entry after it, where there is one
    read: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """A checkpoint that holds, and what follows from it."""

    checkpoint: RecorderCheckpoint
    held: tuple[CheckpointHeld, ...]
    profile: RecorderProfile | None  # where it could be read

    @property
    def safe_until(self) -> int | None:
        """The last second of which every entry, in every stream, is under the checkpoint; None where none is.

        A window that ends there gives the same entries whenever it is replayed.
        """
        open_ends = [one.next_hub_ts - 1 for one in self.held if one.next_hub_ts is not None]
        return min(open_ends) if open_ends else max((one.last_hub_ts for one in self.held), default=None)


async def verify(source: EntrySource, checkpoint: RecorderCheckpoint, *, full: bool = False) -> CheckpointVerdict:
    """Raise unless the log still is what the checkpoint says; with `full`, read every entry that it covers."""
    checkpoint.verify()
    identity = source.known.identity
    if checkpoint.hub_id != identity.hub_id:
        raise Unverified(
            _WHAT, f"it is of hub {checkpoint.hub_id.hex()[:16]}…, and this is {identity.hub_id.hex()[:16]}…"
        )
    if checkpoint.hub_pk not in {key.hub_pk for key in identity.hub_keys}:
        raise Unverified(_WHAT, "its hub_pk was never a key of this hub")
    profile = await _profile(source, checkpoint)
    held = [await _hold(source, position, full) for position in checkpoint.positions]
    return CheckpointVerdict(checkpoint, tuple(held), profile)


async def _hold(source: EntrySource, position: StreamPosition, full: bool) -> CheckpointHeld:
    word, stream_id = position.checkpoint, naming.stream_id(position.stream)
    where = f"{position.stream} up to entry {word.upto_seq}"
    _check_word(source, word, stream_id)
    bound = LogPrefix(word.label_curr, word.epoch, word.upto_seq, word.mmr_root)
    found = await source.root_at(stream_id, bound)
    if found is None:
        raise Unverified(_WHAT, f"{where}: the log ends before that, and entries that were there are missing")
    if found != word.mmr_root:
        raise Unverified(_WHAT, f"{where}: the log has another root than the one that was signed")
    last = await source.receipt(stream_id, At(word.epoch, word.upto_seq))
    if last.mmr_root != word.mmr_root:
        raise Unverified(_WHAT, f"{where}: the receipt there signs another root")
    read = await _read(source, position) if full else 0
    after = await _next(source, stream_id, At(word.epoch, word.upto_seq + 1))
    return CheckpointHeld(position.stream, word.epoch, word.upto_seq, last.hub_ts, after, read)


def _check_word(source: EntrySource, word: Checkpoint, stream_id: bytes) -> None:
    """It is the hub's, and of this stream."""
    known = source.known
    word.check_labels(known.profile, known.identity.routing_key, stream_id)
    signer = lineage(known.identity, known.origin).identity_at(word.label_curr, word.upto_seq)
    signer.verify_checkpoint(word, known.profile)


async def _read(source: EntrySource, position: StreamPosition) -> int:
    """Every entry, in order: a place that is passed over, or filled otherwise, does not come to the root."""
    count, word = 0, position.checkpoint
    tree = Mmr()
    replay = Replayer(source, position.stream).replay(ReplaySpan(word.epoch, 1, word.upto_seq))
    async with aclosing(replay) as entries:
        async for one in entries:
            count += 1
            if one.entry.stream_seq != count:
                raise Unverified(_WHAT, f"{position.stream}: entry {one.entry.stream_seq} is shown as the {count}th")
            tree.append(one.receipt.leaf_hash)
    if tree.root() != word.mmr_root:
        raise Unverified(_WHAT, f"{position.stream}: the entries that are shown do not come to the signed root")
    return count


async def _next(source: EntrySource, stream_id: bytes, at: At) -> int | None:
    try:
        return (await source.receipt(stream_id, at)).hub_ts
    except NoEntry:
        return None


async def _profile(source: EntrySource, checkpoint: RecorderCheckpoint) -> RecorderProfile | None:
    """The profile that it names, from the log. Raises where there is none, or it leaves a stream out."""
    if source.key(naming.stream_id(CHANGES)) is None:
        return None
    found = await _recorded(source, checkpoint.profile_id)
    if found is None:
        raise Unverified(_WHAT, f"{CHANGES} has no profile {checkpoint.profile_id.hex()[:16]}…")
    if found.admin_pk != checkpoint.admin_pk:
        raise Unverified(_WHAT, "it is not signed by the administrator of its profile")
    if checkpoint.streams != found.streams:
        left = sorted(set(found.streams) ^ set(checkpoint.streams))
        raise Unverified(_WHAT, f"its streams are not those of its profile: {', '.join(left)}")
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
