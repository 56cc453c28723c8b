"""Proof that a shared secret is the one that a reader key and an `enc` have in common.

The AEADs do not commit to a key: a sender can craft a message that opens with two shared secrets, to two contents. But
an `enc` and a reader key have only one shared secret. The proof shows, without revealing the key, that it is the given
one: in X25519 terms, `shared` is to `enc` what `reader_pk` is to the base point (Chaum and Pedersen's equality of
discrete logarithms, made non-interactive with a hash).

X25519 uses u coordinates only, so the proof works on the birationally equivalent curve of Ed25519, in its subgroup of
prime order: P = wB and S = wE, where E is `enc` without its component of small order. A u coordinate represents a point
and its negative. P is always the one with an even x, as in XEdDSA; the proof says which one S is.
"""

import os
from dataclasses import dataclass
from hashlib import sha512
from typing import Annotated

from nacl import bindings
from nacl.bindings import crypto_core_ed25519_is_valid_point as is_valid_point
from nacl.bindings import crypto_scalarmult_ed25519_noclamp as times
from nacl.exceptions import RuntimeError as SodiumError

from veen.core.cbor import Bool, Bstr, Wire, int_map
from veen.core.errors import Malformed, Unverified
from veen.core.hashing import tag_prefix
from veen.core.hpke import KEY_BYTES, DhKey

_P = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFED  # prime of the field
_L = 0x1000000000000000000000000000000014DEF9DEA2F79CD65812631A5CF5D3ED  # order of the base point
_EIGHTH = pow(8, -1, _L).to_bytes(KEY_BYTES, "little")
_NEGATIVE = 0x80  # sign bit in the last byte of an encoded point
_CHALLENGE = tag_prefix("veen/shared-proof")
_NONCE = tag_prefix("veen/shared-proof-nonce")


@int_map("shared proof")
class SharedProof(Wire):
    """Proof that a shared secret is that of a reader key and an `enc`, for one message."""

    negative: Annotated[bool, Bool()]  # S is the point with an odd x
    challenge: Annotated[bytes, Bstr()]
    response: Annotated[bytes, Bstr()]


def prove(key: DhKey, enc: bytes, leaf_hash: bytes) -> SharedProof:
    """Prove that `key.exchange(enc)` is the shared secret. The proof is valid only for the message with this leaf.

    Raises `Malformed` if `enc` is not a point of the curve or has small order. No X25519 public key is like that.
    """
    base = _without_torsion(enc)
    if base is None:
        raise Malformed("enc", "not a public key of the curve, so the content of the message cannot be proved")
    secret = _secret_scalar(key.secret)
    public = bindings.crypto_scalarmult_ed25519_base_noclamp(secret)
    if public[-1] & _NEGATIVE:
        secret = bindings.crypto_core_ed25519_scalar_negate(secret)
        public = _without_top_bit(public)
    shared = times(secret, base)
    statement = _Statement(leaf_hash, key.public_key, enc, key.exchange(enc), public, base, shared)
    # Fresh randomness protects against fault attacks; secret and statement protect against bad randomness. Two
    # challenges with the same nonce would reveal the key.
    nonce = _scalar(_NONCE, secret, os.urandom(KEY_BYTES), statement.encode())
    challenge = statement.challenge(bindings.crypto_scalarmult_ed25519_base_noclamp(nonce), times(nonce, base))
    answer = bindings.crypto_core_ed25519_scalar_mul(challenge, secret)
    response = bindings.crypto_core_ed25519_scalar_add(nonce, answer)
    return SharedProof(bool(shared[-1] & _NEGATIVE), challenge, response)


def verify(proof: SharedProof, leaf_hash: bytes, reader_pk: bytes, enc: bytes, shared: bytes) -> None:
    """Raise `Unverified` unless `shared` is the secret that `reader_pk` and `enc` have in common."""
    base = _without_torsion(enc)
    if base is None:
        raise Unverified("shared proof", "enc is not a public key of the curve")
    public, common = _lifted(reader_pk, False), _lifted(shared, proof.negative)
    # Require the subgroup of prime order: the equations would not detect a component of small order.
    if public is None or not is_valid_point(public):
        raise Unverified("shared proof", "reader_pk is not a public key of the curve")
    if common is None or not is_valid_point(common):
        raise Unverified("shared proof", "shared is not a shared secret of two keys of the curve")
    if int.from_bytes(proof.response, "little") >= _L or int.from_bytes(proof.challenge, "little") >= _L:
        raise Unverified("shared proof", "a scalar is not reduced modulo L")
    statement = _Statement(leaf_hash, reader_pk, enc, shared, public, base, common)
    try:
        of_public = bindings.crypto_scalarmult_ed25519_base_noclamp(proof.response)
        first = bindings.crypto_core_ed25519_sub(of_public, times(proof.challenge, public))
        second = bindings.crypto_core_ed25519_sub(times(proof.response, base), times(proof.challenge, common))
    except SodiumError:  # a product is the neutral element
        raise Unverified("shared proof", "a scalar is zero") from None
    if statement.challenge(first, second) != proof.challenge:
        raise Unverified("shared proof", "shared is not the secret of this reader key and this enc")


@dataclass(frozen=True, slots=True)
class _Statement:
    """The statement to prove: the bytes that open the message, and the points they represent."""

    leaf_hash: bytes
    reader_pk: bytes
    enc: bytes
    shared: bytes
    public_point: bytes
    enc_point: bytes
    shared_point: bytes

    def encode(self) -> bytes:
        names = self.leaf_hash + self.reader_pk + self.enc + self.shared
        return names + self.public_point + self.enc_point + self.shared_point

    def challenge(self, first: bytes, second: bytes) -> bytes:
        """The Fiat-Shamir challenge: the hash of the statement and both commitments."""
        return _scalar(_CHALLENGE, self.encode(), first, second)


def _scalar(*parts: bytes) -> bytes:
    """A scalar modulo L from a tag and data. All parts have a fixed size, so joining them is unambiguous."""
    return bindings.crypto_core_ed25519_scalar_reduce(sha512(b"".join(parts)).digest())


def _secret_scalar(secret: bytes) -> bytes:
    """The scalar that X25519 multiplies with (RFC 7748 §5), modulo L. libsodium reduces it in constant time."""
    clamped = bytes((secret[0] & 248,)) + secret[1:-1] + bytes((secret[-1] & 127 | 64,))
    return bindings.crypto_core_ed25519_scalar_reduce(clamped + bytes(KEY_BYTES))


def _without_torsion(enc: bytes) -> bytes | None:
    """The component of `enc` in the subgroup of prime order. X25519 scalars are multiples of 8 and clear the rest.

    None if that component is the neutral element or `enc` is on the twist. Reads the top bit and values above the prime
    as X25519 does.
    """
    if len(enc) != KEY_BYTES:
        return None
    u = int.from_bytes(_without_top_bit(enc), "little") % _P
    point = _lifted(u.to_bytes(KEY_BYTES, "little"), False)
    if point is None:
        return None
    try:
        for _ in range(3):
            point = bindings.crypto_core_ed25519_add(point, point)
        return times(_EIGHTH, point)
    except SodiumError:
        return None


def _lifted(u_bytes: bytes, negative: bool) -> bytes | None:
    """The Ed25519 encoding of a point with this u coordinate: y = (u - 1) / (u + 1).

    None if u is not canonical or is -1. Does not check that the point exists; libsodium does.
    """
    u = int.from_bytes(u_bytes, "little")
    if u >= _P - 1:
        return None
    y = (u - 1) * pow(u + 1, -1, _P) % _P
    encoded = y.to_bytes(KEY_BYTES, "little")
    return encoded[:-1] + bytes((encoded[-1] | _NEGATIVE,)) if negative else encoded


def _without_top_bit(data: bytes) -> bytes:
    """Clear the top bit: the sign of an encoded point, or the bit of a u coordinate that X25519 ignores."""
    return data[:-1] + bytes((data[-1] & 0x7F,))
