"""Prekeys: X25519 keys that peers seal to, signed by the long-term key and short-lived. Spec 001 §3, KEX0.2.

Prekey number n goes with the client_id of generation n and is replaced with it. Its secret half is derived, so an old
one can always be made again; the expiry says until when it may be sealed to.
"""

from dataclasses import dataclass
from typing import ClassVar

from veen.client.client_identity import ClientIdentity
from veen.core import DhKey, Unverified, signing
from veen.core.cbor import Array, Bstr, Uint, VersionField, Wire
from veen.core.hashing import ht
from veen.core.signing import SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class Prekey(Wire):
    """One of them, as its owner publishes it."""

    number: int
    public_key: bytes
    expires_at: int  # the last second in which anyone may seal to it
    sig: bytes

    LAYOUT: ClassVar = Array(
        "prekey",
        VersionField(),
        Uint("number"),
        Bstr("public_key"),
        Uint("expires_at"),
        Bstr("sig", SIGNATURE_BYTES),
    )

    def verify(self, id_sign_pk: bytes) -> None:
        """Raise unless the owner's long-term key signed it. Says nothing about expiry."""
        digest = _digest(self.number, self.public_key, self.expires_at)
        signing.verify(id_sign_pk, digest, self.sig, f"prekey {self.number}")

    def check_seals(self, now: int) -> None:
        """Raise where it has expired: nothing new is sealed to it."""
        if now > self.expires_at:
            raise Unverified(f"prekey {self.number}", f"expired at {self.expires_at}: ask its owner for a new card")

    def check_opens(self, hub_ts: int) -> None:
        """Raise where a message logged at `hub_ts` may not have been sealed to it: it opens older messages only."""
        if hub_ts > self.expires_at:
            raise Unverified(
                f"prekey {self.number}", f"a message of {hub_ts} was sealed to it, which expired at {self.expires_at}"
            )


def make(identity: ClientIdentity, number: int, expires_at: int) -> Prekey:
    public_key = identity.prekey(number).public_key
    return Prekey(number, public_key, expires_at, identity.id_sign.sign(_digest(number, public_key, expires_at)))


def opener(identity: ClientIdentity, prekey: Prekey, hub_ts: int) -> DhKey:
    """The secret half of one of our own prekeys, for a message that the hub logged at `hub_ts`."""
    prekey.verify(identity.id_sign.public_key)
    prekey.check_opens(hub_ts)
    return identity.prekey(prekey.number)


def _digest(number: int, public_key: bytes, expires_at: int) -> bytes:
    return ht("veen/prekey", _SIGNED.write([number, public_key, expires_at]))


_SIGNED = Array("prekey without sig", *Prekey.LAYOUT.kinds[:-1])
