"""A result held against what was recorded of it, by someone who does not believe the service.

The rows come to the digest; the digest and the query are in the log, signed for by the hub; and of the events that the
service says it verified, the hub's receipts are those that it names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from veen.client.client import Client
from veen.core import Unverified, naming
from veen.core.canonjson import Plain
from veen.overlays.record import RecordEvent
from veen.pipeline.engine import fields
from veen.query import descriptor as descriptors
from veen.query import digest as digests
from veen.query.descriptor import Descriptor
from veen.query.digest import Position, ResultDigest
from veen.query.recording import REQUESTS, RESULTS
from veen.query.remote import Whole
from veen.query.store import Recorded
from veen.state import HubSource


@dataclass(frozen=True, slots=True)
class Checked:
    """What held."""

    rows: int
    receipts: int
    elsewhere: int  # events of other hubs: their receipts are not this hub's to show


def check_rows(asked: Descriptor, whole: Whole, summary: dict[str, Plain]) -> None:
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
    client: Client, asked: Descriptor, request: Recorded, whole: Whole, summary: dict[str, Plain]
) -> Checked:
    """What the hub says to it. Raises `Unverified`."""
    await _check_event(client, REQUESTS, request, asked.text())
    await _check_event(client, RESULTS, whole.recorded, whole.digest.text())
    counted = await _check_receipts(client, whole.digest, _verified(summary))
    return Checked(len(whole.rows), *counted)


async def _check_event(client: Client, stream: str, recorded: Recorded, text: str) -> None:
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
        if (fields.receipt_id(receipt.label, receipt.stream_seq), receipt.mmr_root.hex()) != (
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


def descriptor_of(value: Plain) -> Descriptor:
    """What a service shows as a descriptor: in its normal form, or not believed."""
    made = descriptors.normalise(value, "")
    if made.plain() != value:
        raise Unverified("descriptor", "it is not in its normal form")
    return made
