"""A result held against what was recorded of it, by someone who does not believe the service.

The rows come to the digest; the digest and the query are in the log, signed for by the hub; and of the events that the
service says it verified, the hub's receipts are those that it names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from veen.client.client import Client
from veen.core import Unavailable, Unverified, naming
from veen.core.canonical_json import Plain
from veen.overlays.record import RecordEvent
from veen.pipeline.engine import event_query
from veen.query import descriptor as descriptors
from veen.query import digest as digests
from veen.query.audit_events import REQUESTS, RESULTS, requests, results
from veen.query.descriptor import QueryDescriptor
from veen.query.digest import Position, ResultDigest
from veen.query.execution import QueryExecution, QueryResult
from veen.query.import_origin import origins_of
from veen.query.query_client import FullResult
from veen.query.query_store import RecordedPlace
from veen.state import HubSource


@dataclass(frozen=True, slots=True)
class AnswerVerified:
    """What held."""

    rows: int
    receipts: int
    elsewhere: int  # events of other hubs: their receipts are not this hub's to show


def check_rows(asked: QueryDescriptor, whole: FullResult, summary: dict[str, Plain]) -> None:
    """What can be told without a hub. Raises `Unverified`."""
    digest = whole.digest
    texts = [digests.row_text(row) for row in whole.rows]
    if (digest.row_count, digest.rows_hash) != (len(texts), digests.rows_hash(texts)):
        raise Unverified("result", "the rows are not those of the digest")
    if digest.evidence_hash != digests.evidence_hash(summary):
        raise Unverified("result", "the evidence is not that of the digest")
    if (digest.query_id, digest.result_id) != (asked.query_id, asked.result_id):
        raise Unverified("result", "the digest is of another query")
    if digest.evidence_policy != asked.evidence or summary.get("mode") != asked.evidence.mode:
        raise Unverified("result", "the evidence is of another policy than was asked for")
    if asked.evidence.mode == "none":
        return
    if (summary.get("query_id"), summary.get("result_id")) != (asked.query_id, asked.result_id):
        raise Unverified("result", "the evidence is of another query")
    if asked.evidence.mode == "full" and "receipt_id" in asked.query().shown:
        shown = [one["receipt_id"] for one in _verified(summary)]
        if shown != [row["receipt_id"] for row in whole.rows]:
            raise Unverified("result", "the evidence is not of these rows")


async def check_log(
    client: Client, asked: QueryDescriptor, request: RecordedPlace, whole: FullResult, summary: dict[str, Plain]
) -> AnswerVerified:
    """What the hub says to it. Raises `Unverified`."""
    await _check_event(client, REQUESTS, request, asked.text())
    await _check_event(client, RESULTS, whole.recorded, whole.digest.text())
    counted = await _check_receipts(client, whole.digest, _verified(summary))
    return AnswerVerified(len(whole.rows), *counted)


async def _check_event(client: Client, stream: str, recorded: RecordedPlace, text: str) -> None:
    """The log has that text at that place."""
    where = f"{stream}, entry {recorded.seq}"
    if recorded.stream != stream or recorded.hub_id != client.hub_id.hex():
        raise Unverified("result", f"it is said to be recorded on {recorded.stream} of hub {recorded.hub_id}")
    epoch = await _epoch(client, stream, recorded.receipt_id.partition(":")[0])
    found = [one async for one in client.read(stream, recorded.seq, recorded.seq, epoch=epoch)]
    if not found or found[0].body is None:
        raise Unverified("result", f"{where} cannot be opened with the keys here")
    if RecordEvent.decode(found[0].body).content != text:
        raise Unverified("result", f"{where} is not what the service shows")


async def _check_receipts(client: Client, digest: ResultDigest, verified: Sequence[dict[str, str]]) -> tuple[int, int]:
    streams = {one.label: one.stream for one in digest.basis}
    epochs = {one.label: await _epoch(client, one.stream, one.label) for one in _own(client, digest, verified)}
    here = 0
    for one in verified:
        if one["hub_id"] != client.hub_id.hex():
            continue
        label, _, seq = one["receipt_id"].partition(":")
        if label not in streams or not seq.isdigit():
            raise Unverified("result", f"receipt {one['receipt_id']} is of no stream that was asked about")
        receipt = await client.receipt(streams[label], int(seq), epoch=epochs[label])
        if (event_query.receipt_id(receipt.label, receipt.stream_seq), receipt.mmr_root.hex()) != (
            one["receipt_id"],
            one["mmr_root"],
        ):
            raise Unverified("result", f"receipt {one['receipt_id']} is another at the hub")
        here += 1
    return here, len(verified) - here


def _own(client: Client, digest: ResultDigest, verified: Sequence[dict[str, str]]) -> list[Position]:
    """The labels of this hub that evidence is of."""
    named = {one["receipt_id"].partition(":")[0] for one in verified if one["hub_id"] == client.hub_id.hex()}
    return [one for one in digest.basis if one.label in named]


async def _epoch(client: Client, stream: str, label: str) -> int:
    for epoch in await HubSource(client).epochs(naming.stream_id(stream), None):
        if client.label(stream, epoch).hex() == label:
            return epoch
    raise Unverified("result", f"{label} is no label of {stream}")


def _verified(summary: dict[str, Plain]) -> list[dict[str, str]]:
    found = summary.get("verified", [])
    texts = ("receipt_id", "mmr_root", "hub_id")
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and all(isinstance(one.get(name), str) for name in texts) for one in found
    ):
        raise Unverified("result", "the evidence is not a list of receipts")
    return found  # type: ignore[return-value]


def descriptor_of(value: Plain) -> QueryDescriptor:
    """What a service shows as a descriptor: in its normal form, or not believed."""
    made = descriptors.normalise(value, "")
    if made.plain() != value:
        raise Unverified("descriptor", "it is not in its normal form")
    return made


@dataclass(frozen=True, slots=True)
class ReplayFound:
    """A query and its digest as the log here has them: of this hub's own, or imported."""

    descriptor: QueryDescriptor
    digest: ResultDigest
    request: RecordedPlace
    result: RecordedPlace


@dataclass(frozen=True, slots=True)
class ReplayedQuery:
    """What was recorded, and what comes out here."""

    found: ReplayFound
    result: QueryResult
    differences: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return not self.differences


async def find(client: Client, query_id: str) -> ReplayFound:
    """A recorded query. Raises `Unavailable` where the log has it not, or has no digest of it."""
    came = await origins_of(client)
    pairs = [(REQUESTS, RESULTS)]
    for asked in came.streams:
        if asked.stream == REQUESTS:
            told = [one.here for one in came.streams if (one.stream, one.hub_id) == (RESULTS, asked.hub_id)]
            pairs += [(asked.here, one) for one in told]
    for stream, results_stream in pairs:
        if any(client.dir.stream_keys.secret(naming.stream_id(one)) is None for one in (stream, results_stream)):
            continue
        request = next((one for one in await requests(client, stream) if one.descriptor.query_id == query_id), None)
        if request is None:
            continue
        digest = (await results(client, results_stream)).get(query_id)
        if digest is not None:
            return ReplayFound(request.descriptor, digest[0], request.recorded, digest[1])
        raise Unavailable(f"{stream} has query {query_id}, and {results_stream} has no digest of it")
    raise Unavailable(f"the log has no query {query_id} that can be read here")


async def replay(client: Client, execution: QueryExecution, query_id: str) -> ReplayedQuery:
    """Ask again what was asked, up to where the streams had got then."""
    found = await find(client, query_id)
    hub_id = bytes.fromhex(found.digest.hub_id)
    bounds = {one.label: one.seq for one in found.digest.basis}
    await execution.refresh()
    of_hub = None if hub_id == client.hub_id else hub_id
    result = await execution.run(found.descriptor, of_hub=of_hub, bounds=bounds)
    return ReplayedQuery(found, result, found.digest.differences(result.digest))
