"""Ready-made submits: signed before the clock starts, so that only the hub is measured."""

import os
from dataclasses import dataclass

from veen.core import DhKey, PayloadHdr, Place, SigningKey, ciphertext, msg, naming

BODY_BYTES = 300
PAD_BLOCK = 256
ENVELOPE = b"\xa2\x01\x01\x02"


@dataclass(frozen=True, slots=True)
class Target:
    """What a client must know of a hub."""

    routing_key: bytes
    profile_id: bytes


def signed(target: Target, connections: int, per_connection: int, labels: int, stream: str = "") -> list[list[bytes]]:
    """Encoded messages for each connection, each connection a client of its own, the labels taken in turn."""
    salt = os.urandom(8).hex()
    names = [stream or f"bench {salt} {number}" for number in range(labels)]
    places = [naming.label(target.routing_key, naming.stream_id(name), 0) for name in names]
    keys = [SigningKey.generate() for _ in range(connections)]
    pattern = Place(target.profile_id, places[0], keys[0].public_key, 1, 0)
    sealed = ciphertext.seal(
        DhKey.generate().public_key, pattern, PayloadHdr(os.urandom(32)), os.urandom(BODY_BYTES), PAD_BLOCK
    )
    seqs: dict[tuple[int, int], int] = {}
    made: list[list[bytes]] = [[] for _ in keys]
    for number in range(connections * per_connection):
        client, label = number % connections, number % labels
        seqs[client, label] = seq = seqs.get((client, label), 0) + 1
        # The hub cannot tell a real ciphertext from one with another `enc`; sealing each would only take longer.
        message = msg.sign(
            keys[client],
            profile_id=target.profile_id,
            label=places[label],
            client_seq=seq,
            prev_ack=0,
            auth_ref=None,
            ciphertext=os.urandom(32) + sealed[32:],
        )
        made[client].append(message.encode())
    return made


def submits(encoded: list[bytes]) -> list[bytes]:
    """One HTTP request per message."""
    return [_request(b"/v1/submit", ENVELOPE + one) for one in encoded]


def batches(encoded: list[bytes], size: int) -> list[bytes]:
    """One HTTP request per `size` messages."""
    groups = [encoded[at : at + size] for at in range(0, len(encoded), size)]
    return [_request(b"/tooling/submit-batch", b"".join(group)) for group in groups]


def _request(path: bytes, body: bytes) -> bytes:
    head = b"POST %s HTTP/1.1\r\nhost: hub\r\ncontent-type: application/cbor\r\ncontent-length: %d\r\n\r\n"
    return head % (path, len(body)) + body
