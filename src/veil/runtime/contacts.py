"""Contacts: what one node tells another of itself, signed, small enough for a QR code. No I/O.

    contact   = [1, pubkey, delivery_pubkey, pin, made_ms, name, [endpoint, …], signature]
    text      = "veil:" || base64url(contact), without padding

A contact is true because of its signature, wherever it comes from; of two by the same node, the one made later counts.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Self

from veil.codec import heads
from veil.codec.heads import ARRAY, TEXT, Reader
from veil.errors import Malformed
from veil.hashing import derive
from veil.lanes.certificate import PIN_BYTES
from veil.lanes.endpoint import MAX_ENDPOINT_CHARACTERS, Endpoint
from veil.objects import PUBKEY_BYTES, SIGNATURE_BYTES
from veil.sealing.signing import SigningKey, verify

VERSION = 1
PREFIX = "veil:"
MAX_ENDPOINTS = 8
MAX_NAME_BYTES = 64
MAX_CONTACT_BYTES = 8_192
_CONTEXT = "veil contact v1"
_FIELDS = 8
_MAX_MS = (1 << 53) - 1


@dataclass(frozen=True, slots=True)
class Contact:
    """Who a node is, what to seal for it with, and where it is reached."""

    pubkey: bytes
    delivery_pubkey: bytes
    pin: bytes
    made_ms: int
    name: str
    endpoints: tuple[Endpoint, ...]
    signature: bytes

    @classmethod
    def make(
        cls,
        key: SigningKey,
        delivery_pubkey: bytes,
        pin: bytes,
        made_ms: int,
        name: str,
        endpoints: tuple[Endpoint, ...],
    ) -> Self:
        check_name(name)
        if len(endpoints) > MAX_ENDPOINTS:
            raise Malformed("contact", f"{len(endpoints)} endpoints, more than {MAX_ENDPOINTS}")
        plain = cls(key.public_key, delivery_pubkey, pin, made_ms, name, endpoints, b"")
        signature = key.sign(derive(_CONTEXT, plain._said()))
        return cls(key.public_key, delivery_pubkey, pin, made_ms, name, endpoints, signature)

    def _said(self) -> bytes:
        places = b"".join(heads.text(str(endpoint)) for endpoint in self.endpoints)
        return b"".join((
            heads.head(ARRAY, _FIELDS),
            heads.uint(VERSION),
            heads.byte_string(self.pubkey),
            heads.byte_string(self.delivery_pubkey),
            heads.byte_string(self.pin),
            heads.uint(self.made_ms),
            heads.text(self.name),
            heads.head(ARRAY, len(self.endpoints)) + places,
        ))  # fmt: skip

    def encode(self) -> bytes:
        return self._said() + heads.byte_string(self.signature)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raise `Malformed`, or `Unverified` where the signature is not by the node it is about."""
        if len(data) > MAX_CONTACT_BYTES:
            raise Malformed("contact", f"{len(data)} bytes, more than {MAX_CONTACT_BYTES}")
        reader = Reader(data, "contact")
        reader.exactly(ARRAY, _FIELDS)
        reader.exactly(heads.UINT, VERSION)
        keys = reader.fixed(PUBKEY_BYTES), reader.fixed(PUBKEY_BYTES), reader.fixed(PIN_BYTES)
        made_ms, name = reader.uint(_MAX_MS), _text(reader, MAX_NAME_BYTES)
        count = reader.head(ARRAY, MAX_ENDPOINTS)
        places = tuple(_endpoint(_text(reader, MAX_ENDPOINT_CHARACTERS)) for _ in range(count))
        said = data[: reader.at]
        signature = reader.fixed(SIGNATURE_BYTES)
        reader.end()
        check_name(name)
        verify(keys[0], derive(_CONTEXT, said), signature, "contact")
        return cls(*keys, made_ms, name, places, signature)

    def text(self) -> str:
        return PREFIX + base64.urlsafe_b64encode(self.encode()).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> Self:
        body = text.strip()
        if not body.startswith(PREFIX) or len(body) > 2 * MAX_CONTACT_BYTES:
            raise Malformed("contact", f"it does not start with {PREFIX}, or is too long")
        body = body.removeprefix(PREFIX)
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise Malformed("contact", "not base64url") from None
        found = cls.decode(data)
        if found.text() != text.strip():
            raise Malformed("contact", "not as it would be written")
        return found


def check_name(name: str) -> None:
    if len(name.encode()) > MAX_NAME_BYTES or not name.isprintable():
        raise Malformed("name", f"more than {MAX_NAME_BYTES} bytes, or not of plain characters")


def _text(reader: Reader, most: int) -> str:
    data = reader.take(reader.head(TEXT, most))
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("contact", "text that is not UTF-8") from None


def _endpoint(text: str) -> Endpoint:
    found = Endpoint.parse(text)
    if str(found) != text:
        raise Malformed("contact", f"{text!r} is not as an endpoint is written")
    return found
