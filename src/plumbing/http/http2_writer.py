"""The answers of an HTTP/2 connection: each as far as the peer's windows and our own buffer have room."""

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

from plumbing.http.connection import UNIT_BYTES, Connection, Portioned, Service
from plumbing.http.message import NO_CONTENT, Request, Response, UploadBody
from plumbing.http.request_head import BadHead, check_size, glimpse, join_fields, split_target


class Http2Stream:
    """A request being read, then an answer being written."""

    __slots__ = (
        "_send",
        "answered",
        "body",
        "body_bytes",
        "handed_over",
        "head",
        "intake",
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
    )

    def __init__(
        self, stream_id: int, head: Request, now: float, send: "Callable[[Http2Stream, Response], None]"
    ) -> None:
        self.stream_id = stream_id
        self.head = head
        self.since = now  # of the head; once answered, of the answer
        self.limit = 0
        self.body = bytearray()  # not the pieces: they may be many and tiny
        self.body_bytes = 0
        self.intake: UploadBody | None = None  # where the app takes the body piece by piece
        self.paused = False  # the app does not keep up with it
        self.unacknowledged = 0  # what the peer may not send anew meanwhile
        self.reserved = 0  # of the room for unfinished bodies
        self.request_ended = False
        self.handed_over = False
        self.answered = False
        self.lost = False  # taken back by the peer, or done with
        self.unsent: bytes | mmap = b""
        self.sent_bytes = 0
        self._send = send

    def respond(self, response: Response) -> None:
        if self.answered:
            raise RuntimeError("a request is answered once")
        self.answered = True
        self._send(self, response)

    @property
    def reading(self) -> bool:
        return not (self.request_ended or self.handed_over or self.answered)

    def is_lost(self) -> bool:
        return self.lost

    def request(self) -> Request:
        """The request with the body that has come."""
        made = replace(self.head, body=bytes(self.body), is_lost=self.is_lost)
        self.body.clear()
        return made


def read_head(fields: list[tuple[bytes, bytes]], peer: str, max_header_bytes: int, max_headers: int) -> Request:
    """The head of a request from its fields, which h2 has checked against RFC 9113 8.2 and 8.3."""
    if len(fields) > max_headers:
        raise BadHead(431, "too many headers")
    check_size(b"", fields, max_header_bytes)
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    headers = join_fields([(name, value) for name, value in fields if not name.startswith(b":")])
    if b":authority" in pseudo:
        headers.setdefault(b"host", pseudo[b":authority"])
    method = pseudo[b":method"].decode("ascii", "replace")
    if b":path" not in pseudo or b":protocol" in pseudo:
        raise BadHead(400, "no tunnels here")
    path, query = split_target(pseudo[b":path"])
    return Request(method, path, query, headers, b"", peer, "2")


def head_of(fields: list[tuple[bytes, bytes]], peer: str) -> Request:
    """A stand-in for a head that was refused: enough to answer it."""
    known = dict(fields)
    head = glimpse(known.get(b":path", b""), fields, peer)
    head.method = known.get(b":method", b"").decode("ascii", "replace")
    return head


def length_of(head: Request) -> int:
    """The length a head announces; h2 has checked that it is a number, where there is one."""
    length = head.headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


def answer_fields(response: Response, date: bytes) -> list[tuple[bytes, bytes]]:
    fields = [(b":status", b"%d" % response.status), (b"date", date)]
    if response.status not in NO_CONTENT:
        fields += [(b"content-type", response.content_type), (b"content-length", b"%d" % len(response.body))]
    return [*fields, *response.headers]


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_BYTES = 16384  # what RFC 9113 4.2 lets every peer send; we offer no more and send no more
_HEADER_BYTES = 9
_LENGTH_BYTES = 3
_HEADERS, _RST_STREAM = 1, 3
_REQUEST_UNITS = 4  # a head is decoded, and the app is asked


class FrameMeter:
    """Follows the frames of one direction from the preface on, and keeps nothing but a header that was cut in two."""

    __slots__ = ("_header", "_skip")

    def __init__(self) -> None:
        self._skip = len(PREFACE)
        self._header = b""

    def portion(self, data: bytes, at: int, most: int) -> int | None:
        """Where the frames of `data` end that are as much work as `most` small ones, from `at` on; one is taken anyway.

        None where a frame among them is longer than was offered.
        """
        place, units = at + self._skip, 0
        while place < len(data):
            header = self._header + data[place : place + _HEADER_BYTES - len(self._header)]
            if len(header) < _HEADER_BYTES:
                if units < most:
                    self._header, self._skip = header, 0
                    return len(data)
                break
            kind = header[_LENGTH_BYTES]
            # A request that is taken back at once is seen together with that, and then it is no work for the app.
            if units >= most and (kind != _RST_STREAM or units >= 2 * most):
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
# Frames of little use that a peer may send before it asks anything, and for each request or frame of an answer: it
# opens the windows of the stream and of the connection anew.
_FREE_FRAMES, FRAMES_DUE = 32, 2
_MOST_DEBT = 64
# Length 8, type 7, no flags, stream 0; then the last stream and NO_ERROR.
_GOAWAY = struct.Struct(">3sBBIII")


class Outflow(Portioned):
    """The writing half: streams, and what becomes of their answers."""

    __slots__ = ("_corked", "_debt", "_draining", "_due_frames", "_h2", "_idle_since", "_last_id", "_streams")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._streams: dict[int, Http2Stream] = {}
        self._last_id = 0
        self._draining = False
        self._corked = False  # while a piece of input is taken: its answers go out together
        self._debt = 0  # units of work beyond what its turns had
        self._due_frames = _FREE_FRAMES  # that a peer may send because we do
        self._idle_since = service.sweep.now
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
        # What is somewhat too large is answered with 431; far beyond it, the connection ends.
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
        # Not h2's own: after it, h2 would not let the answers go that are still to come.
        self._write()
        self.transport.write(_GOAWAY.pack(b"\0\0\x08", 7, 0, 0, self._last_id, ErrorCodes.NO_ERROR))
        if not self._streams:
            self.leave()

    def _answer(self, stream: Http2Stream, response: Response) -> None:
        if self.lost or self.is_leaving() or stream.stream_id not in self._streams:
            return
        stream.since = self.service.sweep.now
        bodiless = stream.head.method == "HEAD" or response.status in NO_CONTENT or not response.body
        if self._corked:
            self._debt = min(self._debt + len(response.body) // UNIT_BYTES, _MOST_DEBT)
        fields = answer_fields(response, self.service.sweep.date)
        try:
            self._h2.send_headers(stream.stream_id, fields, end_stream=bodiless)
        except ProtocolError:
            # The peer took its request back, and the event that says so is still ahead of us.
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
        """Go on with the answers that waited for room, a frame of each in turn."""
        waiting = [stream for stream in self._streams.values() if stream.unsent]
        while waiting:
            waiting = [stream for stream in waiting if self._send_frame(stream)]
        self._write()
        self._leave_if_done()

    def _send_frame(self, stream: Http2Stream) -> bool:
        """One frame, if the peer's windows and our own buffer have room; False where no further one can follow."""
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
            # Now, so that a full buffer is noticed before the next frame.
            self._write()
            return True
        self._finish(stream)
        return False

    def _finish(self, stream: Http2Stream) -> None:
        if not stream.request_ended:
            # The rest of the body is not wanted; NO_ERROR says that the answer stands (RFC 9113 8.1).
            with suppress(StreamClosedError):
                self._h2.reset_stream(stream.stream_id, ErrorCodes.NO_ERROR)
        self._drop(stream.stream_id)

    def _reset(self, stream: Http2Stream, code: ErrorCodes) -> None:
        with suppress(StreamClosedError):
            self._h2.reset_stream(stream.stream_id, code)
        self._drop(stream.stream_id)

    def _drop(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id, None)
        self._idle_since = self.service.sweep.now
        if stream is None:
            return
        stream.lost = True
        self._unreserve(stream)
        if stream.intake is not None and not stream.request_ended:
            stream.intake.abandon()

    def _unreserve(self, stream: Http2Stream) -> None:
        self.service.room.give_back(stream.reserved)
        stream.reserved = 0

    def _leave_if_done(self) -> None:
        if self._draining and not self._streams and not self.is_leaving():
            self.linger()

    def _give_up(self, code: ErrorCodes) -> None:
        self._h2.close_connection(code)
        self._write()
        self.linger()

    def _write(self) -> None:
        data = self._h2.data_to_send()
        if data and not self.lost:
            self.transport.write(data)
