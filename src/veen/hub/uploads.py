"""Attachment uploads: permission, quotas and the writing of bodies.

A body is written to disk as it arrives. Limits: the size of one attachment; a byte quota and a number of uploads at a
time per capability, or per caller if admission is open; and the disk space that must stay free for the log, minus what
running uploads have reserved.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from urllib.parse import parse_qsl

from plumbing.http.message import Request, Respond, Response
from plumbing.http.peer_address import caller_of
from veen.core import CapToken, Malformed, Refused, Unverified, naming
from veen.core.admission import BY_DETAIL
from veen.core.attachment import SCHEME, UploadProof
from veen.core.cap_token import Capability, decode_capability, token_of
from veen.core.hashing import HASH_BYTES
from veen.core.hpke import TAG_BYTES
from veen.hub import responses
from veen.hub.admission_rules import Admission, Rules
from veen.hub.conditions import Conditions, Reason
from veen.hub.config import HubConfig, need_operator
from veen.hub.read_executor import ReadExecutor
from veen.hub.sequencer import Sequencer
from veen.storage.attachment_store import AttachmentDraft, AttachmentStore
from veen.storage.store import Store

_MAX_BUCKETS = 65_536


class UploadQuota:
    """A token bucket of bytes per owner. Unknown owners have a full one."""

    def __init__(self, per_sec: int, burst: int, clock: Callable[[], float]) -> None:
        self._per_sec = max(1, per_sec)
        self._burst = burst
        self._clock = clock
        self._buckets: dict[bytes, tuple[float, float]] = {}  # bytes left, and at which time

    def take(self, owner: bytes, size: int) -> int:
        """Take `size` bytes. Returns 0 if granted, else the seconds to wait. A larger size waits for a full bucket."""
        now = self._clock()
        left, since = self._buckets.pop(owner, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_sec)
        short = min(size, self._burst) - left
        self._buckets[owner] = (left if short > 0 else left - size, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._forget(now)
        return max(1, ceil(short / self._per_sec)) if short > 0 else 0

    def _forget(self, now: float) -> None:
        """Drop buckets that are full again, or the oldest if none is."""
        full = [
            owner
            for owner, (left, since) in self._buckets.items()
            if left + (now - since) * self._per_sec >= self._burst
        ]
        for owner in full or [next(iter(self._buckets))]:
            del self._buckets[owner]

    def __len__(self) -> int:
        return len(self._buckets)


# Bytes per write job. When as many have arrived during a job, the client must wait.
BATCH_BYTES = 1 << 18


class AttachmentUpload:
    """One upload. The loop collects pieces; one job at a time writes them."""

    def __init__(
        self,
        executor: ReadExecutor,
        store: AttachmentStore,
        coid: bytes,
        exact: int | None,
        noted: Callable[[], None],
        ended: Callable[[int | None], None],
        failed: Callable[[Exception, int], None],
        *,
        as_json: bool,
    ) -> None:
        """`exact` is the required size. `noted` is called on the thread pool when the bytes are stored.

        `ended` is called once, with the size if the attachment is new. `failed` is called with a disk error and the
        number of bytes to write.
        """
        self._executor = executor
        self._store = store
        self._coid = coid
        self._exact = exact
        self._noted = noted
        self._on_ended = ended
        self._on_failed = failed
        self._as_json = as_json
        self._gathered = bytearray()  # joined, because pieces may be many and tiny
        self._complete = False
        self._over = False
        self._busy = False
        self._draft: AttachmentDraft | None = None
        self._size = 0

    def on_start(self, respond: Respond, pause: Callable[[bool], None]) -> None:
        self._respond, self._pause = respond, pause

    def on_data(self, data: bytes) -> None:
        self._gathered += data
        self._turn()

    def on_end(self) -> None:
        self._complete = True
        self._turn()

    def on_abort(self) -> None:
        self._finish(None)
        self._turn()

    def _turn(self) -> None:
        """Start the next job, if none is running."""
        if self._busy:
            if len(self._gathered) >= BATCH_BYTES:
                self._pause(True)
        elif self._over:
            self._drop_draft()
        elif self._complete or len(self._gathered) >= BATCH_BYTES:
            gathered, self._gathered = bytes(self._gathered), bytearray()
            complete = self._complete
            self._busy = True
            size = self._size + len(gathered)
            self._executor.write(
                lambda: self._write(gathered, complete),
                self._written,
                lambda error: self._on_failed(error, size),
                as_json=self._as_json,
            )
            self._pause(False)

    def _write(self, gathered: bytes, complete: bool) -> Response | None:
        """On the thread pool: extend the draft; returns the answer if this was the last piece."""
        if self._over:
            return None
        if self._draft is None:
            self._draft = AttachmentDraft(self._store, self._coid)
        if gathered:
            self._draft.write(gathered)
            self._size += len(gathered)
        if not complete:
            return None
        try:
            if self._exact not in (None, self._size):
                raise Malformed("attachment", f"received {self._size} bytes, but {self._exact} were announced")
            is_new = self._draft.keep()
            self._noted()
            return Response(201 if is_new else 200)
        except Malformed as error:
            raise responses.as_refused(error) from None

    def _written(self, answer: Response | None) -> None:
        self._busy = False
        if answer is not None and not self._over:
            self._finish(self._size if answer.status == 201 else None)
            self._respond(answer)
        self._turn()

    def _finish(self, stored: int | None) -> None:
        if not self._over:
            self._over = True
            self._gathered.clear()
            self._on_ended(stored)

    def _drop_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            self._executor.run_unanswered(draft.drop)


_NO_ROOM_RETRY_S = 60
_FULL_RETRY_S = 1
_PROBE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class UploadGrant:
    """A granted upload: whose quota it uses, and its maximum size."""

    owner: bytes | None
    size: int
    exact: bool  # the size must match exactly


class Uploads:
    """Grants uploads. On the loop's thread."""

    def __init__(
        self,
        config: HubConfig,
        rules: Rules,
        store: Store,
        attachments: AttachmentStore,
        executor: ReadExecutor,
        sequencer: Sequencer,
        conditions: Conditions,
        stored: Callable[[int], None],
    ) -> None:
        """`stored` is called with the size of each new attachment."""
        self.config = config
        self._rules = rules
        self._store = store
        self._attachments = attachments
        self._executor = executor
        self._sequencer = sequencer
        self._conditions = conditions
        self._stored = stored
        self.running = 0
        self._running_by_owner: dict[bytes, int] = {}  # without owners that have none
        self.reserved_bytes = 0
        self._largest_rejected = 0  # the largest size rejected for lack of space, while the state holds
        self._largest_failed = 0  # the largest size that failed to be written, while the state holds
        self._quota = UploadQuota(
            config.upload_bytes_per_sec, max(config.upload_burst_bytes, self.max_bytes), executor.loop.time
        )

    @property
    def max_bytes(self) -> int:
        """The maximum size of a sealed attachment."""
        return self._rules.limits.max_attachment_bytes + TAG_BYTES

    def begin(self, head: Request, coid: bytes) -> AttachmentUpload | Response:
        """Start an upload, or reject it before any of the body is read."""
        as_json = responses.wants_json(head)
        try:
            label = _label_in(head.query)
            if self.running >= (most := self.config.max_uploads()):
                text = f"the hub receives at most {most} attachments at a time"
                raise Refused("E.UNAVAILABLE", text, retry_after=_FULL_RETRY_S)
            grant = self._grant(head, coid, label)
            running = self._running_by_owner.get(grant.owner, 0) if grant.owner else 0
            if running >= (most := self.config.max_uploads_per_owner()):
                text = f"the hub receives at most {most} attachments of one client at a time"
                raise Refused("E.UNAVAILABLE", text, retry_after=_FULL_RETRY_S)
            self._check_room(grant.size)
            wait = self._quota.take(grant.owner, grant.size) if grant.owner else 0
            if wait:
                raise BY_DETAIL["CAP_RATE"].refused("the upload quota is used up", retry_after=wait)
        except Refused as refused:
            return responses.refusal(refused, as_json=as_json)
        self.running += 1
        if grant.owner:
            self._running_by_owner[grant.owner] = running + 1
        self.reserved_bytes += grant.size

        def ended(size: int | None) -> None:
            self.running -= 1
            if grant.owner and self._running_by_owner[grant.owner] == 1:
                del self._running_by_owner[grant.owner]
            elif grant.owner:
                self._running_by_owner[grant.owner] -= 1
            self.reserved_bytes -= grant.size
            if size is not None:
                self._stored(size)
                if size >= self._largest_failed:
                    self._conditions.leave(Reason.ATTACHMENT_WRITE)

        exact = grant.size if grant.exact else None
        noted = partial(self._attachments.note_upload, coid, label, self._sequencer.hub_ts)
        return AttachmentUpload(
            self._executor, self._attachments, coid, exact, noted, ended, self._write_failed, as_json=as_json
        )

    def _grant(self, head: Request, coid: bytes, label: bytes | None) -> UploadGrant:
        """Grant by upload proof, by operator token or, if admission is open, without either."""
        announced = head.headers.get(b"content-length", b"")
        size = int(announced) if announced.isdigit() else None
        given = head.headers.get(b"authorization", b"").decode("latin-1")
        if given.partition(" ")[0].lower() == SCHEME:
            proof = self._proved(given, coid, label)
            if size not in (None, proof.size):
                raise _not_proved(f"the proof is for {proof.size} bytes, but the request announces {size}")
            return UploadGrant(proof.auth_ref, proof.size, exact=True)
        owner = caller_of(head.peer, ()) if head.peer else None  # counted like connections
        if given or self._rules.admission is not Admission.OPEN:
            need_operator(self.config, head.headers, "an upload proof or the operator's token")
            owner = None
        return UploadGrant(owner, self.max_bytes if size is None else size, exact=False)

    def _proved(self, given: str, coid: bytes, label: bytes | None) -> UploadProof:
        try:
            proof = UploadProof.from_header(given)
        except Malformed as error:
            raise _not_proved(error.reason) from None
        token, hub_ts = self.authorised(proof.auth_ref), self._sequencer.hub_ts
        if proof.size > self.max_bytes:
            raise Refused("E.LIMIT", "the attachment is too large", detail={"max_allowed": self.max_bytes})
        try:
            proof.check_time(hub_ts)
            proof.verify(self._rules.hub_id, coid, token.subject_pk, label)
        except Unverified as error:
            raise _not_proved(error.reason, hub_ts=hub_ts) from None
        if label is not None:
            self._check_label(token, label, hub_ts)
        return proof

    def _check_label(self, token: CapToken, label: bytes, hub_ts: int) -> None:
        """Raise unless the capability is for the stream of the label."""
        epoch, routing_key = self._rules.profile.epoch(hub_ts), self._rules.routing_key
        epochs = {max(epoch - 1, 0), epoch, epoch + 1} if self._rules.profile.epoch_sec else {0}
        streams = token.allow.stream_ids
        if not any(naming.label(routing_key, stream, one) == label for stream in streams for one in epochs):
            raise Refused("E.FORBIDDEN", "the capability is not for the stream of this label")

    def authorised(self, auth_ref: bytes) -> CapToken:
        """A capability that is valid now. Raises `Refused`."""
        capability, issued_at = self._cap(auth_ref)
        token, hub_ts = token_of(capability), self._sequencer.hub_ts
        if capability.expired(issued_at, hub_ts):
            expired = capability.expires_at(issued_at)
            detail: dict[str, int | str] = {"expires_at": expired}
            raise Refused("E.FORBIDDEN", f"the capability expired at {expired}", detail=detail)
        try:
            self._sequencer.state.check_capability(token, hub_ts)
        except Refused as refused:
            raise Refused("E.FORBIDDEN", refused.message, detail=refused.detail) from None
        return token

    def _cap(self, auth_ref: bytes) -> tuple[Capability, int]:
        """A logged capability, and when it was logged."""
        found = [tail.caps[auth_ref] for tail in self._store.tails() if auth_ref in tail.caps]
        if not found:
            with self._store.index.read() as rows:
                row = rows.cap(auth_ref)
            if row is None:
                raise Refused("E.FORBIDDEN", "the capability is not authorised at this hub")
            found = [row]
        _, _, issued_at, logged = found[0]
        return decode_capability(logged), issued_at

    def _check_room(self, size: int) -> None:
        """Raise if the attachment would take disk space that the log needs."""
        error: OSError | None = None
        room = 0
        try:
            room = self._room()
        except OSError as found:
            error = found
        if error or size > room:
            if not self._conditions.holds(Reason.ATTACHMENT_ROOM):
                self._largest_rejected = 0
            self._largest_rejected = max(self._largest_rejected, size)
            text = self._conditions.enter(
                Reason.ATTACHMENT_ROOM, error, recheck=self._lacks_room, size_bytes=size, room_bytes=max(room, 0)
            )
            raise Refused("E.UNAVAILABLE", text, retry_after=_NO_ROOM_RETRY_S)

    def _room(self) -> int:
        """The maximum size of one more attachment. Negative if running uploads already use the reserve."""
        disk = os.statvfs(self._attachments.folders.attachments)
        return disk.f_bavail * disk.f_frsize - self.reserved_bytes - self.config.disk_reserve_bytes

    def _lacks_room(self) -> bool:
        try:
            return self._largest_rejected > self._room()
        except OSError:
            return True

    def _write_failed(self, error: Exception, size: int) -> None:
        if isinstance(error, Malformed):
            self._executor.record_error(error, "attachment")
            return
        if not self._conditions.holds(Reason.ATTACHMENT_WRITE):
            self._largest_failed = 0
        self._largest_failed = max(self._largest_failed, size)
        self._conditions.enter(Reason.ATTACHMENT_WRITE, error, recheck=self._retry_write)

    def _retry_write(self) -> bool:
        """Write a little on the thread pool, so that the state also ends without uploads."""

        def write() -> bool:
            self._attachments.probe(min(self._largest_failed, _PROBE_BYTES))
            return self._largest_failed <= self._room()

        def tried(outcome: bool | Response) -> None:
            if outcome is True:
                self._conditions.leave(Reason.ATTACHMENT_WRITE)

        self._executor.write(write, tried, lambda error: None, as_json=False)
        return True


def _label_in(query: str) -> bytes | None:
    """The label in the query of an upload, if it names one."""
    if not query:
        return None
    try:
        ((name, text),) = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=1)
        label = bytes.fromhex(text)
    except ValueError:
        name, text, label = "", "", b""
    if name != "label" or len(label) != HASH_BYTES or label.hex() != text:
        raise Refused("E.BAD_REQUEST", "the query of an upload must be label=HEX")
    return label


def _not_proved(reason: str, **detail: int | str) -> Refused:
    return Refused("E.UNAUTHORIZED", f"upload proof: {reason}", detail=detail)
