"""A server on loopback that answers every HTTP request with bytes of the test's choice."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

Answer = Callable[[bytes], bytes]
HEAD_END = b"\r\n\r\n"


@contextmanager
def answering(answer: Answer) -> Iterator[int]:
    """Yields the port. An empty answer closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepting = Thread(target=_accept, args=(server, answer))
        accepting.start()
        yield server.getsockname()[1]
        # Shutting down the listener unblocks accept().
        server.shutdown(socket.SHUT_RDWR)
        accepting.join()


def _accept(server: socket.socket, answer: Answer) -> None:
    threads = []
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            break
        threads.append(Thread(target=_serve, args=(connection, answer)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _serve(connection: socket.socket, answer: Answer) -> None:
    with connection, connection.makefile("rb") as stream:
        try:
            while (body := _read_request(stream.readline, stream.read)) is not None:
                reply = answer(body)
                if not reply:
                    return
                connection.sendall(reply)
        except ConnectionError:
            return  # the client disconnected


def _read_request(read_line: Callable[[], bytes], read: Callable[[int], bytes]) -> bytes | None:
    length = 0
    line = read_line()
    if not line:
        return None
    while line.strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        line = read_line()
    return read(length)


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
