"""What a hub and its clients promise, checked from outside: the ledger survives everything that happens in a world."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from veen.client.reader import Entry
from veen.core import Receipt

Place = tuple[bytes, int]


class Violation(Exception):
    """A promise was broken."""


@dataclass(eq=False)
class Letter:
    """A message that a client was told to send, with a body that no other message has."""

    stream: str
    body: bytes
    mark: bytes
    receipt: Receipt | None = None  # acknowledged
    refusal: str | None = None  # rejected: it must not be in the log


@dataclass(eq=False)
class Ledger:
    """Every receipt that any client verified, and every message that a client was told to send."""

    receipts: dict[Place, Receipt] = field(default_factory=dict)
    places: dict[bytes, Place] = field(default_factory=dict)  # by leaf_hash
    letters: dict[bytes, Letter] = field(default_factory=dict)  # by body

    def add(self, receipt: Receipt, seen_by: str) -> None:
        """A client verified this receipt. No place has two, and no message has two places."""
        place = receipt.label, receipt.stream_seq
        known = self.receipts.setdefault(place, receipt)
        if known.encode() != receipt.encode():
            raise Violation(f"{seen_by} has another receipt for {shown(place)} than was acknowledged before")
        other = self.places.setdefault(receipt.leaf_hash, place)
        if other != place:
            raise Violation(f"{seen_by} has one message at {shown(place)} and at {shown(other)}")

    def check_log(self, log: Sequence[Entry], reader: str) -> None:
        """A reader got the whole log of one label."""
        last_ts = 0
        for number, entry in enumerate(log, 1):
            self.add(entry.receipt, reader)
            if entry.stream_seq != number:
                raise Violation(f"{reader} got entry {entry.stream_seq} as number {number}")
            if entry.receipt.hub_ts < last_ts:
                raise Violation(f"hub_ts falls from {last_ts} to {entry.receipt.hub_ts} at entry {number}")
            last_ts = entry.receipt.hub_ts
            if entry.fault is not None or entry.body not in self.letters:
                raise Violation(f"{reader} got entry {number} that nobody sent: {entry.fault or entry.body!r}")

    def check_complete(self, logs: Iterable[Sequence[Entry]]) -> None:
        """These are all logs: nothing acknowledged is missing, nothing is there twice, and nothing rejected is."""
        found = {(entry.receipt.label, entry.stream_seq): entry for log in logs for entry in log}
        lost = [place for place in self.receipts if place not in found]
        if lost:
            raise Violation(f"the acknowledged receipt of {shown(lost[0])} is lost ({len(lost)} in all)")
        times: dict[bytes, Place] = {}
        for place, entry in found.items():
            assert entry.body is not None
            if entry.body in times:
                raise Violation(f"{entry.body!r} is at {shown(times[entry.body])} and at {shown(place)}")
            times[entry.body] = place
        for letter in self.letters.values():
            at = times.get(letter.body)
            if letter.receipt and at != (letter.receipt.label, letter.receipt.stream_seq):
                raise Violation(f"{letter.body!r} was acknowledged and is not at its place")
            if letter.refusal is not None and at is not None:
                raise Violation(f"{letter.body!r} is at {shown(at)}, but was rejected: {letter.refusal}")
            if not letter.receipt and letter.refusal is None and at is None:
                raise Violation(f"{letter.body!r} has neither a place nor a rejection")


def check_same(logs: dict[str, list[Entry]]) -> None:
    """All readers of one label got the same entries."""
    (first, expected), *others = logs.items()
    for name, log in others:
        if [entry.receipt.encode() for entry in log] != [entry.receipt.encode() for entry in expected]:
            raise Violation(f"{name} reads another log than {first}: {len(log)} and {len(expected)} entries")
        if [entry.body for entry in log] != [entry.body for entry in expected]:
            raise Violation(f"{name} opens other messages than {first}")


def shown(place: Place) -> str:
    return f"{place[0].hex()[:8]}:{place[1]}"
