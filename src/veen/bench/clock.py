"""Timing on machines that are shared and noisy."""

import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from statistics import median
from time import perf_counter, thread_time

from veen.core import Msg, SigningKey, msg, signing
from veen.core.hashing import HASH_BYTES

Action = Callable[[], object]

LIMIT_MESSAGES = 256
_SLICES = 9
# Hashed once for each message whatever its size: leaf, one tree node, the peaks of a tree, the receipt.
_FIXED_HASHES = (170, 96, 320, 200)


def per_call(actions: dict[str, Action], rounds: int = 40, calls: int = 100) -> dict[str, float]:
    """Seconds per call: the best of many short rounds, taken in turn so that all actions meet the same weather."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            best[name] = min(best[name], _seconds(action, calls, perf_counter))
    return best


class CryptoLimit:
    """What one submit cannot do without on one core: a verify, a sign and the hashes, and nothing around them.

    A hub whose submits a second times this is 1 does as much as one core could if everything else were free. It takes
    as many messages as a slice has calls: the same signature over and over is one that the processor learns by heart.
    """

    def __init__(self, encoded: Sequence[bytes]) -> None:
        self._signer, self._receipt = SigningKey.generate(), os.urandom(HASH_BYTES)
        self._needs = [_needs(one) for one in encoded]

    def seconds(self) -> float:
        """Now: the middle of several short slices, as load too meets the middle of the weather.

        Of CPU, not of the wall clock: where others take the core away, the limit must not look easier to reach.
        """
        return median(_seconds(self._all, 1, thread_time) for _ in range(_SLICES)) / len(self._needs)

    def _all(self) -> None:
        for signed, hashed in self._needs:
            signing.verify(*signed)
            self._signer.sign(self._receipt)
            for data in hashed:
                sha256(data).digest()


def _needs(encoded: bytes) -> tuple[tuple[bytes, bytes, bytes], tuple[bytes, ...]]:
    """What is verified of a message, and what is hashed."""
    message = Msg.decode(encoded)
    # The ciphertext, what the client signs, and the entry as it stands in the log.
    whole = (message.ciphertext, encoded, encoded)
    signed = (message.client_id, msg.signing_digest(encoded), message.sig)
    return signed, (*whole, *(os.urandom(size) for size in _FIXED_HASHES))


def _seconds(action: Action, calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        action()
    return (clock() - start) / calls
