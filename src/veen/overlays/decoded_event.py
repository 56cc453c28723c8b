"""The content of a message by its schema, for people: the name of the schema and the fields of the event."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from veen.core import Malformed, cbor
from veen.core.cbor import Map
from veen.overlays.event import plain_wire
from veen.overlays.overlay import Registry, decode_body
from veen.overlays.registry import registry


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
    return DecodedEvent(event.NAME, {key: fields[kind.name] for key, kind in keys if kind.name in fields})


@cache
def _registry() -> Registry:
    return registry()
