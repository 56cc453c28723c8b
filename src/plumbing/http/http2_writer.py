"""Writes the responses of an HTTP/2 connection, as far as the peer's windows and our buffer allow."""

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from mmap import mmap

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings

from plumbing.http.connection import UNIT_BYTES, BufferedConnection, Connection, Service
from plumbing.http.message import NO_CONTENT, Request, Response, UploadBody
from plumbing.http.request_head import BadHead, check_size, join_fields, partial_request, split_target


class Http2Stream:
    """A request being read, then a response being written."""

    __slots__ = (
        "_send",
        "answered",
        "body",
        "body_bytes",
        "dispatched",
        "head",
        "limit",
        "lost",
        "paused",
        "request_ended",
        "reserved",
        "sent_bytes",
        "since",
        "stream_id",
        "unacknowledged",
        "unsent",
        "upload_body",
    )

    def __init__(
        self, stream_id: int, head: Request, now: float, send: "Callable[[Http2Stream, Response], None]"
    ) -> None:
        self.stream_id = stream_id
        self.head = head
        self.since = now  # time of the head; once answered, of the response
        self.limit = 0
        self.body = bytearray()  # joined, because pieces may be many and tiny
        self.body_bytes = 0
        self.upload_body: UploadBody | None = None  # set if the app receives the body in pieces
        self.paused = False  # the app does not keep up
        self.unacknowledged = 0  # received bytes that do not reopen the window yet
        self.reserved = 0  # reserved bytes of the body memory
        self.request_ended = False
        self.dispatched = False
        self.answered = False
        self.lost = False  # reset by the peer, or finished
        self.unsent: bytes | mmap = b""
        self.sent_bytes = 0
        self._send = send

    def respond(self, response: Response) -> None:
        if self.answered:
            raise RuntimeError("respond was called twice for one request")
        self.answered = True
        self._send(self, response)

    @property
    def reading(self) -> bool:
        return not (self.request_ended or self.dispatched or self.answered)

    def is_lost(self) -> bool:
        return self.lost

    def request(self) -> Request:
        """The request with the received body."""
        made = replace(self.head, body=bytes(self.body), is_lost=self.is_lost)
        self.body.clear()
        return made


def read_head(fields: list[tuple[bytes, bytes]], peer: str, max_header_bytes: int, max_headers: int) -> Request:
    """The head of a request. h2 has checked the fields against RFC 9113 8.2 and 8.3."""
    if len(fields) > max_headers:
        raise BadHead(431, "too many headers")
    check_size(b"", fields, max_header_bytes)
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    headers = join_fields([(name, value) for name, value in fields if not name.startswith(b":")])
    if b":authority" in pseudo:
        headers.setdefault(b"host", pseudo[b":authority"])
    method = pseudo[b":method"].decode("ascii", "replace")
    if b":path" not in pseudo or b":protocol" in pseudo:
        raise BadHead(400, "CONNECT is not supported")
    path, query = split_target(pseudo[b":path"])
    return Request(method, path, query, headers, b"", peer, "2")


def head_of(fields: list[tuple[bytes, bytes]], peer: str) -> Request:
    """The known parts of a rejected head: enough to answer it."""
    known = dict(fields)
    head = partial_request(known.get(b":path", b""), fields, peer)
    head.method = known.get(b":method", b"").decode("ascii", "replace")
    return head


def length_of(head: Request) -> int:
    """The declared length. h2 has checked that it is a number, if present."""
    length = head.headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


def answer_fields(response: Response, date: bytes) -> list[tuple[bytes, bytes]]:
    fields = [(b":status", b"%d" % response.status), (b"date", date)]
    if response.status not in NO_CONTENT:
        fields += [(b"content-type", response.content_type), (b"content-length", b"%d" % len(response.body))]
    return [*fields, *response.headers]


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_BYTES = 16384  # the default of RFC 9113 4.2; we neither accept nor send larger frames
_HEADER_BYTES = 9
_LENGTH_BYTES = 3
_HEADERS, _RST_STREAM = 1, 3
_REQUEST_UNITS = 4  # a head is decoded, and the app is called


class FrameMeter:
    """Follows frame boundaries from the preface on. Keeps only a frame header that was split between reads."""

    __slots__ = ("_header", "_skip")

    def __init__(self) -> None:
        self._skip = len(PREFACE)
        self._header = b""

    def portion(self, data: bytes, at: int, max_units: int) -> int | None:
        """The end of the frames from `at` on that cost as much as `max_units` small ones; at least one frame.

        None if one of them is longer than allowed.
        """
        place, units = at + self._skip, 0
        while place < len(data):
            header = self._header + data[place : place + _HEADER_BYTES - len(self._header)]
            if len(header) < _HEADER_BYTES:
                if units < max_units:
                    self._header, self._skip = header, 0
                    return len(data)
                break
            kind = header[_LENGTH_BYTES]
            # A reset right after its request is read together with it, and then the app is not called.
            if units >= max_units and (kind != _RST_STREAM or units >= 2 * max_units):
                break
            length = int.from_bytes(header[:_LENGTH_BYTES])
            if length > MAX_FRAME_BYTES:
                return None
            place += _HEADER_BYTES - len(self._header) + length
            self._header = b""
            units += _REQUEST_UNITS if kind == _HEADERS else 1
        self._skip = max(0, place - len(data))
        return min(place, len(data))


_DEFAULT_WINDOW = 65535
# Frames without request that a peer may send at first, and for each request or frame of a response: it reopens the
# windows of the stream and of the connection.
_FREE_FRAMES, FRAMES_DUE = 32, 2
_MAX_DEBT = 64
# Length 8, type 7, no flags, stream 0; then the last stream and NO_ERROR.
_GOAWAY = struct.Struct(">3sBBIII")


class Http2Writer(BufferedConnection):
    """The writing half: streams and their responses."""

    __slots__ = ("_corked", "_debt", "_draining", "_due_frames", "_h2", "_idle_since", "_last_id", "_streams")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._streams: dict[int, Http2Stream] = {}
        self._last_id = 0
        self._draining = False
        self._corked = False  # while input is processed: its responses are sent together
        self._debt = 0  # work units beyond the share of its turns
        self._due_frames = _FREE_FRAMES  # frames without request that the peer may still send
        self._idle_since = service.timer.now
        settings = service.settings
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: settings.max_h2_streams,
                SettingCodes.INITIAL_WINDOW_SIZE: settings.h2_window_bytes,
                SettingCodes.MAX_HEADER_LIST_SIZE: settings.max_header_bytes,
            },
        )
        # A slightly too large head gets a 431; far above it, the connection is closed.
        self._h2.decoder.max_header_list_size = 4 * settings.max_header_bytes

    def take_over(self, transport: asyncio.Transport, predecessor: Connection | None = None) -> None:
        super().take_over(transport, predecessor)
        self._h2.initiate_connection()
        if self.service.settings.h2_window_bytes > _DEFAULT_WINDOW:
            self._h2.increment_flow_control_window(self.service.settings.h2_window_bytes - _DEFAULT_WINDOW)
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for stream_id in tuple(self._streams):
            self._drop(stream_id)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.is_leaving():
            self._pump()

    def drain(self) -> None:
        self._draining = True
        # Not h2's own GOAWAY: after that, h2 would not send the outstanding responses.
        self._write()
        self.transport.write(_GOAWAY.pack(b"\0\0\x08", 7, 0, 0, self._last_id, ErrorCodes.NO_ERROR))
        if not self._streams:
            self.leave()

    def _answer(self, stream: Http2Stream, response: Response) -> None:
        if self.lost or self.is_leaving() or stream.stream_id not in self._streams:
            return
        stream.since = self.service.timer.now
        bodiless = stream.head.method == "HEAD" or response.status in NO_CONTENT or not response.body
        if self._corked:
            self._debt = min(self._debt + len(response.body) // UNIT_BYTES, _MAX_DEBT)
        fields = answer_fields(response, self.service.timer.date)
        try:
            self._h2.send_headers(stream.stream_id, fields, end_stream=bodiless)
        except ProtocolError:
            # The peer reset its request, and the event is not processed yet.
            self._drop(stream.stream_id)
            return
        if bodiless:
            self._finish(stream)
        else:
            stream.unsent = response.body
            while self._send_frame(stream):
                pass
        if not self._corked:
            self._write()
            self._leave_if_done()

    def _pump(self) -> None:
        """Continue the responses that waited for a window, one frame of each in turn."""
        waiting = [stream for stream in self._streams.values() if stream.unsent]
        while waiting:
            waiting = [stream for stream in waiting if self._send_frame(stream)]
        self._write()
        self._leave_if_done()

    def _send_frame(self, stream: Http2Stream) -> bool:
        """Send one frame, if the windows and our buffer allow. Returns False if no further frame can follow."""
        body, start = stream.unsent, stream.sent_bytes
        try:
            window = self._h2.local_flow_control_window(stream.stream_id)
            end = start + min(window, MAX_FRAME_BYTES, len(body) - start)
            if end <= start or self.write_paused:
                return False
            self._h2.send_data(stream.stream_id, body[start:end], end_stream=end == len(body))
        except ProtocolError:
            self._drop(stream.stream_id)
            return False
        stream.sent_bytes = end
        self._due_frames += FRAMES_DUE
        if end < len(body):
            # Write now, so that a full buffer is noticed before the next frame.
            self._write()
            return True
        self._finish(stream)
        return False

    def _finish(self, stream: Http2Stream) -> None:
        if not stream.request_ended:
            # The rest of the body is not needed; NO_ERROR means that the response is valid (RFC 9113 8.1).
            with suppress(StreamClosedError):
                self._h2.reset_stream(stream.stream_id, ErrorCodes.NO_ERROR)
        self._drop(stream.stream_id)

    def _reset(self, stream: Http2Stream, code: ErrorCodes) -> None:
        with suppress(StreamClosedError):
            self._h2.reset_stream(stream.stream_id, code)
        self._drop(stream.stream_id)

    def _drop(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id, None)
        self._idle_since = self.service.timer.now
        if stream is None:
            return
        stream.lost = True
        self._unreserve(stream)
        if stream.upload_body is not None and not stream.request_ended:
            stream.upload_body.abandon()

    def _unreserve(self, stream: Http2Stream) -> None:
        self.service.body_memory.give_back(stream.reserved)
        stream.reserved = 0

    def _leave_if_done(self) -> None:
        if self._draining and not self._streams and not self.is_leaving():
            self.linger()

    def _close_with(self, code: ErrorCodes) -> None:
        self._h2.close_connection(code)
        self._write()
        self.linger()

    def _write(self) -> None:
        data = self._h2.data_to_send()
        if data and not self.lost:
            self.transport.write(data)
