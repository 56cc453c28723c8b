"""Publishes anchors of a stream, once or periodically; stores them; verifies them. 001, ANCHOR0.2."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from veen.bridge.anchors.statement import (
    KIND,
    MAX_ANCHOR_BYTES,
    Anchored,
    AnchorStatement,
    Backend,
    anchor_publish,
    anchor_verify,
)
from veen.bridge.bundle import BundleSource
from veen.client import local_files
from veen.client.client import Client
from veen.client.local_files import DISK
from veen.core import Malformed, Unavailable, naming
from veen.core.hashing import h

ANCHOR_SUFFIX = ".anchor"


class AnchorStore:
    """A folder with one file per anchored checkpoint, named by label, number and backend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, anchored: Anchored) -> Path:
        """Store an anchor durably. Storing it again gives the same file."""
        data = anchored.encode()
        checkpoint = anchored.checkpoint
        place = f"{checkpoint.label_curr.hex()}-{checkpoint.upto_seq:020}"
        path = self.folder / f"{place}-{anchored.ref.kind}-{h(data).hex()[:16]}{ANCHOR_SUFFIX}"
        DISK.make_folder(self.folder)
        DISK.write_file(path, data)
        DISK.sync_folder(self.folder)
        return path

    def __iter__(self) -> Iterator[tuple[Path, Anchored]]:
        """All anchors, by label and number. Raises `Malformed` for a file that is not an anchor."""
        for path in sorted(self.folder.glob(f"*{ANCHOR_SUFFIX}")):
            yield path, read_anchor(path)

    def last(self, label: bytes, kind: str) -> Anchored | None:
        """The anchor of a label with this kind of backend that covers most entries."""
        paths = sorted(self.folder.glob(f"{label.hex()}-*-{kind}-*{ANCHOR_SUFFIX}"))
        return read_anchor(paths[-1]) if paths else None


def read_anchor(path: Path) -> Anchored:
    try:
        return Anchored.decode(local_files.read_file(path, 2 * MAX_ANCHOR_BYTES))
    except Malformed as error:
        raise Malformed(f"{path} ({KIND})", error.reason) from None


@dataclass(frozen=True, slots=True)
class Cadence:
    """The next anchor is due after `entries` new entries, or after `seconds` if there is any new entry."""

    entries: int | None = None
    seconds: int | None = None

    def __post_init__(self) -> None:
        given = [one for one in (self.entries, self.seconds) if one is not None]
        if not given or any(one < 1 for one in given):
            raise ValueError("a cadence needs entries, seconds or both, each at least 1")

    def due(self, last: tuple[int, int] | None, size: int, now: int) -> bool:
        """`last` is the size and time of the previous anchor, None if there is none."""
        anchored, since = last or (0, 0)
        if size <= anchored:
            return False
        by_count = self.entries is not None and size - anchored >= self.entries
        return by_count or (self.seconds is not None and now - since >= self.seconds)


@dataclass(frozen=True, slots=True)
class PublishedAnchor:
    """A verified anchor and its file."""

    path: Path
    anchored: Anchored


async def publish(
    client: Client, stream: str, backend: Backend, store: AnchorStore, *, upto_seq: int | None = None
) -> PublishedAnchor:
    """Anchor the checkpoint of a stream and store the `anchor_ref` with it."""
    stream_id, epoch = naming.stream_id(stream), client.epoch()
    checkpoint = await client.checkpoint(stream_id, upto_seq, epoch=epoch)
    statement = AnchorStatement.of(checkpoint, max(client.session.clock.now(), 0))
    ref = await anchor_publish(backend, statement.root, statement.epoch, statement.ts, statement.nonce)
    anchored = Anchored(BundleSource.of(client.session.trust.known), stream_id, checkpoint, ref)
    return PublishedAnchor(store.put(anchored), anchored)


async def run(
    client: Client, stream: str, backend: Backend, store: AnchorStore, cadence: Cadence, poll_s: float
) -> AsyncIterator[PublishedAnchor]:
    """Anchor a stream for ever. The store shows what was anchored before."""
    while True:
        found = await once(client, stream, backend, store, cadence)
        if found is not None:
            yield found
        await asyncio.sleep(poll_s)


async def once(
    client: Client, stream: str, backend: Backend, store: AnchorStore, cadence: Cadence
) -> PublishedAnchor | None:
    """Anchor a stream if it is due."""
    await client.status()
    follower = client.follower(stream)
    size, now = await follower.end(), client.session.clock.now()
    before = store.last(follower.label, backend.kind)
    last = None if before is None else (before.checkpoint.upto_seq, before.ref.statement.ts)
    if not cadence.due(last, size, now):
        return None
    return await publish(client, stream, backend, store, upto_seq=size)


async def verify(anchored: Anchored, backend: Backend, pin: bytes) -> int:
    """The time the checkpoint was anchored. Raises if the pinned hub did not sign it or the anchor does not verify."""
    anchored.check_checkpoint(pin)
    try:
        return await anchor_verify(backend, anchored.checkpoint.mmr_root, anchored.anchor_ref)
    except Unavailable as error:
        raise Unavailable(f"the anchor cannot be checked: {error}") from None
