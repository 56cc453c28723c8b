"""Canonical JSON (RFC 8785): each value has one text, so the hash of the text identifies the value.

The `rfc8785` library writes it. Its numbers are doubles: encoding rejects integers beyond ±(2^53 − 1), and parsing
rounds them to the nearest double.
"""

import json
import math
from typing import Any, NoReturn, TypeAlias

import rfc8785

from veen.core.errors import Malformed
from veen.core.limits import MAX_EXACT_INT, MAX_JSON_BYTES, MAX_JSON_DEPTH

MAX_EXACT = MAX_EXACT_INT
Plain: TypeAlias = "int | float | str | bool | list[Plain] | dict[str, Plain] | None"


def encode(value: Plain) -> bytes:
    """The canonical text of a value. Raises `ValueError` if it has none."""
    _check_depth(value)
    return bytes(rfc8785.dumps(value))


def decode(data: bytes, what: str) -> Plain:
    """Decode canonical JSON. Raises `Malformed` for any text that `encode` would not write."""
    value = parse(data, what)
    try:
        written = rfc8785.dumps(value)
    except ValueError as error:
        raise Malformed(what, f"not canonical JSON: {error}") from None
    if written != data:
        raise Malformed(what, "not canonical JSON: the canonical text of this value is different")
    return value


def parse(data: bytes, what: str, *, exact: bool = False) -> Plain:
    """Decode any JSON text. With `exact`, integers of any size keep their value."""
    if len(data) > MAX_JSON_BYTES:
        raise Malformed(what, f"{len(data)} bytes of JSON, above {MAX_JSON_BYTES}")

    def no_number(text: str) -> NoReturn:
        raise Malformed(what, f"{text} is not a JSON number")

    def named(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) != len(pairs):
            raise Malformed(what, "an object contains a name twice")
        return names

    try:
        text = data.decode()
        if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
            _check_nesting(text)
        value: Plain = json.loads(
            text,
            parse_int=int if exact else _number,
            parse_float=_double,
            parse_constant=no_number,
            object_pairs_hook=named,
        )
    except (ValueError, RecursionError, OverflowError) as error:
        raise Malformed(what, f"not JSON text: {error}") from None
    return value


def _double(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(f"{text[:20]} exceeds the range of a double")
    return found


def _number(text: str) -> int | float:
    if len(text) > len(str(MAX_EXACT_INT)) + 1:
        return _double(text)
    found = int(text)
    return found if -MAX_EXACT_INT <= found <= MAX_EXACT_INT else _double(text)


def _check_nesting(text: str) -> None:
    """Bound the depth here, because the depth at which the JSON parser fails differs between machines."""
    depth, in_string, escaped = 0, False, False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise ValueError(f"nested deeper than {MAX_JSON_DEPTH}")
        elif character in "]}":
            depth -= 1


def _check_depth(value: Plain) -> None:
    depth, level = 0, [value]
    while holding := [one for one in level if isinstance(one, dict | list | tuple)]:
        depth += 1
        if depth > MAX_JSON_DEPTH:
            raise ValueError(f"nested deeper than {MAX_JSON_DEPTH}")
        level = [inner for one in holding for inner in (one.values() if isinstance(one, dict) else one)]
