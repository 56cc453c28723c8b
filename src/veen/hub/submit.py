"""The submit path: from the bytes of a message to its receipt. Spec §8.1.

Everything here runs on the loop's thread and hands over: signatures to the verifier, ordering to the committer.
"""

from collections.abc import Callable
from time import perf_counter

from veen.core import Malformed, Msg, Refused, cbor, msg, strict_json
from veen.core.admission import BY_DETAIL
from veen.core.envelopes import SubmitRequest
from veen.hub.admission_rules import Rules, parse
from veen.hub.commit import Committer
from veen.hub.conditions import Conditions, Reason
from veen.hub.metrics import Metrics
from veen.hub.read_executor import FairQueue
from veen.hub.sequencer import Outcome, Submission
from veen.hub.submit_log import SubmitLog
from veen.hub.verifier import Verifier

# {1: 1, 2: msg}: the only encoding of a submit request starts with these bytes, followed by the MSG.
ENVELOPE = b"\xa2\x01\x01\x02"
# At most this many signature checks run at once. Further messages wait in a queue in which clients take turns. It is
# emptied in batches: fewer messages at a time would make groups, and so syncs, small.
MAX_CHECKS = 1024
_REFILL_BATCH = 128
# One client may queue at most half of `max_in_flight`. If others fill the queue, an eighth more is reserved for clients
# with few queued messages.
_CLIENT_SHARE_DIVISOR, _RESERVE_DIVISOR, _FEW_QUEUED = 2, 8, 16
# The overload state ends when at most this part of `max_in_flight` is in flight.
_RELIEVED_DIVISOR = 4
_SIG_INVALID = BY_DETAIL["SIG_INVALID"].refused("the signature does not verify under client_id")


class SubmitQueue:
    """Messages between arrival and receipt, counted and bounded."""

    def __init__(
        self,
        rules: Rules,
        verifier: Verifier,
        committer: Committer,
        metrics: Metrics,
        conditions: Conditions,
        max_in_flight: int,
        log: SubmitLog | None = None,
    ) -> None:
        self._rules = rules
        self._verifier = verifier
        self.committer = committer
        self.metrics = metrics
        self.conditions = conditions
        self._max_in_flight = max_in_flight
        self.relieved_at = max_in_flight // _RELIEVED_DIVISOR
        self.is_refusing = False
        self.log = log
        self.in_flight = 0
        self.unchecked: FairQueue[tuple[bytes, Callable[[bool], None]]] = FairQueue()

    def submit(self, encoded: bytes, done: Callable[[Outcome], None], owner: object = None) -> None:
        """Decide about one encoded MSG of `owner`. `done` is called exactly once, on the loop's thread."""
        if (self.in_flight >= self._max_in_flight or self.unchecked.waiting) and not self._has_room(owner):
            self.is_refusing = True
            text = self.conditions.enter(Reason.SUBMIT_OVERLOAD, in_flight=self.in_flight)
            refused = Refused("E.UNAVAILABLE", text, retry_after=1)
            self.record_rejection(refused, len(encoded))
            done(refused)
            return
        try:
            message = parse(encoded, self._rules)
        except Refused as error:
            self.record_rejection(error, len(encoded))
            done(error)
            return
        self.in_flight += 1
        item = PendingSubmit(self, message, encoded, done)
        check = message.client_id + msg.signing_digest(encoded) + message.sig
        committer = self.committer
        if self.unchecked.waiting or committer.checks_started - committer.checks_finished >= MAX_CHECKS:
            self.unchecked.put(owner, (check, item.verified))
        else:
            committer.checks_started += 1
            self._verifier.check(check, item.verified)

    def refill_verifier(self) -> None:
        """Refill the verifier from the queue, in batches."""
        room = MAX_CHECKS - (self.committer.checks_started - self.committer.checks_finished)
        if room >= min(_REFILL_BATCH, MAX_CHECKS):
            while room and (queued := self.unchecked.take()) is not None:
                room -= 1
                self.committer.checks_started += 1
                self._verifier.check(*queued)

    def _has_room(self, owner: object) -> bool:
        """Whether one more message of `owner` may be in flight."""
        waiting = self.unchecked.count(owner)
        if self.unchecked.waiting and waiting < _FEW_QUEUED:
            return self.in_flight < self._max_in_flight + self._max_in_flight // _RESERVE_DIVISOR
        return self.in_flight < self._max_in_flight and waiting < max(1, self._max_in_flight // _CLIENT_SHARE_DIVISOR)

    def record_rejection(self, refused: Refused, bytes_in: int) -> None:
        """Count a message that was rejected before it was decoded."""
        self.metrics.refused(refused)
        if self.log:
            self.log.record_rejection(refused, bytes_in)


class PendingSubmit(Submission):
    """One message between arrival and receipt."""

    __slots__ = ("_arrived", "_submit_queue", "_verify_s")

    def __init__(
        self, submit_queue: SubmitQueue, message: Msg, encoded: bytes, done: Callable[[Outcome], None]
    ) -> None:
        self.message = message
        self.encoded = encoded
        self._done = done
        self._submit_queue = submit_queue
        self._arrived = perf_counter()
        self._verify_s = 0.0

    def verified(self, valid: bool) -> None:
        """The result of the signature check."""
        submit_queue = self._submit_queue
        submit_queue.committer.checks_finished += 1
        if submit_queue.unchecked.waiting:
            submit_queue.refill_verifier()
        self._verify_s = seconds = perf_counter() - self._arrived
        if valid:
            submit_queue.metrics.verify_ms.observe(seconds * 1e3)
            submit_queue.committer.put(self)
        else:
            submit_queue.committer.schedule_turn()  # the open group may have waited for this check
            self.done(_SIG_INVALID)

    def done(self, outcome: Outcome) -> None:
        submit_queue = self._submit_queue
        seconds = perf_counter() - self._arrived
        submit_queue.in_flight -= 1
        if submit_queue.is_refusing and submit_queue.in_flight <= submit_queue.relieved_at:
            submit_queue.is_refusing = False
            submit_queue.conditions.leave(Reason.SUBMIT_OVERLOAD)
        if isinstance(outcome, Refused):
            submit_queue.metrics.refused(outcome)
        else:
            submit_queue.metrics.end_to_end_ms.observe(seconds * 1e3)
        self._done(outcome)
        if submit_queue.log:
            submit_queue.log.ended(self.message, self.encoded, outcome, self._verify_s, seconds)


def unwrapped(body: bytes) -> bytes:
    """The MSG in a submit request. Faults of the envelope are reported as structural faults of the submit."""
    if body.startswith(ENVELOPE):
        return body[len(ENVELOPE) :]
    try:
        SubmitRequest.decode(body)
    except Malformed as error:
        raise BY_DETAIL["CBOR_INVALID"].refused(error.reason) from None
    raise AssertionError("a submit request has one encoding")


def from_json(body: bytes) -> bytes:
    """The encoded MSG of a JSON submit request. From here on both formats are handled alike."""
    try:
        request = strict_json.decode(body, "submit request")
    except Malformed as error:
        raise BY_DETAIL["CBOR_INVALID"].refused(error.reason) from None
    if not isinstance(request, dict) or request.keys() != {"ver", "msg"} or not _is_one(request["ver"]):
        raise BY_DETAIL["CBOR_INVALID"].refused('a submit request is {"ver": 1, "msg": [...]}')
    if not isinstance(request["msg"], list):
        raise BY_DETAIL["CBOR_INVALID"].refused("msg must be the array of its fields")
    try:
        return cbor.encode([_field(value) for value in request["msg"]])
    except ValueError:
        raise BY_DETAIL["CBOR_INVALID"].refused(
            "every field of msg must be an unsigned integer, null or lowercase hex"
        ) from None


def _is_one(value: strict_json.Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 1


def _field(value: strict_json.Json) -> cbor.Value:
    if isinstance(value, str):
        content = bytes.fromhex(value)
        if content.hex() != value:
            raise ValueError("not lowercase hex")
        return content
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError("not a field of a message")
