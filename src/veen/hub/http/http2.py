"""One HTTP/2 connection. RFC 9113; frames, HPACK and the state of streams are h2's."""

import asyncio
import struct
from contextlib import suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings

from veen.hub.http.connection import Connection, Service
from veen.hub.http.frames import MAX_FRAME_BYTES, FrameMeter
from veen.hub.http.head import BadHead
from veen.hub.http.message import NO_CONTENT, Response, refusal
from veen.hub.http.streams import Stream, answer_fields, head_of, read_head

_DEFAULT_WINDOW = 65535
# Length 8, type 7, no flags, stream 0; then the last stream and NO_ERROR.
_GOAWAY = struct.Struct(">3sBBIII")


class Http2(Connection):
    """Many requests at once, each answered when it is ready."""

    __slots__ = ("_corked", "_draining", "_h2", "_idle_since", "_last_id", "_meter", "_streams", "_strikes")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._streams: dict[int, Stream] = {}
        self._meter = FrameMeter()
        self._strikes = 0
        self._last_id = 0
        self._draining = False
        self._corked = False
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

    def data_received(self, data: bytes) -> None:
        if self.is_leaving():
            return
        if self._meter.finds_overlong(data):
            self._give_up(ErrorCodes.FRAME_SIZE_ERROR)
            return
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            # h2 has written the GOAWAY that says why.
            self._write()
            self.linger()
            return
        # A request that was reset before we looked never reaches the app, which is all that rapid reset is after.
        reset = {event.stream_id for event in events if isinstance(event, StreamReset)}
        self._corked = True
        for event in events:
            if self.is_leaving():
                break
            if not isinstance(event, RequestReceived) or event.stream_id not in reset:
                self._on_event(event)
        self._corked = False
        if not self.is_leaving():
            self._write()
            self._leave_if_done()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._streams.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.is_leaving():
            self.transport.resume_reading()
            self._pump()

    def drain(self) -> None:
        self._draining = True
        # Not h2's own: after it, h2 would not let the answers go that are still to come.
        self._write()
        self.transport.write(_GOAWAY.pack(b"\0\0\x08", 7, 0, 0, self._last_id, ErrorCodes.NO_ERROR))
        if not self._streams:
            self.leave()

    def look(self) -> None:
        settings, overdue = self.service.settings, self.service.sweep.overdue
        self._strikes = max(0, self._strikes - 1)
        if not self._streams and overdue(self._idle_since, settings.idle_timeout_s):
            self._give_up(ErrorCodes.NO_ERROR)
            return
        for stream in tuple(self._streams.values()):
            rate = settings.min_bytes_per_s
            if stream.unsent:
                if overdue(stream.since, settings.write_timeout_s + stream.sent_bytes / rate):
                    self._reset(stream, ErrorCodes.CANCEL)
            elif stream.reading and overdue(stream.since, settings.body_timeout_s + stream.body_bytes / rate):
                stream.respond(refusal(408, "the body took too long"))
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
                self._pump()
            case RemoteSettingsChanged():
                self._strike()
                self._pump()
            case PingReceived():
                self._strike()
            case ConnectionTerminated():
                self.leave()

    def _on_request(self, event: RequestReceived) -> None:
        stream_id, now, settings = event.stream_id, self.service.sweep.now, self.service.settings
        fields = [(bytes(name), bytes(value)) for name, value in event.headers]
        if self._draining:
            with suppress(StreamClosedError):
                self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        self._last_id = stream_id
        try:
            head = read_head(fields, self.peer, settings.max_header_bytes, settings.max_headers)
        except BadHead as bad:
            stream = self._streams[stream_id] = Stream(stream_id, head_of(fields, self.peer), now, self._answer)
            stream.request_ended = event.stream_ended is not None
            stream.respond(refusal(bad.status, bad.reason))
            return
        stream = self._streams[stream_id] = Stream(stream_id, head, now, self._answer)
        stream.request_ended = event.stream_ended is not None
        self._start(stream)

    def _start(self, stream: Stream) -> None:
        """The head is complete: whether the body is read is the app's to say."""
        head = stream.head
        try:
            limit = self.service.app.body_limit(head.method, head.path)
        except Exception as error:  # noqa: BLE001  whatever the app did, its peer gets an answer
            self._fail(stream, error)
            return
        length = head.headers.get(b"content-length", b"0")
        if limit is None:
            if not stream.request_ended:
                self._hand_over(stream)
        elif length.isdigit() and int(length) > limit:
            self._too_large(stream)
        else:
            stream.limit = limit
            if head.headers.get(b"expect", b"").lower() == b"100-continue" and not stream.request_ended:
                with suppress(ProtocolError):
                    self._h2.send_headers(stream.stream_id, [(b":status", b"100")])

    def _on_data(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        size = event.flow_controlled_length or 0
        if size:
            self._h2.acknowledge_received_data(size, event.stream_id)
        if not event.data and event.stream_ended is None:
            self._strike()
        if stream is None or not stream.reading:
            return
        stream.pieces.append(event.data or b"")
        stream.body_bytes += len(event.data or b"")
        if stream.body_bytes > stream.limit:
            self._too_large(stream)
            return
        others = [other for other in self._streams.values() if other.reading and other is not stream]
        total = stream.body_bytes + sum(other.body_bytes for other in others)
        if others and total > self.service.settings.max_h2_upload_bytes:
            self._reset(stream, ErrorCodes.ENHANCE_YOUR_CALM)

    def _on_end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.request_ended = True
            if not stream.answered and not stream.handed_over:
                self._hand_over(stream)

    def _hand_over(self, stream: Stream) -> None:
        stream.handed_over = True
        try:
            self.service.app.handle(stream.request(), stream.respond)
        except Exception as error:  # noqa: BLE001  whatever the app did, its peer gets an answer
            self._fail(stream, error)

    def _too_large(self, stream: Stream) -> None:
        stream.pieces.clear()
        try:
            stream.respond(self.service.app.too_large(stream.head))
        except Exception as error:  # noqa: BLE001  as above
            self._fail(stream, error)

    def _fail(self, stream: Stream, error: Exception) -> None:
        self.service.report(f"{stream.head.method} {stream.head.path}", error)
        if not stream.answered:
            stream.respond(refusal(500))

    def _strike(self) -> None:
        """What costs us more than the peer is allowed in bursts only: rapid reset, floods of pings or settings."""
        self._strikes += 1
        if self._strikes > self.service.settings.max_h2_resets:
            self._give_up(ErrorCodes.ENHANCE_YOUR_CALM)

    # What leaves.

    def _answer(self, stream: Stream, response: Response) -> None:
        if self.lost or self.is_leaving() or stream.stream_id not in self._streams:
            return
        stream.since = self.service.sweep.now
        bodiless = stream.head.method == "HEAD" or response.status in NO_CONTENT or not response.body
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

    def _send_frame(self, stream: Stream) -> bool:
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
        if end < len(body):
            # Now, so that a full buffer is noticed before the next frame.
            self._write()
            return True
        self._finish(stream)
        return False

    def _finish(self, stream: Stream) -> None:
        if not stream.request_ended:
            # The rest of the body is not wanted; NO_ERROR says that the answer stands (RFC 9113 8.1).
            with suppress(StreamClosedError):
                self._h2.reset_stream(stream.stream_id, ErrorCodes.NO_ERROR)
        self._drop(stream.stream_id)

    def _reset(self, stream: Stream, code: ErrorCodes) -> None:
        with suppress(StreamClosedError):
            self._h2.reset_stream(stream.stream_id, code)
        self._drop(stream.stream_id)

    def _drop(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)
        self._idle_since = self.service.sweep.now

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
