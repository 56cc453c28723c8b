"""Artifacts that are one array of rows, given one row more without decoding those that are there. Spec §4.8.3, §8.4.

They grow with the log, and each checkpoint adds a row. A row is recognised by its bytes: keys, kinds and lengths are
fixed, integers are as short as they can be, and nothing may stand between two rows. So what is taken here is what the
decoder takes, at a small part of its cost; what follows from several rows is for the caller to check.
"""

import re

from veen.core import Malformed
from veen.core.cbor.heads import ARRAY, read_head, write_head

# Integers in their only form; 32 bytes.
_LONG = rb"\x18[\x18-\xff]|\x19(?!\x00)..|\x1a(?!\x00\x00)....|\x1b(?!\x00{4}).{8}"
UINT = rb"(?:[\x00-\x17]|" + _LONG + rb")"
FROM_1 = rb"(?:[\x01-\x17]|" + _LONG + rb")"
HASH = rb"\x58\x20.{32}"


def split(data: bytes, head: bytes, row: re.Pattern[bytes]) -> list[tuple[bytes, ...]] | None:
    """The groups of every row of an array that follows `head` and ends the file; None where that is not all of it.

    The first group must be the whole row.
    """
    if not data.startswith(head):
        return None
    try:
        major, count, pos = read_head(data, len(head))
    except Malformed:
        return None
    rows: list[tuple[bytes, ...]] = row.findall(data, pos)
    whole = major == ARRAY and len(rows) == count and sum(len(found[0]) for found in rows) == len(data) - pos
    return rows if whole else None


def joined(head: bytes, rows: list[bytes]) -> bytes:
    """The file of so many rows."""
    return b"".join([head, write_head(ARRAY, len(rows)), *rows])


def uint(encoded: bytes) -> int:
    """What a matched integer is."""
    return int.from_bytes(encoded[1:], "big") if len(encoded) > 1 else encoded[0]
