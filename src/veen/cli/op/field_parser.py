"""Parse the fields of an operation from NAME=VALUE words or a JSON object."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from plumbing.cli.command import Misuse
from veen.core import Malformed, cbor, naming, strict_json
from veen.core.cbor import Bstr, FieldType, ListOf, Text, Uint
from veen.core.hashing import HASH_BYTES
from veen.core.strict_json import Json
from veen.overlays.operations.operation_events import Delegated, Embedded, Operation
from veen.overlays.operations.operation_index import BY_NAME

_HEX, _NAME, _STREAMS = "hex:", "name:", "allowed_stream_ids"


def kind_of(text: str) -> type[Operation]:
    """Return the operation class of a kind such as `access.grant`."""
    found = BY_NAME.get(text.removesuffix(".v1"))
    if found is None:
        raise Misuse(f"there is no kind of operation {text!r}", "veen op kinds lists them")
    return found


def words(kind: type[Operation], given: Sequence[str]) -> dict[str, Json]:
    """Parse NAME=VALUE words into a JSON object. A list takes one word per item."""
    kinds = {one.name: one for one in kind.LAYOUT.kinds}
    found: dict[str, Json] = {}
    for word in given:
        name, separator, text = word.partition("=")
        if not separator or name not in kinds:
            raise _wrong(kind, f"{word!r} is not NAME=VALUE" if not separator else f"there is no field {name!r}")
        listed = kinds[name]
        if isinstance(listed, ListOf):
            more = found.setdefault(name, [])
            assert isinstance(more, list)
            more += [_word(listed.item, text)] if text else []
        elif name in found:
            raise _wrong(kind, f"{name} is given twice")
        else:
            found[name] = _word(listed, text)
    return found


def document(kind: type[Operation], data: bytes) -> dict[str, Json]:
    """Parse a JSON object of fields."""
    try:
        found = strict_json.decode(data, "body")
    except Malformed as error:
        raise _wrong(kind, str(error)) from None
    if not isinstance(found, dict):
        raise _wrong(kind, "the body is not a JSON object")
    return found


def operation(kind: type[Operation], given: Mapping[str, Json]) -> Operation:
    """Return the operation with these fields. Raises `Misuse` if they do not fit its layout."""
    kinds = {one.name: one for one in kind.LAYOUT.kinds}
    unknown = [name for name in given if name not in kinds]
    missing = [name for name, one in kinds.items() if not one.optional and name not in given]
    if unknown or missing:
        raise _wrong(kind, f"there is no field {unknown[0]!r}" if unknown else f"{missing[0]} is missing")
    fields = _embedding(given) if kind is Delegated else given
    try:
        made = kind(**{name: _value(one, fields[name]) if name in fields else None for name, one in kinds.items()})
        made.encode()
    except ValueError as error:
        raise _wrong(kind, str(error)) from None
    return made


def _embedding(given: Mapping[str, Json]) -> Mapping[str, Json]:
    """Encode the inner operation of a delegated one, which may be given as a kind and a JSON object."""
    named, inner = given["operation_schema"], given["operation_body"]
    if not isinstance(named, str) or named.removesuffix(".v1") not in BY_NAME:
        return given
    kind = kind_of(named)
    if isinstance(inner, dict):
        inner = _HEX + operation(kind, inner).encode().hex()
    return {**given, "operation_schema": kind.SCHEMA.hex(), "operation_body": inner}


def _word(kind: FieldType, text: str) -> Json:
    if isinstance(kind, Uint):
        return int(text) if text.isascii() and text.isdigit() and len(text) <= HASH_BYTES else text
    if isinstance(kind, Text | Bstr):
        return text
    try:
        return strict_json.decode(text.encode(), kind.name)
    except Malformed as error:
        if _is_json(text):  # such as 1.5, which the wire format cannot hold: do not silently send it as text
            raise Misuse(str(error), "if it is text, quote it, as in '\"1.5\"'") from None
        return text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _value(kind: FieldType, found: Json) -> Any:
    match kind:
        case Uint() if isinstance(found, int) and not isinstance(found, bool):
            return found
        case Text() if isinstance(found, str):
            return found
        case Bstr() if isinstance(found, str):
            return _id(kind, found)
        case ListOf() if isinstance(found, list):
            if kind.name == _STREAMS:
                return tuple(_stream(one) for one in found)
            return tuple(_value(kind.item, one) for one in found)
        case Embedded() if isinstance(found, str) and found.startswith(_HEX):
            return bytes.fromhex(found.removeprefix(_HEX))
        case Uint() | Text() | Bstr() | ListOf():
            raise ValueError(f"{kind.name} has the wrong type: {json.dumps(found)}")
        case _:
            return cbor.encode(_anything(found))


def id_of(name: str, found: Json) -> bytes:
    """Parse a single field that is an id."""
    try:
        value = _value(Bstr(name=name), found)
    except ValueError as error:
        raise Misuse(str(error), "give 64 hex digits, or name: and a name") from None
    assert isinstance(value, bytes)
    return value


def _id(kind: Bstr, text: str) -> bytes:
    """Parse hex digits, or hash a name."""
    if text.startswith(_NAME):
        return naming.schema_id(text.removeprefix(_NAME))
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != kind.size:
        raise ValueError(f"{kind.name} is {text!r}, but must be {2 * kind.size} hex digits, or name: and a name")
    return found


def _stream(found: Json) -> bytes:
    if not isinstance(found, str):
        raise ValueError(f"{found!r} is not a stream: give its name or 64 hex digits")
    return naming.stream_id(found)


def _anything(found: Json) -> cbor.Value:
    """Convert JSON to CBOR. Text after `hex:` becomes bytes."""
    match found:
        case str() if found.startswith(_HEX):
            return bytes.fromhex(found.removeprefix(_HEX))
        case list():
            return [_anything(one) for one in found]
        case dict():
            return {name: _anything(one) for name, one in found.items()}
    return found


def _wrong(kind: type[Operation], reason: str) -> Misuse:
    name = kind.NAME.removesuffix(".v1")
    return Misuse(f"{name}: {reason}", f"veen op kinds {name} lists its fields")
