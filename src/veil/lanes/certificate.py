"""The self-signed certificate of the lanes of a node. Peers identify it by its hash (pin).

A dialler may know the pin from a contact. In any case the handshake in `session` makes the node sign the pin, which
detects a man in the middle with another certificate.
"""

import hashlib
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from plumbing.durable import replace_file
from veil.lanes.lane import Endpoint
from veil.veil_errors import Malformed, Unverified

ALPN = "veil/1"
PIN_BYTES = 32
# All certificates have the same name, so they reveal nothing about the node.
_NAME = "veil.invalid"
_LIFETIME = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A PEM file with certificate and key."""

    path: Path
    pin: bytes

    @classmethod
    def load_or_make(cls, path: Path) -> Self:
        """Load the certificate, or create it if the file is missing."""
        if not path.exists():
            replace_file(path, _make())
        try:
            found = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError:
            raise Malformed("certificate", f"{path} does not contain a PEM certificate") from None
        return cls(path, pin_of(found.public_bytes(serialization.Encoding.DER)))

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.path)
        return context


class ListeningLane:
    """A lane whose links are bound to a certificate pin. It listens on `listen`, if set.

    `announce` replaces the endpoint for contacts, for example behind a forwarder.
    """

    shares_addresses = False
    pinned = True

    def __init__(
        self, certificate: Certificate, listen: Endpoint | None = None, announce: tuple[Endpoint, ...] = ()
    ) -> None:
        self._certificate = certificate
        self._listen = listen
        self._announce = announce
        self._port: int | None = None  # while it listens

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        if self._announce or self._port is None or self._listen is None:
            return self._announce
        return (self._listen.at(self._port),)


def client_context() -> ssl.SSLContext:
    """A TLS context that accepts any certificate. `check_pin` and the handshake verify it afterwards."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def pin_of(der: bytes) -> bytes:
    return hashlib.sha256(der).digest()


def check_pin(found: bytes, wanted: bytes | None) -> None:
    """Raise `Unverified` if the certificate is not the one in the contact."""
    if wanted is not None and found != wanted:
        raise Unverified("certificate", "the peer presented another certificate than its contact names")


def _make() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + _LIFETIME)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM) + secret
