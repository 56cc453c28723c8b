"""Online mirrors: copy messages of one hub to another, with a record of their origin. 001, ANCHOR0.3, spec-3 §10.

The mirror writes two messages to the target for each source message: the payload with `parent_id` set to the original,
and a `federation.mirror.v1` record with the content of the source's receipt. Overlays count a copy once, by its
`parent_id`, so ids of wallets and identities do not change.

The target's log itself shows what is mirrored. A mirror can be stopped, killed, or continued by another operator.
"""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from veen.client.client import Client
from veen.client.reader import Entry
from veen.client.sender import Draft, Sent
from veen.core import Malformed, Refused, Unavailable, Unverified, naming
from veen.core.hub_identity import lineage
from veen.core.retention import PRUNED, Tombstone
from veen.core.strict_json import Json
from veen.overlays.event import join_ranges
from veen.overlays.operations.mirror import MIRRORS, Validated, mismatch, missing, record, source_of, validate
from veen.overlays.operations.operation_events import Mirror
from veen.state import HubSource
from veen.state.entry_source import all_entries, stream_end
from veen.state.state_view import read_states

_BATCH_MESSAGES = 200  # messages sent before waiting for their receipts


@dataclass(frozen=True, slots=True)
class MirrorRoute:
    """Source and target streams. Without `copies` only records are written, which needs no reader key."""

    source: str
    target: str
    records: str | None = None  # stream for the records; default: the target stream
    copies: bool = True

    @property
    def record_stream(self) -> str:
        return self.records or self.target


@dataclass(frozen=True, slots=True)
class MirroredMessage:
    """One mirrored message. `unopened` is the reason if only its record could be written."""

    entry: Entry
    copy: Sent | None
    record: Sent
    unopened: str | None = None


class Mirrorer:
    """Mirrors one stream from one hub to another. The caller closes the clients."""

    def __init__(self, source: Client, target: Client, route: MirrorRoute) -> None:
        if source.hub_id == target.hub_id and route.source in (route.target, route.record_stream):
            raise ValueError(f"stream {route.source!r} cannot be mirrored to itself on the same hub")
        self.source = source
        self.target = target
        self.route = route
        self.hub_identifier = source.hub_id.hex()
        self._copied: set[bytes] | None = None

    async def run(
        self, *, follow: bool = False, on_pruned: Callable[[Tombstone], None] | None = None
    ) -> AsyncGenerator[MirroredMessage, None]:
        """Mirror everything that is missing; with `follow`, continue with new messages.

        Entries that the source pruned raise `PrunedEntries`; with `on_pruned` they are left out, and it is called with
        the verified tombstone.
        """
        gone: list[Tombstone] = []

        def skip(tombstone: Tombstone) -> None:
            gone.append(tombstone)
            assert on_pruned is not None
            on_pruned(tombstone)

        skipping = skip if on_pruned else None
        await self.target.recover()
        stream_id = naming.stream_id(self.route.source)
        for epoch in await HubSource(self.source).epochs(stream_id, None):
            last = await stream_end(self.source, stream_id, epoch)
            for first, upto in await self._missing(epoch, last):
                read = self.source.read(stream_id, first, upto, with_proof=True, epoch=epoch, on_pruned=skipping)
                async with aclosing(self._mirror_batches(read)) as done:
                    async for one in done:
                        yield one
        if follow:
            async with aclosing(self._follow(stream_id, gone, skipping)) as done:
                async for one in done:
                    yield one

    async def _follow(
        self, stream_id: bytes, gone: Sequence[Tombstone], on_pruned: Callable[[Tombstone], None] | None
    ) -> AsyncGenerator[MirroredMessage, None]:
        epoch = self.source.epoch()
        first = await stream_end(self.source, stream_id, epoch) + 1
        for gap in await self._missing(epoch, first - 1, gone):
            first = min(first, gap[0])
        read = self.source.read(stream_id, first, follow=True, with_proof=True, epoch=epoch, on_pruned=on_pruned)
        async with aclosing(read) as entries:
            async for entry in entries:
                yield (await self._put([entry]))[0]

    async def _missing(self, epoch: int, last: int, gone: Sequence[Tombstone] = ()) -> Sequence[tuple[int, int]]:
        """The ranges of the source stream that the target has no record of, without those in `gone`."""
        source_label = self.source.label(self.route.source, epoch)
        known = await read_states(HubSource(self.target), self.route.record_stream, MIRRORS)
        # With epochs the target has several labels over time. All records on this stream belong to this route.
        of_source = (self.hub_identifier, source_label)
        ranges = [one for part, state in known.items() if source_of(part)[:2] == of_source for one in state]
        ranges += [(one.segment.start_seq, one.segment.end_seq) for one in gone if one.label == source_label]
        return missing(join_ranges(ranges), last)

    async def _mirror_batches(self, read: AsyncGenerator[Entry, None]) -> AsyncGenerator[MirroredMessage, None]:
        batch: list[Entry] = []
        async with aclosing(read) as entries:
            async for entry in entries:
                batch.append(entry)
                if len(batch) == _BATCH_MESSAGES:
                    for one in await self._put(batch):
                        yield one
                    batch = []
        if batch:
            for one in await self._put(batch):
                yield one

    async def _put(self, entries: Sequence[Entry]) -> list[MirroredMessage]:
        """Write the copies, then the records, so a record never exists without its copy."""
        checked = [self._checked(entry) for entry in entries]
        copies = await self._copies(entries)
        sender = self.target.sender(self.route.record_stream)
        done = await asyncio.gather(*(sender.put(self._record(one)) for one in checked))
        return [
            MirroredMessage(entry, sent, logged, unopened)
            for entry, (sent, unopened), logged in zip(entries, copies, done, strict=True)
        ]

    def _checked(self, entry: Entry) -> Validated:
        """The checks a mirror must make before it sends anything: F1. Raises `Unverified`."""
        known = self.source.session.trust.known
        if entry.proof is None:
            raise Unverified("mirror", f"entry {entry.stream_seq} has no inclusion proof")
        line = lineage(known.identity, known.origin)
        signer = line.identity_at(entry.receipt.label, entry.stream_seq).verify_receipt(entry.receipt)
        return validate(self.hub_identifier, entry.msg, entry.receipt, entry.proof, signer.hub_pk)

    def _record(self, checked: Validated) -> Draft:
        event: Mirror = record(checked, self.target.label(self.route.target), self.target.session.clock.now())
        return Draft(event.encode(), event.SCHEMA, event.source_leaf_hash)

    async def _copies(self, entries: Sequence[Entry]) -> list[tuple[Sent | None, str | None]]:
        """Copy the payloads that the target lacks. A crash may have left copies without records."""
        if not self.route.copies:
            return [(None, None)] * len(entries)
        known = await self._known()
        found: list[tuple[asyncio.Future[Sent] | None, str | None]] = []
        async with AsyncExitStack() as stack:
            for entry in entries:
                if entry.fault is not None or entry.body is None:
                    found.append((None, entry.fault or "it has no body"))
                elif entry.msg_id in known:
                    found.append((None, None))
                else:
                    try:
                        draft = await stack.enter_async_context(self._copy(entry))
                    except Refused as refused:
                        if refused.detail_enum != PRUNED:
                            raise
                        found.append((None, refused.message))
                        continue
                    found.append((self.target.sender(self.route.target).put(draft), None))
                    known.add(entry.msg_id)
            return [(None if future is None else await future, fault) for future, fault in found]

    @asynccontextmanager
    async def _copy(self, entry: Entry) -> AsyncIterator[Draft]:
        """Draft the copy. Attachments are downloaded, sealed again, and deleted when this context ends."""
        assert entry.body is not None
        assert entry.header is not None
        assert entry.schema is not None
        ends = entry.header.expires_at
        if not entry.attachments:
            yield Draft(entry.body, entry.schema, entry.msg_id, ends)
            return
        with tempfile.TemporaryDirectory(prefix="veen-mirror-") as folder:
            files = []
            for number, attachment in enumerate(entry.attachments):
                path = Path(folder) / str(number) / Path(attachment.name or "attachment").name
                path.parent.mkdir()
                path.write_bytes(await self.source.attachment(entry, number))
                files.append(path)
            yield Draft(entry.body, entry.schema, entry.msg_id, ends, tuple(files))

    async def _known(self) -> set[bytes]:
        """The originals of everything in the target stream, read once from its log."""
        if self._copied is None:
            if HubSource(self.target).key(naming.stream_id(self.route.target)) is None:
                raise Unavailable(
                    f"no reader key for stream {self.route.target!r}: existing copies cannot be recognized"
                )
            entries = await _entries(self.target, self.route.target)
            self._copied = {parent for one in entries if (parent := _parent_of(one)) is not None}
        return self._copied


def _parent_of(entry: Entry) -> bytes | None:
    """The message that an entry copies; None if it is not a copy (mirror records are not)."""
    return None if entry.header is None or entry.schema == Mirror.SCHEMA else entry.header.parent_id


@dataclass(frozen=True, slots=True)
class Difference:
    """A message on which the hubs disagree, with its number at the source if it has one."""

    what: str  # missing, repeated, mismatch, uncopied, altered, unknown
    epoch: int
    stream_seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing source and target."""

    source_entries: int
    records: int
    copies: int
    differences: tuple[Difference, ...]
    pruned: tuple[tuple[int, int, int], ...] = ()  # epoch, first and last entry of what the source pruned; not compared

    @property
    def clean(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Json]:
        return {"clean": self.clean, **asdict(self)}


async def compare(source: Client, target: Client, route: MirrorRoute) -> Comparison:
    """Read both streams with verification and compare them. Entries that the source pruned are left out."""
    gone: list[tuple[int, Tombstone]] = []
    entries = await _source_entries(source, route.source, gone)
    records: dict[tuple[bytes, int], list[tuple[Entry, Mirror]]] = defaultdict(list)
    copies: dict[bytes, list[Entry]] = defaultdict(list)
    found: list[Difference] = []
    for entry in await _entries(target, route.record_stream):
        if entry.schema == Mirror.SCHEMA and entry.body is not None:
            try:
                event = Mirror.decode(entry.body)
            except Malformed as error:
                found.append(
                    Difference("unknown", entry.epoch, entry.stream_seq, f"invalid record at the target: {error}")
                )
                continue
            if event.source_hub_identifier == source.hub_id.hex():
                records[event.source_label, event.source_stream_seq].append((entry, event))
    for entry in await _entries(target, route.target):
        parent = _parent_of(entry)
        if parent is not None:
            copies[parent].append(entry)
    for entry in entries:
        found += _compare_entry(entry, records.pop((entry.receipt.label, entry.stream_seq), []), copies, route)
    labels = {entry.receipt.label for entry in entries}
    pruned = [(one.label, range(one.segment.start_seq, one.segment.end_seq + 1)) for _, one in gone]
    for (label, seq), listed in records.items():
        if label in labels and not any(label == at and seq in seqs for at, seqs in pruned):
            at = listed[0][0]
            found.append(
                Difference("unknown", at.epoch, seq, "the target has a record of a message that the source lacks")
            )
    counted = sum(map(len, copies.values()))
    recorded = len(entries) - sum(one.what == "missing" for one in found)
    left_out = tuple((epoch, one.segment.start_seq, one.segment.end_seq) for epoch, one in gone)
    return Comparison(len(entries), recorded, counted, tuple(found), left_out)


def _compare_entry(
    entry: Entry, records: list[tuple[Entry, Mirror]], copies: dict[bytes, list[Entry]], route: MirrorRoute
) -> list[Difference]:
    at = (entry.epoch, entry.stream_seq)
    if not records:
        return [Difference("missing", *at, "the target has no record of it")]
    found = []
    if len(records) > 1:
        found.append(Difference("repeated", *at, f"the target has {len(records)} records of it"))
    for logged, event in records:
        fault = mismatch(event, entry.receipt)
        if fault is None and (logged.header is None or logged.header.parent_id != entry.msg_id):
            fault = "the parent_id of the record is not the original"
        if fault is not None:
            found.append(Difference("mismatch", *at, fault))
    if route.copies and entry.fault is None:
        found += _compare_copies(entry, copies.get(entry.msg_id, []), at)
    return found


def _compare_copies(entry: Entry, copies: list[Entry], at: tuple[int, int]) -> list[Difference]:
    if not copies:
        return [Difference("uncopied", *at, "the target has a record of it but no copy")]
    found = []
    if len(copies) > 1:
        found.append(Difference("repeated", *at, f"the target has {len(copies)} copies of it"))
    if any((one.schema, one.body) != (entry.schema, entry.body) for one in copies):
        found.append(Difference("altered", *at, "the copy differs from the original"))
    return found


async def _entries(client: Client, stream: str) -> list[Entry]:
    async with aclosing(all_entries(HubSource(client), naming.stream_id(stream))) as entries:
        return [entry async for entry in entries]


async def _source_entries(client: Client, stream: str, gone: list[tuple[int, Tombstone]]) -> list[Entry]:
    """The entries that are left. The tombstones of the others go to `gone`."""
    stream_id, found = naming.stream_id(stream), list[Entry]()
    for epoch in await HubSource(client).epochs(stream_id, None):
        tombstones: list[Tombstone] = []
        read = client.read(stream_id, epoch=epoch, on_pruned=tombstones.append)
        async with aclosing(read) as entries:
            found += [entry async for entry in entries]
        gone += [(epoch, one) for one in tombstones]
    return found
