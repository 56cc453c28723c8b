"""Make checkpoints on request, or by time and volume in the background. 001, products-spec-1 §3.2.4."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from veen.client import local_files
from veen.client.client import Client
from veen.core import Refused, naming
from veen.overlays.record import RecorderProfile, profile_of
from veen.recorder.recorder_checkpoint import SUFFIX, RecorderCheckpoint, StreamPosition, sign
from veen.recorder.routes import CODE, NotSetUp, read_states
from veen.state.hub_source import HubSource

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
    profile = profile_of(await read_states(client))
    if profile is None:
        raise NotSetUp
    if profile.admin_pk != client.dir.card.id_sign:
        raise Refused(
            CODE, f"only the administrator {profile.admin_pk.hex()[:16]}… can make checkpoints of this recorder"
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
