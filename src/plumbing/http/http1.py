"""An HTTP/1.1 connection: reads requests, and writes the responses in the order of the requests. RFC 9112.

The hot path is `data_received`, the parser's callbacks, `App.handle`, `Exchange.respond` and one `write`.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import NoReturn

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from plumbing.http.connection import UNIT_BYTES, BodyMemoryLimit, Connection, Service
from plumbing.http.message import NO_CONTENT, Request, Respond, Response, Upload, UploadBody
from plumbing.http.request_head import BadHead, check_framing, check_size, join_fields, partial_request, split_target
from plumbing.http.websocket import WebSocket, check_upgrade

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


def encode(response: Response, date: bytes, bodiless: bool, last: bool) -> bytes:
    """Head and body as one piece. `bodiless` is for HEAD; `last` announces that the connection will close."""
    status = response.status
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


# A longer body is sent in pieces while the peer reads: it may be a mapped file.
_PIECE_BYTES = 1 << 16


class Exchange:
    """A request and the place of its response."""

    __slots__ = ("_writer", "answer", "bodiless", "last")  # one is made for every request

    def __init__(self, writer: "Http1", bodiless: bool, last: bool) -> None:
        self._writer = writer
        self.bodiless = bodiless
        self.last = last
        self.answer: Response | bytes | None = None

    def respond(self, answer: Response | bytes) -> None:
        if self.answer is not None:
            raise RuntimeError("respond was called twice for one request")
        self.answer = answer
        writer = self._writer
        if answer is not CONTINUE:
            writer.order = next(writer.service.numbers)
        # If the peer is gone, or its turn has not come, there is nothing to write.
        if not writer.lost and writer.queue[0] is self:
            writer.release()


_IDLE, _HEAD, _BODY = range(3)
# The parser cannot be stopped within one call. If the input has more than one request, it gets one head at a time, or
# at most this many bytes of an incomplete head, of a chunked body, and of a body of known length.
_SLICE_BYTES, _CHUNKED_BYTES, _BODY_BYTES = 4096, 1024, 1 << 16
_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)\r\n", re.IGNORECASE)
_MAX_LENGTH_BYTES = 22  # the digits of the largest 64-bit length, and the end of the line


class _InputEnded(Exception):
    """Raised through the parser when no more input is processed. The response is already queued."""


class Http1(Connection):
    """Serves requests, until the last one or an upgrade. Reading pauses while too much output is pending."""

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
        self._parser = HttpRequestParser(self)
        self._length = 0  # declared length of the current body
        self._draining = False
        self._upgrading = False
        self._stage = _IDLE
        self._since = service.timer.now
        self._stalled_bytes = 0  # fed since the parser last made progress
        self._method = ""
        self._target = b""
        self._split_target = b""
        self._repeated_start = b""  # the last head up to the digits of its content-length; empty if not remembered
        self._repeated_end = b""  # and after them
        self._body_bytes = 0
        self._keep_alive = False
        self._fields: list[tuple[bytes, bytes]] = []
        self._headers: dict[bytes, bytes] = {}
        self._shortcut: Callable[[bytes, Respond], None] | None = None

    def data_received(self, data: bytes) -> None:
        if self.ended:
            return
        if self.reading_paused:
            self.buffer_input(data)
        elif self._repeated_start and (body_at := self._after_repeated_head(data)):
            self._handle_repeated_head(data, body_at)
        elif len(data) > _SLICE_BYTES or data.count(_END_OF_HEAD) > 1:
            self._repeated_start = b""
            self.buffer_input(data)
            self.parse_buffered()
        else:
            self._repeated_start = b""
            fresh = self._stage == _IDLE
            self._parse(data)
            if fresh and not self.ended:
                self._remember_head(data)
        if len(self.queue) >= self.service.settings.max_pipelined:
            self.pause_input()

    def eof_received(self) -> bool:
        """The peer closed its side. Over plain TCP it can still read."""
        self.drop_upload()
        if self.is_leaving() or not self.queue or not self.transport.can_write_eof():
            return super().eof_received()
        self.end_after_queue()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.queue.clear()
        self._rest = None
        self.unreserve()
        if self.upload_body is not None:
            self.upload_body.abandon()
        # Break reference cycles: the parser holds our methods, and the shortcut may hold the head.
        del self._parser
        self._shortcut = None

    def end_of_piece(self, data: bytes, at: int) -> int:
        """How far to feed the parser. A body of known length is only collected, which costs nothing of the turn."""
        left = self._length - self._body_bytes if self._stage == _BODY else 0
        if left > 0:
            return at + min(left, _BODY_BYTES)
        self.spent += 1
        if self._stage == _BODY:
            return at + _CHUNKED_BYTES
        end = data.find(_END_OF_HEAD, at, at + _SLICE_BYTES)
        return at + _SLICE_BYTES if end < 0 else end + len(_END_OF_HEAD)

    def drain(self) -> None:
        if self._stage != _IDLE:
            self._draining = True
        elif self.queue:
            self.lingering = True
            self.end_after_queue()
        elif not self.ended:
            self.leave()

    def check_timeouts(self) -> None:
        settings, overdue = self.service.settings, self.service.timer.overdue
        if self.is_too_slow():
            self.transport.abort()
        elif self.ended:
            return
        elif self.reading_paused:
            # Time in which we do not read does not count against the peer.
            self._since = self.idle_since = self.service.timer.now
        elif self._stage == _IDLE:
            if not self.queue and overdue(self.idle_since, settings.idle_timeout_s):
                self.leave()
        elif self._stage == _HEAD:
            if overdue(self._since, settings.header_timeout_s):
                self._refuse(408, "the head took too long")
        elif overdue(self._since, settings.body_timeout_s + self._body_bytes / settings.min_bytes_per_s):
            self._refuse(408, "the body took too long")

    def _remember_head(self, data: bytes) -> None:
        """Remember the head of a request that arrived whole and alone: most clients repeat it with another length.

        It is alone if the data starts with it and contains the end of one head only.
        """
        length = self._body_bytes if self._stage == _IDLE else 0
        head = data[: len(data) - length]
        if length and self._keep_alive and head.startswith(b"POST ") and head.endswith(b"\r\n\r\n"):
            plain = self._headers.keys().isdisjoint((b"transfer-encoding", b"expect", b"upgrade"))
            if plain and head.count(b"\r\n\r\n") == 1 and self._headers.get(b"content-length") == b"%d" % length:
                self._shortcut = self.service.app.shortcut(self._head())
                found = _LENGTH.search(head)
                if self._shortcut is not None and found is not None:
                    self._repeated_start, self._repeated_end = head[: found.start(1)], head[found.end(1) :]

    def _after_repeated_head(self, data: bytes) -> int:
        """The start of the body if `data` is one whole request with the remembered head; otherwise 0.

        The length may differ. It must be written as we write it and be that of the remaining data, so that the parser
        would read the same request.
        """
        start, end = self._repeated_start, self._repeated_end
        if not data.startswith(start):
            return 0
        digits_end = data.find(b"\r\n", len(start), len(start) + _MAX_LENGTH_BYTES)
        if digits_end < 0 or not data.startswith(end, digits_end):
            return 0
        body_at = digits_end + len(end)
        length = len(data) - body_at
        return body_at if 0 < length <= self._limit and data[len(start) : digits_end] == b"%d" % length else 0

    def _handle_repeated_head(self, data: bytes, body_at: int) -> None:
        """Handle a request with the same head as the one before: only the body and its length are new."""
        if self._draining or self._shortcut is None:
            self._repeated_start = b""
            self._parse(data)
            return
        self.corked = True
        exchange = Exchange(self, False, False)
        self.queue.append(exchange)
        try:
            self._shortcut(data[body_at:], exchange.respond)
        except Exception as error:  # noqa: BLE001  the peer gets a response in any case
            self._failed(exchange, error)
        self.corked = False
        if self.out or self.ended:
            self.flush()

    def _parse(self, data: bytes) -> None:
        """Parse a piece. Responses that are given at once are sent in one write."""
        self.corked = True
        self.feed(data)
        self.corked = False
        if self.out or self.ended:
            self.flush()

    def feed(self, data: bytes) -> None:
        self._stalled_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as pause:
            self._upgrade(data[pause.args[0] :])
        except HttpParserCallbackError as error:
            self._on_parse_error(error.__context__ or error)
        except HttpParserError:
            if not self.ended:
                self._refuse(400, "not an HTTP/1.1 request")
        else:
            # A line without end: no callback has seen it, and it keeps growing.
            if self._stalled_bytes > self.service.settings.max_header_bytes and not self.ended:
                self._refuse(431)

    def _on_parse_error(self, error: BaseException) -> None:
        if isinstance(error, BadHead):
            self._refuse(error.status, error.reason)
        elif not isinstance(error, _InputEnded):
            self.service.report("request head", error)
            self._refuse(500)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self.ended:
            raise _InputEnded
        self._stage = _HEAD
        self._since = self.service.timer.now
        self._target = b""
        self._fields = []
        self._body: bytes | bytearray = b""
        self._body_bytes = self._length = 0

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > self.service.settings.max_header_bytes:
            raise BadHead(414, "the request target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Fields after the head are trailers, which are ignored.
        self._fields.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        # An upper bound for the size of the head: its first piece may contain the end of the previous request.
        head_bytes = self._stalled_bytes + _SLICE_BYTES
        self._stalled_bytes = 0
        self._stage = _BODY
        self._since = self.service.timer.now
        settings, parser = self.service.settings, self._parser
        self._method = method = parser.get_method().decode()
        if len(self._fields) > settings.max_headers:
            raise BadHead(431, "too many headers")
        if head_bytes > settings.max_header_bytes:
            check_size(self._target, self._fields, settings.max_header_bytes)
        self._version = version = parser.get_http_version()
        self._headers = headers = join_fields(self._fields)
        chunked = check_framing(headers, version)
        if self._target != self._split_target:
            # Clients repeat the same target.
            self._path, self._query = split_target(self._target)
            self._split_target = self._target
        self._keep_alive = version == "1.1" and parser.should_keep_alive()
        if parser.should_upgrade():
            self._upgrading = True
            return
        self._length = length = int(headers.get(b"content-length", b"0"))
        limit = self.service.app.body_limit(method, self._path)
        if limit is None:
            if length or chunked:
                self._dispatch(b"", last=True)
                self._end_input()
            limit = 0
        elif length > limit:
            self._too_large()
        self._limit = limit
        upload = self.service.app.upload(self._head()) if method == "PUT" else None
        if isinstance(upload, Response):
            self._answer(upload, last=True)
            self._end_input()
        if b"expect" in headers and version == "1.1":
            if headers[b"expect"].lower() != b"100-continue":
                raise BadHead(417, "100-continue is the only supported expectation")
            if length or chunked:
                self._answer(CONTINUE, last=False)
        if upload is not None:
            self.begin_upload(upload)

    def on_body(self, body: bytes) -> None:
        if self.ended:
            raise _InputEnded
        self._stalled_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._limit:
            self._too_large()
        if self.upload_body is not None:
            self.upload_body.data(body)
            return
        # Most bodies arrive in one piece. Many pieces are joined at once, to avoid one object per piece.
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
        if self._body_bytes > BodyMemoryLimit.FREE_BYTES:
            self.reserve(len(body))

    def on_message_complete(self) -> None:
        self._stage = _IDLE
        self._stalled_bytes = 0
        if self._upgrading:
            return
        if self._draining:
            self._keep_alive = False
            self.lingering = True
        if not self._keep_alive:
            self.ended = True
        if self.upload_body is not None:
            self.end_upload(last=not self._keep_alive)
            return
        self.unreserve()
        body, self._body = bytes(self._body), b""
        self._dispatch(body, not self._keep_alive)

    # Handling of a request.

    def _head(self) -> Request:
        return self._request(b"")

    def _request(self, body: bytes) -> Request:
        return Request(
            self._method,
            self._path,
            self._query,
            self._headers,
            body,
            self.peer,
            self._version,
            self.certificate,
            self,
            self.is_lost,
            self.caller,
        )

    def _dispatch(self, body: bytes, last: bool) -> None:
        exchange = Exchange(self, self._method == "HEAD", last)
        self.queue.append(exchange)
        try:
            self.service.app.handle(self._request(body), exchange.respond)
        except Exception as error:  # noqa: BLE001  the peer gets a response in any case
            self._failed(exchange, error)
        if isinstance(exchange.answer, Response):
            self.spent += len(exchange.answer.body) // UNIT_BYTES

    def _failed(self, exchange: Exchange, error: Exception) -> None:
        self.service.report(f"{self._method} {self._path}", error)
        if exchange.answer is None:
            response = self.service.app.refused(500, "", self._partial_request())
            if response is None:
                self.transport.abort()
            else:
                exchange.respond(response)

    def _answer(self, answer: Response | bytes, last: bool) -> None:
        """Queue a response of the server itself."""
        exchange = self.place(bodiless=self._stage != _HEAD and self._method == "HEAD")
        exchange.last = last
        exchange.respond(answer)

    def _refuse(self, status: int, reason: str = "") -> None:
        self.ended = self.lingering = True
        response = self.service.app.refused(status, reason, self._partial_request())
        if response is None:
            self.transport.abort()
        else:
            self._answer(response, last=True)

    def _partial_request(self) -> Request:
        """The known parts of the rejected request; between two requests, of the last one."""
        return partial_request(self._target, self._fields, self.peer)

    def _too_large(self) -> NoReturn:
        self._answer(self.service.app.too_large(self._head()), last=True)
        self._end_input()

    def _end_input(self) -> NoReturn:
        self.ended = self.lingering = True
        raise _InputEnded

    def _upgrade(self, rest: bytes) -> None:
        self._upgrading = False
        offer = self._headers.get(b"upgrade", b"").lower()
        if offer != b"websocket" and self._method != "CONNECT":
            self._decline_upgrade(rest)
            return
        try:
            if self.queue or self._draining or offer != b"websocket":
                raise BadHead(400, "an upgrade to websocket is not possible here")
            key = check_upgrade(self._method, self._version, self._headers)
            handler = self.service.app.websocket(self._head())
        except Exception as error:  # noqa: BLE001  like any request
            self._on_parse_error(error)
            return
        if isinstance(handler, Response):
            self.ended = self.lingering = True
            self._answer(handler, last=True)
            return
        self.ended = True
        self.successor = socket = WebSocket(self.service, handler)
        socket.take_over(self.transport, self)
        socket.open(key, rest)

    def _decline_upgrade(self, rest: bytes) -> None:
        """Serve the request without the upgrade (RFC 9110 7.8): parse it again without the header."""
        lines = [b"%b: %b\r\n" % (name, value) for name, value in self._fields if name != b"upgrade"]
        line = b"%b %b HTTP/%b\r\n" % (self._method.encode(), self._target, self._version.encode())
        self._parser = HttpRequestParser(self)
        self.feed(b"%b%b\r\n%b" % (line, b"".join(lines), rest))

    # Output.

    def is_busy(self) -> bool:
        return any(exchange.answer is None for exchange in self.queue)

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
