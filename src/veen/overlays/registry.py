"""The overlays that come with VEEN, and those of distributions with the entry point group `veen.overlays`.

An entry point names an `Overlay` object:

    [project.entry-points."veen.overlays"]
    tally = "my_package.tally:TALLY"
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from veen.core import Malformed, cbor
from veen.core.cbor import Map
from veen.overlays.authority import AUTHORITIES
from veen.overlays.authorization import AUTHORIZATIONS, OPERATOR_REVOCATIONS, REVOCATIONS
from veen.overlays.bridge_logs import EXPORTS, IMPORTS, ORIGINS
from veen.overlays.connect import CONNECT
from veen.overlays.crdt import G_COUNTER, LWW, OR_SET
from veen.overlays.discovery import DISCOVERY
from veen.overlays.event import plain_wire
from veen.overlays.identity import IDENTITY
from veen.overlays.kv import KV
from veen.overlays.operations import OPERATION_OVERLAYS
from veen.overlays.overlay import AnyOverlay, Registry, decode_body, installed_overlays
from veen.overlays.queue import QUEUE
from veen.overlays.record import RECORD_TALLIES, RECORDER_CHANGES
from veen.overlays.rpc import RPC
from veen.overlays.stream_catalog import LABEL_CLASSES, SCHEMAS
from veen.overlays.wallet import WALLETS

BUILTIN: tuple[AnyOverlay, ...] = (
    LWW,
    OR_SET,
    G_COUNTER,
    KV,
    QUEUE,
    RPC,
    WALLETS,
    IDENTITY,
    LABEL_CLASSES,
    SCHEMAS,
    AUTHORITIES,
    REVOCATIONS,
    OPERATOR_REVOCATIONS,
    AUTHORIZATIONS,
    *OPERATION_OVERLAYS,
    DISCOVERY,
    CONNECT,
    RECORD_TALLIES,
    RECORDER_CHANGES,
    EXPORTS,
    IMPORTS,
    ORIGINS,
)


def registry() -> Registry:
    """The built-in overlays and those of installed distributions."""
    return Registry((*BUILTIN, *installed_overlays()))


@dataclass(frozen=True, slots=True)
class DecodedEvent:
    """An event of a known schema. `fault` says why its body does not fit the schema; `fields` is empty then."""

    name: str
    fields: Mapping[str, cbor.Value]
    fault: str | None = None


def decoded_event(schema: bytes, body: bytes) -> DecodedEvent | None:
    """Decode a body by its schema. Returns None if no installed overlay reads the schema."""
    forms = next((overlay.schemas[schema] for overlay in _registry().of_schema(schema)), ())
    if not forms:
        return None
    try:
        event = decode_body(forms, body)
    except Malformed as error:
        return DecodedEvent(forms[0].NAME, {}, str(error))
    layout, fields = event.LAYOUT, plain_wire(event)
    assert isinstance(layout, Map), f"{event.NAME} is not a map"
    keys = zip(layout.names, layout.kinds, strict=True)
    # The keys of some maps are integers; their fields still have names.
    named = [(kind.name if key.isdecimal() else key, kind) for key, kind in keys]
    return DecodedEvent(event.NAME, {name: fields[kind.name] for name, kind in named if kind.name in fields})


@cache
def _registry() -> Registry:
    return registry()
