"""Queries and digests as recorder events, each recorded exactly once. 001, query-api-spec §4.5, §5.5.

The outbox transaction that stores a message also stores a mark for the query or result it records. After a crash, the
next run reads the marks, so it knows what is recorded and records the rest.
"""

from contextlib import aclosing
from dataclasses import dataclass

from veen.client.client import Client
from veen.client.sender import Draft
from veen.core import Malformed, Receipt, Refused, Unavailable, naming
from veen.core.hashing import h
from veen.overlays.record import CHANGES, RECORDER_CHANGES, RecordEvent, profile_of, stream_of
from veen.pipeline.engine import event_query
from veen.query import descriptor as descriptors
from veen.query.descriptor import QueryDescriptor
from veen.query.digest import ResultDigest
from veen.query.query_store import QueryJob, RecordedPlace
from veen.state import HubSource
from veen.state.entry_source import all_entries
from veen.state.state_view import read_states

REQUESTS, RESULTS = "record/query/requests", "record/query/results"
SUBMITTED, ANSWERED = "query.submitted", "query.result"
ORIGIN = "veen.query"
_MARK = b"query/"


class QueryRecorder:
    """Records queries and results of one service on one hub."""

    def __init__(self, client: Client, origin: str = ORIGIN) -> None:
        self._client = client
        self._origin = origin
        self.profile_id: str | None = None

    async def open(self) -> set[str]:
        """Send the messages that an earlier run left, and return the recorded query ids. Raises if it cannot record."""
        for stream in (REQUESTS, RESULTS):
            if self._client.dir.stream_keys.secret(naming.stream_id(stream)) is None:
                raise Unavailable(f"no reader key for stream {stream}; create or import one with veen stream-key")
        await self._client.recover()
        await self._read_profile()
        return {one.descriptor.query_id for one in await requests(self._client, REQUESTS)}

    async def _read_profile(self) -> None:
        """Check the event map of a recorder, if one is set up: it must map our event types to our streams."""
        if self._client.dir.stream_keys.secret(naming.stream_id(CHANGES)) is None:
            return
        states = await read_states(HubSource(self._client), CHANGES, RECORDER_CHANGES)
        profile = profile_of(states)
        self.profile_id = None if profile is None else profile.profile_id().hex()
        for event_type, stream in ((SUBMITTED, REQUESTS), (ANSWERED, RESULTS)):
            mapped = stream_of(states, event_type)
            if profile is not None and mapped != stream:
                what = f"event type {event_type} is mapped to {mapped}, but must be mapped to {stream}"
                raise Refused("E.RECORDER", what)

    async def request(self, job: QueryJob) -> RecordedPlace:
        """Record a query."""
        event = RecordEvent(
            job.subject_id, SUBMITTED, job.submitted_at, self._origin, job.descriptor, REQUESTS, job.query_id.encode()
        )
        return await self._put(REQUESTS, event)

    async def result(self, digest: ResultDigest) -> RecordedPlace:
        """Record a result digest. The subject is the service itself."""
        executed_ms, subject = (
            descriptors.parse_time(digest.executed_at),
            f"client:{self._client.dir.card.id_sign.hex()}",
        )
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
            receipt = self._stored_receipt(leaf)
        receipt_id = event_query.receipt_id(receipt.label, receipt.stream_seq)
        return RecordedPlace(stream, receipt.stream_seq, self._client.hub_id.hex(), receipt_id)

    def _stored_receipt(self, leaf: bytes) -> Receipt:
        """The receipt of a message that an earlier run sent. All receipts of sent messages are stored."""
        with self._client.dir.state.tables.read() as rows:
            for _, row in rows.scan("receipts", self._client.hub_id):
                receipt = Receipt.decode(row)
                if receipt.leaf_hash == leaf:
                    return receipt
        raise Unavailable("a message of an earlier run has no receipt yet")


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A query from the log."""

    descriptor: QueryDescriptor
    subject_id: str
    recorded: RecordedPlace


async def events(client: Client, stream: str, event_type: str) -> list[tuple[RecordEvent, RecordedPlace]]:
    """The events of one type on a stream in log order, verified."""
    found = []
    async with aclosing(all_entries(HubSource(client), naming.stream_id(stream))) as entries:
        async for entry in entries:
            try:
                event = RecordEvent.decode(entry.body or b"")
            except Malformed:
                continue  # not a record event
            if event.event_type == event_type:
                place = event_query.receipt_id(entry.msg.label, entry.stream_seq)
                found.append((event, RecordedPlace(stream, entry.stream_seq, client.hub_id.hex(), place)))
    return found


async def requests(client: Client, stream: str) -> list[QueryRequest]:
    """The queries on a stream; the first for each id."""
    found: dict[str, QueryRequest] = {}
    for event, recorded in await events(client, stream, SUBMITTED):
        try:
            descriptor = descriptors.decode(event.content)
        except Malformed:
            continue
        found.setdefault(descriptor.query_id, QueryRequest(descriptor, event.subject_id, recorded))
    return list(found.values())


async def results(client: Client, stream: str) -> dict[str, tuple[ResultDigest, RecordedPlace]]:
    """The digests on a stream by query id; the first for each id."""
    found: dict[str, tuple[ResultDigest, RecordedPlace]] = {}
    for event, recorded in await events(client, stream, ANSWERED):
        try:
            digest = ResultDigest.decode(event.content)
        except Malformed:
            continue
        found.setdefault(digest.query_id, (digest, recorded))
    return found
