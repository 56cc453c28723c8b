"""Prekeys: short-lived X25519 keys that peers seal to, signed by the long-term key. Spec 001 §3, KEX0.2.

Prekey number n belongs to the client_id of generation n and is replaced with it. Its secret half is derived from the
identity, so it can always be computed again; the expiry limits sealing only.
"""

from typing import Annotated

from veen.client.client_identity import ClientIdentity
from veen.core import signing
from veen.core.cbor import Array, Bstr, Uint, VersionField, Wire, array
from veen.core.hashing import ht
from veen.core.signing import SIGNATURE_BYTES


@array("prekey", VersionField())
class Prekey(Wire):
    """A prekey as its owner publishes it."""

    number: Annotated[int, Uint()]
    public_key: Annotated[bytes, Bstr()]
    expires_at: Annotated[int, Uint()]  # the last second in which peers may seal to it
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def verify(self, id_sign_pk: bytes) -> None:
        """Raise `Unverified` unless the owner's long-term key signed it. Does not check the expiry."""
        digest = _digest(self.number, self.public_key, self.expires_at)
        signing.verify(id_sign_pk, digest, self.sig, f"prekey {self.number}")


def make(identity: ClientIdentity, number: int, expires_at: int) -> Prekey:
    public_key = identity.prekey(number).public_key
    return Prekey(number, public_key, expires_at, identity.id_sign.sign(_digest(number, public_key, expires_at)))


def _digest(number: int, public_key: bytes, expires_at: int) -> bytes:
    return ht("veen/prekey", _SIGNED.write([number, public_key, expires_at]))


_SIGNED = Array("prekey without sig", *Prekey.LAYOUT.kinds[:-1])
