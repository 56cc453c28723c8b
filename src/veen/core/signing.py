"""Ed25519 signatures. `plumbing.sodium` has the acceptance rule, which every implementation must share."""

from plumbing.sodium import PUBLIC_KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES, DigestSigner, SigningKey, is_valid
from veen.core.errors import Unverified

__all__ = ["DigestSigner", "PUBLIC_KEY_BYTES", "SEED_BYTES", "SIGNATURE_BYTES", "SigningKey", "is_valid", "verify"]


def verify(public_key: bytes, message: bytes, signature: bytes, what: str = "signature") -> None:
    """Raise `Unverified` unless the signature over the message verifies under the key."""
    if not is_valid(public_key, message, signature):
        raise Unverified(what, "the signature does not verify under the key")
