"""What a hub and its clients promise, checked from outside: the ledger survives everything that happens in a world."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from veen.client.client import Client
from veen.client.reader import Entry
from veen.core import Checkpoint, Receipt, signing
from veen.core.retention import Tombstone

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


@dataclass(slots=True)
class ReadLog:
    """What a reader got of one label. `pruned` has the verified tombstones of what the hub left out."""

    entries: list[Entry] = field(default_factory=list)
    pruned: list[Tombstone] = field(default_factory=list)

    def pruned_places(self) -> set[int]:
        segments = (one.segment for one in self.pruned)
        return {place for one in segments for place in range(one.start_seq, one.end_seq + 1)}


async def read_log(client: Client, stream: str, epoch: int | None = None) -> ReadLog:
    """Read the whole log of a stream in one epoch; None is the current one."""
    log, one = ReadLog(), client.epoch() if epoch is None else epoch
    async for entry in client.read(stream, epoch=one, on_pruned=log.pruned.append):
        log.entries.append(entry)
    return log


@dataclass(eq=False)
class Ledger:
    """Every receipt that any client verified, and every message that a client was told to send."""

    receipts: dict[Place, Receipt] = field(default_factory=dict)
    places: dict[bytes, Place] = field(default_factory=dict)  # by leaf_hash
    letters: dict[bytes, Letter] = field(default_factory=dict)  # by body
    cosignatures: dict[Place, set[bytes]] = field(default_factory=dict)  # by label and size

    def add(self, receipt: Receipt, seen_by: str) -> None:
        """A client verified this receipt. No place has two, and no message has two places."""
        place = receipt.label, receipt.stream_seq
        known = self.receipts.setdefault(place, receipt)
        if known.encode() != receipt.encode():
            raise Violation(f"{seen_by} has another receipt for {shown(place)} than was acknowledged before")
        other = self.places.setdefault(receipt.leaf_hash, place)
        if other != place:
            raise Violation(f"{seen_by} has one message at {shown(place)} and at {shown(other)}")

    def cosigned(self, made: Checkpoint, witness_pks: Iterable[bytes]) -> None:
        """Somebody got a checkpoint. Its cosignatures count, not those of the hub's own keys, which are made again."""
        place, digest = (made.label_curr, made.upto_seq), made.signing_digest()
        sigs = {sig for sig in made.witness_sigs or () for pk in witness_pks if signing.is_valid(pk, digest, sig)}
        self.cosignatures.setdefault(place, set()).update(sigs)

    def check_cosigned(self, made: Checkpoint) -> None:
        """A stored checkpoint has every cosignature that anybody saw."""
        place = made.label_curr, made.upto_seq
        if not self.cosignatures.get(place, set()) <= set(made.witness_sigs or ()):
            raise Violation(f"a cosignature of the checkpoint of {shown(place)} is lost")

    def labels(self) -> set[bytes]:
        return {label for label, _ in self.receipts}

    def size(self, label: bytes) -> int:
        return max(seq for known, seq in self.receipts if known == label)

    def check_log(self, log: ReadLog, reader: str) -> None:
        """A reader got the whole log of one label, without what was pruned."""
        last_ts, number, pruned = 0, 0, log.pruned_places()
        for entry in log.entries:
            number += 1
            while number in pruned and number != entry.stream_seq:
                number += 1
            self.add(entry.receipt, reader)
            if entry.stream_seq != number:
                raise Violation(f"{reader} got entry {entry.stream_seq} as number {number}")
            if entry.receipt.hub_ts < last_ts:
                raise Violation(f"hub_ts falls from {last_ts} to {entry.receipt.hub_ts} at entry {number}")
            last_ts = entry.receipt.hub_ts
            if entry.fault is not None or entry.body not in self.letters:
                raise Violation(f"{reader} got entry {number} that nobody sent: {entry.fault or entry.body!r}")

    def check_complete(self, logs: dict[bytes, ReadLog]) -> None:
        """These are all logs: nothing acknowledged is missing, nothing is there twice, and nothing rejected is."""
        found = {(label, entry.stream_seq): entry for label, log in logs.items() for entry in log.entries}
        pruned = {(label, place) for label, log in logs.items() for place in log.pruned_places()}
        lost = [place for place in self.receipts if place not in found and place not in pruned]
        if lost:
            raise Violation(f"the acknowledged receipt of {shown(lost[0])} is lost ({len(lost)} in all)")
        times: dict[bytes, Place] = {}
        for place, entry in found.items():
            assert entry.body is not None
            if entry.body in times:
                raise Violation(f"{entry.body!r} is at {shown(times[entry.body])} and at {shown(place)}")
            times[entry.body] = place
        unplaced: list[Letter] = []
        for letter in self.letters.values():
            at = times.get(letter.body)
            if letter.refusal is not None and at is not None:
                raise Violation(f"{letter.body!r} is at {shown(at)}, but was rejected: {letter.refusal}")
            if letter.receipt is not None:
                acknowledged = letter.receipt.label, letter.receipt.stream_seq
                if at != acknowledged and acknowledged not in pruned:
                    raise Violation(f"{letter.body!r} was acknowledged and is not at its place")
                pruned.discard(acknowledged)
            elif letter.refusal is None and at is None:
                unplaced.append(letter)
        if len(unplaced) > len(pruned):  # one whose receipt no client has seen may have been pruned
            raise Violation(f"{unplaced[0].body!r} has neither a place nor a rejection")


def check_same(logs: dict[str, ReadLog]) -> None:
    """All readers of one label got the same entries."""
    (first, expected), *others = logs.items()
    for name, log in others:
        if [entry.receipt.encode() for entry in log.entries] != [entry.receipt.encode() for entry in expected.entries]:
            raise Violation(
                f"{name} reads another log than {first}: {len(log.entries)} and {len(expected.entries)} entries"
            )
        if [entry.body for entry in log.entries] != [entry.body for entry in expected.entries]:
            raise Violation(f"{name} opens other messages than {first}")
        if log.pruned_places() != expected.pruned_places():
            raise Violation(f"{name} and {first} are told that different entries were pruned")


def shown(place: Place) -> str:
    return f"{place[0].hex()[:8]}:{place[1]}"
