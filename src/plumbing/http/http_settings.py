"""The bounds of the HTTP front."""

from dataclasses import dataclass
from ipaddress import ip_network

from plumbing.http.peer_address import Network

_KIB = 1 << 10
_MIB = 1 << 20
_SWEEPS_PER_TIMEOUT = 8
_LONGEST_SWEEP_S = 1.0
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Every bound has a default that suits a public hub; tests make them tiny."""

    max_connections: int = 1024  # beyond it a caller is told 503 and closed
    max_connections_per_address: int = 128  # of one IPv4 address, or of one IPv6 network of 64 bits
    uncounted_networks: tuple[Network, ...] = _LOOPBACK  # proxies: many callers share their address
    backlog: int = 1024
    max_header_bytes: int = 16 * _KIB
    max_headers: int = 100
    max_bodies_bytes: int = 256 * _MIB  # of the unfinished bodies of all connections, beyond the first 64 KiB of each
    max_pipelined: int = 64  # requests of one HTTP/1.1 connection that await their answers
    max_turn_units: int = 16  # requests or small frames of one connection in one turn of the loop
    header_timeout_s: float = 10.0  # from its first byte to the end of a head; TLS has as long to shake hands
    body_timeout_s: float = 10.0  # for a body, beyond what `min_bytes_per_s` grants its size
    write_timeout_s: float = 20.0  # for a peer to take what was written, granted likewise
    min_bytes_per_s: int = 8 * _KIB
    idle_timeout_s: float = 75.0
    linger_s: float = 2.0  # how long input is discarded so that an early refusal reaches the peer
    write_high_bytes: int = 256 * _KIB  # above it nothing is read and a subscriber's `send` is False
    max_h2_streams: int = 128
    max_h2_resets: int = 100  # in a burst; one is forgiven at each sweep
    h2_window_bytes: int = 1 * _MIB
    max_h2_upload_bytes: int = 64 * _MIB  # of the unfinished bodies of one connection, where there are several
    max_ws_message_bytes: int = 64 * _KIB

    @property
    def sweep_s(self) -> float:
        shortest = min(
            self.header_timeout_s, self.body_timeout_s, self.write_timeout_s, self.idle_timeout_s, self.linger_s
        )
        return min(shortest / _SWEEPS_PER_TIMEOUT, _LONGEST_SWEEP_S)
