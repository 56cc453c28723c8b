"""Sending line by line: as fast as the hub takes them, whether they come from a file or trickle from a program."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Thread

from veen.cli import output
from veen.cli.failures import hinted
from veen.client.client import Client
from veen.client.contradiction import Contradiction
from veen.client.draft import Draft, Sent
from veen.client.lane import Undecided
from veen.core import Malformed, VeenError
from veen.core.limits import MAX_BODY_BYTES

_BLOCK_BYTES = 1 << 16
_BLOCKS_AHEAD = 16
_IN_FLIGHT = 4_096


@dataclass(slots=True)
class Tally:
    """How far it has come."""

    sent: int = 0
    first: Sent | None = None
    last: Sent | None = None
    seconds: float = 0.0

    def note(self, sent: Sent) -> None:
        self.sent += 1
        self.first, self.last = self.first or sent, sent


async def send_lines(client: Client, stream: str, schema: bytes, fd: int, report: Callable[[int], None]) -> Tally:
    """One message for each line, in order. Raises what stopped it, and says what became of which line."""
    tally, began = Tally(), time.monotonic()
    sender = client.sender(stream)
    waiting: deque[asyncio.Future[Sent]] = deque()
    stopped: VeenError | None = None

    async def settle(most: int) -> None:
        while waiting and (waiting[0].done() or len(waiting) > most):
            tally.note(await waiting[0])
            waiting.popleft()
            report(tally.sent)

    try:
        try:
            async for line in _lines(fd):
                await settle(_IN_FLIGHT - 1)  # first: what is put after a failure would be tried all over again
                waiting.append(sender.put(Draft(line, schema)))
        except VeenError as error:  # a line that is too long, say: what comes before it is still to be answered
            stopped = error
        await settle(0)
        if stopped is not None:
            raise stopped
    except VeenError as error:
        # Those behind it may be in the log already, or in the outbox: whoever goes on must send neither again.
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        raise hinted(error, *_account(tally.sent, answers, _held(client))) from None
    except asyncio.CancelledError:  # someone has had enough, and is owed the same account
        await sender.close()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for told in _account(tally.sent, answers, _held(client)):
            output.remark(told)
        raise
    tally.seconds = time.monotonic() - began
    return tally


def _held(client: Client) -> int:
    """How many messages are in the outbox for this hub. It was empty before the first line."""
    outbox = client.dir.outbox
    return sum(len(outbox.pending(hub_id, label)) for hub_id, label in outbox.places() if hub_id == client.hub_id)


def _account(before: int, answers: Sequence[Sent | BaseException], held: int) -> list[str]:
    """Which lines are in the log, which in the outbox, and where to go on. `answers` are of the lines after `before`.

    The outbox holds lines in their order, so of those that have no answer of their own it holds the first.
    """
    numbered = list(enumerate(answers, before + 1))
    logged = [*range(1, before + 1), *(number for number, one in numbered if isinstance(one, Sent))]
    open_ = [number for number, one in numbered if isinstance(one, Undecided | Contradiction)]
    kept = open_[:held]
    resume = max((*logged, *kept), default=0) + 1
    missing = sorted(set(range(1, resume)).difference(logged, kept))
    told = [f"in the log: {_ranges(logged)}"]
    if kept:
        told.append(
            f"in the outbox: {_ranges(kept)}; do not send them again: veen send --outbox finishes them, and tells "
            "the outcome"
        )
    if missing:
        told.append(f"neither in the log nor in the outbox, and to be sent again: {_ranges(missing)}")
    told.append(f"nothing from line {resume} on is in the log or in the outbox: go on there")
    return told


def _ranges(numbers: Iterable[int]) -> str:
    """Line numbers, which ascend, as people write them."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if not runs:
        return "no line"
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"line {shown}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"lines {shown}"


async def _lines(fd: int) -> AsyncIterator[bytes]:
    """Lines without their ends; the last one may have none."""
    rest = b""
    async for block in _blocks(fd):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > MAX_BODY_BYTES:
            raise Malformed("standard input", f"a line of more than {MAX_BODY_BYTES} bytes, which no message can hold")
    if rest:
        yield rest


async def _blocks(fd: int) -> AsyncIterator[bytes]:
    """What there is to read, when there is. The thread reads from the descriptor itself and may be left waiting."""
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[bytes | OSError] = asyncio.Queue(_BLOCKS_AHEAD)

    def read() -> None:
        block: bytes | OSError = b"\n"
        while block and not isinstance(block, OSError):
            try:
                block = os.read(fd, _BLOCK_BYTES)
            except OSError as error:
                block = error
            try:
                asyncio.run_coroutine_threadsafe(found.put(block), loop).result()
            except (asyncio.CancelledError, RuntimeError):  # nobody listens any more
                return

    Thread(target=read, daemon=True).start()
    while block := await found.get():
        if isinstance(block, OSError):
            raise block
        yield block
