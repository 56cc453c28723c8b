"""The way in: a submitted message from its bytes to its receipt. Spec §8.1.

Everything here runs on the loop's thread and hands over: signatures to the verifier, order to the committer.
"""

from collections.abc import Callable
from time import perf_counter

from veen.core import Malformed, Msg, Refused, cbor, jsontext, msg
from veen.core.admission import BY_DETAIL
from veen.core.envelopes import SubmitRequest
from veen.hub.committer import Committer
from veen.hub.metrics import Metrics
from veen.hub.rules import Rules, parse
from veen.hub.sequencer import Outcome, Submission
from veen.hub.submitlog import SubmitLog
from veen.hub.verifier import Verifier

# {1: 1, 2: msg}: the one encoding of a submit request starts with these bytes, and the rest is the MSG.
ENVELOPE = b"\xa2\x01\x01\x02"
_SIG_INVALID = BY_DETAIL["SIG_INVALID"].refused("the signature does not verify under client_id")


class Submits:
    """Messages on their way in, counted and bounded."""

    def __init__(
        self,
        rules: Rules,
        verifier: Verifier,
        committer: Committer,
        metrics: Metrics,
        max_in_flight: int,
        log: SubmitLog | None = None,
    ) -> None:
        self._rules = rules
        self._verifier = verifier
        self._committer = committer
        self._metrics = metrics
        self._most = max_in_flight
        self.log = log
        self.in_flight = 0

    def submit(self, encoded: bytes, done: Callable[[Outcome], None]) -> None:
        """Decide about one encoded MSG; `done` hears of it exactly once, on the loop's thread."""
        if self.in_flight >= self._most:
            refused = Refused("E.UNAVAILABLE", "the hub has more to do than it can queue", retry_after=1)
            self.turned_away(refused)
            done(refused)
            return
        try:
            message = parse(encoded, self._rules)
        except Refused as error:
            self.turned_away(error)
            done(error)
            return
        _OnItsWay(self, message, encoded, done)

    def turned_away(self, refused: Refused) -> None:
        """Count what was refused before it was a message."""
        self._metrics.refused(refused)

    def begin(self, message: Msg, encoded: bytes, answer: Callable[[bool], None]) -> None:
        self.in_flight += 1
        self._verifier.check(message.client_id + msg.signing_digest(encoded) + message.sig, answer)

    def verified(self, submission: Submission, seconds: float) -> None:
        self._metrics.verified(seconds)
        self._committer.put(submission)

    def ended(self, outcome: Outcome, seconds: float) -> None:
        self.in_flight -= 1
        if isinstance(outcome, Refused):
            self._metrics.refused(outcome)
        else:
            self._metrics.accepted(seconds)


class _OnItsWay:
    """One message between the door and its receipt."""

    __slots__ = ("_arrived", "_done", "_encoded", "_message", "_submits", "_verify_s")

    def __init__(self, submits: Submits, message: Msg, encoded: bytes, done: Callable[[Outcome], None]) -> None:
        self._submits = submits
        self._message = message
        self._encoded = encoded
        self._done = done
        self._arrived = perf_counter()
        self._verify_s = 0.0
        submits.begin(message, encoded, self._verified)

    def _verified(self, held: bool) -> None:
        self._verify_s = perf_counter() - self._arrived
        if held:
            self._submits.verified(Submission(self._message, self._encoded, self._ended), self._verify_s)
        else:
            self._ended(_SIG_INVALID)

    def _ended(self, outcome: Outcome) -> None:
        seconds = perf_counter() - self._arrived
        self._submits.ended(outcome, seconds)
        self._done(outcome)
        if self._submits.log:
            self._submits.log.ended(self._message, self._encoded, outcome, self._verify_s, seconds)


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
        asked = jsontext.decode(body, "submit request")
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


def _is_one(value: jsontext.Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 1


def _field(value: jsontext.Json) -> cbor.Value:
    if isinstance(value, str):
        content = bytes.fromhex(value)
        if content.hex() != value:
            raise ValueError("not lowercase hex")
        return content
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError("not a field of a message")
