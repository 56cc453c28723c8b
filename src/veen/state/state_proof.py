"""Evidence for a state: the entries that determine a part, each proven by the hub's signature.

Anyone with the hub's id can verify such a file offline: the entries, their places, their content and the state that
they produce. The file does not prove that no other entry touched the part; only the whole log does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from veen.client import evidence, message_attachments
from veen.client.evidence import Evidence, EvidenceReport, Exhibit
from veen.client.reader import READABLE
from veen.core import Malformed, Opened, Receipt, Unavailable, Unverified, naming
from veen.core.limits import MAX_EPOCH_SKEW_SEC, MAX_PAGE_ITEMS
from veen.overlays import EventFault, FoldEntry, FoldStep, Overlay, fold, state_hash
from veen.state.entry_source import need_key, stream_id_of
from veen.state.state_view import StateAt, StateView, shown

S = TypeVar("S")
M = TypeVar("M")


async def prove(
    view: StateView[S, M], reading: StateAt[S, M], *parts: bytes, steps: Sequence[FoldStep] | None = None
) -> Evidence:
    """Make the evidence for the state of these parts. It discloses its entries and no others.

    `steps` are the steps to include; by default those that determine the parts. Raises `Unavailable` if no entry
    touched the parts, or if there are more entries than one file may contain.
    """
    if steps is None:
        steps = [step for part in parts for step in reading.determining(part)]
    places = sorted({step.at for step in steps})
    if not places:
        raise Unavailable("no entry touched it; only the whole log proves that, not an evidence file")
    ends = [end for end in reading.ends() if end.epoch in {place.epoch for place in places}]
    most = MAX_PAGE_ITEMS - len(ends)
    if len(places) > most:
        raise Unavailable(
            f"{len(places)} entries determine it, more than the {most} that one evidence file may contain"
        )
    hashed = reading.state_hash(*parts).hex()
    claim = f"{view.overlay.CLASS} of {len(parts)} parts after entry {shown(reading.at)} has state hash {hashed}"
    key = need_key(view.source, view.stream_id)
    return await view.source.evidence(view.stream_id, places, ends, claim, key)


@dataclass(frozen=True, slots=True)
class VerifiedState(Generic[S]):
    """The report on an evidence file, and the state that its entries produce."""

    report: EvidenceReport
    states: Mapping[bytes, S]
    faults: tuple[EventFault, ...]
    state_hash: bytes


def verify_state(
    data: bytes,
    overlay: Overlay[S, M],
    stream: str | bytes,
    *parts: bytes,
    pin: bytes | None = None,
    reader: bytes | None = None,
) -> VerifiedState[S]:
    """Verify an evidence file offline and recompute the state from its entries.

    With `parts`, only these are returned: an entry may touch other parts that the file does not cover completely.
    Raises `Malformed` or `Unverified` if the file is invalid or an entry is of another stream. `pin` and `reader` are
    passed to `evidence.verify`.
    """
    report = evidence.verify(data, pin, () if reader is None else (reader,))
    shown_file = Evidence.decode(data)
    receipts = {receipt.leaf_hash: receipt for receipt in shown_file.receipts}
    stream_id = stream_id_of(stream)
    entries = [_entry(one, receipts[one.msg.leaf_hash()], shown_file, stream_id) for one in shown_file.exhibits]
    folded = fold(overlay, sorted(entries, key=lambda entry: entry.at))
    states = {part: state for part, state in folded.states.items() if not parts or part in parts}
    return VerifiedState(report, states, tuple(folded.faults), state_hash(overlay, states))


def _entry(exhibit: Exhibit, receipt: Receipt, shown_file: Evidence, stream_id: bytes) -> FoldEntry:
    epoch = _epoch(receipt, shown_file, stream_id)
    if exhibit.opening is None:
        return FoldEntry.of(exhibit.msg, receipt, None, None, epoch)
    opened: Opened = exhibit.opening.open(exhibit.msg)
    try:
        schema, body, _ = message_attachments.unwrap(opened, READABLE)
    except (Malformed, Unverified):
        return FoldEntry.of(exhibit.msg, receipt, None, None, epoch)
    return FoldEntry.of(exhibit.msg, receipt, replace(opened.header, schema=schema), body, epoch)


def _epoch(receipt: Receipt, shown_file: Evidence, stream_id: bytes) -> int:
    """The epoch in which this stream has the receipt's label."""
    profile = shown_file.profile
    for epoch in profile.epochs_around(receipt.hub_ts, MAX_EPOCH_SKEW_SEC):
        if naming.label(shown_file.identity.routing_key, stream_id, epoch) == receipt.label:
            return epoch
    raise Unverified("evidence", f"entry {receipt.stream_seq} is not of this stream")
