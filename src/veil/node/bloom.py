"""Bloom filters over what a node has. Spec §11.1.

Both hashes of an element come of one keyed BLAKE3, under a salt that is new for every filter: what one filter takes
for present by mistake the next one does not, and nobody can make an element that all filters mistake.
"""

import math
from collections.abc import Iterable

from veil.hashing import derive, keyed
from veil.node.frames import MAX_FILTER_BYTES, MAX_HASHES, SALT_BYTES, Summary

MIN_BITS = 256
_CONTEXT = "veil bloom v1"


def summarise(elements: Iterable[bytes], epoch: int, salt: bytes, false_positives: float) -> Summary:
    """A filter that holds all elements, and mistakes about so many others for them."""
    assert len(salt) == SALT_BYTES
    held = list(elements)
    count = max(len(held), 1)
    wanted = math.ceil(-count * math.log(false_positives) / math.log(2) ** 2)
    size = min(max(wanted, MIN_BITS) + 7 >> 3, MAX_FILTER_BYTES)
    hashes = min(max(round(size * 8 / count * math.log(2)), 1), MAX_HASHES)
    bits = bytearray(size)
    key = derive(_CONTEXT, salt)
    for element in held:
        for place in _places(key, element, hashes, size * 8):
            bits[place >> 3] |= 1 << (place & 7)
    return Summary(epoch, salt, hashes, bytes(bits))


class Filter:
    """A summary to ask."""

    __slots__ = ("_bits", "_hashes", "_key")

    def __init__(self, summary: Summary) -> None:
        self._bits = summary.bits
        self._hashes = summary.hashes
        self._key = derive(_CONTEXT, summary.salt)

    def __contains__(self, element: bytes) -> bool:
        bits = self._bits
        places = _places(self._key, element, self._hashes, len(bits) * 8)
        return all(bits[place >> 3] >> (place & 7) & 1 for place in places)


def _places(key: bytes, element: bytes, hashes: int, size: int) -> Iterable[int]:
    digest = keyed(key, element)
    first, step = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big") | 1
    return ((first + number * step) % size for number in range(hashes))
