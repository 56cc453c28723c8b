"""Queries and digests as recorder events, each in the log exactly once. 001, query-api-spec §4.5, §5.5.

A message is marked in the outbox by what it records, in the transaction that gives it its place. So whenever the
service is killed, the next run knows what is recorded, and records what is not.
"""

from contextlib import aclosing
from dataclasses import dataclass

from veen.client.client import Client
from veen.client.draft import Draft
from veen.core import Malformed, Mmr, Receipt, Refused, Unavailable, naming
from veen.core.hashing import h
from veen.overlays.record import CHANGES, RECORDER_CHANGES, RecordEvent, profile_of, stream_of
from veen.pipeline.engine import event_query
from veen.query import descriptor as descriptors
from veen.query import timestamps
from veen.query.descriptor import QueryDescriptor
from veen.query.digest import ResultDigest
from veen.query.query_store import QueryJob, RecordedPlace
from veen.state import HubSource, StateView
from veen.state.entry_source import folded

REQUESTS, RESULTS = "record/query/requests", "record/query/results"
SUBMITTED, ANSWERED = "query.submitted", "query.result"
ORIGIN = "veen.query"
_MARK = b"query/"


class QueryRecorder:
    """One hub's record of queries."""

    def __init__(self, client: Client, origin: str = ORIGIN) -> None:
        self._client = client
        self._origin = origin
        self.profile_id: str | None = None

    async def open(self) -> set[str]:
        """Send what an earlier run left, and say which query_ids are in the log. Raises where it cannot be written."""
        for stream in (REQUESTS, RESULTS):
            if self._client.dir.stream_keys.secret(naming.stream_id(stream)) is None:
                raise Unavailable(f"there is no key of stream {stream} here: veen stream-key makes or takes one")
        await self._client.recover()
        await self._read_profile()
        return {one.descriptor.query_id for one in await requests(self._client, REQUESTS)}

    async def _read_profile(self) -> None:
        """Where a recorder is set up, its map has the last word on which stream an event type goes to."""
        if self._client.dir.stream_keys.secret(naming.stream_id(CHANGES)) is None:
            return
        async with StateView.of(self._client, CHANGES, RECORDER_CHANGES) as view, view.reading() as reading:
            states = dict(reading.states)
        profile = profile_of(states)
        self.profile_id = None if profile is None else profile.profile_id().hex()
        for event_type, stream in ((SUBMITTED, REQUESTS), (ANSWERED, RESULTS)):
            mapped = stream_of(states, event_type)
            if profile is not None and mapped != stream:
                raise Refused("E.RECORDER", f"event type {event_type} is mapped to {mapped}, and belongs on {stream}")

    async def request(self, job: QueryJob) -> RecordedPlace:
        """Record what was asked."""
        event = RecordEvent(
            job.subject_id, SUBMITTED, job.submitted_at, self._origin, job.descriptor, REQUESTS, job.query_id.encode()
        )
        return await self._put(REQUESTS, event)

    async def result(self, digest: ResultDigest) -> RecordedPlace:
        """Record what came of it; the service answers for that."""
        executed_ms, subject = timestamps.parse(digest.executed_at), f"client:{self._client.dir.card.id_sign.hex()}"
        event = RecordEvent(
            subject, ANSWERED, executed_ms, self._origin, digest.text(), RESULTS, digest.result_id.encode()
        )
        return await self._put(RESULTS, event)

    async def _put(self, stream: str, event: RecordEvent) -> RecordedPlace:
        assert isinstance(event.position, bytes)
        mark = _MARK + h(self._client.hub_id + naming.stream_id(stream) + event.position)
        leaf = self._client.dir.outbox.marks(mark).get(mark)
        if leaf is None:
            receipt = (await self._client.sender(stream).put(Draft(event.encode(), event.SCHEMA, mark=mark))).receipt
        else:
            await self._client.recover()
            receipt = self._kept(leaf)
        receipt_id = event_query.receipt_id(receipt.label, receipt.stream_seq)
        return RecordedPlace(stream, receipt.stream_seq, self._client.hub_id.hex(), receipt_id)

    def _kept(self, leaf: bytes) -> Receipt:
        """The receipt of a message of an earlier run: those of everything that was sent are kept."""
        with self._client.dir.state.tables.read() as rows:
            for _, row in rows.scan("receipts", self._client.hub_id):
                receipt = Receipt.decode(row)
                if receipt.leaf_hash == leaf:
                    return receipt
        raise Unavailable("a message of an earlier run has no receipt yet")


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A query as the log has it."""

    descriptor: QueryDescriptor
    subject_id: str
    recorded: RecordedPlace


async def events(client: Client, stream: str, event_type: str) -> list[tuple[RecordEvent, RecordedPlace]]:
    """The events of one type on a stream, in the order of the log, each verified."""
    source, stream_id, found = HubSource(client), naming.stream_id(stream), []
    for epoch in await source.epochs(stream_id, None):
        async with aclosing(source.read(stream_id, epoch, Mmr())) as pages:
            async for page in pages:
                for entry in map(folded, page):
                    try:
                        event = RecordEvent.decode(entry.body or b"")
                    except Malformed:
                        continue  # whoever wrote it, it is no event of ours
                    if event.event_type == event_type:
                        place = event_query.receipt_id(entry.label, entry.stream_seq)
                        found.append((event, RecordedPlace(stream, entry.stream_seq, client.hub_id.hex(), place)))
    return found


async def requests(client: Client, stream: str) -> list[QueryRequest]:
    """The queries that a stream has; the first of each id."""
    found: dict[str, QueryRequest] = {}
    for event, recorded in await events(client, stream, SUBMITTED):
        try:
            asked = descriptors.decode(event.content)
        except Malformed:
            continue
        found.setdefault(asked.query_id, QueryRequest(asked, event.subject_id, recorded))
    return list(found.values())


async def results(client: Client, stream: str) -> dict[str, tuple[ResultDigest, RecordedPlace]]:
    """The digests that a stream has, by query_id; the first of each."""
    found: dict[str, tuple[ResultDigest, RecordedPlace]] = {}
    for event, recorded in await events(client, stream, ANSWERED):
        try:
            digest = ResultDigest.decode(event.content)
        except Malformed:
            continue
        found.setdefault(digest.query_id, (digest, recorded))
    return found
