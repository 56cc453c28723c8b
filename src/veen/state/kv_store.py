"""A key-value store on a stream, which anyone with the reader key can audit.

async with KvStore.of(client, "settings") as store:
    await store.put(b"door", b"open")
    assert await store.get(b"door") == b"open"
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from veen.client.client import Client
from veen.client.evidence import Evidence
from veen.overlays import Applied, At, FoldStep
from veen.overlays import kv as maps
from veen.overlays.crdt import Register
from veen.overlays.kv import KV, Change
from veen.state.event_sender import EventSender, SentEvent
from veen.state.state_proof import prove
from veen.state.state_view import StateView
from veen.state.watch import watch


class KvStore:
    """An async context manager. A data directory is read-only; a hub can also be written to."""

    def __init__(self, view: StateView[Register, Register]) -> None:
        self.view = view

    @classmethod
    def of(cls, client: Client, stream: str | bytes, *, cached: bool = True) -> Self:
        return cls(StateView.of(client, stream, KV, cached=cached))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.view.close()

    async def get(self, key: bytes, at: At | None = None) -> bytes | None:
        """The value of a key, now or after an entry, or None."""
        async with self.view.reading(at) as reading:
            return reading.state(key).value

    async def keys(self, prefix: bytes = b"", at: At | None = None) -> list[bytes]:
        """The keys that have a value, ascending."""
        async with self.view.reading(at) as reading:
            return list(maps.keys(dict(reading.states), prefix))

    async def history(self, key: bytes, at: At | None = None) -> list[FoldStep]:
        """Every write and deletion of a key, in order."""
        async with self.view.reading(at) as reading:
            return list(reading.history(key))

    async def put(self, key: bytes, value: bytes) -> SentEvent:
        """Set a key. The write is always logged, but another client may overwrite it at any time."""
        async with self.view.reading() as reading:
            event = maps.put(reading.states, key, value)
        return await EventSender(self.view).send_unchecked(event)

    async def delete(self, key: bytes) -> SentEvent:
        async with self.view.reading() as reading:
            event = maps.delete(reading.states, key)
        return await EventSender(self.view).send_unchecked(event)

    async def watch(self, prefix: bytes = b"") -> AsyncGenerator[Change, None]:
        """Yield changes from now on."""
        async with aclosing(watch(self.view)) as coming:
            async for seen in coming:
                for outcome in seen.outcomes:
                    change = maps.change(outcome) if isinstance(outcome, Applied) else None
                    if change is not None and change.key.startswith(prefix):
                        yield change

    async def prove(self, key: bytes, at: At | None = None) -> Evidence:
        """Evidence for the value of a key."""
        async with self.view.reading(at) as reading:
            return await prove(self.view, reading, key)
