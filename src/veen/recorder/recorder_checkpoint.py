"""A recorder checkpoint: the position of each of its streams at one moment, signed. 001, products-spec-1 §3.2.4.

`make` makes one on request, `make_when_due` by time and volume in the background, and `verify` compares one with a log.
It contains checkpoints signed by the hub, so its maker need not be trusted for them. The administrator's signature
states that these are all streams of the recorder, under that profile, at that time.

    position    Ht("veen/recorder-position", stream name's id || the hub's CHECKPOINT)
    log_root    the root of the tree whose leaves are the positions, in the order they are listed
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from veen.client import local_files
from veen.client.client import Client
from veen.core import Checkpoint, Mmr, SigningKey, Unverified, mmr, naming, signing
from veen.core.cbor import Bstr, Constant, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.hashing import h, ht
from veen.core.hub_identity import lineage
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.overlays import At
from veen.overlays.kept_fold import LogPrefix
from veen.overlays.record import CHANGES, MAX_LISTED, RECORDER_CHANGES, RecorderProfile, stream_flaw
from veen.recorder.replay import Replayer, ReplaySpan
from veen.recorder.routes import RecorderRefused, read_states, required_profile
from veen.state.entry_source import EntrySource, HubSource, NoEntry, all_entries, folded

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
    if checkpoint.hub_pk not in {key.hub_pk for key in identity.signing_keys}:
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
    async with aclosing(all_entries(source, naming.stream_id(CHANGES))) as entries:
        async for entry in entries:
            steps = RECORDER_CHANGES.read(folded(entry))
            event = steps[0].event if isinstance(steps, tuple) and steps else None
            if isinstance(event, RecorderProfile) and event.profile_id() == profile_id:
                return event
    return None


_POLL_S = 1.0
_MS = 1_000


class CheckpointFolder:
    """Checkpoint files in the order they were made. Each names the one before it."""

    def __init__(self, path: Path) -> None:
        local_files.DISK.make_folder(path, parents=True)
        self.path = path

    @classmethod
    def of(cls, client: Client) -> "CheckpointFolder":
        """The folder of an administrator for one hub."""
        return cls.at(client.dir.path, client.hub_id)

    @classmethod
    def at(cls, client_dir: Path, hub_id: bytes) -> "CheckpointFolder":
        return cls(client_dir / "recorder" / "checkpoints" / hub_id.hex()[:16])

    def files(self) -> list[Path]:
        return sorted(self.path.glob(f"*{SUFFIX}"))

    def latest(self) -> RecorderCheckpoint | None:
        files = self.files()
        return RecorderCheckpoint.decode(files[-1].read_bytes()) if files else None

    def add(self, made: RecorderCheckpoint) -> Path:
        path = self.path / f"{made.created_at:015d}-{made.hash().hex()[:8]}{SUFFIX}"
        local_files.replace_file(path, made.encode())
        return path


async def make(client: Client, previous: RecorderCheckpoint | None) -> RecorderCheckpoint:
    """Make a checkpoint of every stream of the recorder. Only its administrator can."""
    profile = await _own_profile(client)
    positions: list[StreamPosition] = []
    empty: list[str] = []
    for stream in profile.streams:
        found = await _positions(client, stream, previous)
        positions += found
        if not found:
            empty.append(stream)
    now = time.time_ns() // 1_000_000
    return sign(
        client.dir.identity.id_sign,
        hub_id=client.hub_id,
        hub_pk=client.session.status.hub_pk,
        profile_id=profile.profile_id(),
        created_at=max(now, previous.created_at if previous else 0),
        positions=positions,
        empty=empty,
        previous=previous,
    )


async def _own_profile(client: Client) -> RecorderProfile:
    profile = required_profile(await read_states(client))
    if profile.admin_pk != client.dir.card.id_sign:
        raise RecorderRefused(
            f"only the administrator {profile.admin_pk.hex()[:16]}… can make checkpoints of this recorder"
        )
    return profile


async def _positions(client: Client, stream: str, previous: RecorderCheckpoint | None) -> list[StreamPosition]:
    """Positions by epoch, from the last epoch of the previous checkpoint: earlier ones accept no more entries."""
    known = [one.checkpoint.epoch for one in previous.positions if one.stream == stream] if previous else []
    found = []
    for epoch in await HubSource(client).epochs(naming.stream_id(stream), max(known, default=None)):
        end = await client.follower(stream, epoch).end()
        if end:
            found.append(StreamPosition(stream, await client.checkpoint(stream, end, epoch=epoch)))
    return found


async def ends(client: Client, profile: RecorderProfile) -> dict[str, int]:
    """The number of entries of each stream in the current epoch."""
    return {stream: await client.follower(stream).end() for stream in profile.streams}


def is_due(
    profile: RecorderProfile, last: RecorderCheckpoint | None, now_ms: int, streams: Mapping[str, int], epoch: int
) -> bool:
    """Whether enough time has passed or enough was written since the last checkpoint. Never if nothing was written."""
    written = sum(end - (last.last_seq(stream, epoch) if last else 0) for stream, end in streams.items())
    if written <= 0:
        return False
    if last is None or (profile.every_events is not None and written >= profile.every_events):
        return True
    return profile.every_sec is not None and now_ms - last.created_at >= profile.every_sec * _MS


async def make_when_due(client: Client, folder: CheckpointFolder) -> AsyncGenerator[RecorderCheckpoint, None]:
    """Make a checkpoint whenever one is due, forever."""
    while True:
        profile, last = await _own_profile(client), folder.latest()
        while not is_due(profile, last, time.time_ns() // 1_000_000, await ends(client, profile), client.epoch()):
            await asyncio.sleep(_POLL_S)
        made = await make(client, last)
        await asyncio.to_thread(folder.add, made)
        yield made
