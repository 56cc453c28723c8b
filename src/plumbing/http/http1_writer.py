"""The answers of an HTTP/1.1 connection: in the order of the requests, whichever comes first."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from http import HTTPStatus

from plumbing.http.connection import Connection, Service
from plumbing.http.message import NO_CONTENT, Response, Upload, UploadBody

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


def encode(response: Response, date: bytes, bodiless: bool, last: bool) -> bytes:
    """Head and body in one piece; `bodiless` answers a HEAD, `last` tells the peer that the connection ends."""
    status = response.status
    if status == HTTPStatus.OK and not response.headers and not last and not bodiless:
        body = response.body
        return _usual_head(response.content_type, len(body), date) + body[:]
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    extra = b"connection: close\r\n" if last else b""
    if response.headers:
        extra += b"".join([b"%b: %b\r\n" % field for field in response.headers])
    if status in NO_CONTENT:
        return b"%bdate: %b\r\n%b\r\n" % (line, date, extra)
    body = response.body
    return b"%bdate: %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b" % (
        line,
        date,
        response.content_type,
        len(body),
        extra,
        b"" if bodiless else body[:],
    )


_MAX_USUAL_HEADS = 64
_usual_heads: dict[tuple[bytes, int], bytes] = {}
_usual_date = b""


def _usual_head(content_type: bytes, length: int, date: bytes) -> bytes:
    """The head of a plain answer. Answers of one kind and length follow each other, and the date is a second old."""
    global _usual_date
    if date is not _usual_date:
        _usual_heads.clear()
        _usual_date = date
    found = _usual_heads.get((content_type, length))
    if found is None:
        found = b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (
            date,
            content_type,
            length,
        )
        if len(_usual_heads) < _MAX_USUAL_HEADS:
            _usual_heads[content_type, length] = found
    return found


# A longer body leaves in pieces, as the peer takes them: it may be a file that is mapped, not held.
_PIECE_BYTES = 1 << 16


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

    __slots__ = (
        "_at",
        "_flush_due",
        "_held",
        "_reserved",
        "_rest",
        "_rest_bytes",
        "_rest_since",
        "_stalled",
        "_taking",
        "corked",
        "ended",
        "holding",
        "idle_since",
        "intake",
        "lingering",
        "out",
        "queue",
        "spent",
        "successor",
    )

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.queue: deque[Exchange] = deque()
        self.corked = False  # while a piece of input is parsed: its answers go out together
        self.ended = False  # no more input is parsed; the last answer closes the connection
        self.lingering = False  # it closes with input unread
        self.holding = False
        self.idle_since = service.sweep.now
        self.out: list[bytes] = []
        self.intake: UploadBody | None = None  # of the body that is being read, where the app takes it piece by piece
        self.spent = 0  # units of work in this turn
        self.successor: Connection | None = None  # who hears what follows an upgrade
        self._held = b""
        self._at = 0  # up to where it is parsed
        self._flush_due = False
        self._reserved = 0  # of the room for unfinished bodies
        self._rest: memoryview | None = None  # what is left of a long body, behind which all others wait
        self._rest_bytes = 0  # how long it was,
        self._rest_since = 0.0  # and since when it is on its way
        self._stalled = False  # the app does not keep up with that body
        self._taking: Exchange | None = None  # the place of the answer to it

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.queue.clear()
        self._rest = None
        self.unreserve()
        if self.intake is not None:
            self.intake.abandon()

    def release(self) -> None:
        """Write every answer whose turn has come."""
        queue = self.queue
        while queue and self._rest is None:
            exchange = queue[0]
            answer = exchange.answer
            if answer is None:
                break
            if not isinstance(answer, bytes):
                if len(answer.body) > _PIECE_BYTES and not exchange.bodiless:
                    self._rest = memoryview(answer.body)
                    self._rest_bytes, self._rest_since = len(answer.body), self.service.sweep.now
                # Only now is it known whether it is the last.
                bodiless = exchange.bodiless or self._rest is not None
                answer = encode(answer, self.service.sweep.date, bodiless, exchange.last)
            self.out.append(answer)
            if self._rest is None:
                queue.popleft()
        if self.corked:
            return
        if not queue or self._rest is not None:
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
        if self._rest is not None:
            self._send_rest(self._rest)
        elif self.ended:
            if not self.queue:
                self._conclude()
        elif self.holding and not self.is_full():
            # In a turn of its own, since what is held may be requests, and `respond` must not call the app.
            self.service.turns.wait(self)

    def _send_rest(self, rest: memoryview) -> None:
        """Go on with a long body, then with the answers behind it."""
        while rest and not self.write_paused:
            self.transport.write(rest[:_PIECE_BYTES])
            rest = rest[_PIECE_BYTES:]
        self.idle_since = self.service.sweep.now
        if rest:
            self._rest = rest
        else:
            self._rest = None
            self.queue.popleft()
            self.release()

    def is_full(self) -> bool:
        busy = self.write_paused or self._stalled or self._rest is not None
        return busy or len(self.queue) >= self.service.settings.max_pipelined

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
        if self._rest is not None:
            self.flush()
        if self.holding:
            self.service.turns.wait(self)

    def keep(self, data: bytes) -> None:
        """What was read and has yet to be parsed."""
        self._held, self._at = self._held[self._at :] + data if self._held else data, 0

    def end_after_queue(self) -> None:
        """The answers to what was read are the last."""
        self.ended = True
        self.queue[-1].last = True

    def reserve(self, size: int) -> None:
        """Room for more of a long body. Raises `BadHead` where there is none."""
        self.service.room.take(size)
        self._reserved += size

    def unreserve(self) -> None:
        """The body is complete, or nobody's any more."""
        if self._reserved:
            self.service.room.give_back(self._reserved)
            self._reserved = 0

    def begin_intake(self, upload: Upload) -> None:
        """Hand the body that follows to the app as it comes. Its answer has its place from now on."""
        exchange = self._taking = Exchange(self, bodiless=False, last=False)
        self.queue.append(exchange)

        def answer(response: Response, early: bool) -> None:
            if early:
                self.ended = self.lingering = exchange.last = True
            exchange.respond(response)

        self.intake = UploadBody(upload, answer, self._stall, self.service.report)
        self.intake.begin()

    def end_intake(self, last: bool) -> None:
        """The body is complete."""
        if self.intake is not None and self._taking is not None:
            self._taking.last |= last
            self.intake.end()
            self.intake = None

    def drop_intake(self) -> None:
        """The body will not come to its end, and is not answered."""
        intake, self.intake = self.intake, None
        if intake is not None and intake.open and self._taking is not None:
            intake.abandon()
            self.queue.remove(self._taking)

    def place(self, bodiless: bool) -> Exchange:
        """Where an answer of our own goes: behind those to come, or in the stead of the app's that reads a body."""
        intake, self.intake = self.intake, None
        if intake is not None and self._taking is not None and self._taking.answer is None:
            intake.abandon()
            return self._taking
        exchange = Exchange(self, bodiless, last=False)
        self.queue.append(exchange)
        return exchange

    def is_too_slow(self) -> bool:
        """Whether the peer takes a long body more slowly than it must: others wait for the room that it holds."""
        if self._rest is None:
            return False
        settings = self.service.settings
        taken = self._rest_bytes - len(self._rest) - self.transport.get_write_buffer_size()
        limit_s = settings.write_timeout_s + max(0, taken) / settings.min_bytes_per_s
        return self.service.sweep.overdue(self._rest_since, limit_s)

    def take_held(self) -> None:
        """Parse a turn's share of what was read before the pause."""
        data, at = self._held, self._at
        most, self.spent = self.service.settings.max_turn_units, 0
        self.corked = True
        while at < len(data) and not self.ended:
            if self.spent >= most or self.is_full():
                self.hold()
                break
            end = self.end_of_piece(data, at)
            self.feed(data[at:end])
            at = end
        self.corked = False
        # Of what nobody goes on with nothing is kept.
        self._held, self._at = (data, at) if self.holding and at < len(data) else (b"", 0)
        if self.successor is not None and at < len(data):
            self.successor.data_received(data[at:])
        if self.out or self.ended:
            self.flush()
        if self.holding and not self.is_full():
            self.service.turns.wait(self)

    @abstractmethod
    def end_of_piece(self, data: bytes, at: int) -> int:
        """How far to parse at once; what that is worth is added to `spent`."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Parse a piece."""

    def _stall(self, stalled: bool) -> None:
        self._stalled = stalled
        if stalled:
            self.hold()
        else:
            # In a turn of its own: the parser may be at work.
            self.service.turns.wait(self)

    def go_on(self) -> None:
        if self.lost or self.ended or self.is_leaving() or not self.holding or self.is_full():
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
