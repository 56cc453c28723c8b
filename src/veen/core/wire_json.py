"""The JSON form of every wire object: names from the same field tables, bytes as lowercase hex. Spec §10.3."""

import re
from dataclasses import dataclass
from typing import Any, TypeVar

from veen.core import cbor, strict_json
from veen.core.cbor import (
    Array,
    Bool,
    Bstr,
    Bytes,
    Constant,
    DeferredFaults,
    Details,
    FieldType,
    ListOf,
    Map,
    Nested,
    Text,
    Uint,
    VersionField,
    Wire,
)
from veen.core.cbor.field_tables import details
from veen.core.errors import Fault, Malformed
from veen.core.hashing import HASH_BYTES, U64_MAX
from veen.core.limits import MAX_DETAIL_BYTES, WIRE_VERSION
from veen.core.strict_json import Json

W = TypeVar("W", bound=Wire)

_HEX = re.compile(r"[0-9a-f]*")


def encode(wire: Wire) -> bytes:
    """Encode an object as canonical JSON."""
    wire.encode()
    return strict_json.encode(to_json(wire))


def decode(cls: type[W], data: bytes) -> W:
    """Decode an object as strictly as its CBOR form. Raises only `Malformed`."""
    what = cls.LAYOUT.name
    late = DeferredFaults()
    try:
        wire = from_json(cls, strict_json.decode(data, what), late)
        late.raise_first()
    except Malformed as error:
        raise Malformed(what, error.reason, error.fault) from None
    return wire


def decode_canonical(cls: type[W], data: bytes) -> W:
    """As `decode`, but requires canonical JSON. For files, whose bytes are signed or compared."""
    wire = decode(cls, data)
    if encode(wire) != data:
        raise Malformed(cls.LAYOUT.name, "not in canonical form")
    return wire


def to_json(wire: Wire) -> Json:
    layout = wire.LAYOUT
    fields = [(kind, _fixed_value(kind) if kind.fixed else getattr(wire, kind.name)) for kind in layout.kinds]
    shown = {kind.name: _field_to_json(kind, field) for kind, field in fields if field is not None or not kind.optional}
    return shown if isinstance(layout, Map) else list(shown.values())


def from_json(cls: type[W], found: Json, late: DeferredFaults) -> W:
    """As `Wire.read`: raises for wrong types at once, records wrong sizes and versions in `late`."""
    layout = cls.LAYOUT
    if isinstance(layout, Array):
        if not isinstance(found, list) or not 1 <= len(found) <= len(layout.kinds):
            raise Malformed("json", f"{layout.name} is not an array of its fields")
        named: dict[str, Any] = dict(zip((kind.name for kind in layout.kinds), found, strict=False))
    elif isinstance(found, dict):
        named = dict(found)
    else:
        raise Malformed("json", f"{layout.name} is not an object")
    values = [_pop_field(kind, named, late) for kind in layout.kinds]
    if named:
        raise Malformed("json", f"{layout.name} has an unknown name: {sorted(named)[0][:40]}")
    wire = cls(*(value for kind, value in zip(layout.kinds, values, strict=True) if not kind.fixed))
    if late.flaw is None and not late.first:
        late.flaw = wire.flaw()
    return wire


def _fixed_value(kind: FieldType) -> int | str:
    return kind.text if isinstance(kind, Constant) else WIRE_VERSION


def _field_to_json(kind: FieldType, field: Any) -> Json:
    match kind:
        case Bstr() | Bytes():
            return None if field is None else field.hex()
        case ListOf():
            return [_field_to_json(kind.item, item) for item in field]
        case Nested():
            return to_json(field)
        case _:
            shown: Json = field
            return shown


def _pop_field(kind: FieldType, named: dict[str, Any], late: DeferredFaults) -> Any:
    """Remove the field from `named` and return its value; None if it is optional and absent."""
    if kind.name not in named:
        if kind.optional:
            return None
        raise Malformed("json", f"{kind.name} is missing")
    return _field_from_json(kind, named.pop(kind.name), late)


def _field_from_json(kind: FieldType, found: Any, late: DeferredFaults) -> Any:
    match kind:
        case VersionField():
            if _uint(kind, found) != WIRE_VERSION:
                late.note(Fault.VERSION, f"version {found}, not {WIRE_VERSION}")
            return found
        case Constant():
            if found != kind.text:
                raise Malformed("json", f"{kind.name} is not {kind.text!r}")
            return found
        case Uint():
            number = _uint(kind, found)
            if not kind.least <= number <= kind.most:
                raise Malformed("json", f"{kind.name} is {number}, not within {kind.least}..{kind.most}")
            return number
        case Bstr() if found is None and kind.nullable:
            return None
        case Bstr() | Bytes():
            return _bytes(kind, found, late)
        case Text():
            return _text(kind, found, late)
        case Bool() if isinstance(found, bool):
            return found
        case ListOf() if isinstance(found, list):
            if not kind.least <= len(found) <= kind.most:
                raise Malformed("json", f"{kind.name} has {len(found)} items", Fault.SIZE)
            return tuple(_field_from_json(kind.item, item, late) for item in found)
        case Details():
            named = details(kind.name, found)
            if len(cbor.encode(named)) > MAX_DETAIL_BYTES:
                late.note(Fault.SIZE, f"{kind.name} is longer than {MAX_DETAIL_BYTES} bytes")
            return named
        case Nested():
            return from_json(kind.wire, found, late)
    raise Malformed("json", f"{kind.name} has the wrong type")


def _uint(kind: FieldType, found: Any) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise Malformed("json", f"{kind.name} is not an unsigned integer")
    return found


def _bytes(kind: Bstr | Bytes, found: Any, late: DeferredFaults) -> bytes:
    if not isinstance(found, str) or len(found) % 2 or not _HEX.fullmatch(found):
        raise Malformed("json", f"{kind.name} is not lowercase hex")
    content = bytes.fromhex(found)
    right = len(content) == kind.size if isinstance(kind, Bstr) else len(content) <= kind.most
    if not right:
        late.note(Fault.SIZE, f"{kind.name} has {len(content)} bytes")
    return content


def _text(kind: Text, found: Any, late: DeferredFaults) -> str:
    if not isinstance(found, str):
        raise Malformed("json", f"{kind.name} is not text")
    if len(found.encode()) > kind.most:
        late.note(Fault.SIZE, f"{kind.name} is longer than {kind.most} bytes")
    return found


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a JSON object by name. A missing or wrong field raises `Malformed` with both names."""

    what: str
    found: dict[str, Json]

    @classmethod
    def of(cls, what: str, found: Json) -> "Fields":
        if not isinstance(found, dict):
            raise Malformed(what, "not an object")
        return cls(what, found)

    def field(self, name: str) -> Json:
        if name not in self.found:
            raise Malformed(self.what, f"{name} is missing")
        return self.found[name]

    def number(self, name: str) -> int:
        number = self.field(name)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= U64_MAX:
            raise Malformed(self.what, f"{name} is not an unsigned integer")
        return number

    def text(self, name: str) -> str:
        text = self.field(name)
        if not isinstance(text, str):
            raise Malformed(self.what, f"{name} is not text")
        return text

    def hash(self, name: str) -> bytes:
        shown = self.field(name)
        try:
            content = bytes.fromhex(str(shown))
        except ValueError:
            content = b""
        if len(content) != HASH_BYTES or content.hex() != shown:
            raise Malformed(self.what, f"{name} is not {2 * HASH_BYTES} lowercase hex digits")
        return content

    def wire(self, name: str, cls: type[W]) -> W:
        late = DeferredFaults()
        try:
            wire = from_json(cls, self.field(name), late)
            late.raise_first()
        except Malformed as error:
            raise Malformed(self.what, f"{name}: {error.reason}") from None
        return wire
