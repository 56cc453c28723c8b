"""Reads the requests of an HTTP/2 connection. RFC 9113; frames, HPACK and stream states are handled by h2."""

from collections.abc import Callable
from contextlib import suppress

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

from plumbing.http.connection import BodyMemoryLimit, Service
from plumbing.http.http2_writer import FRAMES_DUE, FrameMeter, Http2Stream, Http2Writer, head_of, length_of, read_head
from plumbing.http.message import Response, Upload, UploadBody
from plumbing.http.request_head import BadHead


class Http2(Http2Writer):
    """The reading half: many requests at once, each answered when its response is ready."""

    __slots__ = ("_meter", "_pump_due", "_strikes")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
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

    # What arrives.

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
        stream.respond(self.service.app.refused(status, reason, stream.head))

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
