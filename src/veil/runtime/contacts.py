"""Contacts, signed by the node they describe and small enough for a QR code, and the address book.

    contact   = [1, pubkey, delivery_pubkey, pin, made_ms, name, [endpoint, …], signature]
    text      = "veil:" || base64url(contact), without padding

The signature authenticates a contact, whatever way it travelled. A newer contact of a node replaces an older one.
"""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from plumbing.cbor_heads import ARRAY, TEXT, UINT, write_head, write_items
from plumbing.sodium import SigningKey
from veil.codec import Reader
from veil.encryption import verify
from veil.hashing import derive
from veil.lanes.certificate import PIN_BYTES
from veil.lanes.lane import MAX_ENDPOINT_CHARACTERS, Endpoint
from veil.objects import PUBKEY_BYTES, SIGNATURE_BYTES
from veil.runtime.data_directory import DataDirectory
from veil.veil_errors import Malformed, Refused

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
    """Keys, certificate pin, name and endpoints of a node."""

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
        signature = key.sign(derive(_CONTEXT, plain._signed_bytes()))
        return cls(key.public_key, delivery_pubkey, pin, made_ms, name, endpoints, signature)

    def _signed_bytes(self) -> bytes:
        endpoints = tuple(map(str, self.endpoints))
        fields = VERSION, self.pubkey, self.delivery_pubkey, self.pin, self.made_ms, self.name, endpoints
        return write_head(ARRAY, _FIELDS) + write_items(*fields)

    def encode(self) -> bytes:
        return self._signed_bytes() + write_items(self.signature)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode and verify a contact. Raise `Unverified` if the signature fails."""
        if len(data) > MAX_CONTACT_BYTES:
            raise Malformed("contact", f"{len(data)} bytes, more than {MAX_CONTACT_BYTES}")
        reader = Reader(data, "contact")
        reader.exactly(ARRAY, _FIELDS)
        reader.exactly(UINT, VERSION)
        keys = reader.fixed(PUBKEY_BYTES), reader.fixed(PUBKEY_BYTES), reader.fixed(PIN_BYTES)
        made_ms, name = reader.uint(_MAX_MS), _text(reader, MAX_NAME_BYTES)
        count = reader.head(ARRAY, MAX_ENDPOINTS)
        places = tuple(_endpoint(_text(reader, MAX_ENDPOINT_CHARACTERS)) for _ in range(count))
        signed = data[: reader.at]
        signature = reader.fixed(SIGNATURE_BYTES)
        reader.end()
        check_name(name)
        verify(keys[0], derive(_CONTEXT, signed), signature, "contact")
        return cls(*keys, made_ms, name, places, signature)

    def text(self) -> str:
        return PREFIX + base64.urlsafe_b64encode(self.encode()).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> Self:
        body = text.strip()
        if not body.startswith(PREFIX) or len(body) > 2 * MAX_CONTACT_BYTES:
            raise Malformed("contact", f"does not start with {PREFIX}, or is too long")
        body = body.removeprefix(PREFIX)
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise Malformed("contact", "not base64url") from None
        found = cls.decode(data)
        if found.text() != text.strip():
            raise Malformed("contact", "not the canonical text form")
        return found


def check_name(name: str) -> None:
    if len(name.encode()) > MAX_NAME_BYTES or not name.isprintable():
        raise Malformed("name", f"more than {MAX_NAME_BYTES} bytes, or not printable")


def _text(reader: Reader, most: int) -> str:
    data = reader.take(reader.head(TEXT, most))
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("contact", "text that is not UTF-8") from None


def _endpoint(text: str) -> Endpoint:
    found = Endpoint.parse(text)
    if str(found) != text:
        raise Malformed("contact", f"{text!r} is not a canonical endpoint")
    return found


_FILE = "contacts.json"
MAX_CONTACTS = 1_024


@dataclass(frozen=True, slots=True)
class AddressBookEntry:
    """A contact and its local name."""

    name: str
    contact: Contact


class AddressBook:
    """The contacts of a node, stored in `contacts.json`."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._entries: dict[bytes, AddressBookEntry] = {}
        found = directory.read(_FILE).get("contacts", [])
        try:
            for one in found:
                contact = Contact.from_text(one["contact"])
                self._entries[contact.pubkey] = AddressBookEntry(str(one["name"]), contact)
        except (KeyError, TypeError, AttributeError):
            raise Malformed(_FILE, "not a list of contacts") from None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AddressBookEntry]:
        return iter(tuple(self._entries.values()))

    def get(self, pubkey: bytes) -> AddressBookEntry | None:
        return self._entries.get(pubkey)

    def find(self, wanted: str) -> AddressBookEntry:
        """Find a contact by local name or by a key prefix. Raise `Refused` unless exactly one matches."""
        found = [entry for entry in self if entry.name == wanted]
        found = found or [entry for entry in self if wanted and entry.contact.pubkey.hex().startswith(wanted.lower())]
        if len(found) != 1:
            error = Refused("contact", f"{'no' if not found else 'more than one'} contact matches {wanted!r}")
            error.add_note("veil contact list shows them")
            raise error
        return found[0]

    def add(self, contact: Contact, name: str = "") -> AddressBookEntry:
        """Add a contact, or replace it by a newer one. Raise `Refused` for an older one."""
        known = self._entries.get(contact.pubkey)
        if known is not None and contact.made_ms < known.contact.made_ms:
            raise Refused("contact", "a newer contact of the same node is already stored")
        if known is None and len(self) >= MAX_CONTACTS:
            raise Refused("contact", f"the limit of {MAX_CONTACTS} contacts is reached")
        name = name or (known.name if known else self._free_name(contact))
        check_name(name)
        if any(entry.name == name and entry.contact.pubkey != contact.pubkey for entry in self):
            raise Refused("contact", f"the name {name!r} is used by another contact")
        entry = AddressBookEntry(name, contact)
        self._save({**self._entries, contact.pubkey: entry})
        return entry

    def remove(self, pubkey: bytes) -> bool:
        if pubkey not in self._entries:
            return False
        self._save({key: entry for key, entry in self._entries.items() if key != pubkey})
        return True

    def _free_name(self, contact: Contact) -> str:
        """The name in the contact, with a key prefix if another contact has it."""
        digits = contact.pubkey.hex()[:8]
        taken = {entry.name for entry in self}
        return contact.name if contact.name and contact.name not in taken else f"{contact.name}-{digits}".strip("-")

    def _save(self, entries: dict[bytes, AddressBookEntry]) -> None:
        """Write the file first: if that fails, nothing has changed."""
        rows = [{"name": entry.name, "contact": entry.contact.text()} for entry in entries.values()]
        self._directory.write(_FILE, {"version": 1, "contacts": rows})
        self._entries = entries
