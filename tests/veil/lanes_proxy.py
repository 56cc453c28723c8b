"""Test proxies: a SOCKS5 server, and a UDP relay that loses packets."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast


@dataclass
class Socks5:
    """Requests that a SOCKS5 server received. It refuses all if `reply` is not 0."""

    address: tuple[str, int]
    requests: list[tuple[str, int]] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    reply: int = 0


@asynccontextmanager
async def socks5_server() -> AsyncIterator[Socks5]:
    """CONNECT by name, with or without password. All names lead to 127.0.0.1."""
    record = Socks5(("", 0))
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(OSError, asyncio.IncompleteReadError):
            await _serve(record, reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    record.address = server.sockets[0].getsockname()[:2]
    try:
        yield record
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(record: Socks5, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    _, count = await reader.readexactly(2)
    methods = await reader.readexactly(count)
    writer.write(bytes((5, methods[0])))
    if methods[0] == 2:
        _, length = await reader.readexactly(2)
        record.names.append(await reader.readexactly(length))
        await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\x01\x00")
    _, _, _, _, length = await reader.readexactly(5)
    host = (await reader.readexactly(length)).decode()
    port = int.from_bytes(await reader.readexactly(2), "big")
    record.requests.append((host, port))
    writer.write(bytes((5, record.reply, 0, 1)) + bytes(6))
    if record.reply:
        return
    there, back = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


class LossyUdp(asyncio.DatagramProtocol):
    """Forwards datagrams between many clients and one server, and drops some."""

    def __init__(self, server: tuple[str, int], loss: float, seed: int) -> None:
        self.server = server
        self.loss = loss
        self.lost = 0
        self.passed = 0
        self._random = random.Random(seed)
        self._clients: dict[tuple[str, int], asyncio.DatagramTransport] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None

    @classmethod
    async def start(cls, server: tuple[str, int], loss: float, seed: int, port: int = 0) -> "LossyUdp":
        loop = asyncio.get_running_loop()
        _, proxy = await loop.create_datagram_endpoint(lambda: cls(server, loss, seed), ("127.0.0.1", port))
        return proxy

    @property
    def port(self) -> int:
        assert self._transport is not None
        found: int = self._transport.get_extra_info("sockname")[1]
        return found

    async def stop(self) -> None:
        await asyncio.gather(*self._connecting)
        for transport in (*self._clients.values(), self._transport):
            if transport is not None:
                transport.close()
        await asyncio.sleep(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def keeps(self) -> bool:
        kept = self._random.random() >= self.loss
        self.passed += kept
        self.lost += not kept
        return kept

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if addr in self._clients:
            self._send_to_server(self._clients[addr], data)
        else:
            task = asyncio.ensure_future(self._connect(data, addr))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, data: bytes, client: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        back = _Back(self, client)
        transport, _ = await loop.create_datagram_endpoint(lambda: back, remote_addr=self.server)
        if client in self._clients:  # two datagrams of one client arrived at the same time
            transport.close()
        self._send_to_server(self._clients.setdefault(client, transport), data)

    def _send_to_server(self, transport: asyncio.DatagramTransport, data: bytes) -> None:
        if self.keeps():
            transport.sendto(data)

    def back(self, data: bytes, client: tuple[str, int]) -> None:
        if self.keeps() and self._transport is not None:
            self._transport.sendto(data, client)


class _Back(asyncio.DatagramProtocol):
    """Datagrams from the server to one client."""

    def __init__(self, proxy: LossyUdp, client: tuple[str, int]) -> None:
        self._proxy = proxy
        self._client = client

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._proxy.back(data, self._client)
