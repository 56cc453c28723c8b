"""A random history: writers and labels by chance, in any order, with wrong messages thrown in. The model of `props`."""

import math
import time
from dataclasses import dataclass, field
from random import Random

from veen.core import Msg, Receipt
from veen.selftest.trial import Trial
from veen.selftest.verdict import Failed
from veen.selftest.writer import Accepted, Writer

_MOST_LABELS, _MOST_WRITERS, _MOST_BODY = 3, 4, 600
_WRONG_SHARE = 0.2


@dataclass(slots=True)
class Shelf:
    """One label: who writes to it, and what was accepted, in the order in which it was."""

    label: bytes
    writers: list[Writer]
    entries: list[Accepted] = field(default_factory=list)

    def receipt(self, stream_seq: int) -> Receipt:
        return self.entries[stream_seq - 1].receipt


@dataclass(slots=True)
class History:
    """What was accepted, by label, and whatever was refused in another way than the rules say."""

    shelves: list[Shelf]
    refused: int = 0
    mistakes: list[str] = field(default_factory=list)

    def pick(self, rng: Random) -> Shelf:
        """A label that has entries."""
        return rng.choice([shelf for shelf in self.shelves if shelf.entries])


def history(trial: Trial) -> History:
    """As many messages as the run's count, or as their labels last for, of which some are wrong on purpose."""
    rng = trial.rng
    ends = time.monotonic() + _lasts_sec(trial)
    made = History([_shelf(trial, rng) for _ in range(rng.randint(1, _MOST_LABELS))])
    first = made.shelves[0]
    _send(rng, first, rng.choice(first.writers))
    for _ in range(trial.count):
        if time.monotonic() > ends:
            break
        shelf = rng.choice(made.shelves)
        writer = rng.choice(shelf.writers)
        if rng.random() < _WRONG_SHARE:
            _send_wrong(trial, made, shelf, writer)
        else:
            _send(rng, shelf, writer)
    return made


def _lasts_sec(trial: Trial) -> float:
    """How long a label can be written to at least. Where it may end any moment, a run that it ends in is repeated."""
    return trial.facts.window() * trial.profile.epoch_sec or math.inf


def _shelf(trial: Trial, rng: Random) -> Shelf:
    first = trial.writer()
    others = [trial.writer(first.stream_id) for _ in range(rng.randrange(_MOST_WRITERS))]
    for other in others:
        other.label = first.label
    return Shelf(first.label, [first, *others])


def _send(rng: Random, shelf: Shelf, writer: Writer) -> None:
    """The writer's next message; it acknowledges as much as it likes of what there is."""
    prev_ack = rng.randint(writer.prev_ack, len(shelf.entries))
    accepted = writer.accept(writer.message(rng.randbytes(rng.randrange(_MOST_BODY)), prev_ack=prev_ack))
    writer.prev_ack = prev_ack
    shelf.entries.append(accepted)


def _send_wrong(trial: Trial, made: History, shelf: Shelf, writer: Writer) -> None:
    row, message = _wrong(trial.rng, shelf, writer)
    reply = trial.probe.submit(message)
    if reply.status == 200:
        raise Failed(f"a message was accepted, where {row} is due")
    made.refused += 1
    try:
        reply.expect_row(row)
    except Failed as failed:
        made.mistakes.append(str(failed))


def _wrong(rng: Random, shelf: Shelf, writer: Writer) -> tuple[str, Msg]:
    """A message that must be refused, and by which row."""
    kinds = ["gap", "ahead"]
    kinds += ["again"] * bool(shelf.entries) + ["reused"] * bool(writer.client_seq) + ["back"] * bool(writer.prev_ack)
    match rng.choice(kinds):
        case "gap":
            return "CLIENT_SEQ", writer.message(client_seq=writer.client_seq + rng.randint(2, 1 << 32))
        case "ahead":
            return "PREV_ACK", writer.message(prev_ack=len(shelf.entries) + rng.randint(1, 1 << 32))
        case "back":
            return "PREV_ACK", writer.message(prev_ack=rng.randrange(writer.prev_ack))
        case "reused":
            return "DUPLICATE", writer.message(b"another", client_seq=rng.randint(1, writer.client_seq))
    return "DUPLICATE", rng.choice(shelf.entries).msg
