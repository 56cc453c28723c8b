"""The answers of an HTTP/1.1 connection: in the order of the requests, whichever comes first."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque

from veen.hub.http.connection import Connection, Service
from veen.hub.http.message import Response
from veen.hub.http.wire import encode


class Exchange:
    """A request and the place of its answer."""

    __slots__ = ("_pipeline", "answer", "bodiless", "last")

    def __init__(self, pipeline: "Pipeline", bodiless: bool, last: bool) -> None:
        self._pipeline = pipeline
        self.bodiless = bodiless
        self.last = last
        self.answer: Response | bytes | None = None

    def respond(self, answer: Response | bytes) -> None:
        if self.answer is not None:
            raise RuntimeError("a request is answered once")
        self.answer = answer
        pipeline = self._pipeline
        # A peer that has left, and one whose turn has not come, are nobody's error.
        if not pipeline.lost and pipeline.queue[0] is self:
            pipeline.release()


class Pipeline(Connection, ABC):
    """The writing half. It holds the reading half back while too much is on its way out."""

    __slots__ = ("_flush_due", "corked", "ended", "holding", "idle_since", "lingering", "out", "queue")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.queue: deque[Exchange] = deque()
        self.corked = False  # while a piece of input is parsed: its answers go out together
        self.ended = False  # no more input is parsed; the last answer closes the connection
        self.lingering = False  # it closes with input unread
        self.holding = False
        self.idle_since = service.sweep.now
        self.out: list[bytes] = []
        self._flush_due = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.queue.clear()

    def release(self) -> None:
        """Write every answer whose turn has come."""
        queue = self.queue
        while queue:
            exchange = queue[0]
            answer = exchange.answer
            if answer is None:
                break
            queue.popleft()
            if not isinstance(answer, bytes):
                # Only now is it known whether it is the last.
                answer = encode(answer, self.service.sweep.date, exchange.bodiless, exchange.last)
            self.out.append(answer)
        if self.corked:
            return
        if not queue:
            self.flush()
        elif not self._flush_due:
            # More answers may come in this turn of the loop, and one write takes them all.
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flush_due = False
        if self.lost or self._leaving:
            return
        out = self.out
        if out:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
            self.idle_since = self.service.sweep.now
        if self.ended:
            if not self.queue:
                self._conclude()
        elif self.holding and not self.is_full():
            # In a turn of its own, since what is held may be requests, and `respond` must not call the app.
            asyncio.get_running_loop().call_soon(self._go_on)

    def is_full(self) -> bool:
        return self.write_paused or len(self.queue) >= self.service.settings.max_pipelined

    def hold(self) -> None:
        """Read no more for now."""
        if not self.holding:
            self.holding = True
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.hold()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    @abstractmethod
    def take_held(self) -> None:
        """Parse what was read before the pause."""

    def _go_on(self) -> None:
        if self.lost or self.is_leaving() or not self.holding or self.is_full():
            return
        self.holding = False
        self.take_held()
        if not self.holding and not self.is_leaving():
            self.transport.resume_reading()

    def _conclude(self) -> None:
        if self.lingering:
            self.linger()
        else:
            self.leave()
