"""Signature checks off the event loop: in worker processes, or in one thread where none are wanted.

Whatever arrived in one turn of the loop goes out in one write. Answers come back in order, one byte each.
"""

import asyncio
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from veen.hub.verify_worker import holds

Answer = Callable[[bool], None]
_READ_BYTES = 1 << 16
_MOST_RESTARTS = 100


class Verifier(Protocol):
    """Checks one signature and calls back on the loop."""

    def check(self, item: bytes, answer: Answer) -> None: ...

    def close(self) -> None: ...


class ThreadVerifier:
    """One thread: the library releases the interpreter while it computes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._gathered: list[tuple[bytes, Answer]] = []
        self._queue: SimpleQueue[list[tuple[bytes, Answer]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="verify", daemon=True)
        self._thread.start()

    def check(self, item: bytes, answer: Answer) -> None:
        if not self._gathered:
            self._loop.call_soon(self._send)
        self._gathered.append((item, answer))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _send(self) -> None:
        self._queue.put(self._gathered)
        self._gathered = []

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            answers = [(answer, holds(item)) for item, answer in batch]
            self._loop.call_soon_threadsafe(_deliver, answers)


def _deliver(answers: list[tuple[Answer, bool]]) -> None:
    for answer, held in answers:
        answer(held)


class ProcessVerifier:
    """One worker process. A worker that dies is replaced and asked again what it left unanswered."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[bytes, Answer]] = deque()
        self._gathered: list[bytes] = []
        self._unsent = b""
        self._restarts = 0
        self._closing = False
        self._start()

    @property
    def pids(self) -> list[int]:
        return [self._process.pid]

    def check(self, item: bytes, answer: Answer) -> None:
        if not self._gathered:
            self._loop.call_soon(self._send)
        self._gathered.append(item)
        self._waiting.append((item, answer))

    def close(self) -> None:
        self._closing = True
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        self._process.wait()

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "veen.hub.verify_worker", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._receive)

    def _send(self) -> None:
        self._unsent += b"".join(self._gathered)
        self._gathered.clear()
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            self._loop.add_writer(self._channel, self._flush)
            return
        except OSError:
            return  # it died: the reader hears of it too, and restarts it
        self._loop.remove_writer(self._channel)

    def _receive(self) -> None:
        try:
            answers = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            answers = b""
        if not answers:
            self._restart()
            return
        self._restarts = 0
        for held in answers:
            _, answer = self._waiting.popleft()
            answer(bool(held))

    def _restart(self) -> None:
        """Replace a dead worker. One that never lives is our own mistake, and ends the hub."""
        if self._closing:
            return
        self._restarts += 1
        if self._restarts > _MOST_RESTARTS:
            raise RuntimeError("verification workers die as soon as they are started")
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        self._process.wait()
        self._start()
        self._gathered.clear()
        self._unsent = b"".join(item for item, _ in self._waiting)
        self._flush()


class VerifierPool:
    """Several workers. A client's messages all go to the same one, so that they keep their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: int) -> None:
        self._workers = [ProcessVerifier(loop) for _ in range(workers)]

    @property
    def pids(self) -> list[int]:
        return [pid for worker in self._workers for pid in worker.pids]

    def check(self, item: bytes, answer: Answer) -> None:
        self._workers[item[0] % len(self._workers)].check(item, answer)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


def start(loop: asyncio.AbstractEventLoop, workers: int) -> Verifier:
    """The verifier for that many worker processes; 0 is a thread."""
    if workers == 1:
        return ProcessVerifier(loop)
    return VerifierPool(loop, workers) if workers else ThreadVerifier(loop)
