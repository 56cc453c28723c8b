"""Writes the responses of an HTTP/1.1 connection in the order of the requests."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from http import HTTPStatus

from plumbing.http.connection import Connection, Service
from plumbing.http.message import NO_CONTENT, Response, Upload, UploadBody

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


def encode(response: Response, date: bytes, bodiless: bool, last: bool) -> bytes:
    """Head and body as one piece. `bodiless` is for HEAD; `last` announces that the connection will close."""
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
    """The cached head of a plain 200 response. Consecutive responses often have the same type and length."""
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


# A longer body is sent in pieces while the peer reads: it may be a mapped file.
_PIECE_BYTES = 1 << 16


class Exchange:
    """A request and the place of its response."""

    __slots__ = ("_writer", "answer", "bodiless", "last")

    def __init__(self, writer: "Http1Writer", bodiless: bool, last: bool) -> None:
        self._writer = writer
        self.bodiless = bodiless
        self.last = last
        self.answer: Response | bytes | None = None

    def respond(self, answer: Response | bytes) -> None:
        if self.answer is not None:
            raise RuntimeError("respond was called twice for one request")
        self.answer = answer
        writer = self._writer
        # If the peer is gone, or its turn has not come, there is nothing to write.
        if not writer.lost and writer.queue[0] is self:
            writer.release()


class Http1Writer(Connection, ABC):
    """The writing half. It pauses the reading half while too much output is pending."""

    __slots__ = (
        "_at",
        "_buffer",
        "_flush_due",
        "_reserved",
        "_rest",
        "_rest_bytes",
        "_rest_since",
        "_upload_exchange",
        "_upload_paused",
        "corked",
        "ended",
        "idle_since",
        "lingering",
        "out",
        "queue",
        "reading_paused",
        "spent",
        "successor",
        "upload_body",
    )

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.queue: deque[Exchange] = deque()
        self.corked = False  # while input is parsed: its responses are sent together
        self.ended = False  # no more input is parsed; the last response closes the connection
        self.lingering = False  # closes with unread input
        self.reading_paused = False
        self.idle_since = service.timer.now
        self.out: list[bytes] = []
        self.upload_body: UploadBody | None = None  # set while the app receives the current body in pieces
        self.spent = 0  # units of work in this turn
        self.successor: Connection | None = None  # receives the input after an upgrade
        self._buffer = b""
        self._at = 0  # parsed up to here
        self._flush_due = False
        self._reserved = 0  # reserved bytes of the body memory
        self._rest: memoryview | None = None  # the rest of a long body; later responses wait for it
        self._rest_bytes = 0  # its full length
        self._rest_since = 0.0  # start of sending
        self._upload_paused = False  # the app does not keep up with the upload
        self._upload_exchange: Exchange | None = None  # the place of the upload's response

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.queue.clear()
        self._rest = None
        self.unreserve()
        if self.upload_body is not None:
            self.upload_body.abandon()

    def release(self) -> None:
        """Write every response whose turn has come."""
        queue = self.queue
        while queue and self._rest is None:
            exchange = queue[0]
            answer = exchange.answer
            if answer is None:
                break
            if not isinstance(answer, bytes):
                if len(answer.body) > _PIECE_BYTES and not exchange.bodiless:
                    self._rest = memoryview(answer.body)
                    self._rest_bytes, self._rest_since = len(answer.body), self.service.timer.now
                # Only now is it known whether it is the last.
                bodiless = exchange.bodiless or self._rest is not None
                answer = encode(answer, self.service.timer.date, bodiless, exchange.last)
            self.out.append(answer)
            if self._rest is None:
                queue.popleft()
        if self.corked:
            return
        if not queue or self._rest is not None:
            self.flush()
        elif not self._flush_due:
            # More responses may come in this turn, and one write sends them all.
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
            self.idle_since = self.service.timer.now
        if self._rest is not None:
            self._send_rest(self._rest)
        elif self.ended:
            if not self.queue:
                self._conclude()
        elif self.reading_paused and not self.is_full():
            # In a later turn: buffered input may contain requests, and `respond` must not call the app.
            self.service.scheduler.wait(self)

    def _send_rest(self, rest: memoryview) -> None:
        """Continue a long body, then the responses behind it."""
        while rest and not self.write_paused:
            self.transport.write(rest[:_PIECE_BYTES])
            rest = rest[_PIECE_BYTES:]
        self.idle_since = self.service.timer.now
        if rest:
            self._rest = rest
        else:
            self._rest = None
            self.queue.popleft()
            self.release()

    def is_full(self) -> bool:
        busy = self.write_paused or self._upload_paused or self._rest is not None
        return busy or len(self.queue) >= self.service.settings.max_pipelined

    def pause_input(self) -> None:
        """Pause reading."""
        if not self.reading_paused:
            self.reading_paused = True
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.pause_input()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._rest is not None:
            self.flush()
        if self.reading_paused:
            self.service.scheduler.wait(self)

    def buffer_input(self, data: bytes) -> None:
        """Buffer input that is not parsed yet."""
        self._buffer, self._at = self._buffer[self._at :] + data if self._buffer else data, 0

    def end_after_queue(self) -> None:
        """The queued responses are the last."""
        self.ended = True
        self.queue[-1].last = True

    def reserve(self, size: int) -> None:
        """Reserve memory for more of a long body. Raises `BadHead` if the limit is reached."""
        self.service.body_memory.take(size)
        self._reserved += size

    def unreserve(self) -> None:
        """Release the memory of a body that is complete or dropped."""
        if self._reserved:
            self.service.body_memory.give_back(self._reserved)
            self._reserved = 0

    def begin_upload(self, upload: Upload) -> None:
        """Pass the following body to the app in pieces. The place of its response is queued now."""
        exchange = self._upload_exchange = Exchange(self, bodiless=False, last=False)
        self.queue.append(exchange)

        def answer(response: Response, early: bool) -> None:
            if early:
                self.ended = self.lingering = exchange.last = True
            exchange.respond(response)

        self.upload_body = UploadBody(upload, answer, self._pause_upload, self.service.report)
        self.upload_body.begin()

    def end_upload(self, last: bool) -> None:
        """The body is complete."""
        if self.upload_body is not None and self._upload_exchange is not None:
            self._upload_exchange.last |= last
            self.upload_body.end()
            self.upload_body = None

    def drop_upload(self) -> None:
        """The body will not be completed, and gets no response."""
        upload_body, self.upload_body = self.upload_body, None
        if upload_body is not None and upload_body.open and self._upload_exchange is not None:
            upload_body.abandon()
            self.queue.remove(self._upload_exchange)

    def place(self, bodiless: bool) -> Exchange:
        """The place of a response of the server itself: at the end, or instead of the current upload's response."""
        upload_body, self.upload_body = self.upload_body, None
        if upload_body is not None and self._upload_exchange is not None and self._upload_exchange.answer is None:
            upload_body.abandon()
            return self._upload_exchange
        exchange = Exchange(self, bodiless, last=False)
        self.queue.append(exchange)
        return exchange

    def is_too_slow(self) -> bool:
        """Whether the peer reads a long body too slowly: others need the memory that it holds."""
        if self._rest is None:
            return False
        settings = self.service.settings
        sent = self._rest_bytes - len(self._rest) - self.transport.get_write_buffer_size()
        limit_s = settings.write_timeout_s + max(0, sent) / settings.min_bytes_per_s
        return self.service.timer.overdue(self._rest_since, limit_s)

    def parse_buffered(self) -> None:
        """Parse this turn's share of buffered input."""
        data, at = self._buffer, self._at
        max_units, self.spent = self.service.settings.max_turn_units, 0
        self.corked = True
        while at < len(data) and not self.ended:
            if self.spent >= max_units or self.is_full():
                self.pause_input()
                break
            end = self.end_of_piece(data, at)
            self.feed(data[at:end])
            at = end
        self.corked = False
        # Input that will not be processed is dropped.
        self._buffer, self._at = (data, at) if self.reading_paused and at < len(data) else (b"", 0)
        if self.successor is not None and at < len(data):
            self.successor.data_received(data[at:])
        if self.out or self.ended:
            self.flush()
        if self.reading_paused and not self.is_full():
            self.service.scheduler.wait(self)

    @abstractmethod
    def end_of_piece(self, data: bytes, at: int) -> int:
        """How far to parse in one step; its cost is added to `spent`."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Parse a piece."""

    def _pause_upload(self, paused: bool) -> None:
        self._upload_paused = paused
        if paused:
            self.pause_input()
        else:
            # In a later turn: the parser may be running.
            self.service.scheduler.wait(self)

    def process_input(self) -> None:
        if self.lost or self.ended or self.is_leaving() or not self.reading_paused or self.is_full():
            return
        self.reading_paused = False
        self.parse_buffered()
        if not self.reading_paused and not self.is_leaving():
            self.transport.resume_reading()

    def _conclude(self) -> None:
        if self.lingering:
            self.linger()
        else:
            self.leave()
