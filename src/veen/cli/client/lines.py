"""Sending line by line: as fast as the hub takes them, whether they come from a file or trickle from a program."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from threading import Thread

from veen.cli.failures import hinted
from veen.client.client import Client
from veen.client.draft import Draft, Sent
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
    """One message for each line, in order. Raises what stopped it, with how many lines are in the log by then."""
    tally, began = Tally(), time.monotonic()
    sender = client.sender(stream)
    waiting: deque[asyncio.Future[Sent]] = deque()
    stopped: VeenError | None = None
    try:
        async for line in _lines(fd):
            try:
                waiting.append(sender.put(Draft(line, schema)))
            except VeenError as error:  # too long, say: what comes before it is still to be answered
                stopped = error
                break
            while waiting and (waiting[0].done() or len(waiting) >= _IN_FLIGHT):
                tally.note(await waiting.popleft())
                report(tally.sent)
        while waiting:
            tally.note(await waiting.popleft())
            report(tally.sent)
        if stopped is not None:
            raise stopped
    except VeenError as error:
        # Those behind it may be in the log already; how many are is what their sender needs to know.
        later = sum(isinstance(one, Sent) for one in await asyncio.gather(*waiting, return_exceptions=True))
        raise hinted(error, _what_is_in(tally.sent, later)) from None
    tally.seconds = time.monotonic() - began
    return tally


def _what_is_in(before: int, later: int) -> str:
    behind = f", and {later} behind it" if later else ""
    return f"line {before + 1} is not in the log; the {before} before it are{behind}"


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
