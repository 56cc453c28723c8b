"""TLS to a hub whose certificate is pinned: exactly that certificate, whoever signed it and whatever name it bears."""

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
    """Makes contexts in which only the pinned certificate is valid.

    The certificate is fetched first, compared, and then made the only one that is trusted, so that every later
    connection is checked before anything is said over it.
    """
    where = urlsplit(url)
    if where.scheme != "https" or not where.hostname:
        raise Unverified("hub", f"a certificate is pinned, and {url} is not https")
    der = await _shown(where.hostname, where.port or _DEFAULT_PORT, timeout_s)
    found = sha256(der).digest()
    if found != fingerprint:
        raise Unverified("hub", f"its certificate is {found.hex()[:16]}…, not the pinned {fingerprint.hex()[:16]}…")
    return lambda: _only(der)


def _only(der: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # the pin says more than a name
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not have signed itself
    context.load_verify_locations(cadata=der)
    return context


async def _shown(host: str, port: int, timeout_s: float) -> bytes:
    """The certificate a server shows, believed by nobody yet."""
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=anyone, server_hostname=host)
    except TimeoutError:
        raise Unavailable(
            f"{host}:{port} did not finish connecting and its TLS handshake within {timeout_s:g} s"
        ) from None
    except OSError as error:
        raise Unavailable(f"{host}:{port} did not answer: {str(error) or type(error).__name__}") from None
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(der, bytes)
        return der
    finally:
        writer.transport.abort()
