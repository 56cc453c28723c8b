"""An HTTP/2 client that can be slow, greedy or violate the protocol."""

from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)

from tests.http.loopback import Client, House


@dataclass
class Reply:
    """What was received on one stream."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None
    told_to_go_on: bool = False


class H2Client:
    """A client that acknowledges data only if `greedy`."""

    def __init__(self, client: Client, greedy: bool = True) -> None:
        self.client = client
        self.greedy = greedy
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.h2.initiate_connection()
        self.replies: dict[int, Reply] = {}
        self.goaway: ConnectionTerminated | None = None
        self.settings: dict[int, int] = {}
        self.pongs = 0
        self.flush()

    def flush(self) -> None:
        self.client.send(self.h2.data_to_send())

    def ask(self, method: str, path: str, body: bytes | None = None, *fields: tuple[str, str], end: bool = True) -> int:
        """Send a request with one frame of its body; returns its stream."""
        stream_id = self.h2.get_next_available_stream_id()
        self.replies[stream_id] = Reply()
        head = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "hub"), *fields]
        self.h2.send_headers(stream_id, head, end_stream=body is None and end)
        if body is not None:
            self.h2.send_data(stream_id, body, end_stream=end)
        self.flush()
        return stream_id

    async def turn(self) -> bool:
        """Read once; returns False if the server has closed."""
        try:
            data = await self.client.reader.read(1 << 16)
        except ConnectionError:
            return False
        for event in self.h2.receive_data(data) if data else []:
            self.take(event)
        if self.goaway is None:
            self.flush()
        return data != b""

    def take(self, event: Event) -> None:
        match event:
            case ResponseReceived():
                reply = self.replies[event.stream_id]
                reply.headers = dict(event.headers)
                reply.status = int(reply.headers[b":status"])
            case InformationalResponseReceived():
                self.replies[event.stream_id].told_to_go_on = True
            case DataReceived():
                self.replies[event.stream_id].body += event.data or b""
                if self.greedy:
                    self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
            case StreamEnded():
                self.replies[event.stream_id].ended = True
            case StreamReset():
                self.replies[event.stream_id].reset = event.error_code
            case ConnectionTerminated():
                self.goaway = event
            case RemoteSettingsChanged():
                self.settings.update({code: change.new_value for code, change in event.changed_settings.items()})
            case PingAckReceived():
                self.pongs += 1

    async def reply(self, stream_id: int) -> Reply:
        reply = self.replies[stream_id]
        while not reply.ended and reply.reset is None:
            assert await self.turn(), "the server closed"
        return reply

    async def ended(self) -> int | None:
        """Read to the end; returns the code of the GOAWAY."""
        while await self.turn():
            pass
        return None if self.goaway is None else self.goaway.error_code


async def connected(home: House, greedy: bool = True) -> H2Client:
    return H2Client(await home.connect(), greedy)
