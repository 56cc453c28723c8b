"""Make the evidence of a query result from a service's answer and the hub's log."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from veen.client.client import Client
from veen.client.client_identity import Card
from veen.client.evidence import MAX_EVIDENCE_BYTES, Evidence
from veen.core import Refused
from veen.core.canonical_json import Plain, encode
from veen.core.limits import MAX_PAGE_ITEMS
from veen.query import digest as digests
from veen.query.answer_verify import epoch_of
from veen.query.audit_events import REQUESTS, RESULTS
from veen.query.query_client import FullResult
from veen.query.query_store import RecordedPlace
from veen.query.result_evidence import MAX_PARTS, ResultEvidence, events_of

_T = TypeVar("_T")


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
    """The evidence of an answer that `answer_verify` accepted.

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
