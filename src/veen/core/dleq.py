"""The proof that a shared secret is the one a reader's key has with an `enc`, and not one that was made up.

None of the AEADs commits to a key: whoever seals a message can make it open with two shared secrets, to two contents.
Of one `enc` and one reader key there is one shared secret. The proof shows, without the key, that it is this one: in
X25519 terms, that `shared` is to `enc` what `reader_pk` is to the base point (Chaum and Pedersen's equality of discrete
logarithms, made non-interactive by a hash).

X25519 knows u coordinates alone, so the proof is made on the birationally equivalent curve of Ed25519, in its subgroup
of prime order: P = wB and S = wE, where E is `enc` without its part of small order. A u coordinate stands for a point
and its negative; P is always the one with an even x, as XEdDSA has it, and the proof says which S is.
"""

import os
from dataclasses import dataclass
from hashlib import sha512
from typing import ClassVar

from nacl import bindings
from nacl.bindings import crypto_core_ed25519_is_valid_point as is_valid_point
from nacl.bindings import crypto_scalarmult_ed25519_noclamp as times
from nacl.exceptions import RuntimeError as SodiumError

from veen.core.cbor import Bool, Bstr, Map, Wire
from veen.core.errors import Malformed, Unverified
from veen.core.hashing import tag_prefix
from veen.core.hpke import KEY_BYTES, DhKey

_P = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFED  # of the field
_L = 0x1000000000000000000000000000000014DEF9DEA2F79CD65812631A5CF5D3ED  # the order of the base point
_EIGHTH = pow(8, -1, _L).to_bytes(KEY_BYTES, "little")
_NEGATIVE = 0x80  # in the last byte of an encoded point
_CHALLENGE = tag_prefix("veen/shared-proof")
_NONCE = tag_prefix("veen/shared-proof-nonce")


@dataclass(frozen=True, slots=True)
class SharedProof(Wire):
    """What shows that a shared secret is that of a reader's key and an `enc`, for one message."""

    negative: bool  # of the two points that `shared` stands for, the one with an odd x
    challenge: bytes
    response: bytes

    LAYOUT: ClassVar = Map("shared proof", {1: Bool("negative"), 2: Bstr("challenge"), 3: Bstr("response")})


def prove(key: DhKey, enc: bytes, leaf_hash: bytes) -> SharedProof:
    """The proof for `key.exchange(enc)`, good for the message of that leaf alone.

    Raises `Malformed` for an `enc` that is on no point of the curve, or on one of small order: no X25519 key is.
    """
    base = _without_torsion(enc)
    if base is None:
        raise Malformed("enc", "it is no public key of the curve, so nobody can prove what the message says")
    secret = _secret_scalar(key.secret)
    public = bindings.crypto_scalarmult_ed25519_base_noclamp(secret)
    if public[-1] & _NEGATIVE:
        secret = bindings.crypto_core_ed25519_scalar_negate(secret)
        public = _without_top_bit(public)
    shared = times(secret, base)
    statement = _Statement(leaf_hash, key.public_key, enc, key.exchange(enc), public, base, shared)
    # Fresh randomness against faults, the secret and the statement against bad randomness: a nonce that two challenges
    # share gives the key away.
    nonce = _scalar(_NONCE, secret, os.urandom(KEY_BYTES), statement.encode())
    challenge = statement.challenge(bindings.crypto_scalarmult_ed25519_base_noclamp(nonce), times(nonce, base))
    answer = bindings.crypto_core_ed25519_scalar_mul(challenge, secret)
    response = bindings.crypto_core_ed25519_scalar_add(nonce, answer)
    return SharedProof(bool(shared[-1] & _NEGATIVE), challenge, response)


def verify(proof: SharedProof, leaf_hash: bytes, reader_pk: bytes, enc: bytes, shared: bytes) -> None:
    """Raise `Unverified` unless `shared` is what the holder of `reader_pk` shares with the sender of `enc`."""
    base = _without_torsion(enc)
    if base is None:
        raise Unverified("shared proof", "enc is no public key of the curve")
    public, common = _lifted(reader_pk, False), _lifted(shared, proof.negative)
    # In the subgroup of prime order, or a part of small order could be hidden from the equations.
    if public is None or not is_valid_point(public):
        raise Unverified("shared proof", "reader_pk is no public key of the curve")
    if common is None or not is_valid_point(common):
        raise Unverified("shared proof", "shared is no secret that two keys of the curve have")
    if int.from_bytes(proof.response, "little") >= _L or int.from_bytes(proof.challenge, "little") >= _L:
        raise Unverified("shared proof", "a number in it is not reduced")
    statement = _Statement(leaf_hash, reader_pk, enc, shared, public, base, common)
    try:
        of_public = bindings.crypto_scalarmult_ed25519_base_noclamp(proof.response)
        first = bindings.crypto_core_ed25519_sub(of_public, times(proof.challenge, public))
        second = bindings.crypto_core_ed25519_sub(times(proof.response, base), times(proof.challenge, common))
    except SodiumError:  # a product that is the neutral element
        raise Unverified("shared proof", "a number in it is zero") from None
    if statement.challenge(first, second) != proof.challenge:
        raise Unverified("shared proof", "shared is not the secret of this reader's key and this enc")


@dataclass(frozen=True, slots=True)
class _Statement:
    """What is proved: the bytes that the message is opened with, and the points they stand for."""

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
        """What the prover could not choose: it follows from the statement and both commitments."""
        return _scalar(_CHALLENGE, self.encode(), first, second)


def _scalar(*parts: bytes) -> bytes:
    """A number below the group's order from a tag and data. All of fixed size, so joining them is unambiguous."""
    return bindings.crypto_core_ed25519_scalar_reduce(sha512(b"".join(parts)).digest())


def _secret_scalar(secret: bytes) -> bytes:
    """The number that X25519 multiplies with (RFC 7748 §5), modulo the group's order. In libsodium: it is secret."""
    clamped = bytes((secret[0] & 248,)) + secret[1:-1] + bytes((secret[-1] & 127 | 64,))
    return bindings.crypto_core_ed25519_scalar_reduce(clamped + bytes(KEY_BYTES))


def _without_torsion(enc: bytes) -> bytes | None:
    """The part of `enc` that X25519 sees: its secrets are multiples of 8, which clear the rest.

    None where nothing is left of it, and where it is on the twist. Its top bit and what is above the prime are read as
    X25519 reads them.
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
    """The encoding that a point of this u coordinate has on the other curve, y = (u - 1) / (u + 1).

    None where u is not canonical, or is -1. That there is such a point, only libsodium can tell.
    """
    u = int.from_bytes(u_bytes, "little")
    if u >= _P - 1:
        return None
    y = (u - 1) * pow(u + 1, -1, _P) % _P
    encoded = y.to_bytes(KEY_BYTES, "little")
    return encoded[:-1] + bytes((encoded[-1] | _NEGATIVE,)) if negative else encoded


def _without_top_bit(data: bytes) -> bytes:
    """Of a point: its negative, or itself. Of a u coordinate: what X25519 reads."""
    return data[:-1] + bytes((data[-1] & 0x7F,))
