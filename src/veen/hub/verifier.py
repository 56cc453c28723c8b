"""Signature checks off the event loop: in worker processes, or in one thread if there are none.

The checks of one turn of the loop are sent in one write, or in several if there are many, so that the workers start
while the rest is still being parsed. Answers come back in order, each with the number of its check. An answer that is
not the next expected one, or has an unknown value, admits nothing and ends the hub.
"""

import asyncio
import secrets
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from plumbing.background import Background
from plumbing.http.message import Report
from veen.core.signing import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, is_valid
from veen.hub.conditions import Conditions, Reason
from veen.hub.verify_worker import ANSWER, DIGEST_BYTES, INVALID, NUMBER_BYTES, VALID

Signed = tuple[bytes, bytes, bytes]  # public key, digest, signature
Answer = Callable[[bool], None]
Break = Callable[[BaseException], None]
_READ_BYTES = 1 << 16
_MAX_RESTARTS = 100
_NO_SIGNATURE: Signed = bytes(PUBLIC_KEY_BYTES), bytes(DIGEST_BYTES), bytes(SIGNATURE_BYTES)
# This many checks are sent at once, without waiting for the end of the turn.
SEND_EVERY = 16


class Verifier(Protocol):
    """Checks one signature and calls back on the loop.

    `report` receives exceptions of callbacks, `on_broken` errors after which no check can be answered. A worker that
    dies is a bad state until its successor has answered.
    """

    def check(self, signed: Signed, answer: Answer) -> None: ...

    def flush(self) -> None:
        """Send the collected checks now: for callers that are about to block the loop."""

    def close(self) -> None: ...


class ThreadVerifier:
    """One thread: libsodium releases the interpreter lock while it computes."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, background: Background, on_broken: Break, report: Report
    ) -> None:
        self._loop = loop
        self._on_broken = on_broken
        self._report = report
        self._gathered: list[tuple[Signed, Answer]] = []
        self._worker = background.worker("verify")

    def check(self, signed: Signed, answer: Answer) -> None:
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append((signed, answer))
        if len(self._gathered) == SEND_EVERY:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            self._worker.add(partial(self._check, self._gathered))
            self._gathered = []

    def close(self) -> None:
        self._worker.close()

    def _check(self, batch: list[tuple[Signed, Answer]]) -> None:
        """Runs on the thread."""
        try:
            answers = [(answer, is_valid(*signed)) for signed, answer in batch]
        except Exception as mistake:  # noqa: BLE001  these checks are never answered
            self._loop.call_soon_threadsafe(self._on_broken, mistake)
            return
        self._loop.call_soon_threadsafe(_deliver, answers, self._report)


def _deliver(answers: list[tuple[Answer, bool]], report: Report) -> None:
    """An exception in one callback does not affect the others."""
    for answer, valid in answers:
        try:
            answer(valid)
        except Exception as mistake:  # noqa: BLE001  only one message is affected
            report("verified", mistake)


class ProcessVerifier:
    """One worker process. If it dies, it is replaced, and the successor gets the unanswered checks."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, conditions: Conditions, on_broken: Break, report: Report
    ) -> None:
        self._loop = loop
        self._conditions = conditions
        self._on_broken = on_broken
        self._report = report
        # A random start, so that no client can guess a number and make an answer fit another check.
        self._number = secrets.randbits(8 * NUMBER_BYTES - 1)
        self._waiting: deque[tuple[int, bytes, Answer]] = deque()  # (number, request, callback), oldest first
        self._gathered: list[bytes] = []
        self._unsent = b""
        self._received = b""  # an incomplete answer
        self._restarts = 0
        self._closing = False
        self._start()

    @property
    def pids(self) -> list[int]:
        return [self._process.pid]

    def check(self, signed: Signed, answer: Answer) -> None:
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._number += 1
        request = self._number.to_bytes(NUMBER_BYTES) + b"".join(signed)
        self._gathered.append(request)
        self._waiting.append((self._number, request, answer))
        if len(self._gathered) == SEND_EVERY:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            self._unsent += b"".join(self._gathered)
            self._gathered.clear()
            self._push()

    def close(self) -> None:
        self._closing = True
        self._close_channel()
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
            return  # it died: the reader notices too, and restarts it
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
            answers = self._match_answers(data[:whole])
        except AnswerMismatchError as mistake:
            self._fail(mistake)
            return
        _deliver(answers, self._report)

    def _match_answers(self, answers: bytes) -> list[tuple[Answer, bool]]:
        """Match answers with the oldest checks."""
        if len(answers) > len(self._waiting) * ANSWER.size:
            raise AnswerMismatchError
        found: list[tuple[Answer, bool]] = []
        for number, value in ANSWER.iter_unpack(answers):
            expected, _, answer = self._waiting.popleft()
            if number != expected or value not in (INVALID, VALID):
                raise AnswerMismatchError
            found.append((answer, value == VALID))
        return found

    def _restart(self) -> None:
        """Replace a dead worker. If workers never start, that is our own bug, and ends the hub."""
        if self._closing:
            return
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            self._fail(RuntimeError("verification workers exit right after their start"))
            return
        self._close_channel()
        status = self._process.wait()
        self._conditions.enter(Reason.VERIFIER, source=self, refused=0, pid=self._process.pid, exit_status=status)
        try:
            self._start()
        except OSError as error:
            self._fail(error)
            return
        self._received = b""
        if not self._waiting:
            self.check(_NO_SIGNATURE, lambda _: None)  # its answer shows that the new worker runs
        self._gathered.clear()
        self._unsent = b"".join(request for _, request, _ in self._waiting)
        self._push()

    def _fail(self, mistake: BaseException) -> None:
        """Accept no more answers: the process must exit."""
        self._close_channel()
        self._on_broken(mistake)

    def _close_channel(self) -> None:
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()


class VerifierPool:
    """Several workers. All messages of a client go to the same worker, so that they keep their order."""

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

    def check(self, signed: Signed, answer: Answer) -> None:
        self._workers[signed[0][0] % len(self._workers)].check(signed, answer)

    def flush(self) -> None:
        for worker in self._workers:
            worker.flush()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


class AnswerMismatchError(Exception):
    """An answer that matches no check: the order of answers can no longer be trusted."""

    def __init__(self) -> None:
        super().__init__("a verification worker sent an answer that matches no check")


def start(
    loop: asyncio.AbstractEventLoop,
    workers: int,
    conditions: Conditions,
    on_broken: Break,
    report: Report,
    background: Background,
) -> Verifier:
    """The verifier for `workers` processes; 0 means a thread."""
    if workers == 0:
        return ThreadVerifier(loop, background, on_broken, report)
    if workers == 1:
        return ProcessVerifier(loop, conditions, on_broken, report)
    return VerifierPool(loop, workers, conditions, on_broken, report)
