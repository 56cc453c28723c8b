"""TLS to a hub whose certificate is pinned: only that certificate is accepted, whatever its issuer and name."""

import asyncio
import ssl
from collections.abc import Callable
from hashlib import sha256
from urllib.parse import urlsplit

from veen.core import Malformed, Unavailable, Unverified

_DEFAULT_PORT = 443


def fingerprint_of(pem: bytes) -> bytes:
    """SHA-256 of the first certificate of a PEM file."""
    try:
        return sha256(ssl.PEM_cert_to_DER_cert(_first(pem.decode("ascii")))).digest()
    except (ValueError, UnicodeDecodeError):
        raise Malformed("certificate", "not in PEM form") from None


def _first(text: str) -> str:
    end = "-----END CERTIFICATE-----"
    return text[: text.index(end) + len(end)]


async def pinned(url: str, fingerprint: bytes, timeout_s: float) -> Callable[[], ssl.SSLContext]:
    """A factory for contexts that accept only the pinned certificate.

    It first fetches the certificate and compares its fingerprint, then makes it the only trusted one. So every later
    connection is authenticated before any data is sent.
    """
    where = urlsplit(url)
    if where.scheme != "https" or not where.hostname:
        raise Unverified("hub", f"a certificate is pinned, but {url} is not an https address")
    der = await _shown(where.hostname, where.port or _DEFAULT_PORT, timeout_s)
    found = sha256(der).digest()
    if found != fingerprint:
        raise Unverified("hub", f"its certificate is {found.hex()[:16]}…, not the pinned {fingerprint.hex()[:16]}…")
    return lambda: _only(der)


def _only(der: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # the pin is stronger than a name
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate need not be self-signed
    context.load_verify_locations(cadata=der)
    return context


async def _shown(host: str, port: int, timeout_s: float) -> bytes:
    """The certificate that a server presents, not verified yet."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=unverified, server_hostname=host)
    except TimeoutError:
        raise Unavailable(
            f"{host}:{port} did not finish the connection and TLS handshake within {timeout_s:g} s"
        ) from None
    except OSError as error:
        raise Unavailable(f"{host}:{port} did not answer: {str(error) or type(error).__name__}") from None
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(der, bytes)
        return der
    finally:
        writer.transport.abort()
