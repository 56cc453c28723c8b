"""The content of a message on one line, decoded by its schema."""

import json
from typing import TYPE_CHECKING

from veen.cli.kit import sanitize
from veen.cli.kit.result import jsonable
from veen.client.sender import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from veen.overlays.registry import DecodedEvent


def event_of(schema: bytes, body: bytes) -> "DecodedEvent | None":
    """The event in a message, if its schema is known."""
    if schema == DEFAULT_SCHEMA:
        return None
    from veen.overlays.registry import decoded_event  # loads all overlays: plain messages do not need them

    return decoded_event(schema, body)


def event_data(schema: bytes, body: bytes) -> dict[str, object] | None:
    """The event in a message for JSON, if its schema is known."""
    event = event_of(schema, body)
    if event is None:
        return None
    return {"name": event.name, "fields": jsonable(event.fields), **({"fault": event.fault} if event.fault else {})}


def line_of(schema: bytes, body: bytes) -> str:
    """The whole content, for a pipe."""
    return _event_line(schema, body) or sanitize.line_of(body)


def preview(schema: bytes, body: bytes) -> str:
    """The start of the content, for a terminal."""
    line = _event_line(schema, body)
    return sanitize.preview(body) if line is None else sanitize.shortened(line)


def _event_line(schema: bytes, body: bytes) -> str | None:
    event = event_of(schema, body)
    if event is None:
        return None
    if event.fault:
        return f"{event.name} (malformed: {sanitize.printable(event.fault)}) {sanitize.line_of(body)}"
    return " ".join([event.name, *(f"{name}={word(one)}" for name, one in event.fields.items())])


def word(value: object) -> str:
    """The value of a field on one line."""
    match value:
        case bytes():
            text = sanitize.text_of(value)
            return f"hex:{value.hex()}" if text is None or not text.isprintable() else text
        case str():
            return sanitize.printable(value)
    return sanitize.printable(json.dumps(jsonable(value), ensure_ascii=False))
