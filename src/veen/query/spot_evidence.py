"""Verify evidence: read the events behind an answer from the log again, and compare them with the tables. §6.

Reading verifies the client's signature, the hub's receipt, and that the tree continues the one this client knows of the
hub. A changed table therefore makes the query fail.
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

_GAP = 64  # unneeded entries to read rather than start a new request

Identities = Mapping[bytes, HubIdentity]


async def verify(
    client: Client, query: EventQuery, sources: Sequence[SourceEvent], imports: ImportOrigins, identities: Identities
) -> tuple[VerifiedEvent, ...]:
    """The evidence of each event, in order. Raises `Unverified` at the first mismatch."""
    checker = _Checker(query, imports, identities)
    of_stream = sorted(sources, key=lambda one: (one.stream, one.epoch, one.seq))
    for (stream, epoch), group in groupby(of_stream, lambda one: (one.stream, one.epoch)):
        for run in _runs(list(group)):
            missing = {one.seq: one for one in run}
            async for entry in _entries(client, stream, epoch, run):
                expected = missing.pop(entry.stream_seq, None)
                if expected is not None:
                    checker.check(entry, expected)
            if missing:
                raise Unverified("evidence", f"{stream}: the tables have entry {min(missing)}, but the log does not")
    return tuple(one.shown for one in sources)


async def _entries(client: Client, stream: str, epoch: int, run: Sequence[SourceEvent]) -> AsyncGenerator[Entry, None]:
    try:
        async with aclosing(client.read(stream, run[0].seq, run[-1].seq, epoch=epoch)) as entries:
            async for entry in entries:
                yield entry
    except Refused as refused:
        if refused.code != "E.NOT_FOUND":
            raise


class _Checker:
    """Compares events with their values in the tables."""

    def __init__(self, query: EventQuery, imports: ImportOrigins, identities: Identities) -> None:
        self._query = query
        self._came = imports
        self._identities = identities
        self._decoder = Decoder({}, Keys())

    def check(self, entry: Entry, expected: SourceEvent) -> None:
        where = f"{expected.stream}, entry {entry.stream_seq}"
        row = self._decoder.read(folded(entry), entry.receipt.mmr_root, entry.fault)
        if not isinstance(row, EventRow):
            raise Unverified("evidence", f"{where}: the tables have an event, but the log has none: {row.reason}")
        found: dict[str, Any] = {**row._asdict(), "stream": expected.shown_as}
        hub_id = None
        if expected.shown_as != expected.stream:
            original = self._came.receipt(entry.header)
            if original is None:
                raise Unverified("evidence", f"{where}: it does not refer to an imported original")
            traced, hub_id = original
            import_origin.check_receipt(traced.origin.receipt, hub_id, self._identities)
            found = import_origin.as_original(found, expected.shown_as, traced)
        shown = (event_query.receipt_id(found["label"], found["stream_seq"]), found["mmr_root"].hex())
        if shown != (expected.shown.receipt_id, expected.shown.mmr_root) or (
            hub_id and hub_id.hex() != expected.shown.hub_id
        ):
            raise Unverified("evidence", f"{where}: the receipt in the tables differs from the log's")
        if to_json(event_query.values(found, tuple(expected.values))) != to_json(expected.values):
            raise Unverified("evidence", f"{where}: the event in the tables differs from the log's")
        if not wanted(self._query, found):
            raise Unverified("evidence", f"{where}: it does not match the query")


def _runs(group: list[SourceEvent]) -> Iterator[list[SourceEvent]]:
    """Groups that are close enough for one read."""
    run: list[SourceEvent] = []
    for one in group:
        if run and one.seq - run[-1].seq > _GAP:
            yield run
            run = []
        run.append(one)
    yield run
