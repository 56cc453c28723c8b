"""Whether two hubs agree on what was mirrored: every record against the source's receipt, every copy against it too.

001, spec-3 §10.4.
"""

from collections import defaultdict
from contextlib import aclosing
from dataclasses import dataclass

from veen.bridge.mirroring import Route
from veen.client.client import Client
from veen.client.entry import Entry
from veen.core import Malformed, Mmr, naming
from veen.core.jsontext import Json
from veen.overlays.operations import Mirror
from veen.overlays.operations.mirror import mismatch
from veen.state import HubSource


@dataclass(frozen=True, slots=True)
class Difference:
    """A message on which the two hubs do not agree, by its number at the source where it has one."""

    what: str  # missing, repeated, mismatch, uncopied, altered, unknown
    epoch: int
    stream_seq: int
    reason: str

    def to_json(self) -> Json:
        return {"what": self.what, "epoch": self.epoch, "stream_seq": self.stream_seq, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared, and what was found."""

    source_entries: int
    records: int
    copies: int
    differences: tuple[Difference, ...]

    @property
    def clean(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Json]:
        return {
            "clean": self.clean,
            "source_entries": self.source_entries,
            "records": self.records,
            "copies": self.copies,
            "differences": [one.to_json() for one in self.differences],
        }


async def compare(source: Client, target: Client, route: Route) -> Comparison:
    """Read both, verified, and hold one against the other."""
    theirs = await _entries(source, route.source)
    records: dict[tuple[bytes, int], list[tuple[Entry, Mirror]]] = defaultdict(list)
    copies: dict[bytes, list[Entry]] = defaultdict(list)
    found: list[Difference] = []
    for entry in await _entries(target, route.record_stream):
        if entry.schema == Mirror.SCHEMA and entry.body is not None:
            try:
                said = Mirror.decode(entry.body)
            except Malformed as error:
                found.append(Difference("unknown", entry.epoch, entry.stream_seq, f"a record at the target: {error}"))
                continue
            if said.source_hub_identifier == source.hub_id.hex():
                records[said.source_label, said.source_stream_seq].append((entry, said))
    for entry in await _entries(target, route.target):
        if entry.header is not None and entry.header.parent_id and entry.schema != Mirror.SCHEMA:
            copies[entry.header.parent_id].append(entry)
    for entry in theirs:
        found += _judged(entry, records.pop((entry.receipt.label, entry.stream_seq), []), copies, route)
    labels = {entry.receipt.label for entry in theirs}
    for (label, seq), listed in records.items():
        if label in labels:
            at = listed[0][0]
            found.append(Difference("unknown", at.epoch, seq, "a record of a message that the source does not have"))
    counted = sum(map(len, copies.values()))
    return Comparison(len(theirs), len(theirs) - sum(one.what == "missing" for one in found), counted, tuple(found))


def _judged(
    entry: Entry, records: list[tuple[Entry, Mirror]], copies: dict[bytes, list[Entry]], route: Route
) -> list[Difference]:
    at = (entry.epoch, entry.stream_seq)
    if not records:
        return [Difference("missing", *at, "there is no record of it")]
    found = []
    if len(records) > 1:
        found.append(Difference("repeated", *at, f"there are {len(records)} records of it"))
    for logged, said in records:
        fault = mismatch(said, entry.receipt)
        if fault is None and (logged.header is None or logged.header.parent_id != entry.msg_id):
            fault = "its parent_id is not the original"
        if fault is not None:
            found.append(Difference("mismatch", *at, fault))
    if route.copies and entry.fault is None:
        found += _judged_copies(entry, copies.get(entry.msg_id, []), at)
    return found


def _judged_copies(entry: Entry, copies: list[Entry], at: tuple[int, int]) -> list[Difference]:
    if not copies:
        return [Difference("uncopied", *at, "there is a record of it, and no copy")]
    found = []
    if len(copies) > 1:
        found.append(Difference("repeated", *at, f"there are {len(copies)} copies of it"))
    if any((one.schema, one.body) != (entry.schema, entry.body) for one in copies):
        found.append(Difference("altered", *at, "a copy says otherwise than the original"))
    return found


async def _entries(client: Client, stream: str) -> list[Entry]:
    source, stream_id = HubSource(client), naming.stream_id(stream)
    found: list[Entry] = []
    for epoch in await source.epochs(stream_id, None):
        async with aclosing(source.read(stream_id, epoch, Mmr())) as pages:
            async for page in pages:
                found += page
    return found
