"""Bringing events into a zone: everything is verified before anything is written, and each event is written once.

What is on `bridge/offline/log`, in this order: the intake, which names all origins; after the events, how it ended. So
a half import shows as what it is. Each message is marked in the outbox by the original it stands for, in the very
transaction that gives it its place: whenever the importer is killed, the next run writes exactly what is missing.
001, AGB0 §4.5.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from veen.bridge import bundle as bundles
from veen.bridge import roles, verifying
from veen.bridge.bundle import Carried
from veen.bridge.faults import BundleFault, Code
from veen.bridge.mapping import Mapping
from veen.bridge.places import Places
from veen.bridge.verifying import Verified
from veen.client.client import Client
from veen.client.draft import Draft, Sent
from veen.client.entry import Entry, Opener
from veen.core import DhKey, Refused, Unavailable, naming
from veen.core.hashing import h
from veen.core.limits import MAX_TEXT_BYTES
from veen.overlays.bridging import IMPORTS, OFFLINE_LOG, Imported, Intake, Origin, Result, Standing, TargetRange
from veen.overlays.bridging.events import MAX_ORIGINS, ORIGIN_BYTES
from veen.overlays.bridging.imports import NOTHING
from veen.state import HubSource, View

_INTAKE, _EVENT = b"bridge/intake", b"bridge/event"


class Policy(StrEnum):
    """What may be left out, and is then named in the audit entry. 001, AGB0 J2."""

    SEALED = "sealed"
    ATTACHMENT = "attachment"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an import ended. `written` are events of this run; the rest was there from a run before it."""

    bundle_id: bytes
    result: Result
    import_stream: str
    event_count: int
    written: int
    targets: tuple[TargetRange, ...]
    excluded: tuple[int, ...] = ()
    fault: BundleFault | None = None

    @property
    def ok(self) -> bool:
        return self.fault is None or self.fault.code is Code.DUPLICATE


class Importer:
    """One zone's way in."""

    def __init__(
        self,
        client: Client,
        trusted: Collection[bytes],
        *,
        mapping: Mapping | None = None,
        operator: str | None = None,
        exclude: Iterable[Policy] = (),
        log: str = OFFLINE_LOG,
    ) -> None:
        """`trusted` are the ids of source hubs. Raises `BothWays` where this identity may not be the importer."""
        self.client = client
        self.mapping = mapping or Mapping()
        roles.check_importer(client.dir, self.mapping, log)
        self._log = log
        self.operator = operator or f"client:{client.dir.card.id_sign.hex()}"
        self._trusted = frozenset(trusted)
        self._exclude = frozenset(exclude)

    async def take(self, data: bytes) -> Outcome:
        """Import a bundle, or say in the audit log why not. Raises only where a hub does not answer."""
        await self.client.recover()
        stream = ""
        try:
            found = verifying.verify(data, self._trusted)
            stream = self.mapping.target(found.bundle.header.export_stream)
            plan = self._planned(found, stream)
            await self._check_new(plan)
            return await self._write(plan)
        except BundleFault as fault:
            return await self._fail(data, stream, fault)

    def _planned(self, found: Verified, stream: str) -> "Plan":
        """Everything opened, before anything is written."""
        header = found.bundle.header
        key = self.client.dir.stream_keys.secret(header.export_stream_id)
        if key is None:
            raise Unavailable(f"there is no reader key of stream {header.export_stream!r} here: nothing can be opened")
        if self.client.dir.stream_keys.public(naming.stream_id(stream)) is None:
            raise Unavailable(f"the key of stream {stream!r} is not known here: nobody could read it")
        drafts: list[Draft | None] = []
        for position, event in enumerate(found.bundle.events, 1):
            drafts.append(self._draft(event, key, header.epoch, stream, position))
        return Plan(found, stream, tuple(drafts))

    def _draft(self, event: Carried, key: DhKey, epoch: int, stream: str, position: int) -> Draft | None:
        """The message that stands for an event; None where policy leaves it out."""
        entry = Opener(key).entry(epoch, event.msg, event.receipt)
        fault = _unfit(entry)
        if fault is None:
            assert entry.header is not None
            assert entry.body is not None
            assert entry.schema is not None
            mark = _EVENT + h(self.client.hub_id + naming.stream_id(stream) + entry.msg_id)
            draft = Draft(entry.body, entry.schema, entry.msg_id, entry.header.expires_at, mark=mark)
            self._check_fits(draft, position)
            return draft
        code, reason = fault
        if Policy(code) in self._exclude:
            return None
        raise BundleFault(code, reason, position)

    def _check_fits(self, draft: Draft, position: int) -> None:
        """The limits of this zone's hub may be lower than those of the other."""
        trust = self.client.contact.trust
        try:
            draft.check(trust.limits, trust.profile.pad_block)
        except Refused as refused:
            raise BundleFault(Code.REFUSED, str(refused), position) from None

    async def _check_new(self, plan: "Plan") -> None:
        """Raise where the audit log has another story of these events than that they are new, or ours to finish."""
        bundle_id, header = plan.bundle_id, plan.found.bundle.header
        async with View(HubSource(self.client), self._log, IMPORTS) as view, view.reading() as reading:
            states = dict(reading.states)
        standing = states.get(bundle_id, NOTHING)
        if standing.imported:
            raise BundleFault(Code.DUPLICATE, "it was imported before")
        if standing.announced and not self._marks(_INTAKE + self.client.hub_id + bundle_id):
            raise BundleFault(Code.PARTIAL, "another importer began with it and has not ended: that one must finish")
        for other_id, other in states.items():
            if other_id != bundle_id and other.announced and _overlaps(other, header):
                raise BundleFault(Code.OVERLAP, f"some of its events came with bundle {other_id.hex()}")

    def _marks(self, prefix: bytes) -> dict[bytes, bytes]:
        return self.client.dir.outbox.marks(prefix)

    # Writing.

    async def _write(self, plan: "Plan") -> Outcome:
        await self._announce(plan)
        places = Places(self.client, naming.stream_id(plan.stream))
        sender = self.client.sender(plan.stream)
        written: list[tuple[int, asyncio.Future[Sent]]] = []
        known: list[bytes] = []
        for position, draft in enumerate(plan.drafts, 1):
            if draft is None:
                continue
            assert draft.mark is not None
            leaf = self._marks(draft.mark).get(draft.mark)
            if leaf is not None:
                known.append(leaf)
                continue
            if sender.is_full:
                await sender.drain()
            written.append((position, sender.put(draft)))
        await _settled(written)
        for _, future in written:
            places.add(future.result())
        places.find(known)
        outcome = Outcome(
            plan.bundle_id,
            Result.SUCCESS,
            plan.stream,
            len(written) + len(known),
            len(written),
            places.ranges(),
            plan.excluded,
        )
        await self._end(plan, outcome)
        return outcome

    async def _announce(self, plan: "Plan") -> None:
        """The intake, in as many records as it takes; those of a run before this are there already."""
        header = plan.found.bundle.header
        origins = [Origin.of(event.msg, event.receipt) for event in plan.found.bundle.events]
        prefix = _INTAKE + self.client.hub_id + plan.bundle_id
        done = self._marks(prefix)
        most = self._per_intake()
        for start in range(0, len(origins), most):
            intake = Intake(
                plan.bundle_id,
                header.source_hub_id,
                header.export_stream,
                header.epoch,
                header.export_seq_from,
                header.export_seq_to,
                header.count,
                plan.stream,
                start + 1,
                tuple(origins[start : start + most]),
            )
            mark = prefix + (start + 1).to_bytes(8, "big")
            if mark not in done:
                await self.client.sender(self._log).put(Draft(intake.encode(), intake.SCHEMA, mark=mark))

    def _per_intake(self) -> int:
        """How many origins fit into one message of this hub, with room for the names beside them."""
        room = self.client.contact.trust.limits.max_msg_bytes // 2 - 2 * MAX_TEXT_BYTES
        return max(1, min(room // ORIGIN_BYTES, MAX_ORIGINS))

    async def _end(self, plan: "Plan", outcome: Outcome) -> None:
        policy = ",".join(sorted(self._exclude)) if outcome.excluded else None
        event = Imported(
            plan.bundle_id,
            plan.found.bundle_hash,
            plan.stream,
            outcome.targets,
            outcome.event_count,
            Result.SUCCESS,
            self.operator,
            excluded=outcome.excluded or None,
            policy=policy,
        )
        await self.client.sender(self._log).put(Draft(event.encode(), event.SCHEMA))

    async def _fail(self, data: bytes, stream: str, fault: BundleFault) -> Outcome:
        """Put a failure on record: the id, the reason, the position."""
        bundle_id = bundles.claimed_id(data)
        reason = str(fault).encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
        event = Imported(
            bundle_id,
            h(data),
            stream,
            (),
            0,
            Result.FAILURE,
            self.operator,
            str(fault.code),
            reason,
            fault.position,
        )
        await self.client.sender(self._log).put(Draft(event.encode(), event.SCHEMA))
        return Outcome(bundle_id, Result.FAILURE, stream, 0, 0, (), fault=fault)


@dataclass(frozen=True, slots=True)
class Plan:
    """A bundle that holds, and the message that each of its events will be; None for what is left out."""

    found: Verified
    stream: str
    drafts: tuple[Draft | None, ...]

    @property
    def bundle_id(self) -> bytes:
        return self.found.bundle.bundle_id

    @property
    def excluded(self) -> tuple[int, ...]:
        first = self.found.bundle.header.export_seq_from
        return tuple(first + at for at, draft in enumerate(self.drafts) if draft is None)


def _unfit(entry: Entry) -> tuple[Code, str] | None:
    """Why an event cannot be written again as it is; None where it can."""
    if entry.fault is not None or entry.body is None:
        return Code.SEALED, f"it does not open: {entry.fault}"
    if entry.attachments:
        return Code.ATTACHMENT, "it has attachments, which a bundle does not carry"
    return None


async def _settled(written: Sequence[tuple[int, "asyncio.Future[Sent]"]]) -> None:
    """Wait for every answer; a refusal of the hub is a fault at the first event that it refused."""
    await asyncio.gather(*(future for _, future in written), return_exceptions=True)
    for position, future in written:
        error = future.exception()
        if isinstance(error, Refused):
            raise BundleFault(Code.REFUSED, str(error), position) from None
        if error is not None:
            raise error


def _overlaps(other: Standing, header: bundles.Header) -> bool:
    same = (other.source_hub_id, other.export_stream, other.epoch)
    if same != (header.source_hub_id, header.export_stream, header.epoch):
        return False
    return other.export_seq_from <= header.export_seq_to and header.export_seq_from <= other.export_seq_to
