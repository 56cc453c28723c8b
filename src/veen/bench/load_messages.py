"""Prepared submit requests, signed before the clock starts, so only the hub is measured."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from veen.core import DhKey, PayloadHdr, Place, SigningKey, ciphertext, msg, naming
from veen.core.hashing import HASH_BYTES

BODY_BYTES = 300
PAD_BLOCK = 256
# A submit request is this prefix followed by the encoded MSG.
ENVELOPE = b"\xa2\x01\x01\x02"


@dataclass(frozen=True, slots=True)
class Target:
    """What a client must know about a hub."""

    hub_id: bytes
    profile_id: bytes

    def label(self, stream: str) -> bytes:
        return naming.label(naming.routing_key(self.hub_id), naming.stream_id(stream), 0)


class MessageWriters:
    """Clients that write to some labels in turn, each on its own connection."""

    def __init__(self, target: Target, connections: int, streams: Sequence[str]) -> None:
        self._profile_id = target.profile_id
        self._labels = [target.label(stream) for stream in streams]
        self._keys = [SigningKey.generate() for _ in range(connections)]
        place = Place(target.profile_id, self._labels[0], self._keys[0].public_key, 1, 0)
        reader, header = DhKey.generate().public_key, PayloadHdr(os.urandom(HASH_BYTES))
        self._sealed = ciphertext.seal(reader, place, header, os.urandom(BODY_BYTES), PAD_BLOCK)
        self._seqs: dict[tuple[int, int], int] = {}
        self._made = 0

    @property
    def connections(self) -> int:
        return len(self._keys)

    def one(self) -> bytes:
        """The next message, encoded."""
        client, label = self._made % len(self._keys), self._made % len(self._labels)
        self._made += 1
        seq = self._seqs.get((client, label), 0) + 1
        self._seqs[client, label] = seq
        # The hub cannot distinguish a real ciphertext from one with another `enc`, and sealing each takes longer.
        message = msg.sign(
            self._keys[client],
            profile_id=self._profile_id,
            label=self._labels[label],
            client_seq=seq,
            prev_ack=0,
            auth_ref=None,
            ciphertext=os.urandom(HASH_BYTES) + self._sealed[HASH_BYTES:],
        )
        return message.encode()

    def plan(self, count: int, batch: int = 0) -> list[list[bytes]]:
        """HTTP requests for each connection: `count` messages in all, one or up to `batch` per request."""
        by_connection: list[list[bytes]] = [[] for _ in self._keys]
        for _ in range(count):
            by_connection[self._made % len(by_connection)].append(self.one() if batch else submit(self.one()))
        return [_batches(encoded, batch) for encoded in by_connection] if batch else by_connection


def submit(encoded: bytes) -> bytes:
    return request(b"/v1/submit", ENVELOPE + encoded)


def _batches(encoded: list[bytes], size: int) -> list[bytes]:
    bodies = [b"".join(encoded[at : at + size]) for at in range(0, len(encoded), size)]
    return [request(b"/tooling/submit-batch", body) for body in bodies]


def request(path: bytes, body: bytes) -> bytes:
    head = b"POST %s HTTP/1.1\r\nhost: hub\r\ncontent-type: application/cbor\r\ncontent-length: %d\r\n\r\n"
    return head % (path, len(body)) + body
