"""Deterministic CBOR without a field table, for values whose type the protocol leaves open, such as RPC arguments.

As strict as the field tables. Map keys are unsigned integers or text, ascending by their encoded bytes
(RFC 8949 §4.2.1).
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from veen.core.cbor import heads
from veen.core.errors import Malformed
from veen.core.limits import MAX_VALUE_DEPTH

Key: TypeAlias = int | str
Entries: TypeAlias = "Mapping[int, Value] | Mapping[str, Value] | Mapping[Key, Value]"
Value: TypeAlias = "int | bytes | str | bool | Sequence[Value] | Entries | None"

_CONSTANTS: dict[int, bool | None] = {heads.FALSE: False, heads.TRUE: True, heads.NULL: None}


def encode(value: Value) -> bytes:
    """The only encoding of a value. Raises `ValueError` for values that `decode` would reject."""
    return _write(value, MAX_VALUE_DEPTH)


def decode(data: bytes, what: str = "value") -> Value:
    """Decode all of `data`."""
    try:
        value, end = read_value(data, 0)
        if end != len(data):
            raise Malformed("cbor", f"{len(data) - end} bytes after the end")
    except Malformed as error:
        raise Malformed(what, error.reason) from None
    return value


def read_value(data: bytes, pos: int, depth: int = MAX_VALUE_DEPTH) -> tuple[Value, int]:
    major, argument, start = heads.read_head(data, pos)
    match major:
        case heads.UINT:
            return argument, start
        case heads.NINT:
            return -1 - argument, start
        case heads.BSTR:
            return heads.read_string("string", heads.BSTR, data, pos)
        case heads.TEXT:
            return heads.read_text("string", data, pos)
        case heads.ARRAY | heads.MAP if depth == 0:
            raise Malformed("cbor", f"nested too deep at byte {pos}")
        case heads.ARRAY:
            return _read_array(data, pos, depth - 1)
        case heads.MAP:
            return _read_map(data, pos, depth - 1)
        case heads.SIMPLE if data[pos] in _CONSTANTS:
            return _CONSTANTS[data[pos]], start
        case _:
            raise Malformed("cbor", f"a tag, float or undefined value at byte {pos}")


def _read_array(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    count, pos = heads.read_count("array", heads.ARRAY, data, pos)
    items: list[Value] = []
    for _ in range(count):
        item, pos = read_value(data, pos, depth)
        items.append(item)
    return tuple(items), pos


def _read_map(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    count, pos = heads.read_count("map", heads.MAP, data, pos)
    entries: dict[Key, Value] = {}
    previous = b""
    for _ in range(count):
        key, end = _read_key(data, pos)
        encoded = data[pos:end]
        if encoded <= previous:
            raise Malformed("cbor", f"the key at byte {pos} repeats or is out of order")
        previous = encoded
        entries[key], pos = read_value(data, end, depth)
    return entries, pos


def _read_key(data: bytes, pos: int) -> tuple[Key, int]:
    major, argument, end = heads.read_head(data, pos)
    if major == heads.UINT:
        return argument, end
    return heads.read_text("key", data, pos)


def _write(value: Value, depth: int) -> bytes:
    match value:
        case None:
            return heads.NULL_BYTE
        case bool():
            return heads.TRUE_BYTE if value else heads.FALSE_BYTE
        case int():
            return heads.write_head(heads.UINT, value) if value >= 0 else heads.write_head(heads.NINT, -1 - value)
        case bytes():
            return heads.write_bstr(value)
        case str():
            return heads.write_text(value)
        case list() | tuple() | Mapping() if depth == 0:
            raise ValueError(f"nested deeper than {MAX_VALUE_DEPTH}")
        case list() | tuple():
            return heads.write_head(heads.ARRAY, len(value)) + b"".join(_write(item, depth - 1) for item in value)
        case Mapping():
            return _write_map(value, depth - 1)
    raise ValueError(f"a {type(value).__name__} has no deterministic encoding")


def _write_map(entries: Mapping[Any, Value], depth: int) -> bytes:
    encoded: dict[bytes, bytes] = {}
    for key, value in entries.items():
        if isinstance(key, bool) or not isinstance(key, int | str) or (isinstance(key, int) and key < 0):
            raise ValueError(f"map key {key!r} is neither an unsigned integer nor text")
        encoded[_write(key, depth)] = _write(value, depth)
    body = b"".join(key + encoded[key] for key in sorted(encoded))
    return heads.write_head(heads.MAP, len(encoded)) + body
