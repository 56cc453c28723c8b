"""A letter: a payload with its sender and signature inside the seal, where only the recipient sees them.

    letter   = [sender_pubkey, signature, body]
    digest   = derive("veil letter v1", aad || body)

The address is signed with the body, and a rendezvous tag is made of the recipient's key: a recipient cannot pass a
letter on as if it had been written to someone else.
"""

from dataclasses import dataclass

from veil.codec import heads
from veil.codec.heads import ARRAY, Reader
from veil.hashing import derive
from veil.limits import MAX_OBJECT_BYTES
from veil.objects import PUBKEY_BYTES, SIGNATURE_BYTES, Address
from veil.sealing.signing import SigningKey, verify

_CONTEXT = "veil letter v1"
_FIELDS = 3
# How much longer a letter is than its body, at most.
LETTER_BYTES = 1 + (2 + PUBKEY_BYTES) + (2 + SIGNATURE_BYTES) + 5


@dataclass(frozen=True, slots=True)
class Letter:
    """What a letter said, and whose word it is."""

    sender_pubkey: bytes
    body: bytes


def write_letter(address: Address, key: SigningKey, body: bytes) -> bytes:
    """The payload that carries `body` in the name of a key."""
    signature = key.sign(_digest(address, body))
    fields = (key.public_key, signature, body)
    return heads.head(ARRAY, _FIELDS) + b"".join(map(heads.byte_string, fields))


def read_letter(address: Address, payload: bytes) -> Letter:
    """The letter in a payload. Raise `Malformed`, or `Unverified` where its signature does not hold at this address."""
    reader = Reader(payload, "letter")
    reader.exactly(ARRAY, _FIELDS)
    sender_pubkey, signature = reader.fixed(PUBKEY_BYTES), reader.fixed(SIGNATURE_BYTES)
    body = reader.byte_string(MAX_OBJECT_BYTES)
    reader.end()
    verify(sender_pubkey, _digest(address, body), signature, "letter")
    return Letter(sender_pubkey, body)


def _digest(address: Address, body: bytes) -> bytes:
    return derive(_CONTEXT, address.aad() + body)
