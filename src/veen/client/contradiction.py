"""What a hub can be caught at. Each way to lie has one name, and every check that finds it says that name."""

from enum import StrEnum
from pathlib import Path

from veen.core import Msg, Unverified
from veen.core.proof import Head


class Lie(StrEnum):
    """What the hub did."""

    SIGNATURE = "signature"  # it is signed by nobody who should have
    WRONG_KEY = "wrong key"  # it is signed, by a key that does not count then or was never this hub's
    ROOT = "root"  # the signed root is not that of the tree that ends with the signed leaf
    SEQ_GAP = "seq gap"  # a number is left out
    DUPLICATE_SEQ = "duplicate seq"  # one number is given to two entries
    REPEATED_MESSAGE = "repeated message"  # one message is entered twice, or a client's messages out of their order
    SWAPPED_MESSAGE = "swapped message"  # the message is not the one the receipt is for
    TRUNCATED_STREAM = "truncated stream"  # entries that the hub has signed for are not there any more
    STALE_CHECKPOINT = "stale checkpoint"  # an older checkpoint than the one asked for, or than one seen before
    FORKED_HISTORY = "forked history"  # what it shows now does not continue what it showed before
    REPLAYED_RECEIPT = "replayed receipt"  # a receipt that was given before, for something else


class Contradiction(Unverified):
    """The hub contradicts itself, or what it signed. Never retried, and never accepted in silence.

    `statements` are what it signed. Where they contradict each other by themselves, `evidence` is the file that shows
    it to anyone.
    """

    def __init__(
        self,
        lie: Lie,
        reason: str,
        statements: tuple[Head, ...] = (),
        *,
        messages: tuple[Msg, ...] = (),
        peaks: tuple[bytes, ...] = (),
    ) -> None:
        super().__init__(str(lie), reason)
        self.lie = lie
        self.statements = statements
        self.messages = messages
        self.peaks = peaks  # of the tree that the first statement signs, where its growth is what is wrong
        self.evidence: Path | None = None
        self.hub_id: bytes | None = None  # the hub that the evidence is about

    def __str__(self) -> str:
        kept = f" (evidence: {self.evidence})" if self.evidence else ""
        return f"{self.lie}: {self.reason}{kept}"
