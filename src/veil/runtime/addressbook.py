"""The contacts a node keeps: each under its key, with a name of the node's own choosing."""

from collections.abc import Iterator
from dataclasses import dataclass

from veil.errors import Malformed, Refused
from veil.runtime.contacts import Contact, check_name
from veil.runtime.folder import Folder

_FILE = "contacts.json"
MAX_CONTACTS = 1_024


@dataclass(frozen=True, slots=True)
class Entry:
    """A contact, and what it is called here."""

    name: str
    contact: Contact


class AddressBook:
    """All of them, on disk as soon as they are in it."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._entries: dict[bytes, Entry] = {}
        found = folder.read(_FILE).get("contacts", [])
        try:
            for one in found:
                contact = Contact.from_text(one["contact"])
                self._entries[contact.pubkey] = Entry(str(one["name"]), contact)
        except (KeyError, TypeError, AttributeError):
            raise Malformed(_FILE, "not a file of contacts") from None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def get(self, pubkey: bytes) -> Entry | None:
        return self._entries.get(pubkey)

    def find(self, wanted: str) -> Entry:
        """A contact by its name, or by the first digits of its key. Raise `Refused` where that is none, or several."""
        found = [entry for entry in self if entry.name == wanted]
        found = found or [entry for entry in self if wanted and entry.contact.pubkey.hex().startswith(wanted.lower())]
        if len(found) != 1:
            error = Refused("contact", f"{'no' if not found else 'more than one'} contact here is {wanted!r}")
            error.add_note("veil contact list shows them")
            raise error
        return found[0]

    def add(self, contact: Contact, name: str = "") -> Entry:
        """Take a contact in, or its newer form. Raise `Refused` for an older one than is here."""
        known = self._entries.get(contact.pubkey)
        if known is not None and contact.made_ms < known.contact.made_ms:
            raise Refused("contact", "a newer one of the same node is here already")
        if known is None and len(self) >= MAX_CONTACTS:
            raise Refused("contact", f"there are {len(self)} already")
        name = name or (known.name if known else self._free_name(contact))
        check_name(name)
        if any(entry.name == name and entry.contact.pubkey != contact.pubkey for entry in self):
            raise Refused("contact", f"another one is called {name!r}")
        entry = Entry(name, contact)
        self._save({**self._entries, contact.pubkey: entry})
        return entry

    def remove(self, pubkey: bytes) -> bool:
        if pubkey not in self._entries:
            return False
        self._save({key: entry for key, entry in self._entries.items() if key != pubkey})
        return True

    def _free_name(self, contact: Contact) -> str:
        """What it calls itself, as far as nobody else is called so here."""
        digits = contact.pubkey.hex()[:8]
        taken = {entry.name for entry in self}
        return contact.name if contact.name and contact.name not in taken else f"{contact.name}-{digits}".strip("-")

    def _save(self, entries: dict[bytes, Entry]) -> None:
        """On disk first: if that fails, nothing has changed."""
        rows = [{"name": entry.name, "contact": entry.contact.text()} for entry in entries.values()]
        self._folder.write(_FILE, {"version": 1, "contacts": rows})
        self._entries = entries
