"""Export: bundle the events that have not left the zone, and announce each bundle in the audit log before it appears.

The exporter writes a bundle as a draft, announces it on `bridge/online/log`, and then renames it to its final name.
A crash leaves one of these:

    a draft that the log does not mention    deleted; its events go into another bundle
    a draft that the log announces           renamed when the exporter runs again
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from veen.bridge import bundle as bundles
from veen.bridge import zone_roles
from veen.bridge.bundle import (
    MAX_BUNDLE_EVENTS,
    SUFFIX,
    Bundle,
    BundleEvent,
    BundleFault,
    BundleProof,
    BundleSource,
    Contents,
    ExportCheckpoint,
    Header,
    VerifiedBundle,
)
from veen.bridge.reconciliation import exported
from veen.client import local_files
from veen.client.client import Client
from veen.client.local_files import DISK
from veen.client.sender import Draft
from veen.core import Unavailable, naming
from veen.core.retention import Tombstone
from veen.overlays.bridge_logs import EXPORTS, ONLINE_LOG, exported_ranges
from veen.overlays.operations.mirror import missing
from veen.state import HubSource
from veen.state.entry_source import stream_end
from veen.state.state_view import read_states

DRAFT_SUFFIX = ".draft"
DEFAULT_EVENTS = 1_000
DEFAULT_BYTES = 1 << 24
_MARK_PREFIX = b"bridge/export"
_EVENT_OVERHEAD_BYTES = 700  # upper bound for a bundled event without its ciphertext


@dataclass(frozen=True, slots=True)
class BundleSizes:
    """The maximum size of a bundle; a bundle ends at the limit it reaches first."""

    events: int = DEFAULT_EVENTS
    size: int = DEFAULT_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.events <= MAX_BUNDLE_EVENTS or not 1 <= self.size <= bundles.MAX_BUNDLE_BYTES // 2:
            raise ValueError(
                f"a bundle has 1 to {MAX_BUNDLE_EVENTS} events and 1 to {bundles.MAX_BUNDLE_BYTES // 2} bytes"
            )


DEFAULT_SIZES = BundleSizes()


@dataclass(frozen=True, slots=True)
class ExportRange:
    """A range of a stream within one epoch."""

    epoch: int
    first: int
    last: int


async def build(
    client: Client, stream: str, wanted: ExportRange, *, profile_id: str = "", upto_seq: int | None = None
) -> Bundle:
    """Build the bundle of exactly these events, under a checkpoint of `upto_seq` entries (default: the last event).

    The bytes depend only on the events and `upto_seq`, not on when the bundle is built. Raises `PrunedEntries` if the
    hub pruned one of the events.
    """
    events = []
    async with aclosing(client.read(stream, wanted.first, wanted.last, epoch=wanted.epoch)) as entries:
        async for entry in entries:
            events.append(BundleEvent(entry.msg, entry.receipt))
    if len(events) != wanted.last - wanted.first + 1:
        raise Unavailable(f"stream {stream!r} has no entry {wanted.last} yet")
    return await _build_bundle(client, stream, wanted.epoch, events, profile_id, upto_seq)


async def _build_bundle(
    client: Client, stream: str, epoch: int, events: Sequence[BundleEvent], profile_id: str, upto_seq: int | None
) -> Bundle:
    known, stream_id = client.session.trust.known, naming.stream_id(stream)
    first, last = events[0].receipt, events[-1].receipt
    upto = last.stream_seq if upto_seq is None else upto_seq
    if upto < last.stream_seq:
        raise ValueError(f"upto_seq {upto} is below the last event {last.stream_seq}")
    checkpoint = await client.checkpoint(stream_id, upto, epoch=epoch)
    receipt = last if upto == last.stream_seq else await client.receipt(stream_id, upto, epoch=epoch)
    before = await client.follower(stream_id, epoch).tree_at(first.stream_seq - 1)
    proved = await client.proof(stream_id, last.stream_seq, upto, epoch=epoch)
    source = BundleSource.of(known)
    signer = known.identity.verify_checkpoint(checkpoint, known.profile)
    seqs, times = (first.stream_seq, last.stream_seq), (first.hub_ts, last.hub_ts)
    contents = Contents(
        Header(known.identity.hub_id, profile_id, stream, stream_id, epoch, *seqs, *times),
        source,
        ExportCheckpoint(checkpoint.mmr_root, upto, receipt.hub_ts, signer.hub_pk, checkpoint, receipt),
        tuple(events),
        BundleProof(tuple(before.peaks), proved.mmr_proof),
    )
    return Bundle.of(contents)


class Exporter:
    """Exports streams of one zone as bundles."""

    def __init__(
        self,
        client: Client,
        folder: Path,
        *,
        operator: str | None = None,
        profile_id: str = "",
        log: str = ONLINE_LOG,
    ) -> None:
        """Bundles are written to `folder`. Raises `RoleConflict` if this identity may not export."""
        zone_roles.check_exporter(client.dir, log)
        self._log = log
        self.client = client
        self.folder = folder
        self.operator = operator or f"client:{client.dir.card.id_sign.hex()}"
        self._profile_id = profile_id

    async def recover(self) -> list[VerifiedBundle]:
        """Finish after a crash: publish drafts that the log announces, delete the others."""
        await self.client.recover()
        done = []
        for draft in sorted(self.folder.glob(f".*{SUFFIX}{DRAFT_SUFFIX}")):
            try:
                found = self._verified(local_files.read_file(draft, bundles.MAX_BUNDLE_BYTES))
            except BundleFault:
                draft.unlink()
                continue
            if self._announced(found.bundle):
                self._publish_file(draft, found.bundle)
                done.append(found)
            else:
                draft.unlink()
        return done

    async def run(
        self,
        stream: str,
        sizes: BundleSizes = DEFAULT_SIZES,
        *,
        on_pruned: Callable[[Tombstone], None] | None = None,
    ) -> AsyncGenerator[VerifiedBundle, None]:
        """Export every event that the audit log does not list as exported.

        Events that the hub pruned raise `PrunedEntries`; with `on_pruned` they are left out, and it is called with the
        verified tombstone. A bundle has no gaps, so it ends before them.
        """
        for found in await self.recover():
            yield found
        for wanted in await self.waiting(stream):
            async with aclosing(self._bundles(stream, wanted, sizes, on_pruned)) as made:
                async for bundle in made:
                    yield await self.put(bundle)

    async def waiting(self, stream: str) -> list[ExportRange]:
        """The ranges that have not been exported, in order."""
        source, stream_id = HubSource(self.client), naming.stream_id(stream)
        gone = exported_ranges(await read_states(source, self._log, EXPORTS))
        found = []
        for epoch in await source.epochs(stream_id, None):
            end = await stream_end(self.client, stream_id, epoch)
            known = gone.get((self.client.hub_id, stream, epoch), ())
            found += [ExportRange(epoch, first, last) for first, last in missing(known, end)]
        return found

    async def _bundles(
        self, stream: str, wanted: ExportRange, sizes: BundleSizes, on_pruned: Callable[[Tombstone], None] | None
    ) -> AsyncGenerator[Bundle, None]:
        events: list[BundleEvent] = []
        size = 0
        read = self.client.read(stream, wanted.first, wanted.last, epoch=wanted.epoch, on_pruned=on_pruned)
        async with aclosing(read) as entries:
            async for entry in entries:
                carried = BundleEvent(entry.msg, entry.receipt)
                grown = size + len(entry.msg.ciphertext) + _EVENT_OVERHEAD_BYTES
                is_gap = bool(events) and events[-1].receipt.stream_seq + 1 != entry.stream_seq
                if events and (is_gap or len(events) == sizes.events or grown > sizes.size):
                    yield await _build_bundle(self.client, stream, wanted.epoch, events, self._profile_id, None)
                    events, grown = [], grown - size
                events.append(carried)
                size = grown
        if events:
            yield await _build_bundle(self.client, stream, wanted.epoch, events, self._profile_id, None)

    async def put(self, bundle: Bundle) -> VerifiedBundle:
        """Announce a bundle, then publish its file. The file never appears before the log entry, or incomplete."""
        data = bundle.encode()
        found = self._verified(data)
        draft = self.folder / f".{bundle.name}{DRAFT_SUFFIX}"
        DISK.write_file(draft, data)
        DISK.sync_folder(self.folder)
        if not self._announced(bundle):
            event = exported(found, self.operator)
            body = Draft(event.encode(), event.SCHEMA, mark=self._mark(bundle))
            await self.client.sender(self._log).put(body)
        self._publish_file(draft, bundle)
        return found

    def _verified(self, data: bytes) -> VerifiedBundle:
        """Verify with the receiver's checks before the bundle leaves."""
        return bundles.verify(data, {self.client.hub_id})

    def _publish_file(self, draft: Path, bundle: Bundle) -> None:
        DISK.replace(draft, self.folder / bundle.name)
        DISK.sync_folder(self.folder)

    def _mark(self, bundle: Bundle) -> bytes:
        return _MARK_PREFIX + self.client.hub_id + bundle.bundle_id

    def _announced(self, bundle: Bundle) -> bool:
        mark = self._mark(bundle)
        return mark in self.client.dir.outbox.marks(mark)
