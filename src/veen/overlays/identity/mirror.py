"""Identity across hubs: how an event is mirrored, and what the logs of several hubs come to together. id-spec §12.1."""

from collections.abc import Iterable
from dataclasses import replace

from veen.core import PayloadHdr
from veen.overlays.entry import Entry


def mirrored(entry: Entry) -> tuple[PayloadHdr, bytes]:
    """The header and body with which a bridge publishes an event on another hub: schema and body as they were.

    A copy of a copy names the first message too. What a capability allowed on one hub says nothing on another.
    """
    if entry.header is None or entry.body is None:
        raise ValueError("what cannot be opened cannot be mirrored")
    return PayloadHdr(entry.header.schema, entry.origin, expires_at=entry.header.expires_at), entry.body


def union(*logs: Iterable[Entry]) -> list[Entry]:
    """The events of all trusted hubs as one log, numbered anew: the same however the logs are listed.

    Each log is one stream of one hub, in order. They are laid beside each other by `hub_ts`, and no log is reordered
    by a clock that went back. Of an event and its copies one is kept: the original, wherever it is, or else the first.
    """
    placed = sorted((item for log in logs for item in _placed(log)), key=lambda item: item[0])
    counted: dict[tuple[bytes, bytes | None], Entry] = {}
    for _, entry in placed:
        first = counted.setdefault((entry.origin, entry.body), entry)
        if entry.origin == entry.msg_id and first is not entry:
            counted[entry.origin, entry.body] = entry
    kept = [entry for _, entry in placed if counted[entry.origin, entry.body] is entry]
    return [replace(entry, epoch=0, stream_seq=number) for number, entry in enumerate(kept, 1)]


Place = tuple[int, int, bytes, int]


def _placed(log: Iterable[Entry]) -> Iterable[tuple[Place, Entry]]:
    latest = 0
    for entry in log:
        latest = max(latest, entry.hub_ts)
        yield (latest, entry.epoch, entry.label, entry.stream_seq), entry
