"""What the operation profiles share: ids, schemas, links from one operation to another. 001, spec-3 §1."""

from typing import ClassVar

from veen.core import naming
from veen.core.cbor import Bstr, ListOf, Map, Text
from veen.core.hashing import ht
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import Event
from veen.overlays.fields import Item


def operation_id(msg_id: bytes) -> bytes:
    """The name by which operations refer to each other. §1.1."""
    return ht("veen/operation-id", msg_id)


def profile_schema(name: str) -> bytes:
    """The schema id of a profile's body: its name is hashed under a prefix, other than elsewhere. §1.4."""
    return naming.schema_id(f"veen/schema:{name}")


def text(name: str, *, optional: bool = False) -> Text:
    return Text(name, MAX_BODY_BYTES, optional=optional)


def ids(name: str, item: str, most: int = MAX_BODY_BYTES) -> ListOf:
    return ListOf(name, Bstr(item), most=most)


def anything(name: str, *, optional: bool = False) -> Item:
    return Item(name, optional=optional)


PARENT = Bstr("parent_operation_id", optional=True)
METADATA = anything("metadata", optional=True)


class Operation(Event):
    """A body of one of the profiles."""

    __slots__ = ()
    NAME: ClassVar[str]  # of its schema
    LAYOUT: ClassVar[Map]

    @property
    def parent(self) -> bytes | None:
        """The operation that this one depends on or answers, where it names one."""
        found = getattr(self, "parent_operation_id", None)
        return found if isinstance(found, bytes) else None


def repeated(listed: tuple[bytes, ...], what: str) -> str | None:
    return None if len(set(listed)) == len(listed) else f"one of its {what} is named twice"
