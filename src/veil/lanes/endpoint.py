"""Endpoints as text: `quic://192.0.2.1:4000`, `file:///media/stick`.

| scheme | lane | the rest |
|---|---|---|
| `quic` | QUIC | host:port |
| `wss` | WebSocket over TLS | host:port/path |
| `tls` | TCP with TLS | host:port |
| `tor` | TLS through a SOCKS5 proxy | host:port, usually an onion address |
| `webrtc` | WebRTC | a folder for the exchange of session descriptions; empty if another lane carries them |
| `file` | files | a folder |
"""

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from veil.veil_errors import Malformed

NETWORK_SCHEMES = ("quic", "wss", "tls", "tor")
FOLDER_SCHEMES = ("file", "webrtc")
SCHEMES = NETWORK_SCHEMES + FOLDER_SCHEMES
MAX_ENDPOINT_CHARACTERS = 512
_PATH_SCHEMES = ("wss",)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a node on a lane. `path` is a folder for lanes without host."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an endpoint. Raise `Malformed` if the text is invalid."""
        if len(text) > MAX_ENDPOINT_CHARACTERS or not text.isprintable() or " " in text:
            raise Malformed("endpoint", f"longer than {MAX_ENDPOINT_CHARACTERS} characters, or not printable")
        try:
            parts = urlsplit(text)
            port = parts.port or 0
        except ValueError as error:
            raise Malformed("endpoint", f"{text!r}: {error}") from None
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise Malformed("endpoint", f"{text!r} has a query, fragment or user name")
        if parts.scheme in NETWORK_SCHEMES:
            return cls._network(text, parts.scheme, parts.hostname or "", port, parts.path)
        if parts.scheme in FOLDER_SCHEMES and not parts.netloc and parts.path.startswith("/"):
            return cls(parts.scheme, path=parts.path)
        if text == "webrtc://":
            return cls("webrtc")
        raise Malformed("endpoint", f"{text!r} is not SCHEME://HOST:PORT or file:///FOLDER ({', '.join(SCHEMES)})")

    @classmethod
    def _network(cls, text: str, scheme: str, host: str, port: int, path: str) -> Self:
        if not host:
            raise Malformed("endpoint", f"{text!r} has no host")
        if path not in ("", "/") and scheme not in _PATH_SCHEMES:
            raise Malformed("endpoint", f"{text!r}: {scheme} endpoints have no path")
        return cls(scheme, host, port, "" if path == "/" else path)

    def __str__(self) -> str:
        if self.scheme in FOLDER_SCHEMES:
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def at(self, port: int) -> "Endpoint":
        """This endpoint with the port that the system assigned."""
        return Endpoint(self.scheme, self.host, port, self.path)
