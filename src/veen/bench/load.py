"""A closed-loop load generator over many connections. It is lean, because it shares the cores with the server."""

import gc
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Protocol

from veen.core import DhKey, Malformed, PayloadHdr, Place, SigningKey, Unavailable, ciphertext, msg, naming
from veen.core.hashing import HASH_BYTES

_SHOWN_BYTES = 300
_LINE = b"\r\n"


class Framing(Protocol):
    """Finds the end of an answer in one protocol."""

    def whole(self, data: bytes) -> int:
        """The length of the answer at the start of `data`; 0 if it is not known yet.

        Raises `Unavailable` for a rejection and `Malformed` for anything that is not an answer.
        """
        ...


class Http:
    """HTTP/1.1 with `content-length`; any status except 200 is a rejection."""

    __slots__ = ("_end", "_head", "_length", "_start")

    _OK = b"HTTP/1.1 200 "
    _LENGTH = b"\r\ncontent-length:"
    _HEAD_END = b"\r\n\r\n"

    def __init__(self) -> None:
        # Cache of the last head: its length field, where it was, and the resulting length.
        self._head = b""
        self._start = self._end = self._length = 0

    def whole(self, data: bytes) -> int:
        if self._length and data[self._start : self._end] == self._head and data.startswith(self._OK):
            return self._length
        return self._parse(data)

    def _parse(self, data: bytes) -> int:
        end = data.find(self._HEAD_END)
        if end < 0:
            return 0
        head = data[:end].lower()
        if not data.startswith(b"HTTP/1.1 "):
            raise Malformed("answer", f"{data[:_SHOWN_BYTES]!r} is not HTTP/1.1")
        if not data.startswith(self._OK):
            raise Unavailable(f"the answer was {data[:_SHOWN_BYTES]!r}")
        start = head.find(self._LENGTH)
        stated = head[start + len(self._LENGTH) :].partition(_LINE)[0].strip()
        if start < 0 or not stated.isdigit() or head.count(self._LENGTH) > 1:
            raise Malformed("answer", f"{data[:end]!r} does not have exactly one valid content-length")
        self._start, self._end = start, end + len(self._HEAD_END)
        self._head = data[start : self._end]
        self._length = self._end + int(stated)
        return self._length


class Redis:
    """RESP bulk strings, such as the id of a stream entry."""

    def whole(self, data: bytes) -> int:
        line, mark, _ = data.partition(_LINE)
        if not mark:
            return 0
        if not line.startswith(b"$") or not line[1:].isdigit():
            raise Unavailable(f"the answer was {data[:_SHOWN_BYTES]!r}")
        return len(line) + int(line[1:]) + 2 * len(_LINE)


class Nats:
    """One MSG on the connection's inbox, which acknowledges a publication. The server may add a PING."""

    _PING = b"PING\r\n"

    def whole(self, data: bytes) -> int:
        at = len(self._PING) if data.startswith(self._PING) else 0
        end = data.find(_LINE, at)
        if end < 0:
            return 0
        kind, *fields = data[at:end].split(b" ")
        if kind != b"MSG" or not fields or not fields[-1].isdigit():
            raise Unavailable(f"the answer was {data[:_SHOWN_BYTES]!r}")
        length = end + int(fields[-1]) + 2 * len(_LINE)
        if b'"error"' in data[end:length]:
            raise Unavailable(f"the answer was {data[:_SHOWN_BYTES]!r}")
        return length + (len(self._PING) if data[length:] == self._PING else 0)


# Below the allocator's mmap threshold; longer answers arrive in several pieces.
_READ_BYTES = 1 << 15
_ANSWER_TIMEOUT_S = 60.0

Plan = Sequence[Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a run. Every answer was as expected; otherwise the run raised."""

    seconds: float
    requests: int
    generator_s: float  # CPU of this process
    latencies: tuple[float, ...]  # ascending

    def percentile(self, share: float) -> float:
        return self.latencies[min(int(len(self.latencies) * share), len(self.latencies) - 1)]


class _Connection:
    __slots__ = ("following", "got", "number", "recv", "send", "sent_at", "socket", "unsent")

    def __init__(self, connected: socket.socket, requests: Sequence[bytes]) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.number = connected.fileno()
        self.recv = connected.recv
        self.send = connected.send
        self.following: Iterator[bytes] = iter(requests)
        self.sent_at = 0.0
        self.got = b""  # incomplete answer
        self.unsent = b""  # rest of a request that the socket did not accept at once


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


def drive(plan: Plan, framing: Framing, connected: Callable[[int], socket.socket]) -> LoadResult:
    """Send each connection's requests one at a time, each after the previous answer is complete."""
    sockets: list[socket.socket] = []
    try:
        connections = []
        for number, requests in enumerate(plan):
            if requests:
                sockets.append(connected(number))
                connections.append(_Connection(sockets[-1], requests))
        with select.epoll() as poll, _no_collector():
            return _run(poll, {connection.number: connection for connection in connections}, framing)
    except OSError as error:
        raise Unavailable(f"a connection failed: {error.strerror}") from error
    finally:
        for one in sockets:
            one.close()


def _run(poll: select.epoll, connections: dict[int, _Connection], framing: Framing) -> LoadResult:
    whole = framing.whole
    latencies: list[float] = []
    cpu, start = process_time(), perf_counter()
    for connection in connections.values():
        poll.register(connection.number, select.EPOLLIN)
        _send_first(poll, connection)
    running = len(connections)
    while running:
        events = poll.poll(_ANSWER_TIMEOUT_S, running)
        if not events:
            raise Unavailable(f"no answer arrived within {_ANSWER_TIMEOUT_S:g} seconds")
        for number, event in events:
            connection = connections[number]
            if event & select.EPOLLOUT:
                _send_rest(poll, connection)
                continue
            data = connection.recv(_READ_BYTES)
            if not data:
                raise Unavailable("the server closed a connection")
            if connection.got:
                data = connection.got + data
            length = whole(data)
            if length != len(data):
                if length and length < len(data):
                    raise Malformed("answer", f"{len(data)} bytes, but {length} were announced")
                connection.got = data
                continue
            connection.got = b""
            now = perf_counter()
            latencies.append(now - connection.sent_at)
            request = next(connection.following, None)
            if request is None:
                poll.unregister(number)
                running -= 1
                continue
            connection.sent_at = now
            sent = connection.send(request)
            if sent != len(request):
                _keep_rest(poll, connection, request[sent:])
    seconds = perf_counter() - start
    return LoadResult(seconds, len(latencies), process_time() - cpu, tuple(sorted(latencies)))


def _send_first(poll: select.epoll, connection: _Connection) -> None:
    request = next(connection.following)
    connection.sent_at = perf_counter()
    sent = connection.send(request)
    if sent != len(request):
        _keep_rest(poll, connection, request[sent:])


def _keep_rest(poll: select.epoll, connection: _Connection, rest: bytes) -> None:
    """Send the rest when the socket is writable. No answer is due before, so nothing is read meanwhile."""
    connection.unsent = rest
    poll.modify(connection.number, select.EPOLLOUT)


def _send_rest(poll: select.epoll, connection: _Connection) -> None:
    connection.unsent = connection.unsent[connection.send(connection.unsent) :]
    if not connection.unsent:
        poll.modify(connection.number, select.EPOLLIN)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disable the garbage collector while the clock runs."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


BODY_BYTES = 300
PAD_BLOCK = 256
# A submit request is this prefix followed by the encoded MSG.
ENVELOPE = b"\xa2\x01\x01\x02"


@dataclass(frozen=True, slots=True)
class Target:
    """The facts that a client needs about a hub."""

    hub_id: bytes
    profile_id: bytes

    def label(self, stream: str) -> bytes:
        return naming.label(naming.routing_key(self.hub_id), naming.stream_id(stream), 0)


class MessageWriters:
    """Clients that write to some labels in turn, each on its own connection.

    Their requests are signed before the clock starts, so only the hub is measured.
    """

    def __init__(self, target: Target, connections: int, streams: Sequence[str]) -> None:
        self._profile_id = target.profile_id
        self._labels = [target.label(stream) for stream in streams]
        self._keys = [SigningKey.generate() for _ in range(connections)]
        place = Place(target.profile_id, self._labels[0], self._keys[0].public_key, 1, 0)
        reader, header = DhKey.generate().public_key, PayloadHdr(os.urandom(HASH_BYTES))
        self._sealed = ciphertext.seal(reader, place, header, os.urandom(BODY_BYTES), PAD_BLOCK)
        self._seqs: dict[tuple[int, int], int] = {}
        self._made = 0

    @property
    def connections(self) -> int:
        return len(self._keys)

    def one(self) -> bytes:
        """The next message, encoded."""
        client, label = self._made % len(self._keys), self._made % len(self._labels)
        self._made += 1
        seq = self._seqs.get((client, label), 0) + 1
        self._seqs[client, label] = seq
        # The hub cannot distinguish a real ciphertext from one with another `enc`, and sealing each takes longer.
        message = msg.sign(
            self._keys[client],
            profile_id=self._profile_id,
            label=self._labels[label],
            client_seq=seq,
            prev_ack=0,
            auth_ref=None,
            ciphertext=os.urandom(HASH_BYTES) + self._sealed[HASH_BYTES:],
        )
        return message.encode()

    def plan(self, count: int, batch: int = 0) -> list[list[bytes]]:
        """HTTP requests for each connection: `count` messages in all, one or up to `batch` per request."""
        by_connection: list[list[bytes]] = [[] for _ in self._keys]
        for _ in range(count):
            by_connection[self._made % len(by_connection)].append(self.one() if batch else submit(self.one()))
        return [_batches(encoded, batch) for encoded in by_connection] if batch else by_connection


def submit(encoded: bytes) -> bytes:
    return request(b"/v1/submit", ENVELOPE + encoded)


def _batches(encoded: list[bytes], size: int) -> list[bytes]:
    bodies = [b"".join(encoded[at : at + size]) for at in range(0, len(encoded), size)]
    return [request(b"/tooling/submit-batch", body) for body in bodies]


def request(path: bytes, body: bytes) -> bytes:
    head = b"POST %s HTTP/1.1\r\nhost: hub\r\ncontent-type: application/cbor\r\ncontent-length: %d\r\n\r\n"
    return head % (path, len(body)) + body
