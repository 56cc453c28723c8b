"""Attachments on their way in: who may bring them, and how many.

A body goes to disk as it comes (`incoming`). What bounds it: the size of one attachment by the limits; the bytes each
capability brings by its allowance, and where admission is open those of each caller; the bytes of all by the room
that must be left on disk for the log, of which what is promised and not yet written is taken away.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from plumbing.http.message import Request, Respond, Response
from plumbing.http.peer_address import caller_of
from veen.core import CapToken, Malformed, Refused, Unverified
from veen.core.admission import BY_DETAIL
from veen.core.aead import TAG_BYTES
from veen.core.upload_proof import SCHEME, UploadProof
from veen.hub import responses
from veen.hub.admission_rules import Admission, Rules
from veen.hub.conditions import Conditions, Reason
from veen.hub.config import HubConfig, need_operator
from veen.hub.read_executor import Later
from veen.hub.sequencer import Sequencer
from veen.storage.attachment_store import AttachmentDraft, AttachmentStore
from veen.storage.store import Store

_MAX_OWNERS = 65_536


class ByteAllowance:
    """One bucket of bytes for each owner. An owner that is not here has a full one."""

    def __init__(self, per_sec: int, burst: int, clock: Callable[[], float]) -> None:
        self._per_sec = max(1, per_sec)
        self._burst = burst
        self._clock = clock
        self._buckets: dict[bytes, tuple[float, float]] = {}  # what is left, and as of when

    def take(self, owner: bytes, size: int) -> int:
        """0 where it is granted, else the whole seconds after which to ask again. More than the burst waits for it."""
        now = self._clock()
        left, since = self._buckets.pop(owner, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_sec)
        short = min(size, self._burst) - left
        self._buckets[owner] = (left if short > 0 else left - size, now)
        if len(self._buckets) > _MAX_OWNERS:
            self._forget(now)
        return max(1, ceil(short / self._per_sec)) if short > 0 else 0

    def _forget(self, now: float) -> None:
        """Let go of those that are full again, and of the one that was here longest if none are."""
        full = [
            owner
            for owner, (left, since) in self._buckets.items()
            if left + (now - since) * self._per_sec >= self._burst
        ]
        for owner in full or [next(iter(self._buckets))]:
            del self._buckets[owner]

    def __len__(self) -> int:
        return len(self._buckets)


# So much goes to the executor at a time; as much again gathers meanwhile, and then the peer has to wait.
BATCH_BYTES = 1 << 18


class Incoming:
    """An upload. The loop gathers pieces; one job at a time writes them."""

    def __init__(
        self,
        later: Later,
        store: AttachmentStore,
        coid: bytes,
        exact: int | None,
        ended: Callable[[int | None], None],
        failed: Callable[[Exception, int], None],
        *,
        as_json: bool,
    ) -> None:
        """`exact` is the size it must have; `ended` hears once that it is over, and the size of what is new.

        `failed` gets the error where the disk refused, and how many bytes there were to write.
        """
        self._later = later
        self._store = store
        self._coid = coid
        self._exact = exact
        self._on_ended = ended
        self._on_failed = failed
        self._as_json = as_json
        self._gathered = bytearray()  # not the pieces: they may be many and tiny
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
        """The next job, if none is under way."""
        if self._busy:
            if len(self._gathered) >= BATCH_BYTES:
                self._pause(True)
        elif self._over:
            self._let_go()
        elif self._complete or len(self._gathered) >= BATCH_BYTES:
            gathered, self._gathered = bytes(self._gathered), bytearray()
            complete = self._complete
            self._busy = True
            size = self._size + len(gathered)
            self._later(
                lambda: self._write(gathered, complete),
                self._written,
                lambda error: self._on_failed(error, size),
                as_json=self._as_json,
            )
            self._pause(False)

    def _write(self, gathered: bytes, complete: bool) -> Response | None:
        """On the executor: more of the draft, and the answer where this was all of it."""
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
                raise Malformed("attachment", f"{self._size} bytes came where {self._exact} were announced")
            return Response(201 if self._draft.keep() else 200)
        except Malformed as error:
            raise responses.as_refused(error) from None

    def _written(self, answer: Response | None) -> None:
        """On the loop."""
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

    def _let_go(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            self._later.quietly(draft.drop)


_NO_ROOM_RETRY_S = 60
_PROBE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Leave:
    """Who brings it, as far as counting goes, and how large it is at most."""

    owner: bytes | None
    size: int
    exact: bool  # it must be just that large


class Uploads:
    """The way in for attachments. On the loop's thread."""

    def __init__(
        self,
        config: HubConfig,
        rules: Rules,
        store: Store,
        attachments: AttachmentStore,
        later: Later,
        sequencer: Sequencer,
        conditions: Conditions,
        stored: Callable[[int], None],
    ) -> None:
        """`stored` hears the size of each attachment that is new."""
        self._config = config
        self._rules = rules
        self._store = store
        self._attachments = attachments
        self._later = later
        self._sequencer = sequencer
        self._conditions = conditions
        self._stored = stored
        self.promised = 0
        self._unplaced = 0  # the largest size that found no room, while that is so
        self._unwritten = 0  # the largest size at which the disk refused, while it does
        self._allowance = ByteAllowance(
            config.upload_bytes_per_sec, max(config.upload_burst_bytes, self.most), later.loop.time
        )

    @property
    def most(self) -> int:
        """The sealed bytes of one attachment."""
        return self._rules.limits.max_attachment_bytes + TAG_BYTES

    def begin(self, head: Request, coid: bytes) -> Incoming | Response:
        """Take it, or say why not before any of it is read."""
        as_json = responses.wants_json(head)
        try:
            leave = self._leave(head, coid)
            self._check_room(leave.size)
            wait = self._allowance.take(leave.owner, leave.size) if leave.owner else 0
            if wait:
                raise BY_DETAIL["CAP_RATE"].refused("what may be uploaded for now is used up", retry_after=wait)
        except Refused as refused:
            return responses.refusal(refused, as_json=as_json)
        self.promised += leave.size

        def ended(size: int | None) -> None:
            self.promised -= leave.size
            if size is not None:
                self._stored(size)
                if size >= self._unwritten:
                    self._conditions.leave(Reason.ATTACHMENT_WRITE)

        exact = leave.size if leave.exact else None
        return Incoming(self._later, self._attachments, coid, exact, ended, self._write_failed, as_json=as_json)

    def _leave(self, head: Request, coid: bytes) -> Leave:
        """By an upload proof, by the operator's token or, where admission is open, for the asking."""
        announced = head.headers.get(b"content-length", b"")
        size = int(announced) if announced.isdigit() else None
        given = head.headers.get(b"authorization", b"").decode("latin-1")
        if given.partition(" ")[0].lower() == SCHEME:
            proof = self._proved(given, coid)
            if size not in (None, proof.size):
                raise _not_proved(f"it is for {proof.size} bytes, not {size}")
            return Leave(proof.auth_ref, proof.size, exact=True)
        owner = caller_of(head.peer, ()) if head.peer else None  # as connections are counted
        if given or self._rules.admission is not Admission.OPEN:
            need_operator(self._config, head.headers, "an upload proof or the operator's token")
            owner = None
        return Leave(owner, self.most if size is None else size, exact=False)

    def _proved(self, given: str, coid: bytes) -> UploadProof:
        try:
            proof = UploadProof.from_header(given)
        except Malformed as error:
            raise _not_proved(error.reason) from None
        token, issued_at = self._cap(proof.auth_ref)
        hub_ts = self._sequencer.hub_ts
        if token.expired(issued_at, hub_ts):
            expired = token.expires_at(issued_at)
            detail: dict[str, int | str] = {"expires_at": expired}
            raise Refused("E.FORBIDDEN", f"the capability expired at {expired}", detail=detail)
        try:
            self._sequencer.check_leave(token)
        except Refused as refused:
            raise Refused("E.FORBIDDEN", refused.message, detail=refused.detail) from None
        if proof.size > self.most:
            raise Refused("E.LIMIT", "the attachment is too large", detail={"max_allowed": self.most})
        try:
            proof.check_time(hub_ts)
            proof.verify(self._rules.hub_id, coid, token.subject_pk)
        except Unverified as error:
            raise _not_proved(error.reason, hub_ts=hub_ts) from None
        return proof

    def _cap(self, auth_ref: bytes) -> tuple[CapToken, int]:
        """A logged capability and when it was logged."""
        found = [tail.batch.caps[auth_ref] for tail in self._store.tails() if auth_ref in tail.batch.caps]
        if not found:
            with self._store.index.read() as rows:
                row = rows.cap(auth_ref)
            if row is None:
                raise Refused("E.FORBIDDEN", "the capability is not authorised at this hub")
            found = [row]
        _, _, issued_at, token = found[0]
        return CapToken.decode(token), issued_at

    def _check_room(self, size: int) -> None:
        """Attachments must not take the room the log needs."""
        error: OSError | None = None
        room = 0
        try:
            room = self._room()
        except OSError as found:
            error = found
        if error or size > room:
            if not self._conditions.holds(Reason.ATTACHMENT_ROOM):
                self._unplaced = 0
            self._unplaced = max(self._unplaced, size)
            text = self._conditions.enter(
                Reason.ATTACHMENT_ROOM, error, recheck=self._lacks_room, size_bytes=size, room_bytes=max(room, 0)
            )
            raise Refused("E.UNAVAILABLE", text, retry_after=_NO_ROOM_RETRY_S)

    def _room(self) -> int:
        """How large one more attachment may be. Negative where those under way take what the log needs."""
        disk = os.statvfs(self._attachments.folders.attachments)
        return disk.f_bavail * disk.f_frsize - self.promised - self._config.disk_reserve_bytes

    def _lacks_room(self) -> bool:
        try:
            return self._unplaced > self._room()
        except OSError:
            return True

    def _write_failed(self, error: Exception, size: int) -> None:
        if isinstance(error, Malformed):
            self._later.note(error, "attachment")
            return
        if not self._conditions.holds(Reason.ATTACHMENT_WRITE):
            self._unwritten = 0
        self._unwritten = max(self._unwritten, size)
        self._conditions.enter(Reason.ATTACHMENT_WRITE, error, recheck=self._try_again)

    def _try_again(self) -> bool:
        """Write a little on the executor, so that the state ends also where nobody uploads."""

        def write() -> bool:
            self._attachments.probe(min(self._unwritten, _PROBE_BYTES))
            return self._unwritten <= self._room()

        def tried(outcome: bool | Response) -> None:
            if outcome is True:
                self._conditions.leave(Reason.ATTACHMENT_WRITE)

        self._later(write, tried, lambda error: None, as_json=False)
        return True


def _not_proved(reason: str, **detail: int | str) -> Refused:
    return Refused("E.UNAUTHORIZED", f"upload proof: {reason}", detail=detail)
