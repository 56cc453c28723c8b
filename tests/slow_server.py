"""A server on loopback that accepts every connection and never finishes an answer."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

_PAUSE_S = 0.02
_MAX_BYTES = 3_000  # then it disconnects, so a client without timeout fails instead of hanging
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
# What is sent at once, and what is then sent byte by byte.
STARTS = {
    "nothing": (b"", b""),
    "head": (b"", b"HTTP/1.1 200 OK\r\nx-filler: " + b"x" * _MAX_BYTES),
    "body": (_HEAD + b"content-length: 100000\r\n\r\n", b" " * _MAX_BYTES),
    "chunked": (_HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n" * _MAX_BYTES),
}
# What a timed-out client reports about its progress.
STAGES = {
    "nothing": "no complete response head arrived",
    "head": "no complete response head arrived",
    "body": "bytes of the body arrived",
    "chunked": "bytes of the body arrived",
}


@contextmanager
def dripping(kind: str) -> Iterator[str]:
    """Yields its address, HOST:PORT. `kind` is one of `STARTS`."""
    stop = Event()
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[Thread] = []

    def serve(peer: socket.socket) -> None:
        start, rest = STARTS[kind]
        with peer, suppress(OSError):
            peer.sendall(start)
            for at in range(_MAX_BYTES):
                if stop.wait(_PAUSE_S):
                    return
                peer.sendall(rest[at : at + 1])

    def accept() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                threads.append(Thread(target=serve, args=(peer,)))
                threads[-1].start()

    accepting = Thread(target=accept)
    accepting.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()
        listener.close()
        for thread in threads:
            thread.join()
