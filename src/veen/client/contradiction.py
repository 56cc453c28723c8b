"""What a hub can be caught at. Each way to lie has one name, and every check that finds it says that name."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from veen.core import HubIdentity, IdentitySignature, Msg, Unverified
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
    TIME = "time"  # the signed times of a label go back, or one entry has two


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
        rival: tuple[HubIdentity, IdentitySignature] | None = None,
    ) -> None:
        super().__init__(str(lie), reason)
        self.lie = lie
        self.statements = statements
        self.messages = messages
        self.peaks = peaks  # of the tree that the first statement signs, where its growth is what is wrong
        self.rival = rival  # a signed identity record of the same hub that the known one excludes
        self.evidence: Path | None = None
        self.hub_id: bytes | None = None  # the hub that the evidence is about
        self.proven = False  # True: the file shows the contradiction by itself, to anyone

    def __str__(self) -> str:
        kept = f" (evidence: {self.evidence})" if self.evidence else ""
        return f"{self.lie}: {self.reason}{kept}"


class Caught(Contradiction):
    """The hub was proven to contradict itself before, and nobody started over with it since."""

    def __init__(self, hub_id: bytes, lie: Lie, reason: str, caught_at: int, evidence: Path) -> None:
        super().__init__(lie, reason)
        self.hub_id = hub_id
        self.caught_at = caught_at
        self.evidence = evidence
        self.proven = True

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.caught_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"this hub contradicted itself on {when}: {super().__str__()}"
