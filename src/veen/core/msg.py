"""MSG: the message that a client signs and a hub orders. Spec §4.1."""

import struct
from hashlib import sha256
from typing import Annotated, Self

from veen.core import signing
from veen.core.cbor import Bstr, Bytes, DeferredFaults, Uint, VersionField, Wire, array, heads
from veen.core.errors import Fault, Malformed, Unverified
from veen.core.hashing import HASH_BYTES, U64_MAX, h, tag_prefix
from veen.core.limits import MAX_MSG_BYTES
from veen.core.signing import SIGNATURE_BYTES, DigestSigner

# `8a 01 58 20`: ten fields, version 1, and the head of the first 32-byte string.
_OPENING = b"\x8a\x01\x58\x20"
_BSTR32 = b"\x58\x20"
_BSTR64 = b"\x58\x40"
_PREFIX = struct.Struct(">4s32s2s32s2s32s")
_SIG_TAIL = len(_BSTR64) + SIGNATURE_BYTES
_SIGNED = tag_prefix("veen/sig") + b"\x89"
_LEAF = tag_prefix("veen/leaf")
# The size of all other fields at their maximum. The rest of the largest message is left for the ciphertext.
_OTHER_FIELDS_BYTES = len(_OPENING) + 5 * 34 - 2 + 2 * 9 + 5 + _SIG_TAIL
_NO_SIG = bytes(SIGNATURE_BYTES)
MAX_CIPHERTEXT_BYTES = MAX_MSG_BYTES - _OTHER_FIELDS_BYTES


@array("msg", VersionField())
class Msg(Wire):
    """One submitted message. The hub can read every field, but not the content of `ciphertext`."""

    profile_id: Annotated[bytes, Bstr()]
    label: Annotated[bytes, Bstr()]
    client_id: Annotated[bytes, Bstr()]
    client_seq: Annotated[int, Uint()]
    prev_ack: Annotated[int, Uint()]
    auth_ref: Annotated[bytes | None, Bstr(nullable=True)]
    ct_hash: Annotated[bytes, Bstr()]
    ciphertext: Annotated[bytes, Bytes(MAX_CIPHERTEXT_BYTES)]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode by the field table. The usual shape has a faster path; a test compares both."""
        if len(data) > MAX_MSG_BYTES:
            raise Malformed("msg", f"{len(data)} bytes, above {MAX_MSG_BYTES}", Fault.SIZE)
        found = _fast_decode(data, 0) if type(data) is bytes else None
        # The field table decodes everything that the fast path does not handle, including all errors.
        return cls(*found[0]) if found and found[1] == len(data) else super(Msg, cls).decode(data)  # noqa: UP008  slots make a second class

    @classmethod
    def read(cls, data: bytes, pos: int, late: DeferredFaults) -> tuple[Self, int]:
        """As `decode`, for messages inside other objects and in sequences."""
        found = _fast_decode(data, pos)
        return (cls(*found[0]), found[1]) if found else super(Msg, cls).read(data, pos, late)  # noqa: UP008  slots make a second class

    def encode(self) -> bytes:
        """Encode by the field table. Fields of the right size have a faster path; the table reports invalid ones."""
        names = len(self.profile_id) == len(self.label) == len(self.client_id) == len(self.ct_hash) == HASH_BYTES
        numbers = type(self.client_seq) is type(self.prev_ack) is int and self.client_seq >= 0 and self.prev_ack >= 0
        auth = self.auth_ref is None or len(self.auth_ref) == HASH_BYTES
        sizes = len(self.ciphertext) <= MAX_CIPHERTEXT_BYTES and len(self.sig) == SIGNATURE_BYTES
        if not (names and numbers and auth and sizes and self.client_seq | self.prev_ack <= U64_MAX):
            return super(Msg, self).encode()  # noqa: UP008  slots make a second class
        return b"".join(
            (
                _OPENING + self.profile_id + _BSTR32 + self.label + _BSTR32 + self.client_id,
                heads.write_head(heads.UINT, self.client_seq) + heads.write_head(heads.UINT, self.prev_ack),
                heads.NULL_BYTE if self.auth_ref is None else _BSTR32 + self.auth_ref,
                _BSTR32 + self.ct_hash + heads.write_head(heads.BSTR, len(self.ciphertext)),
                self.ciphertext,
                _BSTR64 + self.sig,
            )
        )

    def leaf_hash(self) -> bytes:
        return leaf_hash(self.label, self.profile_id, self.ct_hash, self.client_id, self.client_seq)

    def check_ct_hash(self) -> None:
        """Invariant I1."""
        if h(self.ciphertext) != self.ct_hash:
            raise Unverified("msg", "ct_hash does not match the ciphertext")

    def verify_signature(self) -> None:
        signing.verify(self.client_id, signing_digest(self.encode()), self.sig, "msg")


def leaf_hash(label: bytes, profile_id: bytes, ct_hash: bytes, client_id: bytes, client_seq: int) -> bytes:
    """A message's leaf in the tree; also its id, which does not depend on its place. Spec §4.2."""
    return sha256(_LEAF + label + profile_id + ct_hash + client_id + client_seq.to_bytes(8, "big")).digest()


def signing_digest(encoded: bytes) -> bytes:
    """The digest that `sig` signs, from an encoded MSG: its first nine fields as an array of nine."""
    return sha256(_SIGNED + encoded[1:-_SIG_TAIL]).digest()


def sign(
    key: DigestSigner,
    *,
    profile_id: bytes,
    label: bytes,
    client_seq: int,
    prev_ack: int,
    auth_ref: bytes | None,
    ciphertext: bytes,
) -> Msg:
    """The MSG that carries `ciphertext`, signed with the client key."""
    place = Msg(profile_id, label, key.public_key, client_seq, prev_ack, auth_ref, h(ciphertext), ciphertext, _NO_SIG)
    return sign_encoded(key, place)[0]


def sign_encoded(key: DigestSigner, unsigned: Msg) -> tuple[Msg, bytes]:
    """Sign a MSG. Returns its encoding too, because signing computes it anyway."""
    encoded = unsigned.encode()
    if len(encoded) > MAX_MSG_BYTES:
        raise ValueError(f"the message has {len(encoded)} bytes, above {MAX_MSG_BYTES}")
    sig = key.sign(signing_digest(encoded))
    signed: Msg = Msg(*(*Msg.LAYOUT.fields_of(unsigned)[:-1], sig))
    return signed, encoded[:-SIGNATURE_BYTES] + sig


_Fields = tuple[bytes, bytes, bytes, int, int, bytes | None, bytes, bytes, bytes]


def _fast_decode(data: bytes, pos: int) -> tuple[_Fields, int] | None:
    """The fields and the end of a MSG in its usual shape; None if the field table must decode it."""
    if len(data) < pos + _PREFIX.size + 2:
        return None
    opening, profile_id, head1, label, head2, client_id = _PREFIX.unpack_from(data, pos)
    if opening != _OPENING or head1 != _BSTR32 or head2 != _BSTR32:
        return None
    client_seq, pos = heads.small_uint(data, pos + _PREFIX.size)
    prev_ack, pos = heads.small_uint(data, pos)
    auth_ref = None
    if data[pos : pos + 1] == heads.NULL_BYTE:
        pos += 1
    elif data[pos : pos + 2] == _BSTR32:
        auth_ref = data[pos + 2 : pos + 34]
        pos += 34
    else:
        return None
    # Only ciphertexts of 256 bytes to 64 KiB (lengths of two bytes) are decoded here.
    ct_head = pos + 34
    if client_seq < 0 or prev_ack < 0 or data[pos : pos + 2] != _BSTR32 or data[ct_head : ct_head + 1] != b"\x59":
        return None
    start = ct_head + 3
    length = int.from_bytes(data[ct_head + 1 : start], "big")
    end, last = start + length, start + length + _SIG_TAIL
    if length < 256 or len(data) < last or data[end : end + 2] != _BSTR64:
        return None
    ct_hash, ciphertext = data[pos + 2 : ct_head], data[start:end]
    sig = data[end + 2 : last]
    return (profile_id, label, client_id, client_seq, prev_ack, auth_ref, ct_hash, ciphertext, sig), last
