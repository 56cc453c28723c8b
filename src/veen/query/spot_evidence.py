"""Evidence: events behind an answer are read again from the log, and must be what the tables said. §6.

Reading verifies each: the client's signature, the hub's receipt, and that the tree it stands in is the one that this
client knows the hub by. So a table that was changed makes the query fail.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Any

from veen.client.client import Client
from veen.client.entry import Entry
from veen.core import HubIdentity, Refused, Unverified
from veen.pipeline.decoding import Decoder, Keys
from veen.pipeline.decoding.decoder import EventRow
from veen.pipeline.decoding.plain_json import to_json
from veen.pipeline.engine import EventQuery, event_query
from veen.query import import_origin
from veen.query.digest import VerifiedEvent
from veen.query.import_origin import ImportOrigins
from veen.query.table_query import SourceEvent, wanted
from veen.state.entry_source import folded

_GAP = 64  # entries that are read along, rather than asking anew

Identities = Mapping[bytes, HubIdentity]


async def verify(
    client: Client, query: EventQuery, behind: Sequence[SourceEvent], came: ImportOrigins, identities: Identities
) -> tuple[VerifiedEvent, ...]:
    """What the summary has of each, in their order. Raises `Unverified` at the first that is not so."""
    checker = _Checker(query, came, identities)
    of_stream = sorted(behind, key=lambda one: (one.stream, one.epoch, one.seq))
    for (stream, epoch), group in groupby(of_stream, lambda one: (one.stream, one.epoch)):
        for run in _runs(list(group)):
            left = {one.seq: one for one in run}
            async for entry in _entries(client, stream, epoch, run):
                said = left.pop(entry.stream_seq, None)
                if said is not None:
                    checker.check(entry, said)
            if left:
                raise Unverified("evidence", f"{stream}: the tables have entry {min(left)}, and the log has not")
    return tuple(one.shown for one in behind)


async def _entries(client: Client, stream: str, epoch: int, run: Sequence[SourceEvent]) -> AsyncGenerator[Entry, None]:
    try:
        async with aclosing(client.read(stream, run[0].seq, run[-1].seq, epoch=epoch)) as entries:
            async for entry in entries:
                yield entry
    except Refused as refused:
        if refused.code != "E.NOT_FOUND":
            raise


class _Checker:
    """Holds events against what the tables say of them."""

    def __init__(self, query: EventQuery, came: ImportOrigins, identities: Identities) -> None:
        self._query = query
        self._came = came
        self._identities = identities
        self._decoder = Decoder({}, Keys())

    def check(self, entry: Entry, said: SourceEvent) -> None:
        where = f"{said.stream}, entry {entry.stream_seq}"
        row = self._decoder.read(folded(entry), entry.receipt.mmr_root, entry.fault)
        if not isinstance(row, EventRow):
            raise Unverified("evidence", f"{where}: the tables have an event where the log has none: {row.reason}")
        found: dict[str, Any] = {**row._asdict(), "stream": said.told_as}
        hub_id = None
        if said.told_as != said.stream:
            original = self._came.receipt(entry.header)
            if original is None:
                raise Unverified("evidence", f"{where}: it names no original that was imported")
            traced, hub_id = original
            import_origin.check_receipt(traced.origin.receipt, hub_id, self._identities)
            found = import_origin.as_original(found, said.told_as, traced)
        shown = (event_query.receipt_id(found["label"], found["stream_seq"]), found["mmr_root"].hex())
        if shown != (said.shown.receipt_id, said.shown.mmr_root) or (hub_id and hub_id.hex() != said.shown.hub_id):
            raise Unverified("evidence", f"{where}: the tables have another receipt of it than the log")
        if to_json(event_query.values(found, tuple(said.values))) != to_json(said.values):
            raise Unverified("evidence", f"{where}: the tables have another event there than the log")
        if not wanted(self._query, found):
            raise Unverified("evidence", f"{where}: it is not one that was asked for")


def _runs(group: list[SourceEvent]) -> Iterator[list[SourceEvent]]:
    """Parts that lie so near to each other that one read gets them all."""
    run: list[SourceEvent] = []
    for one in group:
        if run and one.seq - run[-1].seq > _GAP:
            yield run
            run = []
        run.append(one)
    yield run
