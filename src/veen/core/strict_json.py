"""Strict, bounded JSON without floats and repeated names, and the canonical form in which files are signed.

Canonical: names sorted by their UTF-8 bytes, no white space, absent optional fields omitted.
"""

import json
from typing import Any, NoReturn, TypeAlias

from veen.core.errors import Malformed
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_JSON_BYTES

Json: TypeAlias = "int | str | bool | list[Json] | dict[str, Json] | None"


def encode(value: Json) -> bytes:
    """Encode in canonical form. Python sorts names by code point, which equals the order of their UTF-8 bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def decode(data: bytes, what: str) -> Json:
    """Decode strict JSON with any white space."""
    if len(data) > MAX_JSON_BYTES:
        raise Malformed(what, f"{len(data)} bytes of JSON, above {MAX_JSON_BYTES}")

    def no_float(text: str) -> NoReturn:
        raise Malformed(what, f"{text[:20]} is not an integer")

    def integer(text: str) -> int:
        if len(text) > len(str(U64_MAX)) or text == "-0":
            raise Malformed(what, f"{text[:40]} is not a 64-bit integer")
        return int(text)

    def named(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) != len(pairs):
            raise Malformed(what, "an object contains a name twice")
        return names

    try:
        parsed: Json = json.loads(
            data.decode(), parse_float=no_float, parse_constant=no_float, parse_int=integer, object_pairs_hook=named
        )
        if b"\\u" in data:
            encode(parsed)  # an escape can contain half a surrogate pair, which is not valid text
    except (ValueError, RecursionError) as error:
        raise Malformed(what, f"not JSON text: {type(error).__name__}") from None
    return parsed
