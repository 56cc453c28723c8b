"""An HTTP/2 connection: reads requests, and writes responses as far as the peer's windows and our buffer allow.

RFC 9113; frames, HPACK and stream states are handled by h2.
"""

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from mmap import mmap

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    UnknownFrameReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings

from plumbing.http.connection import UNIT_BYTES, BodyMemoryLimit, BufferedConnection, Connection, Service
from plumbing.http.message import NO_CONTENT, Request, Response, Upload, UploadBody
from plumbing.http.request_head import BadHead, check_size, join_fields, partial_request, split_target


@dataclass(slots=True, eq=False)
class Http2Stream:
    """A request being read, then a response being written."""

    stream_id: int
    head: Request
    since: float  # time of the head; once answered, of the response
    send: "Callable[[Http2Stream, Response], None]"
    limit: int = 0
    body: bytearray = field(default_factory=bytearray)  # joined, because pieces may be many and tiny
    body_bytes: int = 0
    upload_body: UploadBody | None = None  # set if the app receives the body in pieces
    paused: bool = False  # the app does not keep up
    unacknowledged: int = 0  # received bytes that do not reopen the window yet
    reserved: int = 0  # reserved bytes of the body memory
    request_ended: bool = False
    dispatched: bool = False
    answered: bool = False
    lost: bool = False  # reset by the peer, or finished
    unsent: bytes | mmap = b""
    sent_bytes: int = 0

    def respond(self, response: Response) -> None:
        if self.answered:
            raise RuntimeError("respond was called twice for one request")
        self.answered = True
        self.send(self, response)

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


class Http2(BufferedConnection):
    """Serves many requests at once, each answered when its response is ready."""

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
        self._meter = FrameMeter()
        self._pump_due = False  # the peer has opened its windows
        self._strikes = 0

    def process(self, data: bytes, at: int) -> int:
        if self.is_leaving():
            return len(data)
        max_units = self.service.settings.max_turn_units
        end = self._meter.portion(data, at, max(1, max_units - self._debt))
        self._debt = max(0, self._debt - max_units)
        if end is None:
            self._close_with(ErrorCodes.FRAME_SIZE_ERROR)
            return len(data)
        try:
            events = self._h2.receive_data(data[at:end])
        except ProtocolError:
            # h2 has written a GOAWAY with the error.
            self._write()
            self.linger()
            return len(data)
        # A request that was reset before we read it never reaches the app, which defeats rapid reset.
        reset = {event.stream_id for event in events if isinstance(event, StreamReset)}
        self._corked = True
        for event in events:
            if self.is_leaving():
                break
            if not isinstance(event, RequestReceived) or event.stream_id not in reset:
                self._on_event(event)
        self._corked = False
        if not self.is_leaving():
            if self._pump_due:
                self._pump()
            self._write()
            self._leave_if_done()
        self._pump_due = False
        return end

    def check_timeouts(self) -> None:
        settings, overdue = self.service.settings, self.service.timer.overdue
        self._strikes = max(0, self._strikes - 1)
        if not self._streams and overdue(self._idle_since, settings.idle_timeout_s):
            self._close_with(ErrorCodes.NO_ERROR)
            return
        for stream in tuple(self._streams.values()):
            rate = settings.min_bytes_per_s
            if stream.unsent:
                if overdue(stream.since, settings.write_timeout_s + stream.sent_bytes / rate):
                    self._reset(stream, ErrorCodes.CANCEL)
            elif stream.paused or self._buffer:
                # Time in which we do not read does not count against the peer.
                stream.since = self.service.timer.now
            elif stream.reading and overdue(stream.since, settings.body_timeout_s + stream.body_bytes / rate):
                self._refuse(stream, 408, "the body took too long")
        self._write()

    # Input.

    def _on_event(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._on_request(event)
            case DataReceived():
                self._on_data(event)
            case StreamEnded():
                self._on_end(event.stream_id)
            case StreamReset():
                self._drop(event.stream_id)
                self._strike()
            case WindowUpdated():
                self._pump_due = True
                self._on_idle_frame()
            case PriorityUpdated() | UnknownFrameReceived() | SettingsAcknowledged():
                self._on_idle_frame()
            case RemoteSettingsChanged():
                self._pump_due = True
                self._strike()
            case PingReceived():
                self._strike()
            case ConnectionTerminated():
                self.leave()

    def _on_request(self, event: RequestReceived) -> None:
        self._due_frames += FRAMES_DUE
        stream_id, now, settings = event.stream_id, self.service.timer.now, self.service.settings
        fields = [(bytes(name), bytes(value)) for name, value in event.headers]
        if self._draining:
            with suppress(StreamClosedError):
                self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        self._last_id = stream_id
        try:
            head = read_head(fields, self.peer, settings.max_header_bytes, settings.max_headers)
            head.certificate, head.connection, head.caller = self.certificate, self, self.caller
        except BadHead as bad:
            stream = self._streams[stream_id] = Http2Stream(stream_id, head_of(fields, self.peer), now, self._answer)
            stream.request_ended = event.stream_ended is not None
            self._refuse(stream, bad.status, bad.reason)
            return
        stream = self._streams[stream_id] = Http2Stream(stream_id, head, now, self._answer)
        stream.request_ended = event.stream_ended is not None
        self._start(stream)

    def _start(self, stream: Http2Stream) -> None:
        """The head is complete: the app decides how the body is read."""
        head = stream.head
        upload: Upload | Response | None = None
        try:
            limit = self.service.app.body_limit(head.method, head.path)
            if head.method == "PUT" and limit is not None and length_of(head) <= limit:
                upload = self.service.app.upload(head)
        except Exception as error:  # noqa: BLE001  the peer gets a response in any case
            self._fail(stream, error)
            return
        if limit is None:
            if not stream.request_ended:
                self._dispatch(stream)
        elif length_of(head) > limit:
            self._too_large(stream)
        elif isinstance(upload, Response):
            stream.respond(upload)
        else:
            stream.limit = limit
            if head.headers.get(b"expect", b"").lower() == b"100-continue" and not stream.request_ended:
                with suppress(ProtocolError):
                    self._h2.send_headers(stream.stream_id, [(b":status", b"100")])
            if upload is not None:
                self._begin_upload(stream, upload)

    def _begin_upload(self, stream: Http2Stream, upload: Upload) -> None:
        """Pass the following body to the app in pieces."""

        def answer(response: Response, _early: bool) -> None:
            stream.respond(response)

        def pause(paused: bool) -> None:
            stream.paused = paused
            if not paused and not self.lost:
                self._acknowledge(stream.unacknowledged, stream.stream_id)
                stream.unacknowledged = 0
                if not self._corked:
                    self._write()

        stream.upload_body = UploadBody(upload, answer, pause, self.service.report)
        self._notify_app(stream, stream.upload_body.begin)

    def _on_data(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        size = event.flow_controlled_length or 0
        if stream is not None and stream.paused:
            stream.unacknowledged += size
        else:
            self._acknowledge(size, event.stream_id)
        if not event.data and event.stream_ended is None:
            self._strike()
        if stream is None or not stream.reading:
            return
        data = event.data or b""
        stream.body_bytes += len(data)
        if stream.body_bytes > stream.limit:
            self._too_large(stream)
            return
        if stream.upload_body is not None:
            self._notify_app(stream, stream.upload_body.data, data)
            return
        stream.body += data
        if stream.body_bytes > BodyMemoryLimit.FREE_BYTES:
            try:
                self.service.body_memory.take(len(data))
                stream.reserved += len(data)
            except BadHead as bad:
                self._refuse(stream, bad.status, bad.reason)
                return
        others = [other for other in self._streams.values() if other.body and other is not stream]
        total = stream.body_bytes + sum(other.body_bytes for other in others)
        if others and total > self.service.settings.max_h2_upload_bytes:
            self._reset(stream, ErrorCodes.ENHANCE_YOUR_CALM)

    def _on_end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.request_ended = True
            if stream.upload_body is not None:
                self._notify_app(stream, stream.upload_body.end)
            elif not stream.answered and not stream.dispatched:
                self._dispatch(stream)

    def _dispatch(self, stream: Http2Stream) -> None:
        stream.dispatched = True
        self._unreserve(stream)
        try:
            self.service.app.handle(stream.request(), stream.respond)
        except Exception as error:  # noqa: BLE001  the peer gets a response in any case
            self._fail(stream, error)

    def _too_large(self, stream: Http2Stream) -> None:
        stream.body.clear()
        if stream.upload_body is not None:
            stream.upload_body.abandon()
        try:
            stream.respond(self.service.app.too_large(stream.head))
        except Exception as error:  # noqa: BLE001  as above
            self._fail(stream, error)

    def _fail(self, stream: Http2Stream, error: Exception) -> None:
        self.service.report(f"{stream.head.method} {stream.head.path}", error)
        if not stream.answered:
            self._refuse(stream, 500)

    def _refuse(self, stream: Http2Stream, status: int, reason: str = "") -> None:
        """Send a response of the server itself."""
        if stream.upload_body is not None:
            stream.upload_body.abandon()
        response = self.service.app.refused(status, reason, stream.head)
        if response is None:
            self._reset(stream, ErrorCodes.CANCEL)
        else:
            stream.respond(response)

    def _notify_app(self, stream: Http2Stream, callback: Callable[..., None], *args: bytes) -> None:
        """Call the app about a body that it receives in pieces."""
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001  as above
            self._fail(stream, error)

    def _acknowledge(self, size: int, stream_id: int) -> None:
        if size:
            self._h2.acknowledge_received_data(size, stream_id)

    def _on_idle_frame(self) -> None:
        """Count a frame that requests nothing. As many as our own frames can cause are free."""
        if self._due_frames:
            self._due_frames -= 1
        else:
            self._strike()

    def _strike(self) -> None:
        """Count an action that costs us more than the peer. Long floods of resets, pings or settings are cut off."""
        self._strikes += 1
        if self._strikes > self.service.settings.max_h2_resets:
            self._close_with(ErrorCodes.ENHANCE_YOUR_CALM)

    # Output.

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

    def is_busy(self) -> bool:
        return any(stream.dispatched and not stream.answered for stream in self._streams.values())

    def _answer(self, stream: Http2Stream, response: Response) -> None:
        if self.lost or self.is_leaving() or stream.stream_id not in self._streams:
            return
        stream.since = self.service.timer.now
        self.order = next(self.service.numbers)
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
