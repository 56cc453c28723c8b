"""Moving among the sorted values that one key has in an LMDB table."""

from collections.abc import Iterator

import lmdb


def last_first(cursor: lmdb.Cursor, key: bytes) -> Iterator[bytes]:
    """The key's values, descending."""
    found = cursor.set_key(key) and cursor.last_dup()
    while found:
        yield bytes(cursor.value())
        found = cursor.prev_dup()


def last_at_or_before(cursor: lmdb.Cursor, key: bytes, value: bytes) -> bool:
    """Put the cursor on the key's last value that is not above `value`."""
    if cursor.set_range_dup(key, value):
        return bool(cursor.value() == value or cursor.prev_dup())
    return bool(cursor.set_key(key) and cursor.last_dup())
