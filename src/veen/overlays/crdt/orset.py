"""Observed-remove sets, CRDT0.2: an element is in the set while one of its add ids is not removed.

A part is an element (`e` and its bytes, with its add ids) or an add id (`i` and its bytes, with the removed mark). So
an element can be looked up without reading the whole set.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from veen.core import Malformed, cbor, naming
from veen.core.cbor import Bstr, Bytes, ListOf, text_map
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event
from veen.overlays.fields import ascending
from veen.overlays.overlay import FoldStep, MergeOverlay

_SCHEMA = naming.schema_id("crdt.orset.v1")
_ELEMENT, _ID = b"e", b"i"

Ids = frozenset[bytes]
DEAD: Ids = frozenset({b""})  # the state of a removed id
NONE: Ids = frozenset()


@text_map("crdt.orset.v1 add")
class Add(Event):
    """`crdt.orset.v1`, the add form."""

    id: Annotated[bytes, Bstr()]
    elem: Annotated[bytes, Bytes(MAX_BODY_BYTES)]

    SCHEMA: ClassVar = _SCHEMA


@text_map("crdt.orset.v1 remove")
class Remove(Event):
    """`crdt.orset.v1`, the remove form: lists the add ids that the remover has seen."""

    tomb: Annotated[tuple[bytes, ...], ListOf(Bstr(name="id"), most=MAX_BODY_BYTES)]

    SCHEMA: ClassVar = _SCHEMA


class OrSet(MergeOverlay[Ids]):
    """The add ids per element, and the removed mark per id."""

    CLASS = "crdt.orset"
    EVENTS: ClassVar[tuple[type[Event], ...]] = (Add, Remove)
    EMPTY = NONE

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        if isinstance(event, Add):
            return (_ELEMENT + event.elem,)
        assert isinstance(event, Remove)
        return tuple(_ID + one for one in event.tomb)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """No keys: adds and removes are idempotent."""
        return ()

    def lift(self, step: FoldStep) -> Ids:
        return frozenset({step.event.id}) if isinstance(step.event, Add) else DEAD

    def merge(self, a: Ids, b: Ids) -> Ids:
        return a | b

    def encode_state(self, state: Ids) -> bytes:
        return cbor.encode(sorted(state))

    def decode_state(self, part: bytes, data: bytes) -> Ids:
        listed = cbor.decode(data, "ids")
        ids = [one for one in listed if isinstance(one, bytes)] if isinstance(listed, tuple) else []
        if not isinstance(listed, tuple) or len(ids) != len(listed) or not ascending(ids):
            raise Malformed("ids", "not an ascending list of ids")
        return frozenset(ids)

    def plain(self, part: bytes, state: Ids) -> Mapping[str, cbor.Value]:
        if part[:1] == _ID:
            return {"id": part[1:], "removed": state == DEAD}
        return {"elem": part[1:], "ids": sorted(state)}


OR_SET = OrSet()


def live_ids(states: Mapping[bytes, Ids], elem: bytes) -> tuple[bytes, ...]:
    """The ids that keep an element in the set. A `Remove` of the element lists them."""
    return tuple(one for one in sorted(states.get(_ELEMENT + elem, NONE)) if _ID + one not in states)


def has(states: Mapping[bytes, Ids], elem: bytes) -> bool:
    return bool(live_ids(states, elem))


def elements(states: Mapping[bytes, Ids]) -> Iterator[bytes]:
    """The elements of the set, ascending."""
    for part in sorted(part for part in states if part[:1] == _ELEMENT):
        if has(states, part[1:]):
            yield part[1:]
