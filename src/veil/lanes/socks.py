"""SOCKS5 as a client speaks it, up to the point where the connection is ours. RFC 1928 and 1929; no I/O.

Names are given to the proxy as they are, never looked up here: a question to a name server would tell where we go.
"""

from collections.abc import Generator

from veil.errors import Malformed, Unavailable

_VERSION, _CONNECT, _RESERVED = 5, 1, 0
_NO_AUTH, _PASSWORD, _NONE_FITS = 0, 2, 0xFF
_IPV4, _NAME, _IPV6 = 1, 3, 4
_PASSWORD_VERSION = 1
_REFUSALS = {
    1: "the proxy failed",
    2: "the proxy does not allow it",
    3: "its network is not reachable",
    4: "it is not reachable",
    5: "it refused the connection",
    6: "no answer in time",
    7: "the proxy does not connect",
    8: "the proxy does not know such addresses",
}
_LONGEST = 255

# Yields what to send and how many bytes to read after it, and is sent those bytes.
Steps = Generator[tuple[bytes, int], bytes, None]


def connect(host: str, port: int, isolation: str = "") -> Steps:
    """Ask a proxy for a connection. Streams of different `isolation` share no circuit where the proxy is Tor's."""
    name = host.encode("idna") if not host.isascii() else host.encode()
    if not 0 < len(name) <= _LONGEST:
        raise Malformed("endpoint", f"a host of {len(name)} bytes")
    method = _PASSWORD if isolation else _NO_AUTH
    chosen = yield bytes((_VERSION, 1, method)), 2
    if chosen[0] != _VERSION:
        raise Unavailable("proxy", "it does not speak SOCKS5")
    if chosen[1] != method:
        raise Unavailable("proxy", "it wants to be spoken to in another way")
    if isolation:
        word = isolation.encode()[:_LONGEST]
        sent = bytes((_PASSWORD_VERSION, len(word))) + word + bytes((len(word),)) + word
        accepted = yield sent, 2
        if accepted[1] != 0:
            raise Unavailable("proxy", "it refused our name")
    asked = bytes((_VERSION, _CONNECT, _RESERVED, _NAME, len(name))) + name + port.to_bytes(2, "big")
    version, reply, _, kind = yield asked, 4
    if version != _VERSION:
        raise Unavailable("proxy", "it does not speak SOCKS5")
    if reply != 0:
        raise Unavailable(host, _REFUSALS.get(reply, f"the proxy says {reply}"))
    yield from _bound_address(kind)


def _bound_address(kind: int) -> Steps:
    """Where the proxy speaks from: of no interest, but it stands between us and the peer."""
    if kind == _NAME:
        length = (yield b"", 1)[0]
    elif kind in (_IPV4, _IPV6):
        length = 4 if kind == _IPV4 else 16
    else:
        raise Unavailable("proxy", f"it answered with an address of kind {kind}")
    yield b"", length + 2
