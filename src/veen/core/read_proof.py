"""Proof that a reader may read from a hub that does not answer everyone. 001, COMP0.3.

A reader signs one request: its method, target and body, and the hub that it is for. The proof is valid for a short time
by the clock of the hub. A thief of the proof can only repeat this one request in that time.
"""

from dataclasses import replace
from typing import Annotated, Self, TypeVar

from veen.core import signing
from veen.core.cbor import Bstr, Uint, VersionField, Wire, int_map
from veen.core.errors import Malformed, Unverified
from veen.core.hashing import h, ht, u64be
from veen.core.limits import MAX_READ_PROOF_SEC
from veen.core.signing import SIGNATURE_BYTES, DigestSigner

SCHEME = "veen-read"  # of the HTTP header `Authorization`
W = TypeVar("W", bound=Wire)


def write_header(scheme: str, proof: Wire) -> str:
    """The value of an HTTP header `Authorization`: a scheme, and a signed object in lowercase hex."""
    return f"{scheme} {proof.encode().hex()}"


def read_header(scheme: str, cls: type[W], text: str) -> W:
    """Parse the value of an `Authorization` header."""
    given, _, shown = text.partition(" ")
    if given.lower() != scheme:
        raise Malformed(cls.LAYOUT.name, f"the scheme is not {scheme}")
    try:
        encoded = bytes.fromhex(shown)
    except ValueError:
        encoded = b""
    if not encoded or encoded.hex() != shown:
        raise Malformed(cls.LAYOUT.name, "not lowercase hex")
    return cls.decode(encoded)


@int_map("read proof", VersionField())
class ReadProof(Wire):
    """A reader, or the subject of the capability `auth_ref`, makes one request not later than `not_after`."""

    reader_pk: Annotated[bytes, Bstr()]
    not_after: Annotated[int, Uint()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    auth_ref: Annotated[bytes | None, Bstr(optional=True)] = None

    def verify(self, hub_id: bytes, method: str, target: str, body: bytes) -> None:
        """Raise `Unverified` unless the reader signed this request for this hub."""
        signing.verify(self.reader_pk, self.digest(hub_id, method, target, body), self.sig, "read proof")

    def check_time(self, hub_ts: int) -> None:
        """Raise `Unverified` unless the proof is valid now, and for at most `MAX_READ_PROOF_SEC`."""
        if not hub_ts <= self.not_after <= hub_ts + MAX_READ_PROOF_SEC:
            raise Unverified("read proof", f"it ends at {self.not_after}, and the time of the hub is {hub_ts}")

    def header(self) -> str:
        """The value of the `Authorization` header."""
        return write_header(SCHEME, self)

    @classmethod
    def from_header(cls, text: str) -> Self:
        return read_header(SCHEME, cls, text)

    def digest(self, hub_id: bytes, method: str, target: str, body: bytes) -> bytes:
        request = h(f"{method} {target}".encode()) + h(body)
        return ht("veen/read", hub_id + self.reader_pk + u64be(self.not_after) + (self.auth_ref or b"") + request)


def sign_read(
    key: DigestSigner,
    *,
    hub_id: bytes,
    method: str,
    target: str,
    body: bytes = b"",
    not_after: int,
    auth_ref: bytes | None = None,
) -> ReadProof:
    """Sign one request. `target` is path and query; `key` is a listed reader, or the subject of `auth_ref`."""
    unsigned = ReadProof(key.public_key, not_after, bytes(SIGNATURE_BYTES), auth_ref)
    return replace(unsigned, sig=key.sign(unsigned.digest(hub_id, method, target, body)))
