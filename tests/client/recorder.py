"""A proxy that records every MSG on its way to a hub, also of interrupted requests."""

import socket
import threading
from contextlib import suppress
from types import TracebackType

from veen.core import Malformed, Msg
from veen.core.cbor import DeferredFaults

_SUBMITS = {b"/v1/submit": len(b"\xa2\x01\x01\x02"), b"/tooling/submit-batch": 0}


class Recorder:
    """Listens on its own port and forwards everything."""

    def __init__(self, port: int) -> None:
        self.messages: list[bytes] = []
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Recorder":
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            hub = socket.create_connection(("127.0.0.1", self._target))
            for end in (caller, hub):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            said: list[bytes] = []
            there = threading.Thread(target=self._pass_on, args=(caller, hub, said))
            back = threading.Thread(target=self._pass_on, args=(hub, caller, None))
            self._threads += [there, back]
            there.start()
            back.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, said: list[bytes] | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if said is not None:
                    said.append(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if said is not None:
            self.messages += _messages(b"".join(said))
            source.close()
            target.close()


def _messages(said: bytes) -> list[bytes]:
    """Every MSG in a stream of requests. The last request may be incomplete."""
    found: list[bytes] = []
    while b"\r\n\r\n" in said:
        head, _, rest = said.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        path = lines[0].split(b" ")[1]
        lengths = [line.split(b":")[1] for line in lines if line.lower().startswith(b"content-length:")]
        length = int(lengths[0]) if lengths else 0
        if path in _SUBMITS:
            found += _whole(rest[_SUBMITS[path] : length])
        said = rest[length:]
    return found


def _whole(body: bytes) -> list[bytes]:
    found, pos = [], 0
    while pos < len(body):
        try:
            _, end = Msg.read(body, pos, DeferredFaults())
        except Malformed:
            break
        found.append(body[pos:end])
        pos = end
    return found
