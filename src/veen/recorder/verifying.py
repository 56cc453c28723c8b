"""Holding a checkpoint against the log: nothing up to it may be missing, changed or in another order. §3.4, I2."""

from contextlib import aclosing
from dataclasses import dataclass

from veen.core import Checkpoint, Mmr, Unverified, naming
from veen.core.origin import lineage
from veen.overlays import At
from veen.overlays.blocks import Bound
from veen.overlays.record import CHANGES, RECORDER_CHANGES, RecorderProfile
from veen.recorder.checkpoint import RecorderCheckpoint, StreamPosition
from veen.recorder.replay import Replayer, Span
from veen.state.source import NoEntry, Source, folded

_WHAT = "recorder checkpoint"


@dataclass(frozen=True, slots=True)
class Held:
    """What was found of one position: `read` entries were verified one by one, where that was asked for."""

    stream: str
    epoch: int
    last_seq: int
    last_hub_ts: int
    next_hub_ts: int | None  # of the entry after it, where there is one
    read: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A checkpoint that holds, and what follows from it."""

    checkpoint: RecorderCheckpoint
    held: tuple[Held, ...]
    profile: RecorderProfile | None  # where it could be read

    @property
    def safe_until(self) -> int | None:
        """The last second of which every entry, in every stream, is under the checkpoint; None where none is.

        A window that ends there gives the same entries whenever it is replayed.
        """
        open_ends = [one.next_hub_ts - 1 for one in self.held if one.next_hub_ts is not None]
        return min(open_ends) if open_ends else max((one.last_hub_ts for one in self.held), default=None)


async def verify(source: Source, checkpoint: RecorderCheckpoint, *, full: bool = False) -> Verdict:
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
    return Verdict(checkpoint, tuple(held), profile)


async def _hold(source: Source, position: StreamPosition, full: bool) -> Held:
    word, stream_id = position.checkpoint, naming.stream_id(position.stream)
    where = f"{position.stream} up to entry {word.upto_seq}"
    _check_word(source, word, stream_id)
    bound = Bound(word.label_curr, word.epoch, word.upto_seq, word.mmr_root)
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
    return Held(position.stream, word.epoch, word.upto_seq, last.hub_ts, after, read)


def _check_word(source: Source, word: Checkpoint, stream_id: bytes) -> None:
    """It is the hub's, and of this stream."""
    known = source.known
    word.check_labels(known.profile, known.identity.routing_key, stream_id)
    signer = lineage(known.identity, known.origin).identity_at(word.label_curr, word.upto_seq)
    signer.verify_checkpoint(word, known.profile)


async def _read(source: Source, position: StreamPosition) -> int:
    """Every entry, in order: a place that is passed over, or filled otherwise, does not come to the root."""
    count, word = 0, position.checkpoint
    tree = Mmr()
    replay = Replayer(source, position.stream).replay(Span(word.epoch, 1, word.upto_seq))
    async with aclosing(replay) as entries:
        async for one in entries:
            count += 1
            if one.entry.stream_seq != count:
                raise Unverified(_WHAT, f"{position.stream}: entry {one.entry.stream_seq} is shown as the {count}th")
            tree.append(one.receipt.leaf_hash)
    if tree.root() != word.mmr_root:
        raise Unverified(_WHAT, f"{position.stream}: the entries that are shown do not come to the signed root")
    return count


async def _next(source: Source, stream_id: bytes, at: At) -> int | None:
    try:
        return (await source.receipt(stream_id, at)).hub_ts
    except NoEntry:
        return None


async def _profile(source: Source, checkpoint: RecorderCheckpoint) -> RecorderProfile | None:
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


async def _recorded(source: Source, profile_id: bytes) -> RecorderProfile | None:
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
