"""Parcels: frames in a file, signed by the node that packed them for one other node. No I/O.

    parcel   = "VEIL parcel 1\\n" || sender (32) || recipient (32) || { u32be length || frame }* || signature (64)

A parcel says who it is from and for whom, since nobody is there to ask; what is in it, only its frames say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from veil.errors import Malformed, Unverified
from veil.hashing import derive, u32be
from veil.lanes import bounds
from veil.objects import PUBKEY_BYTES, SIGNATURE_BYTES
from veil.sealing.signing import SigningKey, verify

MAGIC = b"VEIL parcel 1\n"
_CONTEXT = "veil parcel v1"
_LENGTH_BYTES = 4
_LEAST = len(MAGIC) + 2 * PUBKEY_BYTES + SIGNATURE_BYTES
# One more frame than fits may have been pulled.
MAX_FILE_BYTES = _LEAST + bounds.PARCEL_BYTES + bounds.MAX_FRAME_BYTES + 4 * _LENGTH_BYTES


@dataclass(frozen=True, slots=True)
class Parcel:
    """Frames from one node to another."""

    sender: bytes
    recipient: bytes
    frames: tuple[bytes, ...]


def pack(key: SigningKey, recipient: bytes, frames: Sequence[bytes]) -> bytes:
    body = b"".join(u32be(len(frame)) + frame for frame in frames)
    said = MAGIC + key.public_key + recipient + body
    return said + key.sign(derive(_CONTEXT, said))


def unpack(data: bytes, recipient: bytes) -> Parcel:
    """What is in a parcel. Raise `Malformed`, or `Unverified` where it is not for us or not by who it says."""
    if not _LEAST <= len(data) <= MAX_FILE_BYTES or not data.startswith(MAGIC):
        raise Malformed("parcel", "it is none, or not all of one")
    said, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
    at = len(MAGIC)
    sender, named = said[at : at + PUBKEY_BYTES], said[at + PUBKEY_BYTES : at + 2 * PUBKEY_BYTES]
    if named != recipient:
        raise Unverified("parcel", "it is for another node")
    verify(sender, derive(_CONTEXT, said), signature, "parcel")
    return Parcel(sender, named, tuple(_frames(said, at + 2 * PUBKEY_BYTES)))


def _frames(said: bytes, at: int) -> list[bytes]:
    found = []
    while at < len(said):
        start = at + _LENGTH_BYTES
        length = int.from_bytes(said[at:start], "big")
        at = start + length
        if start > len(said) or at > len(said) or not 0 < length <= bounds.MAX_FRAME_BYTES:
            raise Malformed("parcel", "a frame that does not fit")
        found.append(said[start:at])
    return found
