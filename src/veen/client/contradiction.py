"""The contradictions that a hub can be caught at. Each kind has one name, which every check uses."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from veen.core import HubIdentity, IdentitySignature, Msg, Unverified
from veen.core.handover import Cover
from veen.core.proof import Head


class Lie(StrEnum):
    """The kind of a contradiction."""

    SIGNATURE = "signature"  # no valid signature
    WRONG_KEY = "wrong key"  # signed by a key that was not active, or never a key of this hub
    ROOT = "root"  # the tree that ends with the signed leaf has another root than the signed one
    SEQ_GAP = "seq gap"  # a stream_seq or client_seq is missing
    DUPLICATE_SEQ = "duplicate seq"  # two entries have the same stream_seq
    REPEATED_MESSAGE = "repeated message"  # a message occurs twice, or a client's messages are out of order
    SWAPPED_MESSAGE = "swapped message"  # the receipt is for another message
    TRUNCATED_STREAM = "truncated stream"  # signed entries are missing
    STALE_CHECKPOINT = "stale checkpoint"  # not the requested checkpoint
    FORKED_HISTORY = "forked history"  # the log does not continue what the hub signed before
    REPLAYED_RECEIPT = "replayed receipt"  # a receipt of another entry
    TIME = "time"  # hub_ts decreases, or one entry has two
    RECOVERY = "recovery"  # the hub states that it lost entries which it signed


class Contradiction(Unverified):
    """The hub contradicts itself, or what it signed. Never retried, and never accepted silently.

    `statements` were signed by the hub. If they prove the contradiction by themselves, `evidence` is the file that
    shows it to anyone.
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
        covers: tuple[Cover, ...] = (),
    ) -> None:
        super().__init__(str(lie), reason)
        self.lie = lie
        self.statements = statements
        self.messages = messages
        self.peaks = peaks  # peaks of the tree that the first statement signs, if its growth is wrong
        self.covers = covers  # connect statements of retired keys with hand-overs
        self.rival = rival  # a signed identity record of the same hub that contradicts the known one
        self.evidence: Path | None = None
        self.hub_id: bytes | None = None  # the hub that the evidence is about
        self.proven = False  # True: the evidence proves the contradiction to anyone

    def __str__(self) -> str:
        kept = f" (evidence: {self.evidence})" if self.evidence else ""
        return f"{self.lie}: {self.reason}{kept}"


class Caught(Contradiction):
    """The hub was proven to contradict itself before, and the user has not started over with it."""

    def __init__(self, hub_id: bytes, lie: Lie, reason: str, caught_at: int, evidence: Path) -> None:
        super().__init__(lie, reason)
        self.hub_id = hub_id
        self.caught_at = caught_at
        self.evidence = evidence
        self.proven = True

    def __str__(self) -> str:
        return f"this hub contradicted itself on {shown_time(self.caught_at)}: {super().__str__()}"


def shown_time(at: int) -> str:
    """A time of a hub or of this machine, for people."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
