"""The way in: a submitted message from its bytes to its receipt. Spec §8.1.

Everything here runs on the loop's thread and hands over: signatures to the verifier, order to the committer.
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
from veen.hub.read_executor import Rota
from veen.hub.sequencer import Outcome, Submission
from veen.hub.submit_log import SubmitLog
from veen.hub.verifier import Verifier

# {1: 1, 2: msg}: the one encoding of a submit request starts with these bytes, and the rest is the MSG.
ENVELOPE = b"\xa2\x01\x01\x02"
# So many signatures are being checked at once. What comes beyond them waits, and those it comes from take turns, so
# many messages at a time: fewer would make groups and their syncs small.
AT_ONCE = 1024
_REFILL = 128
# One of them may have a half of all that may be in flight waiting. Where others fill the room, an eighth more is for
# those who have few waiting.
_SHARE, _RESERVE, _FEW = 2, 8, 16
# Refusing for overload ends when no more than this part of `max_in_flight` is in flight.
_RELIEVED = 4
_SIG_INVALID = BY_DETAIL["SIG_INVALID"].refused("the signature does not verify under client_id")


class Submits:
    """Messages on their way in, counted and bounded."""

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
        self._most = max_in_flight
        self.relieved_at = max_in_flight // _RELIEVED
        self.is_refusing = False
        self.log = log
        self.in_flight = 0
        self.rota: Rota[tuple[bytes, Callable[[bool], None]]] = Rota()

    def submit(self, encoded: bytes, done: Callable[[Outcome], None], owner: object = None) -> None:
        """Decide about one encoded MSG of `owner`; `done` hears of it exactly once, on the loop's thread."""
        if (self.in_flight >= self._most or self.rota.waiting) and not self._has_room(owner):
            self.is_refusing = True
            text = self.conditions.enter(Reason.SUBMIT_OVERLOAD, in_flight=self.in_flight)
            refused = Refused("E.UNAVAILABLE", text, retry_after=1)
            self.turned_away(refused, len(encoded))
            done(refused)
            return
        try:
            message = parse(encoded, self._rules)
        except Refused as error:
            self.turned_away(error, len(encoded))
            done(error)
            return
        self.in_flight += 1
        item = _OnItsWay(self, message, encoded, done)
        question = message.client_id + msg.signing_digest(encoded) + message.sig
        committer = self.committer
        if self.rota.waiting or committer.asked - committer.answered >= AT_ONCE:
            self.rota.put(owner, (question, item.verified))
        else:
            committer.asked += 1
            self._verifier.check(question, item.verified)

    def ask_more(self) -> None:
        """The verifier has given an answer: it takes the next questions, once there are enough of them."""
        room = AT_ONCE - (self.committer.asked - self.committer.answered)
        if room >= min(_REFILL, AT_ONCE):
            while room and (taken := self.rota.take()) is not None:
                room -= 1
                self.committer.asked += 1
                self._verifier.check(*taken)

    def _has_room(self, owner: object) -> bool:
        """Whether one more of its messages may be in flight."""
        waiting = self.rota.count(owner)
        if self.rota.waiting and waiting < _FEW:
            return self.in_flight < self._most + self._most // _RESERVE
        return self.in_flight < self._most and waiting < max(1, self._most // _SHARE)

    def turned_away(self, refused: Refused, bytes_in: int) -> None:
        """Count what was refused before it was a message."""
        self.metrics.refused(refused)
        if self.log:
            self.log.turned_away(refused, bytes_in)


class _OnItsWay(Submission):
    """One message between the door and its receipt."""

    __slots__ = ("_arrived", "_submits", "_verify_s")

    def __init__(self, submits: Submits, message: Msg, encoded: bytes, done: Callable[[Outcome], None]) -> None:
        self.message = message
        self.encoded = encoded
        self._done = done
        self._submits = submits
        self._arrived = perf_counter()
        self._verify_s = 0.0

    def verified(self, held: bool) -> None:
        """The verifier's answer."""
        submits = self._submits
        submits.committer.answered += 1
        if submits.rota.waiting:
            submits.ask_more()
        self._verify_s = seconds = perf_counter() - self._arrived
        if held:
            submits.metrics.verify_ms.observe(seconds * 1e3)
            submits.committer.put(self)
        else:
            submits.committer.nudge()  # a group may have waited for this one
            self.done(_SIG_INVALID)

    def done(self, outcome: Outcome) -> None:
        submits = self._submits
        seconds = perf_counter() - self._arrived
        submits.in_flight -= 1
        if submits.is_refusing and submits.in_flight <= submits.relieved_at:
            submits.is_refusing = False
            submits.conditions.leave(Reason.SUBMIT_OVERLOAD)
        if isinstance(outcome, Refused):
            submits.metrics.refused(outcome)
        else:
            submits.metrics.whole_ms.observe(seconds * 1e3)
        self._done(outcome)
        if submits.log:
            submits.log.ended(self.message, self.encoded, outcome, self._verify_s, seconds)


def unwrapped(body: bytes) -> bytes:
    """The MSG in a submit request. Whatever is wrong with the envelope is a structural fault of the submit."""
    if body.startswith(ENVELOPE):
        return body[len(ENVELOPE) :]
    try:
        SubmitRequest.decode(body)
    except Malformed as error:
        raise BY_DETAIL["CBOR_INVALID"].refused(error.reason) from None
    raise AssertionError("a submit request has one encoding")


def from_json(body: bytes) -> bytes:
    """The MSG that a submit request in JSON stands for, encoded: from there on both forms go the same way."""
    try:
        asked = strict_json.decode(body, "submit request")
    except Malformed as error:
        raise BY_DETAIL["CBOR_INVALID"].refused(error.reason) from None
    if not isinstance(asked, dict) or asked.keys() != {"ver", "msg"} or not _is_one(asked["ver"]):
        raise BY_DETAIL["CBOR_INVALID"].refused('a submit request is {"ver": 1, "msg": [...]}')
    if not isinstance(asked["msg"], list):
        raise BY_DETAIL["CBOR_INVALID"].refused("msg is not an array of its fields")
    try:
        return cbor.encode([_field(value) for value in asked["msg"]])
    except ValueError:
        raise BY_DETAIL["CBOR_INVALID"].refused(
            "a field of msg is no unsigned integer, null or lowercase hex"
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
