"""Events as plain JSON in canonical form: bytes as lowercase hex, sorted keys."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

from veen.core import Malformed

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode  # made once


def plain(value: object) -> Plain:
    """Convert a value of an event to JSON types. Absent fields are left out."""
    match value:
        case None | bool() | int() | float():
            return value
        case Enum():
            return plain(value.value)
        case str():
            return value
        case bytes():
            return value.hex()
        case Mapping():
            return {key if isinstance(key, str) else str(plain(key)): plain(one) for key, one in value.items()}
        case tuple() | list() | frozenset():
            return [plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        named = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: plain(one) for name, one in named if one is not None}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def to_json(value: Plain) -> str:
    """Canonical JSON: equal values give equal text."""
    return _encode(value)


def from_json(text: str) -> Plain:
    """Parse JSON. Integers stay integers, however large."""
    try:
        found: Plain = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("event", "it is not JSON") from None
    return found
