"""A batch: the payload of an object that carries several items. Spec §7.1.

    batch   = [item, item, …]

One item travels as it is, without the flag, so a batch has at least two.
"""

from veil.codec import heads
from veil.codec.heads import ARRAY, Reader
from veil.limits import MAX_BATCH_ITEMS, MAX_OBJECT_BYTES

MIN_ITEMS = 2


def encode_batch(items: tuple[bytes, ...]) -> bytes:
    if not MIN_ITEMS <= len(items) <= MAX_BATCH_ITEMS:
        raise ValueError(f"a batch has {MIN_ITEMS} to {MAX_BATCH_ITEMS} items, not {len(items)}")
    return heads.head(ARRAY, len(items)) + b"".join(map(heads.byte_string, items))


def decode_batch(payload: bytes) -> tuple[bytes, ...]:
    reader = Reader(payload, "batch")
    count = reader.head(ARRAY, MAX_BATCH_ITEMS)
    if count < MIN_ITEMS:
        reader.fail(f"{count} items")
    items = tuple(reader.byte_string(MAX_OBJECT_BYTES) for _ in range(count))
    reader.end()
    return items
