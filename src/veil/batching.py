"""Batching: small items share an object up to the target size; no object exceeds the limit. Spec §7.1."""

from collections import deque

from plumbing.cbor_heads import ARRAY, head_bytes, write_array
from veil.codec.cbor_reader import Reader
from veil.objects import Flags
from veil.veil_errors import Refused
from veil.veil_limits import MAX_BATCH_ITEMS, MAX_OBJECT_BYTES, TARGET_BATCH_BYTES

MIN_ITEMS = 2


def encode_batch(items: tuple[bytes, ...]) -> bytes:
    if not MIN_ITEMS <= len(items) <= MAX_BATCH_ITEMS:
        raise ValueError(f"a batch has {MIN_ITEMS} to {MAX_BATCH_ITEMS} items, not {len(items)}")
    return write_array(*items)


def decode_batch(payload: bytes) -> tuple[bytes, ...]:
    reader = Reader(payload, "batch")
    count = reader.head(ARRAY, MAX_BATCH_ITEMS)
    if count < MIN_ITEMS:
        reader.fail(f"{count} items, fewer than {MIN_ITEMS}")
    items = tuple(reader.byte_string(MAX_OBJECT_BYTES) for _ in range(count))
    reader.end()
    return items


Batch = tuple[bytes, ...]


class Batcher:
    """A FIFO queue that groups items into batches whose objects stay within the target size.

    `overhead` is the size of an object minus its payload (`assembly.overhead`). An item larger than the target is a
    batch of its own. With `target` from `assembly.batch_target` a full batch exactly fills its shards. An object of
    96 KiB would be a few hundred bytes too large for six shards of 16 KiB, and padding would double its size.
    """

    def __init__(self, overhead: int, target: int = TARGET_BATCH_BYTES, limit: int = MAX_OBJECT_BYTES) -> None:
        self._target = min(target, limit) - overhead
        self._limit = limit - overhead
        self._next: list[bytes] = []
        self._next_bytes = 0
        self._later: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._next) + len(self._later)

    def add(self, item: bytes) -> None:
        """Queue an item. Raise `Refused` if it is too large for an object."""
        if len(item) > self._limit:
            raise Refused("item", f"{len(item)} bytes are more than the {self._limit} bytes that an object can carry")
        self._later.append(item)
        self._fill()

    @property
    def full(self) -> bool:
        """Whether the next batch cannot take another item."""
        return bool(self._later) or head_bytes(len(self._next)) + self._next_bytes >= self._target

    def take(self, *, interactive: bool = False) -> Batch:
        """Remove and return the next batch, or an empty one. An `interactive` batch has a single item."""
        if interactive:
            self._later.extendleft(reversed(self._next[1:]))
            self._next = self._next[:1]
        batch, self._next, self._next_bytes = tuple(self._next), [], 0
        self._fill()
        return batch

    def _fill(self) -> None:
        """Move items into the next batch while they fit. An item too large for the target is a batch of its own."""
        while self._later and len(self._next) < MAX_BATCH_ITEMS:
            grown = self._next_bytes + head_bytes(len(self._later[0])) + len(self._later[0])
            if self._next and head_bytes(len(self._next) + 1) + grown > self._target:
                break
            self._next.append(self._later.popleft())
            self._next_bytes = grown


def batch_payload(items: Batch) -> tuple[bytes, Flags]:
    """The payload of a batch and its flag. A single item is not wrapped."""
    if len(items) == 1:
        return items[0], Flags.NONE
    return encode_batch(items), Flags.BATCHED
