"""RECEIPT: the hub's signature over the place of one message in one log. Spec §4.3."""

import struct
from dataclasses import replace
from hashlib import sha256
from typing import Annotated

from veen.core import signing
from veen.core.cbor import Bstr, DeferredFaults, Uint, VersionField, Wire, array
from veen.core.cbor.heads import UINT, small_uint, write_head
from veen.core.errors import Unverified
from veen.core.hashing import HASH_BYTES, U64_MAX, tag_prefix
from veen.core.msg import Msg
from veen.core.signing import SIGNATURE_BYTES, DigestSigner

_SIG_TAIL = 2 + SIGNATURE_BYTES
_SIGNED = tag_prefix("veen/sig") + b"\x86"
# `87 01 58 20`: seven fields, version 1, and the head of the first 32-byte string.
_OPENING, _BSTR32, _BSTR64 = b"\x87\x01\x58\x20", b"\x58\x20", b"\x58\x40"
_PREFIX = struct.Struct(">4s32s")
_HASHES = struct.Struct(">2s32s2s32s")
_TAIL = struct.Struct(">2s64s")


class _KeepsEncoding:
    """A slot for the encoding of an object, which is not one of its fields."""

    __slots__ = ("_encoded",)
    _encoded: bytes


@array("receipt", VersionField())
class Receipt(_KeepsEncoding, Wire):
    """The place of one message, and the root of the tree that ends with it."""

    label: Annotated[bytes, Bstr()]
    stream_seq: Annotated[int, Uint()]
    leaf_hash: Annotated[bytes, Bstr()]
    mmr_root: Annotated[bytes, Bstr()]  # root of the tree that ends with this leaf, so its size is `stream_seq`
    hub_ts: Annotated[int, Uint()]
    hub_sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    @classmethod
    def read(cls, data: bytes, pos: int, late: DeferredFaults) -> tuple["Receipt", int]:
        """Decode by the field table. The usual shape has a faster path; a test compares both."""
        return read_usual(data, pos) or super(Receipt, cls).read(data, pos, late)  # noqa: UP008  slots make a second class

    def flaw(self) -> str | None:
        return None if self.stream_seq else "stream_seq is 0: the first message of a label has 1"

    def encode(self) -> bytes:
        """Encode by the field table. Fields of the right size have a faster path, used for every verified receipt.

        Invalid fields go to the field table, which raises the error. The encoding is kept, also when a receipt is
        decoded: a client needs it to verify the receipt, to store it, and to store the state of its label.
        """
        if hasattr(self, "_encoded"):
            return self._encoded
        hashes = len(self.label) == len(self.leaf_hash) == len(self.mmr_root) == HASH_BYTES
        numbers = type(self.stream_seq) is type(self.hub_ts) is int and self.stream_seq >= 1 and self.hub_ts >= 0
        if not (
            hashes and numbers and len(self.hub_sig) == SIGNATURE_BYTES and self.stream_seq | self.hub_ts <= U64_MAX
        ):
            return super(Receipt, self).encode()  # noqa: UP008  slots make a second class
        encoded, _ = unsigned(self.label, self.stream_seq, self.leaf_hash, self.mmr_root, self.hub_ts)
        encoded += self.hub_sig
        object.__setattr__(self, "_encoded", encoded)
        return encoded

    def signing_digest(self) -> bytes:
        """The first six fields as an array of six."""
        return sha256(_SIGNED + self.encode()[1:-_SIG_TAIL]).digest()

    def verify_signature(self, hub_pk: bytes) -> None:
        signing.verify(hub_pk, self.signing_digest(), self.hub_sig, "receipt")

    def check_binds(self, msg: Msg) -> None:
        """Raise `Unverified` unless this receipt is for that message: invariants I1 and I2."""
        msg.check_ct_hash()
        if msg.label != self.label:
            raise Unverified("receipt", "its label differs from the message's")
        if msg.leaf_hash() != self.leaf_hash:
            raise Unverified("receipt", "its leaf_hash differs from the message's")


def time_fault(before: int, hub_ts: int) -> str | None:
    """The reason why `hub_ts` cannot follow `before` in a label, or None. Equal times are normal."""
    return f"hub_ts goes back from {before} to {hub_ts}" if hub_ts < before else None


def time_clash(one: Receipt, other: Receipt) -> str | None:
    """The reason why one hub cannot have signed the times of both receipts of a label, or None."""
    earlier, later = (one, other) if one.stream_seq <= other.stream_seq else (other, one)
    if earlier.stream_seq == later.stream_seq:
        if earlier.hub_ts == later.hub_ts:
            return None
        return f"entry {later.stream_seq} is signed with two times, hub_ts {earlier.hub_ts} and {later.hub_ts}"
    fault = time_fault(earlier.hub_ts, later.hub_ts)
    return fault and f"{fault}, from entry {earlier.stream_seq} to entry {later.stream_seq}"


def sign(
    key: DigestSigner, *, label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int
) -> Receipt:
    made = Receipt(label, stream_seq, leaf_hash, mmr_root, hub_ts, bytes(SIGNATURE_BYTES))
    return replace(made, hub_sig=key.sign(made.signing_digest()))


def unsigned(label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int) -> tuple[bytes, bytes]:
    """The encoding of a receipt without its signature, and the digest to sign. Hubs call it for every message."""
    seq, ts = write_head(UINT, stream_seq), write_head(UINT, hub_ts)
    fields = b"\x01" + _BSTR32 + label + seq + _BSTR32 + leaf_hash + _BSTR32 + mmr_root + ts
    return b"\x87" + fields + _BSTR64, sha256(_SIGNED + fields).digest()


def sign_encoded(
    key: DigestSigner, label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int
) -> bytes:
    """The encoding of what `sign` returns, without building the object."""
    encoded, digest = unsigned(label, stream_seq, leaf_hash, mmr_root, hub_ts)
    return encoded + key.sign(digest)


def read_usual(data: bytes, pos: int) -> tuple[Receipt, int] | None:
    """A receipt in its usual shape and its end; None if the field table must decode it."""
    start = pos
    if len(data) < start + _PREFIX.size + _HASHES.size + _TAIL.size + 2:
        return None
    opening, label = _PREFIX.unpack_from(data, pos)
    stream_seq, pos = small_uint(data, pos + _PREFIX.size)
    if opening != _OPENING or stream_seq < 1 or len(data) < pos + _HASHES.size:
        return None
    head1, leaf_hash, head2, mmr_root = _HASHES.unpack_from(data, pos)
    hub_ts, pos = small_uint(data, pos + _HASHES.size)
    if head1 != _BSTR32 or head2 != _BSTR32 or hub_ts < 0 or len(data) < pos + _TAIL.size:
        return None
    head3, hub_sig = _TAIL.unpack_from(data, pos)
    if head3 != _BSTR64:
        return None
    found, end = Receipt(label, stream_seq, leaf_hash, mmr_root, hub_ts, hub_sig), pos + _TAIL.size
    object.__setattr__(found, "_encoded", data[start:end])
    return found, end
