"""TLS of a server: 1.2 and later, forward secrecy and authenticated encryption only."""

import ssl
from pathlib import Path

ALPN = ("h2", "http/1.1")
# Of TLS 1.2; all suites of TLS 1.3 are of this kind.
_SUITES = "ECDHE+AESGCM:ECDHE+CHACHA20"


def tls_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """A server's context from a PEM chain and its key. A client may show a certificate that `client_ca` vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_SUITES)
    # HTTP/2 forbids both compression and renegotiation (RFC 9113 9.2.1).
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(list(ALPN))
    context.load_cert_chain(cert, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
