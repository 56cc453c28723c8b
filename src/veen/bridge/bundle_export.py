"""Taking events out of a zone: bundles of what has not left yet, each in the audit log before its file is there.

A bundle is written as a draft, announced on `bridge/online/log`, and then given its name. What a crash leaves:

    a draft that the log does not know    nobody has seen it: it is removed, and its events go into another bundle
    a draft that the log knows            it is given its name when the exporter runs again
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from veen.bridge import bundle as bundles
from veen.bridge import bundle_verify, zone_roles
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
)
from veen.bridge.bundle_verify import VerifiedBundle
from veen.bridge.reconciliation import exported
from veen.client import durable
from veen.client.client import Client
from veen.client.draft import Draft
from veen.client.durable import DISK
from veen.core import Refused, Unavailable, naming
from veen.overlays.bridging import EXPORTS, ONLINE_LOG, exported_ranges
from veen.overlays.operations import missing
from veen.state import HubSource, StateView

DRAFT_SUFFIX = ".draft"
DEFAULT_EVENTS = 1_000
DEFAULT_BYTES = 1 << 24
_MARK = b"bridge/export"
_AROUND_BYTES = 700  # all of a carried event but its ciphertext, at most


@dataclass(frozen=True, slots=True)
class BundleSizes:
    """How large a bundle may get: it ends with whatever comes first."""

    events: int = DEFAULT_EVENTS
    size: int = DEFAULT_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.events <= MAX_BUNDLE_EVENTS or not 1 <= self.size <= bundles.MAX_BUNDLE_BYTES // 2:
            raise ValueError("a bundle has at least one event, and no more than the format allows")


DEFAULT_SIZES = BundleSizes()


@dataclass(frozen=True, slots=True)
class ExportRange:
    """A stretch of a stream in one epoch."""

    epoch: int
    first: int
    last: int


async def build(
    client: Client, stream: str, wanted: ExportRange, *, profile_id: str = "", upto_seq: int | None = None
) -> Bundle:
    """The bundle of exactly these events, under the checkpoint that ends with them or a later one.

    The same events and the same `upto_seq` make the same bytes, whenever it is made.
    """
    events = []
    async with aclosing(client.read(stream, wanted.first, wanted.last, epoch=wanted.epoch)) as entries:
        async for entry in entries:
            events.append(BundleEvent(entry.msg, entry.receipt))
    if len(events) != wanted.last - wanted.first + 1:
        raise Unavailable(f"the stream has no entry {wanted.last} yet")
    return await _bundle(client, stream, wanted.epoch, events, profile_id, upto_seq)


async def _bundle(
    client: Client, stream: str, epoch: int, events: Sequence[BundleEvent], profile_id: str, upto_seq: int | None
) -> Bundle:
    known, stream_id = client.contact.trust.known, naming.stream_id(stream)
    first, last = events[0].receipt, events[-1].receipt
    upto = last.stream_seq if upto_seq is None else upto_seq
    if upto < last.stream_seq:
        raise ValueError(f"the log of {upto} entries does not have entry {last.stream_seq}")
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
        BundleProof(before.peaks, proved.mmr_proof),
    )
    return Bundle.of(contents)


class Exporter:
    """One zone's way out."""

    def __init__(
        self,
        client: Client,
        folder: Path,
        *,
        operator: str | None = None,
        profile_id: str = "",
        log: str = ONLINE_LOG,
    ) -> None:
        """`folder` is where bundles are put down. Raises `BothWays` where this identity may not be the exporter."""
        zone_roles.check_exporter(client.dir, log)
        self._log = log
        self.client = client
        self.folder = folder
        self.operator = operator or f"client:{client.dir.card.id_sign.hex()}"
        self._profile_id = profile_id

    async def recover(self) -> list[VerifiedBundle]:
        """Give drafts that the log knows their names, and remove the rest: what a crash left."""
        await self.client.recover()
        done = []
        for draft in sorted(self.folder.glob(f".*{SUFFIX}{DRAFT_SUFFIX}")):
            try:
                found = self._verified(durable.read_file(draft, bundles.MAX_BUNDLE_BYTES))
            except BundleFault:
                draft.unlink()
                continue
            if self._announced(found.bundle):
                self._name(draft, found.bundle)
                done.append(found)
            else:
                draft.unlink()
        return done

    async def run(self, stream: str, sizes: BundleSizes = DEFAULT_SIZES) -> AsyncGenerator[VerifiedBundle, None]:
        """Bundles of all that has not left yet, by what the audit log says."""
        for found in await self.recover():
            yield found
        for wanted in await self.waiting(stream):
            async with aclosing(self._bundles(stream, wanted, sizes)) as made:
                async for bundle in made:
                    yield await self.put(bundle)

    async def waiting(self, stream: str) -> list[ExportRange]:
        """What has not left yet, in order."""
        source, stream_id = HubSource(self.client), naming.stream_id(stream)
        async with StateView(source, self._log, EXPORTS) as view, view.reading() as reading:
            gone = exported_ranges(dict(reading.states))
        found = []
        for epoch in await source.epochs(stream_id, None):
            end = await self._end(stream_id, epoch)
            known = gone.get((self.client.hub_id, stream, epoch), ())
            found += [ExportRange(epoch, first, last) for first, last in missing(known, end)]
        return found

    async def _end(self, stream_id: bytes, epoch: int) -> int:
        try:
            return await self.client.follower(stream_id, epoch).end()
        except Refused as refused:
            if refused.code == "E.NOT_FOUND":
                return 0
            raise

    async def _bundles(self, stream: str, wanted: ExportRange, sizes: BundleSizes) -> AsyncGenerator[Bundle, None]:
        events: list[BundleEvent] = []
        size = 0
        async with aclosing(self.client.read(stream, wanted.first, wanted.last, epoch=wanted.epoch)) as entries:
            async for entry in entries:
                carried = BundleEvent(entry.msg, entry.receipt)
                grown = size + len(entry.msg.ciphertext) + _AROUND_BYTES
                if events and (len(events) == sizes.events or grown > sizes.size):
                    yield await _bundle(self.client, stream, wanted.epoch, events, self._profile_id, None)
                    events, grown = [], grown - size
                events.append(carried)
                size = grown
        if events:
            yield await _bundle(self.client, stream, wanted.epoch, events, self._profile_id, None)

    async def put(self, bundle: Bundle) -> VerifiedBundle:
        """Announce a bundle and put it down: the file is there entirely, and only once the log knows of it."""
        data = bundle.encode()
        found = self._verified(data)
        draft = self.folder / f".{bundle.name}{DRAFT_SUFFIX}"
        DISK.write_file(draft, data)
        DISK.sync_folder(self.folder)
        if not self._announced(bundle):
            event = exported(found, self.operator)
            body = Draft(event.encode(), event.SCHEMA, mark=self._mark(bundle))
            await self.client.sender(self._log).put(body)
        self._name(draft, bundle)
        return found

    def _verified(self, data: bytes) -> VerifiedBundle:
        """What leaves is verified as whoever receives it will."""
        return bundle_verify.verify(data, {self.client.hub_id})

    def _name(self, draft: Path, bundle: Bundle) -> None:
        DISK.replace(draft, self.folder / bundle.name)
        DISK.sync_folder(self.folder)

    def _mark(self, bundle: Bundle) -> bytes:
        return _MARK + self.client.hub_id + bundle.bundle_id

    def _announced(self, bundle: Bundle) -> bool:
        mark = self._mark(bundle)
        return mark in self.client.dir.outbox.marks(mark)
