"""KV: a map of keys to values on last-writer-wins registers. Spec §11.4.

A put is a CRDT0 register write, so any CRDT0 reader sees the same values. A deletion is a separate event. `put` and
`delete` reuse the register's current `ts`, so without clocks the order of the log decides.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from veen.core import cbor
from veen.core.cbor import Bytes, Uint
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.crdt import NOTHING, Lww, Register, Write
from veen.overlays.event import Event, event
from veen.overlays.fold import Applied
from veen.overlays.overlay import FoldStep

__all__ = ["Change", "Delete", "KV", "Kv", "States", "Write", "change", "delete", "get", "keys", "put"]


@event("kv.delete.v1")
class Delete(Event):
    """`kv.delete.v1`: removes the value of a key."""

    key: Annotated[bytes, Bytes(MAX_BODY_BYTES)]
    ts: Annotated[int, Uint()]


class Kv(Lww):
    """Registers whose value can be deleted."""

    CLASS = "kv"
    EVENTS: ClassVar[tuple[type[Event], ...]] = (Write, Delete)

    def lift(self, step: FoldStep) -> Register:
        event = step.event
        if isinstance(event, Delete):
            return Register(event.ts, *step.at, None)
        return super().lift(step)

    def plain(self, part: bytes, state: Register) -> Mapping[str, cbor.Value]:
        return {**super().plain(part, state), "deleted": state.value is None}


KV = Kv()

States = Mapping[bytes, Register]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one key, for watchers. None means no value."""

    key: bytes
    before: bytes | None
    after: bytes | None
    step: FoldStep


def get(states: States, key: bytes) -> bytes | None:
    """The value of a key, or None."""
    return states.get(key, NOTHING).value


def keys(states: States, prefix: bytes = b"") -> Iterator[bytes]:
    """The keys that have a value and start with a prefix, ascending."""
    return iter(sorted(key for key in states if key.startswith(prefix) and get(states, key) is not None))


def put(states: States, key: bytes, value: bytes, ts: int | None = None) -> Write:
    """The event that sets a key. `ts` defaults to the register's current one."""
    return Write(key, states.get(key, NOTHING).ts if ts is None else ts, value)


def delete(states: States, key: bytes, ts: int | None = None) -> Delete:
    """The event that deletes a key's value."""
    return Delete(key, states.get(key, NOTHING).ts if ts is None else ts)


def change(applied: Applied[Register]) -> Change | None:
    """The change a step made, or None if another write had already won."""
    before, after = applied.before, applied.after
    return None if before == after else Change(applied.step.part, before.value, after.value, applied.step)
