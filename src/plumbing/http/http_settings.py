"""The limits of the HTTP server."""

from dataclasses import dataclass
from ipaddress import ip_network

from plumbing.http.peer_address import Network

_KIB = 1 << 10
_MIB = 1 << 20
_TICKS_PER_TIMEOUT = 8
_MAX_TICK_S = 1.0
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The defaults suit a public server; tests use tiny values."""

    max_connections: int = 1024  # above it a connection gets a 503 and is closed
    makes_room: bool = False  # instead close the connection that finished no request for longest, if one is idle
    max_connections_per_address: int = 128  # per IPv4 address, or per IPv6 /64 network
    uncounted_networks: tuple[Network, ...] = _LOOPBACK  # not counted per address: many callers share a proxy
    backlog: int = 1024
    max_header_bytes: int = 16 * _KIB
    max_headers: int = 100
    max_bodies_bytes: int = 256 * _MIB  # unfinished bodies of all connections, without the first 64 KiB of each
    max_pipelined: int = 64  # unanswered requests of one HTTP/1.1 connection
    max_turn_units: int = 16  # requests or small frames of one connection in one turn of the loop
    handshake_timeout_s: float = 10.0  # for TLS
    header_timeout_s: float = 10.0  # from the first byte of a head to its end
    body_timeout_s: float = 10.0  # for a body, plus its size at `min_bytes_per_s`
    write_timeout_s: float = 20.0  # for a peer to read what was written, plus likewise
    min_bytes_per_s: int = 8 * _KIB
    idle_timeout_s: float = 75.0
    linger_s: float = 2.0  # how long input is discarded so that an early response reaches the peer
    write_high_bytes: int = 256 * _KIB  # above it reading pauses and a WebSocket's `send` returns False
    max_h2_streams: int = 128
    max_h2_resets: int = 100  # in a burst; the count decreases by one per tick
    h2_window_bytes: int = 1 * _MIB
    max_h2_upload_bytes: int = 64 * _MIB  # unfinished bodies of one connection, if there are several
    max_ws_message_bytes: int = 64 * _KIB

    @property
    def tick_s(self) -> float:
        shortest = min(
            self.header_timeout_s, self.body_timeout_s, self.write_timeout_s, self.idle_timeout_s, self.linger_s
        )
        return min(shortest / _TICKS_PER_TIMEOUT, _MAX_TICK_S)
