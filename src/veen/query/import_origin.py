"""Where imported events come from: copies answer with the facts of their originals. 001, query-api-spec §9.1.

An event that came over the air gap has a place of its own here. What a query tells of it, however, is what it would
tell in the zone it is from: the stream, the place, the time and the writer that the other hub signed for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veen.client.client import Client
from veen.core import HubIdentity, PayloadHdr, Receipt, Unverified, naming
from veen.overlays.bridging import IMPORTS, OFFLINE_LOG, ORIGINS, Traced
from veen.query.query_errors import invalid
from veen.state import HubSource, StateView


@dataclass(frozen=True, slots=True)
class ImportedEvent:
    """A stream of another hub, and the stream here that has its events."""

    hub_id: bytes
    stream: str
    here: str


@dataclass(frozen=True, slots=True)
class ImportOrigins:
    """What came into this zone."""

    streams: tuple[ImportedEvent, ...] = ()
    hubs: Mapping[bytes, bytes] = field(default_factory=dict)  # by bundle_id
    traced: Mapping[bytes, Traced | None] = field(default_factory=dict)  # by the original's msg_id

    def of_stream(self, name: str, hub_id: bytes | None) -> tuple[ImportedEvent, ...]:
        """The streams here that have the events of one elsewhere. Raises where two hubs have one of that name."""
        found = [one for one in self.streams if one.stream == name and hub_id in (None, one.hub_id)]
        if len({one.hub_id for one in found}) > 1:
            raise invalid(f"streams {name!r} of several hubs were imported: name the import stream itself")
        return tuple(found)

    def receipt(self, header: PayloadHdr | None) -> tuple[Traced, bytes] | None:
        """The original of a copy, by its header, and the hub it is from."""
        traced = None if header is None or header.parent_id is None else self.traced.get(header.parent_id)
        return None if traced is None else (traced, self.hubs[traced.bundle_id])


NONE = ImportOrigins()


async def origins_of(client: Client) -> ImportOrigins:
    """What the bridge's own log says, verified; nothing where this client cannot read it."""
    if client.dir.stream_keys.secret(naming.stream_id(OFFLINE_LOG)) is None:
        return NONE
    source = HubSource(client)
    async with StateView(source, OFFLINE_LOG, IMPORTS) as view, view.reading() as reading:
        bundles = {part: one for part, one in dict(reading.states).items() if one.source_hub_id is not None}
    async with StateView(source, OFFLINE_LOG, ORIGINS) as traces, traces.reading() as traced_there:
        traced = dict(traced_there.states)
    hubs = {bundle_id: one.source_hub_id for bundle_id, one in bundles.items() if one.source_hub_id is not None}
    named = {
        ImportedEvent(one.source_hub_id, one.export_stream, one.import_stream)
        for one in bundles.values()
        if one.source_hub_id is not None
    }
    return ImportOrigins(tuple(sorted(named, key=lambda one: (one.stream, one.hub_id, one.here))), hubs, traced)


def as_original(row: dict[str, Any], stream: str, traced: Traced) -> dict[str, Any]:
    """A row of the events as the zone that it is from has it."""
    origin, receipt = traced.origin, traced.origin.receipt
    return {
        **row,
        "stream": stream,
        "label": receipt.label,
        "stream_seq": receipt.stream_seq,
        "hub_ts": receipt.hub_ts,
        "msg_id": receipt.leaf_hash,
        "mmr_root": receipt.mmr_root,
        "client_id": origin.client_id,
    }


def check_receipt(receipt: Receipt, hub_id: bytes, known: Mapping[bytes, HubIdentity]) -> None:
    """Raise unless the other hub signed it, by papers that are here."""
    identity = known.get(hub_id)
    if identity is None:
        raise Unverified("evidence", f"the papers of hub {hub_id.hex()}, which events were imported from, are not here")
    identity.verify_receipt(receipt)
