"""New entries as the hub commits them, over a WebSocket. The reader verifies them like any other."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from veen.client.transport import HubLink
from veen.core import Malformed, Refused, Unavailable
from veen.core.envelopes import StreamItem
from veen.core.limits import MAX_MSG_BYTES

_READ_BYTES = 1 << 18
_MOST_ITEM = MAX_MSG_BYTES + (1 << 12)
_PORTS = {"http": 80, "https": 443}
QUIET_S = 30.0  # send a ping after this silence; fail after twice as long


class EntrySubscription:
    """One subscription to one label."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._part = bytearray()
        self._early: list[Event] = []
        self._status = 0  # status of a rejection whose body has not arrived yet

    @classmethod
    async def open(cls, link: HubLink, label: bytes, from_seq: int) -> "EntrySubscription":
        """Raises `Refused` if the hub offers no subscriptions, `Unavailable` if it does not answer."""
        where = urlsplit(link.url)
        port = where.port or _PORTS[where.scheme]
        tls = link.tls() if link.is_https else None
        try:
            async with asyncio.timeout(link.retry_policy.connect_s):
                reader, writer = await asyncio.open_connection(where.hostname, port, ssl=tls)
        except TimeoutError:
            raise Unavailable(
                f"{link.url} did not accept a connection within {link.retry_policy.connect_s:g} s"
            ) from None
        except OSError as error:
            raise Unavailable(f"{link.url} did not answer: {str(error) or type(error).__name__}") from None
        subscription = cls(reader, writer)
        try:
            async with asyncio.timeout(link.retry_policy.answer_s):
                target = f"{where.path.rstrip('/')}/tooling/subscribe?label={label.hex()}&from={from_seq}"
                await subscription._shake_hands(where.netloc, target)
        except TimeoutError:
            subscription.close()
            raise Unavailable(
                f"{link.url} did not open the subscription within {link.retry_policy.answer_s:g} s"
            ) from None
        except BaseException:
            subscription.close()
            raise
        return subscription

    def close(self) -> None:
        self._writer.transport.abort()

    async def items(self) -> AsyncIterator[list[StreamItem]]:
        """Entries in order, in batches as they arrive. Raises `Unavailable` when the subscription ends."""
        while True:
            items = []
            for event in await self._events():
                if isinstance(event, BytesMessage):
                    self._part += event.data
                    if len(self._part) > _MOST_ITEM:
                        raise Malformed("subscription", f"an item has more than {_MOST_ITEM} bytes")
                    if event.message_finished:
                        items.append(StreamItem.decode(bytes(self._part)))
                        self._part.clear()
                elif isinstance(event, TextMessage):
                    raise Malformed("subscription", "a text message instead of a binary one")
                elif isinstance(event, Ping):
                    self._writer.write(self._frames.send(event.response()))
                elif isinstance(event, CloseConnection):
                    raise Unavailable(f"the hub closed the subscription with code {event.code}")
            if items:
                yield items

    async def _shake_hands(self, host: str, target: str) -> None:
        self._writer.write(self._frames.send(Request(host=host, target=target)))
        while True:
            events = await self._events()
            for number, event in enumerate(events):
                if isinstance(event, AcceptConnection):
                    self._early = events[number + 1 :]  # the first entries may arrive with the response
                    return
                if isinstance(event, RejectConnection) and not event.has_body:
                    raise _refused(event.status_code)
                if isinstance(event, RejectData) and event.body_finished:
                    raise _refused(self._status)
                if isinstance(event, RejectConnection):
                    self._status = event.status_code

    async def _events(self) -> list[Event]:
        """The events of the next bytes. The first silence sends a ping, the second one ends the subscription."""
        if self._early:
            events, self._early = self._early, []
            return events
        data = await self._read()
        if data is None:
            self._writer.write(self._frames.send(Ping()))
            data = await self._read()
        if not data:
            raise Unavailable("the hub closed the connection of the subscription")
        try:
            self._frames.receive_data(data)
            return [event for event in self._frames.events() if not isinstance(event, Pong)]
        except ProtocolError as error:
            raise Malformed("subscription", f"not a WebSocket: {error}") from None

    async def _read(self) -> bytes | None:
        try:
            async with asyncio.timeout(QUIET_S):
                return await self._reader.read(_READ_BYTES)
        except TimeoutError:
            return None
        except OSError as error:
            raise Unavailable(f"the subscription broke: {error}") from None


def _refused(status: int) -> Refused | Unavailable:
    if status >= 500:
        return Unavailable(f"the hub accepts no subscription now: HTTP status {status}")
    return Refused("E.NOT_FOUND", f"the hub offers no subscriptions: HTTP status {status}")
