"""Verify a result against the log, without trusting the service.

The rows must match the digest. The digest and the query must be in the log, with receipts of the hub. For the events
that the service verified, the hub must have the same receipts.

`export` makes evidence of an accepted answer, which others verify offline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from veen.client.client import Client
from veen.client.client_identity import Card
from veen.client.evidence import MAX_EVIDENCE_BYTES, Evidence
from veen.core import Refused, Unavailable, Unverified, naming
from veen.core.canonical_json import Plain, encode
from veen.core.limits import MAX_PAGE_ITEMS
from veen.overlays.record import RecordEvent
from veen.pipeline.engine import event_query
from veen.query import descriptor as descriptors
from veen.query import digest as digests
from veen.query.audit_events import REQUESTS, RESULTS, requests, results
from veen.query.descriptor import QueryDescriptor
from veen.query.digest import Position, ResultDigest
from veen.query.execution import QueryExecution, QueryResult
from veen.query.query_client import FullResult
from veen.query.query_store import RecordedPlace
from veen.query.result_evidence import MAX_PARTS, ResultEvidence, events_of
from veen.query.table_query import origins_of
from veen.state import HubSource

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AnswerVerified:
    """The counts of a verified answer."""

    rows: int
    receipts: int
    elsewhere: int  # events of other hubs, whose receipts this hub does not have


def check_rows(descriptor: QueryDescriptor, whole: FullResult, summary: dict[str, Plain]) -> None:
    """Checks that need no hub. Raises `Unverified`."""
    digest = whole.digest
    texts = [digests.row_text(row) for row in whole.rows]
    if (digest.row_count, digest.rows_hash) != (len(texts), digests.rows_hash(texts)):
        raise Unverified("result", "the rows do not match the digest")
    if digest.evidence_hash != digests.evidence_hash(summary):
        raise Unverified("result", "the evidence does not match the digest")
    if (digest.query_id, digest.result_id) != (descriptor.query_id, descriptor.result_id):
        raise Unverified("result", "the digest belongs to another query")
    if digest.evidence_policy != descriptor.evidence or summary.get("mode") != descriptor.evidence.mode:
        raise Unverified("result", "the evidence has another policy than the query")
    if descriptor.evidence.mode == "none":
        return
    if (summary.get("query_id"), summary.get("result_id")) != (descriptor.query_id, descriptor.result_id):
        raise Unverified("result", "the evidence belongs to another query")
    if descriptor.evidence.mode == "full" and "receipt_id" in descriptor.query().shown:
        shown = [one["receipt_id"] for one in _verified(summary)]
        if shown != [row["receipt_id"] for row in whole.rows]:
            raise Unverified("result", "the evidence does not belong to these rows")


async def check_log(
    client: Client, descriptor: QueryDescriptor, request: RecordedPlace, whole: FullResult, summary: dict[str, Plain]
) -> AnswerVerified:
    """Checks against the hub's log. Raises `Unverified`."""
    await _check_event(client, REQUESTS, request, descriptor.text())
    await _check_event(client, RESULTS, whole.recorded, whole.digest.text())
    counted = await _check_receipts(client, whole.digest, _verified(summary))
    return AnswerVerified(len(whole.rows), *counted)


async def _check_event(client: Client, stream: str, recorded: RecordedPlace, text: str) -> None:
    """Check that the log has this text at this place."""
    where = f"{stream}, entry {recorded.seq}"
    if recorded.stream != stream or recorded.hub_id != client.hub_id.hex():
        raise Unverified("result", f"the service names {recorded.stream} of hub {recorded.hub_id} as its place")
    epoch = await epoch_of(client, stream, recorded.receipt_id.partition(":")[0])
    found = [one async for one in client.read(stream, recorded.seq, recorded.seq, epoch=epoch)]
    if not found or found[0].body is None:
        raise Unverified("result", f"{where} cannot be opened with the available keys")
    if RecordEvent.decode(found[0].body).content != text:
        raise Unverified("result", f"{where} differs from what the service shows")


async def _check_receipts(client: Client, digest: ResultDigest, verified: Sequence[dict[str, str]]) -> tuple[int, int]:
    streams = {one.label: one.stream for one in digest.basis}
    epochs = {one.label: await epoch_of(client, one.stream, one.label) for one in _own(client, digest, verified)}
    own = 0
    for one in verified:
        if one["hub_id"] != client.hub_id.hex():
            continue
        label, _, seq = one["receipt_id"].partition(":")
        if label not in streams or not seq.isdigit():
            raise Unverified("result", f"receipt {one['receipt_id']} belongs to no stream of the query")
        receipt = await client.receipt(streams[label], int(seq), epoch=epochs[label])
        if (event_query.receipt_id(receipt.label, receipt.stream_seq), receipt.mmr_root.hex()) != (
            one["receipt_id"],
            one["mmr_root"],
        ):
            raise Unverified("result", f"receipt {one['receipt_id']} differs from the hub's receipt")
        own += 1
    return own, len(verified) - own


def _own(client: Client, digest: ResultDigest, verified: Sequence[dict[str, str]]) -> list[Position]:
    """The labels of this hub in the evidence."""
    named = {one["receipt_id"].partition(":")[0] for one in verified if one["hub_id"] == client.hub_id.hex()}
    return [one for one in digest.basis if one.label in named]


async def epoch_of(client: Client, stream: str, label: str) -> int:
    """The epoch in which a stream has this label. Raises `Unverified` if it never had it."""
    for epoch in await HubSource(client).epochs(naming.stream_id(stream), None):
        if client.label(stream, epoch).hex() == label:
            return epoch
    raise Unverified("result", f"{label} is not a label of {stream}")


def _verified(summary: dict[str, Plain]) -> list[dict[str, str]]:
    found = summary.get("verified", [])
    texts = ("receipt_id", "mmr_root", "hub_id")
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and all(isinstance(one.get(name), str) for name in texts) for one in found
    ):
        raise Unverified("result", "the evidence is not a list of receipts")
    return found  # type: ignore[return-value]


def descriptor_of(value: Plain) -> QueryDescriptor:
    """The descriptor that a service returned. Raises `Unverified` if it is not in normal form."""
    made = descriptors.normalise(value, "")
    if made.plain() != value:
        raise Unverified("descriptor", "it is not in normal form")
    return made


@dataclass(frozen=True, slots=True)
class ReplayFound:
    """A recorded query and its digest, of this hub or imported."""

    descriptor: QueryDescriptor
    digest: ResultDigest
    request: RecordedPlace
    result: RecordedPlace


@dataclass(frozen=True, slots=True)
class ReplayedQuery:
    """A recorded result and the result of executing the query again."""

    found: ReplayFound
    result: QueryResult
    differences: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return not self.differences


async def find(client: Client, query_id: str) -> ReplayFound:
    """Find a recorded query. Raises `Unavailable` if the log has no such query or no digest for it."""
    imports = await origins_of(client)
    pairs = [(REQUESTS, RESULTS)]
    for imported in imports.streams:
        if imported.stream == REQUESTS:
            results_of = (RESULTS, imported.hub_id)
            result_streams = [one.here for one in imports.streams if (one.stream, one.hub_id) == results_of]
            pairs += [(imported.here, one) for one in result_streams]
    for stream, results_stream in pairs:
        if any(client.dir.stream_keys.secret(naming.stream_id(one)) is None for one in (stream, results_stream)):
            continue
        request = next((one for one in await requests(client, stream) if one.descriptor.query_id == query_id), None)
        if request is None:
            continue
        digest = (await results(client, results_stream)).get(query_id)
        if digest is not None:
            return ReplayFound(request.descriptor, digest[0], request.recorded, digest[1])
        raise Unavailable(f"{stream} has query {query_id}, but {results_stream} has no digest for it")
    raise Unavailable(f"the log has no readable query {query_id}")


async def replay(client: Client, execution: QueryExecution, query_id: str) -> ReplayedQuery:
    """Execute a recorded query again, up to the places that its digest names."""
    found = await find(client, query_id)
    hub_id = bytes.fromhex(found.digest.hub_id)
    bounds = {one.label: one.seq for one in found.digest.basis}
    await execution.refresh()
    of_hub = None if hub_id == client.hub_id else hub_id
    result = await execution.run(found.descriptor, of_hub=of_hub, bounds=bounds)
    return ReplayedQuery(found, result, found.digest.differences(result.digest))


async def export(
    client: Client,
    request: RecordedPlace,
    whole: FullResult,
    summary: Mapping[str, Plain],
    *,
    disclose: bool = False,
    cosigned: bool = False,
    writers: Sequence[Card] = (),
) -> ResultEvidence:
    """The evidence of an answer that `check_rows` and `check_log` accepted.

    With `disclose` it contains the events behind the rows, which needs the reader keys of their streams.
    """

    async def entries(stream: str, label: str, seqs: Sequence[int], *, shown: bool) -> Evidence:
        epoch = await epoch_of(client, stream, label)
        made = await client.evidence(stream, seqs, disclose=shown, cosigned=cosigned, epoch=epoch, writers=writers)
        return made if shown else replace(made, exhibits=(), writers=None)

    parts = []
    for stream, place in ((REQUESTS, request), (RESULTS, whole.recorded)):
        parts.append(await entries(stream, place.receipt_id.partition(":")[0], [place.seq], shown=True))
    streams = {one.label: one.stream for one in whole.digest.basis}
    for label, seqs in events_of(summary, client.hub_id).items():
        for at in range(0, len(seqs), MAX_PAGE_ITEMS - 1):
            batch = seqs[at : at + MAX_PAGE_ITEMS - 1]
            parts.append(await entries(streams[label], label, batch, shown=disclose))
    joined = _joined(parts)
    rows = b"[" + b",".join(digests.row_text(row) for row in whole.rows) + b"]"
    if len(joined) <= MAX_PARTS and len(rows) <= MAX_EVIDENCE_BYTES:
        made = ResultEvidence(rows.decode(), encode(dict(summary)).decode(), joined)
        if len(made.encode()) <= MAX_EVIDENCE_BYTES:
            return made
    bounds = f"more than {MAX_EVIDENCE_BYTES} bytes or {MAX_PARTS * MAX_PAGE_ITEMS} receipts"
    raise Refused("E.SIZE", f"the evidence has {bounds}; query fewer events, or with --evidence spot:RATE")


def _joined(parts: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The same evidence in as few parts as the bounds of their lists allow."""
    found = [parts[0]]
    for part in parts[1:]:
        last = found[-1]
        both = replace(
            last,
            receipts=_both(last.receipts, part.receipts),
            checkpoints=_both(last.checkpoints, part.checkpoints),
            ties=_both(last.ties, part.ties),
            exhibits=_both(last.exhibits, part.exhibits),
            writers=_both(last.writers or (), part.writers or ()) or None,
        )
        lists = (both.receipts, both.checkpoints, both.ties, both.exhibits, both.writers or ())
        if max(map(len, lists)) <= MAX_PAGE_ITEMS:
            found[-1] = both
        else:
            found.append(part)
    return tuple(found)


def _both(one: tuple[_T, ...], other: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(one + other))
