"""A closed loop over many connections, as lean as Python allows: it shares the cores with the hub it measures."""

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

_READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it."""

    seconds: float
    requests: int
    refused: int
    latencies: list[float]

    def percentile(self, share: float) -> float:
        return self.latencies[min(int(len(self.latencies) * share), len(self.latencies) - 1)]


class _Connection:
    __slots__ = ("left", "requests", "sent", "socket")

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests: Iterator[bytes] = iter(requests)
        self.sent = 0.0
        self.left = 0  # bytes of the answer still to come


def drive(port: int, per_connection: list[list[bytes]]) -> Load:
    """Send every request, one at a time on each connection, and wait for each answer."""
    poll = select.epoll()
    connections = {}
    for requests in per_connection:
        connection = _Connection(port, requests)
        connections[connection.socket.fileno()] = connection
        poll.register(connection.socket.fileno(), select.EPOLLIN)
    latencies: list[float] = []
    refused = 0
    start = perf_counter()
    for connection in connections.values():
        connection.sent = perf_counter()
        connection.socket.sendall(next(connection.requests))
    open_ = len(connections)
    while open_:
        for number, _ in poll.poll():
            connection = connections[number]
            data = connection.socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("the hub closed a connection")
            if connection.left:
                connection.left -= len(data)
            else:
                refused += not data.startswith(b"HTTP/1.1 200")
                connection.left = _answer_bytes(data) - len(data)
            if connection.left > 0:
                continue
            now = perf_counter()
            latencies.append(now - connection.sent)
            request = next(connection.requests, None)
            if request is None:
                poll.unregister(number)
                connection.socket.close()
                open_ -= 1
            else:
                connection.sent = now
                connection.socket.sendall(request)
    return Load(perf_counter() - start, len(latencies), refused, sorted(latencies))


def _answer_bytes(data: bytes) -> int:
    """The whole length of an answer whose head is in `data`."""
    end = data.index(b"\r\n\r\n")
    at = data.lower().index(b"content-length:", 0, end) + len(b"content-length:")
    return end + 4 + int(data[at : data.index(b"\r", at)])
