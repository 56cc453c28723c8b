"""The origin of imported events: copies are presented with the facts of their originals. 001, query-api-spec §9.1.

An event that crossed the air gap has its own place here. A query presents the stream, place, time and writer of the
original, as the other hub signed them, so both zones give the same answer.
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
    """A stream of another hub, and the local stream that holds its events."""

    hub_id: bytes
    stream: str
    here: str


@dataclass(frozen=True, slots=True)
class ImportOrigins:
    """All imports into this zone."""

    streams: tuple[ImportedEvent, ...] = ()
    hubs: Mapping[bytes, bytes] = field(default_factory=dict)  # by bundle_id
    traced: Mapping[bytes, Traced | None] = field(default_factory=dict)  # by the original's msg_id

    def of_stream(self, name: str, hub_id: bytes | None) -> tuple[ImportedEvent, ...]:
        """The local streams with the events of an imported one. Raises if several hubs have a stream of that name."""
        found = [one for one in self.streams if one.stream == name and hub_id in (None, one.hub_id)]
        if len({one.hub_id for one in found}) > 1:
            raise invalid(f"stream {name!r} was imported from several hubs; name the import stream instead")
        return tuple(found)

    def receipt(self, header: PayloadHdr | None) -> tuple[Traced, bytes] | None:
        """The original of a copy, by its header, and the hub it came from."""
        traced = None if header is None or header.parent_id is None else self.traced.get(header.parent_id)
        return None if traced is None else (traced, self.hubs[traced.bundle_id])


NO_IMPORTS = ImportOrigins()


async def origins_of(client: Client) -> ImportOrigins:
    """The imports according to the bridge's log, verified; empty if this client cannot read it."""
    if client.dir.stream_keys.secret(naming.stream_id(OFFLINE_LOG)) is None:
        return NO_IMPORTS
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
    """A row of events as in the zone that it came from."""
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
    """Raise `Unverified` unless the other hub signed the receipt, according to a known identity record."""
    identity = known.get(hub_id)
    if identity is None:
        what = f"no identity record of hub {hub_id.hex()}, the source of imported events; add it with --trust"
        raise Unverified("evidence", what)
    identity.verify_receipt(receipt)
