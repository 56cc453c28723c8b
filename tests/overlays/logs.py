"""Builds logs of verified and opened entries for overlay tests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from hypothesis import strategies as st

from veen.core import PayloadHdr, mmr
from veen.overlays import Event, FoldEntry

LABEL = bytes(31) + b"\x01"
START = 1_700_000_000
CLIENTS = tuple(sha256(b"client %d" % number).digest() for number in range(3))


def msg_id(number: int, epoch: int = 0) -> bytes:
    return sha256(b"message %d of %d" % (number, epoch)).digest()


def label_of(epoch: int) -> bytes:
    return LABEL if epoch == 0 else sha256(b"label %d" % epoch).digest()


@dataclass(frozen=True, slots=True)
class LogLine:
    """One entry of a test log. `spoil` is appended to the body; `sealed` hides the body from the reader."""

    event: Event
    parent_id: bytes | None = None
    client: int = 0
    after: int = 1  # seconds since the entry before
    spoil: bytes = b""
    sealed: bool = False
    cap_ref: bytes | None = None
    auth_ref: bytes | None = None


def said(event: Event | LogLine) -> LogLine:
    return event if isinstance(event, LogLine) else LogLine(event)


def log(*events: Event | LogLine, start: int = 1, epoch: int = 0, hub_ts: int = START) -> list[FoldEntry]:
    """The entries of one label, numbered from `start`."""
    entries = []
    for stream_seq, one in enumerate(map(said, events), start):
        hub_ts += one.after
        header = PayloadHdr(one.event.SCHEMA, one.parent_id, cap_ref=one.cap_ref)
        opened = (None, None) if one.sealed else (header, one.event.encode() + one.spoil)
        client_id, own = CLIENTS[one.client], msg_id(stream_seq, epoch)
        entries.append(FoldEntry(label_of(epoch), epoch, stream_seq, hub_ts, client_id, one.auth_ref, own, *opened))
    return entries


def root(entries: Iterable[FoldEntry]) -> bytes:
    """The root of one label's log."""
    return mmr.root(entry.msg_id for entry in entries)


def logs(events: st.SearchStrategy[Event], most: int = 24) -> st.SearchStrategy[list[FoldEntry]]:
    """Logs of these events, with copies, sealed entries and bodies that do not decode."""
    entry = st.builds(
        LogLine,
        events,
        parent_id=st.one_of(st.none(), st.none(), st.sampled_from([msg_id(number) for number in range(1, 9)])),
        client=st.integers(0, len(CLIENTS) - 1),
        after=st.sampled_from([0, 0, 1, 7, 100, 40_000]),
        spoil=st.sampled_from([b"", b"", b"", b"", b"", b"\x00"]),
        sealed=st.sampled_from([False, False, False, False, False, True]),
    )
    return st.lists(entry, max_size=most).map(lambda listed: log(*listed))


def cuts(entries: Sequence[FoldEntry]) -> Iterable[tuple[list[FoldEntry], list[FoldEntry]]]:
    """The log in two pieces, at every place."""
    for place in range(len(entries) + 1):
        yield list(entries[:place]), list(entries[place:])
