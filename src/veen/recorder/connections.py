"""The TCP connections of a listener: their number, and which one is closed for the next.

A connection counts from the moment it is accepted, including its TLS handshake. If all slots are in use, the connection
whose last message is oldest is closed for the new one; acceptance counts as a first message. A client that holds many
connections and finishes nothing loses them first, whether it is silent or sends a byte now and then. A connection keeps
its slot while a complete message from it is being stored.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

HANDSHAKE_S = 10.0
_CLOSE_S = 1.0
NOTIFY_EVERY_S = 60.0


@dataclass(eq=False, slots=True)
class Connection:
    """One connection, as its server sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    last_message: float  # on the loop's clock
    is_storing: bool = field(default=False, init=False)

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Mark the connection as busy while a complete message is stored."""
        self.is_storing = True
        try:
            yield
        finally:
            self.is_storing = False
            self.last_message = asyncio.get_running_loop().time()


class Connections:
    """Listens, and runs `serve` for each connection. A `TimeoutError` from it closes the connection."""

    def __init__(
        self,
        serve: Callable[[Connection], Awaitable[None]],
        *,
        tls: ssl.SSLContext | None,
        max_connections: int,
        handshake_s: float = HANDSHAKE_S,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._serve = serve
        self._tls = tls
        self._max = max_connections
        self._handshake_s = handshake_s
        self._notify = notify
        self._notified_at = float("-inf")
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # including those closed to make room

    async def start(self, host: str, port: int, read_limit: int) -> None:
        self._server = await asyncio.start_server(self._accepted, host, port, limit=read_limit)

    async def stop(self) -> None:
        self._server.close()
        for connection in self._open:
            connection.writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called before any data is read. Pauses reading, so that TLS receives the first byte of the handshake."""
        if self._tls is not None:
            cast(asyncio.Transport, writer.transport).pause_reading()
        if len(self._open) >= self._max and not self._make_room():
            writer.transport.abort()
            return
        loop = asyncio.get_running_loop()
        connection = Connection(reader, writer, loop.time())
        task = loop.create_task(self._run(connection))
        self._open[connection] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_room(self) -> bool:
        """Close the oldest idle connection. Returns False if every connection is storing a message."""
        now = asyncio.get_running_loop().time()
        if now - self._notified_at >= NOTIFY_EVERY_S:
            self._notified_at = now
            self._notify(f"all {self._max} connections are in use; each new one closes the one idle for longest")
        waiting = [one for one in self._open if not one.is_storing]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda one: one.last_message)
        self._open.pop(oldest).cancel()
        oldest.writer.transport.abort()
        return True

    async def _run(self, connection: Connection) -> None:
        writer = connection.writer
        try:
            if self._tls is not None:
                await writer.start_tls(self._tls, ssl_handshake_timeout=self._handshake_s)
            await self._serve(connection)
            writer.close()
            async with asyncio.timeout(_CLOSE_S):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the peer is gone or too slow, or we stop; complete messages are stored
        finally:
            self._open.pop(connection, None)
            with suppress(OSError):
                writer.transport.abort()
