"""Import: verify a bundle, open its events, and write them to the import stream of this zone. 001, AGB0 §4.5.

The importer first announces the bundle with its origins in the audit log (intake), then writes the events, then logs
the result. Each message carries a mark in the outbox, so a run after a crash writes only what is missing.
"""

import asyncio
import errno
import os
import secrets
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from veen.bridge import bundle as bundles
from veen.bridge import zone_roles
from veen.bridge.bundle import SUFFIX, BundleCode, BundleEvent, BundleFault, VerifiedBundle
from veen.bridge.zone_roles import StreamMapping
from veen.client.client import Client
from veen.client.local_files import DISK, named
from veen.client.reader import Entry, Opener
from veen.client.sender import Draft, Sent
from veen.core import DhKey, Malformed, Receipt, Refused, Unavailable, naming
from veen.core.hashing import h
from veen.core.limits import MAX_TEXT_BYTES
from veen.overlays import bridge_logs
from veen.overlays.event import join_ranges
from veen.state import HubSource
from veen.state.state_view import read_states


class TargetPlaces:
    """The places in the target stream where this client's messages ended up."""

    def __init__(self, client: Client, stream_id: bytes) -> None:
        self._client = client
        self._stream_id = stream_id
        self._found: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def add(self, sent: Sent) -> None:
        self._found[sent.epoch].append((sent.stream_seq, sent.stream_seq))

    def find(self, leaves: Iterable[bytes]) -> None:
        """Add messages of an earlier run, located by the stored receipts."""
        wanted = set(leaves)
        if not wanted:
            return
        hub_id = self._client.hub_id
        with self._client.dir.state.tables.read() as rows:
            for _, row in rows.scan("receipts", hub_id):
                receipt = Receipt.decode(row)
                if receipt.leaf_hash in wanted:
                    wanted.remove(receipt.leaf_hash)
                    self._found[self._epoch(receipt)].append((receipt.stream_seq, receipt.stream_seq))
        if wanted:
            raise Unavailable(
                f"{len(wanted)} messages of an earlier run have no receipt yet; run the import again later"
            )

    def _epoch(self, receipt: Receipt) -> int:
        known = self._client.session.trust.known
        around = known.profile.epochs_around(receipt.hub_ts, known.limits.max_epoch_skew_sec)
        return next(epoch for epoch in around if self._client.label(self._stream_id, epoch) == receipt.label)

    def ranges(self) -> tuple[bridge_logs.TargetRange, ...]:
        """Ranges by epoch. If other writers split them into more than MAX_RANGES, one span per epoch."""
        found = [
            bridge_logs.TargetRange(epoch, first, last)
            for epoch in sorted(self._found)
            for first, last in join_ranges(self._found[epoch])
        ]
        if len(found) <= bridge_logs.MAX_RANGES:
            return tuple(found)
        spans = {epoch: join_ranges(each) for epoch, each in self._found.items()}
        return tuple(bridge_logs.TargetRange(epoch, spans[epoch][0][0], spans[epoch][-1][1]) for epoch in sorted(spans))


_INTAKE, _EVENT = b"bridge/intake", b"bridge/event"


class ImportPolicy(StrEnum):
    """Kinds of events that may be excluded; the audit entry lists them. 001, AGB0 J2."""

    SEALED = "sealed"
    ATTACHMENT = "attachment"


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """The result of an import. `written` counts this run only; `event_count` includes earlier runs."""

    bundle_id: bytes
    result: bridge_logs.BridgeResult
    import_stream: str
    event_count: int
    written: int
    targets: tuple[bridge_logs.TargetRange, ...]
    excluded: tuple[int, ...] = ()
    fault: BundleFault | None = None

    @property
    def ok(self) -> bool:
        return self.fault is None or self.fault.code is BundleCode.DUPLICATE


def _failure(bundle_id: bytes, fault: BundleFault, stream: str = "") -> ImportOutcome:
    return ImportOutcome(bundle_id, bridge_logs.BridgeResult.FAILURE, stream, 0, 0, (), fault=fault)


class Importer:
    """Imports bundles into one zone."""

    def __init__(
        self,
        client: Client,
        trusted: Collection[bytes],
        *,
        mapping: StreamMapping | None = None,
        operator: str | None = None,
        exclude: Iterable[ImportPolicy] = (),
        log: str = bridge_logs.OFFLINE_LOG,
    ) -> None:
        """`trusted` are the ids of source hubs. Raises `RoleConflict` if this identity may not import."""
        self.client = client
        self.mapping = mapping or StreamMapping()
        zone_roles.check_importer(client.dir, self.mapping, log)
        self._log = log
        self.operator = operator or f"client:{client.dir.card.id_sign.hex()}"
        self._trusted = frozenset(trusted)
        self._exclude = frozenset(exclude)

    async def take(self, data: bytes) -> ImportOutcome:
        """Import a bundle, or log in the audit log why it was rejected. Raises only if a hub does not answer."""
        await self.client.recover()
        stream = ""
        try:
            found = bundles.verify(data, self._trusted)
            stream = self.mapping.target(found.bundle.header.export_stream)
            plan = self._plan(found, stream)
            await self._check_new(plan)
            outcome = await self._write(plan)
        except BundleFault as fault:
            outcome = _failure(bundles.claimed_id(data), fault, stream)
        await self._log_result(h(data), outcome)
        return outcome

    def _plan(self, found: VerifiedBundle, stream: str) -> "ImportPlan":
        """Open every event before anything is written."""
        header = found.bundle.header
        key = self.client.dir.stream_keys.secret(header.export_stream_id)
        if key is None:
            raise Unavailable(f"no reader key for stream {header.export_stream!r}: its events cannot be opened")
        if self.client.dir.stream_keys.public(naming.stream_id(stream)) is None:
            raise Unavailable(f"no public key for stream {stream!r}: events cannot be sealed for it")
        drafts: list[Draft | None] = []
        for position, event in enumerate(found.bundle.events, 1):
            drafts.append(self._draft(event, key, header.epoch, stream, position))
        return ImportPlan(found, stream, tuple(drafts))

    def _draft(self, event: BundleEvent, key: DhKey, epoch: int, stream: str, position: int) -> Draft | None:
        """The message to write for an event, or None if the policy excludes it."""
        entry = Opener(key).entry(epoch, event.msg, event.receipt)
        fault = _unfit_reason(entry)
        if fault is None:
            assert entry.header is not None
            assert entry.body is not None
            assert entry.schema is not None
            mark = _EVENT + h(self.client.hub_id + naming.stream_id(stream) + entry.msg_id)
            draft = Draft(entry.body, entry.schema, entry.msg_id, entry.header.expires_at, mark=mark)
            self._check_fits(draft, position)
            return draft
        code, reason = fault
        if ImportPolicy(code) in self._exclude:
            return None
        raise BundleFault(code, reason, position)

    def _check_fits(self, draft: Draft, position: int) -> None:
        """This hub's limits may be lower than those of the source hub."""
        trust = self.client.session.trust
        try:
            draft.check(trust.limits, trust.profile.pad_block)
        except Refused as refused:
            raise BundleFault(BundleCode.REFUSED, str(refused), position) from None

    async def _check_new(self, plan: "ImportPlan") -> None:
        """Raise unless the audit log shows that the events are new, or that this importer started them."""
        bundle_id, header = plan.bundle_id, plan.found.bundle.header
        states = await read_states(HubSource(self.client), self._log, bridge_logs.IMPORTS)
        standing = states.get(bundle_id, bridge_logs.NOTHING)
        if standing.imported:
            raise BundleFault(BundleCode.DUPLICATE, "it was imported before")
        if standing.announced and not self._marks(_INTAKE + self.client.hub_id + bundle_id):
            raise BundleFault(
                BundleCode.PARTIAL, "another importer started this bundle; run that importer again to finish it"
            )
        for other_id, other in states.items():
            if other_id != bundle_id and other.announced and _overlaps(other, header):
                raise BundleFault(BundleCode.OVERLAP, f"bundle {other_id.hex()} already delivered some of its events")

    def _marks(self, prefix: bytes) -> dict[bytes, bytes]:
        return self.client.dir.outbox.marks(prefix)

    # Writing.

    async def _write(self, plan: "ImportPlan") -> ImportOutcome:
        await self._announce(plan)
        places = TargetPlaces(self.client, naming.stream_id(plan.stream))
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
        await _wait_all(written)
        for _, future in written:
            places.add(future.result())
        places.find(known)
        return ImportOutcome(
            plan.bundle_id,
            bridge_logs.BridgeResult.SUCCESS,
            plan.stream,
            len(written) + len(known),
            len(written),
            places.ranges(),
            plan.excluded,
        )

    async def _announce(self, plan: "ImportPlan") -> None:
        """Write the intake, split into as many records as needed, and skip those of an earlier run."""
        header = plan.found.bundle.header
        origins = [bridge_logs.EventOrigin.of(event.msg, event.receipt) for event in plan.found.bundle.events]
        prefix = _INTAKE + self.client.hub_id + plan.bundle_id
        done = self._marks(prefix)
        most = self._per_intake()
        for start in range(0, len(origins), most):
            intake = bridge_logs.BundleIntake(
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
        """The number of origins that fit into one message of this hub, with room for the stream names."""
        room = self.client.session.trust.limits.max_msg_bytes // 2 - 2 * MAX_TEXT_BYTES
        return max(1, min(room // bridge_logs.ORIGIN_BYTES, bridge_logs.MAX_ORIGINS))

    async def _log_result(self, bundle_hash: bytes, outcome: ImportOutcome) -> None:
        """Log the outcome; a failure with the failed check, its reason and the position of the event."""
        fault = outcome.fault
        event = bridge_logs.BundleImported(
            outcome.bundle_id,
            bundle_hash,
            outcome.import_stream,
            outcome.targets,
            outcome.event_count,
            outcome.result,
            self.operator,
            error_code=None if fault is None else str(fault.code),
            reason=None if fault is None else str(fault).encode()[:MAX_TEXT_BYTES].decode(errors="ignore"),
            position=None if fault is None else fault.position,
            excluded=outcome.excluded or None,
            policy=",".join(sorted(self._exclude)) if outcome.excluded else None,
        )
        await self.client.sender(self._log).put(Draft(event.encode(), event.SCHEMA))


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """A verified bundle and the message for each of its events; None for an excluded event."""

    found: VerifiedBundle
    stream: str
    drafts: tuple[Draft | None, ...]

    @property
    def bundle_id(self) -> bytes:
        return self.found.bundle.bundle_id

    @property
    def excluded(self) -> tuple[int, ...]:
        first = self.found.bundle.header.export_seq_from
        return tuple(first + at for at, draft in enumerate(self.drafts) if draft is None)


def _unfit_reason(entry: Entry) -> tuple[BundleCode, str] | None:
    """The reason why an event cannot be written as it is, or None."""
    if entry.fault is not None or entry.body is None:
        return BundleCode.SEALED, f"cannot be opened: {entry.fault}"
    if entry.attachments:
        return BundleCode.ATTACHMENT, "has attachments, which a bundle does not carry"
    return None


async def _wait_all(written: Sequence[tuple[int, "asyncio.Future[Sent]"]]) -> None:
    """Wait for every receipt. A rejection becomes a fault at the first rejected event."""
    await asyncio.gather(*(future for _, future in written), return_exceptions=True)
    for position, future in written:
        error = future.exception()
        if isinstance(error, Refused):
            raise BundleFault(BundleCode.REFUSED, str(error), position) from None
        if error is not None:
            raise error


def _overlaps(other: bridge_logs.ImportStatus, header: bundles.Header) -> bool:
    same = (other.source_hub_id, other.export_stream, other.epoch)
    if same != (header.source_hub_id, header.export_stream, header.epoch):
        return False
    return other.export_seq_from <= header.export_seq_to and header.export_seq_from <= other.export_seq_to


IMPORTED, REFUSED = "imported", "refused"
# Errors that will not go away by themselves: dangling or circular links, no permission, sockets.
_PERMANENT_ERRORS = frozenset({errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO})


@dataclass(frozen=True, slots=True)
class ProcessedFile:
    """A processed file: its new path and the result."""

    path: Path
    outcome: ImportOutcome


def waiting(folder: Path) -> list[Path]:
    """The bundles in the folder, ordered by stream and range; other files come last."""
    return sorted(folder.glob(f"*{SUFFIX}"), key=_order)


def _order(path: Path) -> tuple[bool, str, int, int, str]:
    try:
        header = bundles.decode(_read(path)).header
    except (BundleFault, Malformed, Unavailable):
        return True, "", 0, 0, path.name
    return False, header.export_stream, header.epoch, header.export_seq_from, path.name


def _read(path: Path) -> bytes:
    """Read a file of at most a bundle's size. Raises `BundleFault` if the path can never be read as a bundle."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK: opening a pipe must not block
    except OSError as error:
        if error.errno in _PERMANENT_ERRORS:
            raise _not_a_bundle(f"cannot be read: {error.strerror}") from None
        raise Unavailable(f"{path}: {error.strerror}") from None
    with named(path):
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise _not_a_bundle("not a regular file")
            if found.st_size > bundles.MAX_BUNDLE_BYTES:
                raise _not_a_bundle(f"{found.st_size} bytes, the maximum is {bundles.MAX_BUNDLE_BYTES}")
            with open(fd, "rb", closefd=False) as file:
                return file.read(found.st_size)
        finally:
            os.close(fd)


def _not_a_bundle(reason: str) -> BundleFault:
    return BundleFault(BundleCode.MALFORMED, reason)


async def sweep(importer: Importer, folder: Path) -> AsyncIterator[ProcessedFile]:
    """Import every bundle in the folder, one by one, and move each aside afterwards.

    A file under its final name is complete: exporters write it under another name first. Processed files are moved
    aside, so the folder shows which bundles remain. A crash between the import and the move is harmless, because the
    next run recognizes the bundle as imported.

    A path that has a bundle's name but can never be one (a directory, a pipe, a file that is too long) does not block
    others: it sorts last and is moved aside too. The operator sees the reason; there are no bytes to log.
    """
    for path in waiting(folder):
        if not os.path.lexists(path):
            continue  # removed meanwhile
        try:
            outcome = await importer.take(_read(path))
        except BundleFault as fault:
            outcome = _failure(bundles.claimed_id(b""), fault)
        yield ProcessedFile(_move_aside(path, folder / (IMPORTED if outcome.ok else REFUSED)), outcome)


def _move_aside(path: Path, aside: Path) -> Path:
    """Move aside and return the new path. A file replaces one of the same name; directories get a new name."""
    DISK.make_folder(aside)
    target = aside / path.name
    if os.path.lexists(target) and (_is_folder(target) or _is_folder(path)):
        target = aside / f"{path.stem}-{secrets.token_hex(4)}{SUFFIX}"
    DISK.replace(path, target)
    DISK.sync_folder(aside)
    DISK.sync_folder(path.parent)
    return target


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
