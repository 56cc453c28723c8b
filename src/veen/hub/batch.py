"""submit-batch: a CBOR sequence of MSG in, a CBOR sequence of receipts and errors out, in the same order."""

from collections.abc import Callable

from veen.core import Malformed, Msg, Refused
from veen.core.cbor import Late, heads
from veen.core.limits import MAX_PAGE_ITEMS
from veen.http.message import Response
from veen.hub import answers
from veen.hub.sequencer import Outcome
from veen.hub.submits import Submits

# What is no MSG is looked through so far for its end. A MSG has a tenth of it.
_MOST_HEADS = 100
_CONSTANTS = (heads.FALSE, heads.TRUE, heads.NULL)


def split(body: bytes) -> list[bytes]:
    """The encoded items, MSG or not. Behind one whose end cannot be seen nothing is: the rest is the last."""
    items: list[bytes] = []
    pos = 0
    while pos < len(body):
        if len(items) == MAX_PAGE_ITEMS:
            raise Refused("E.LIMIT", f"more than {MAX_PAGE_ITEMS} messages", detail={"max_allowed": MAX_PAGE_ITEMS})
        end = _end_of_item(body, pos)
        items.append(body[pos:end])
        pos = end
    return items


def _end_of_item(body: bytes, pos: int) -> int:
    try:
        return Msg.read(body, pos, Late())[1]
    except Malformed:
        pass
    try:
        return _end_of_value(body, pos)
    except Malformed:
        return len(body)


def _end_of_value(body: bytes, pos: int) -> int:
    """The place behind one value, of which nothing is built: it will be refused, whatever it is."""
    left = 1
    for _ in range(_MOST_HEADS):
        at = pos
        major, argument, pos = heads.read_head(body, at)
        left -= 1
        match major:
            case heads.UINT | heads.NINT:
                pass
            case heads.BSTR | heads.TEXT:
                pos += argument
            case heads.ARRAY:
                left += argument
            case heads.MAP:
                left += 2 * argument
            case _ if body[at] not in _CONSTANTS:
                raise Malformed("cbor", f"a tag, float or undefined value at byte {at}")
        if pos > len(body) or left > len(body) - pos:
            raise Malformed("cbor", f"ends within the value at byte {at}")
        if not left:
            return pos
    raise Malformed("cbor", f"more than {_MOST_HEADS} values")


class Batch:
    """One request's messages, answered together when the last has its answer."""

    def __init__(self, submits: Submits, respond: Callable[[Response], None], owner: object = None) -> None:
        self._submits = submits
        self._respond = respond
        self._owner = owner
        self._outcomes: list[bytes] = []
        self._left = 0

    def submit(self, items: list[bytes]) -> None:
        """Each message is judged by itself, in order."""
        self._outcomes = [b""] * len(items)
        self._left = len(items)
        if not items:
            self._respond(Response(200, b"", answers.CBOR_SEQ))
        for number, encoded in enumerate(items):
            self._submits.submit(
                encoded,
                lambda outcome, number=number: self._ended(number, outcome),  # type: ignore[misc]
                self._owner,
            )

    def _ended(self, number: int, outcome: Outcome) -> None:
        self._outcomes[number] = answers.envelope_of(outcome).encode() if isinstance(outcome, Refused) else outcome
        self._left -= 1
        if not self._left:
            self._respond(Response(200, b"".join(self._outcomes), answers.CBOR_SEQ))
