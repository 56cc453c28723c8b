"""Signature checks off the event loop: in worker processes, or in one thread where none are wanted.

Whatever arrived in one turn of the loop goes out in one write, or in several where it is much, so that the checks begin
while the rest is still being parsed. Answers come back in order, and each repeats the number of its question: one that
is not the next expected, or that is neither yes nor no, admits nothing and ends the hub.
"""

import asyncio
import secrets
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from plumbing.http.message import Report
from veen.hub.conditions import Conditions, Reason
from veen.hub.verify_worker import ANSWER, FAILS, HOLDS, ITEM_BYTES, NUMBER_BYTES, holds

Answer = Callable[[bool], None]
Break = Callable[[BaseException], None]
_READ_BYTES = 1 << 16
_MOST_RESTARTS = 100
# So many do not wait for the rest of their turn.
SEND_EVERY = 16


class Verifier(Protocol):
    """Checks one signature and calls back on the loop.

    `report` hears of a caller that fails on its answer, `on_broken` of what leaves everyone without one. A worker that
    ends is a bad state until its successor has answered.
    """

    def check(self, item: bytes, answer: Answer) -> None: ...

    def flush(self) -> None:
        """Send what was gathered in this turn of the loop: for those who are about to keep the loop busy."""

    def close(self) -> None: ...


class ThreadVerifier:
    """One thread: the library releases the interpreter while it computes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_broken: Break, report: Report) -> None:
        self._loop = loop
        self._on_broken = on_broken
        self._report = report
        self._gathered: list[tuple[bytes, Answer]] = []
        self._queue: SimpleQueue[list[tuple[bytes, Answer]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="verify", daemon=True)
        self._thread.start()

    def check(self, item: bytes, answer: Answer) -> None:
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append((item, answer))
        if len(self._gathered) == SEND_EVERY:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                answers = [(answer, holds(item)) for item, answer in batch]
            except Exception as mistake:  # noqa: BLE001  nobody behind it would ever be answered
                self._loop.call_soon_threadsafe(self._on_broken, mistake)
                return
            self._loop.call_soon_threadsafe(_deliver, answers, self._report)


def _deliver(answers: list[tuple[Answer, bool]], report: Report) -> None:
    """One that fails on its answer does not keep the others from theirs."""
    for answer, held in answers:
        try:
            answer(held)
        except Exception as mistake:  # noqa: BLE001  it cost one message
            report("verified", mistake)


class ProcessVerifier:
    """One worker process. A worker that dies is replaced and asked again what it left unanswered."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, conditions: Conditions, on_broken: Break, report: Report
    ) -> None:
        self._loop = loop
        self._conditions = conditions
        self._on_broken = on_broken
        self._report = report
        # No sender knows where the numbers begin, so none can write one that would fit another question.
        self._number = secrets.randbits(8 * NUMBER_BYTES - 1)
        self._waiting: deque[tuple[int, bytes, Answer]] = deque()  # (number, question, who asks), oldest first
        self._gathered: list[bytes] = []
        self._unsent = b""
        self._received = b""  # of an answer that is not whole yet
        self._restarts = 0
        self._closing = False
        self._start()

    @property
    def pids(self) -> list[int]:
        return [self._process.pid]

    def check(self, item: bytes, answer: Answer) -> None:
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._number += 1
        question = self._number.to_bytes(NUMBER_BYTES) + item
        self._gathered.append(question)
        self._waiting.append((self._number, question, answer))
        if len(self._gathered) == SEND_EVERY:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            self._unsent += b"".join(self._gathered)
            self._gathered.clear()
            self._push()

    def close(self) -> None:
        self._closing = True
        self._hang_up()
        self._process.wait()

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "veen.hub.verify_worker", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._receive)

    def _push(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            self._loop.add_writer(self._channel, self._push)
            return
        except OSError:
            return  # it died: the reader hears of it too, and restarts it
        self._loop.remove_writer(self._channel)

    def _receive(self) -> None:
        try:
            received = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._restart()
            return
        if self._restarts:
            self._restarts = 0
            self._conditions.leave(Reason.VERIFIER, self)
        data = self._received + received
        whole = len(data) - len(data) % ANSWER.size
        self._received = data[whole:]
        try:
            answers = self._settled(data[:whole])
        except _MixedUpError as mistake:
            self._give_up(mistake)
            return
        _deliver(answers, self._report)

    def _settled(self, answers: bytes) -> list[tuple[Answer, bool]]:
        """The oldest questions are answered, each by nothing but its own answer."""
        if len(answers) > len(self._waiting) * ANSWER.size:
            raise _MixedUpError
        found: list[tuple[Answer, bool]] = []
        for number, word in ANSWER.iter_unpack(answers):
            asked, _, answer = self._waiting.popleft()
            if number != asked or word not in (FAILS, HOLDS):
                raise _MixedUpError
            found.append((answer, word == HOLDS))
        return found

    def _restart(self) -> None:
        """Replace a dead worker. One that never lives is our own mistake, and ends the hub."""
        if self._closing:
            return
        self._restarts += 1
        if self._restarts > _MOST_RESTARTS:
            self._give_up(RuntimeError("verification workers die as soon as they are started"))
            return
        self._hang_up()
        status = self._process.wait()
        self._conditions.enter(Reason.VERIFIER, source=self, refused=0, pid=self._process.pid, exit_status=status)
        try:
            self._start()
        except OSError as error:
            self._give_up(error)
            return
        self._received = b""
        if not self._waiting:
            self.check(bytes(ITEM_BYTES), lambda _: None)  # the answer shows that the new worker lives
        self._gathered.clear()
        self._unsent = b"".join(question for _, question, _ in self._waiting)
        self._push()

    def _give_up(self, mistake: BaseException) -> None:
        """Hear no more answers: the process must end."""
        self._hang_up()
        self._on_broken(mistake)

    def _hang_up(self) -> None:
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()


class VerifierPool:
    """Several workers. A client's messages all go to the same one, so that they keep their order."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workers: int,
        conditions: Conditions,
        on_broken: Break,
        report: Report,
    ) -> None:
        self._workers = [ProcessVerifier(loop, conditions, on_broken, report) for _ in range(workers)]

    @property
    def pids(self) -> list[int]:
        return [pid for worker in self._workers for pid in worker.pids]

    def check(self, item: bytes, answer: Answer) -> None:
        self._workers[item[0] % len(self._workers)].check(item, answer)

    def flush(self) -> None:
        for worker in self._workers:
            worker.flush()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


class _MixedUpError(Exception):
    """An answer that belongs to no question: from here on nobody knows which belongs to which."""

    def __init__(self) -> None:
        super().__init__("a verification worker answered what it was not asked")


def start(
    loop: asyncio.AbstractEventLoop, workers: int, conditions: Conditions, on_broken: Break, report: Report
) -> Verifier:
    """The verifier for that many worker processes; 0 is a thread."""
    if workers == 0:
        return ThreadVerifier(loop, on_broken, report)
    if workers == 1:
        return ProcessVerifier(loop, conditions, on_broken, report)
    return VerifierPool(loop, workers, conditions, on_broken, report)
