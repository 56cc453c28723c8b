"""Sealing a payload to a stream's reader key, and opening it. Spec §4.2.

    enc (32) || hdr_len (u32be) || body_len (u32be) || hpke_ct_hdr || aead_ct_body || zeros up to pad_block

HPKE seals the header. The body is sealed with an AEAD key that the same HPKE context exports. `aad` binds both to the
message's place.
"""

import struct
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Annotated, Self

from veen.core import hpke
from veen.core.cbor import Bstr, Uint, Wire, int_map
from veen.core.errors import Fault, Malformed, Unverified
from veen.core.hashing import HASH_BYTES, U64_MAX, tag_prefix
from veen.core.hpke import ENC_BYTES, XCHACHA_NONCE_BYTES, DhKey, HpkeContext
from veen.core.limits import MAX_BODY_BYTES
from veen.core.msg import Msg
from veen.core.naming import ZERO_HASH
from veen.core.profile import Limits


@int_map("payload_hdr")
class PayloadHdr(Wire):
    """The encrypted header. The hub cannot read it."""

    schema: Annotated[bytes, Bstr()]
    parent_id: Annotated[bytes | None, Bstr(optional=True)] = None
    att_root: Annotated[bytes | None, Bstr(optional=True)] = None
    cap_ref: Annotated[bytes | None, Bstr(optional=True)] = None
    expires_at: Annotated[int | None, Uint(optional=True)] = None

    def check_cap_ref(self, auth_ref: bytes | None) -> None:
        """Raise `Unverified` if the header names another capability than the message was admitted with. Spec §6."""
        if self.cap_ref is not None and not compare_digest(self.cap_ref, auth_ref or b""):
            raise Unverified("payload_hdr", "cap_ref is not the message's auth_ref")


_LENGTHS = struct.Struct(">II")
_LENGTHS_END = ENC_BYTES + _LENGTHS.size
_AAD = tag_prefix("veen/aad")
_NONCE = tag_prefix("veen/nonce")
_BODY_KEY = b"veen/body-k"
_U64_TWICE = struct.Struct(">QQ").pack
_SIZES = (HASH_BYTES,) * 4


@dataclass(frozen=True, slots=True)
class Place:
    """The fields of a MSG that bind its ciphertext: with other values it does not open."""

    profile_id: bytes
    label: bytes
    client_id: bytes
    client_seq: int
    prev_ack: int
    auth_ref: bytes | None = None

    @classmethod
    def of(cls, message: Msg) -> Self:
        """The place of a message."""
        return cls(
            message.profile_id,
            message.label,
            message.client_id,
            message.client_seq,
            message.prev_ack,
            message.auth_ref,
        )

    def aad(self) -> bytes:
        numbers = _U64_TWICE(self.client_seq, self.prev_ack)
        bound = self.profile_id + self.label + self.client_id + numbers + (self.auth_ref or ZERO_HASH)
        return sha256(_AAD + bound).digest()

    def nonce(self) -> bytes:
        """Unique for a client that never repeats a (prev_ack, client_seq) pair."""
        ack, seq = self.prev_ack.to_bytes(8, "big"), self.client_seq.to_bytes(8, "big")
        return sha256(_NONCE + self.label + ack + self.client_id + seq).digest()[:XCHACHA_NONCE_BYTES]

    def check(self) -> None:
        """Raise `ValueError` if no MSG can have this place."""
        sizes = len(self.profile_id), len(self.label), len(self.client_id), len(self.auth_ref or ZERO_HASH)
        if sizes != _SIZES:
            raise ValueError(f"profile_id, label, client_id and auth_ref must have {HASH_BYTES} bytes")
        if not (0 <= self.client_seq <= U64_MAX and 0 <= self.prev_ack <= U64_MAX):
            raise ValueError("client_seq and prev_ack must be unsigned 64-bit integers")


@dataclass(frozen=True, slots=True)
class Opened:
    """An authenticated payload, with the context that derives the keys of its attachments."""

    header: PayloadHdr
    body: bytes = field(repr=False)
    place: Place
    context: HpkeContext = field(repr=False)
    enc: bytes


class Sealer:
    """Seals one message. The context exists before the header, so attachments can be sealed first."""

    __slots__ = ("_attached", "_sealed", "context", "enc", "place")

    def __init__(self, reader_pk: bytes, place: Place, ephemeral: DhKey | None = None) -> None:
        """`ephemeral` is for test vectors: it must not be used for two messages, because their keys would be equal."""
        place.check()
        self.enc, self.context = hpke.setup_sender(reader_pk, ephemeral=ephemeral)
        self.place = place
        self._attached = 0
        self._sealed = False

    def next_attachment(self) -> int:
        """The index of the next attachment. Index and context determine key and nonce, so each is used once."""
        self._check_unsealed()
        self._attached += 1
        return self._attached - 1

    def seal(self, header: PayloadHdr, body: bytes, pad_block: int) -> bytes:
        """Seal the message. Allowed once: a second ciphertext would use the same body key and nonce."""
        self._check_unsealed()
        place = self.place
        if header.cap_ref is not None and header.cap_ref != place.auth_ref:
            raise ValueError("cap_ref must be the message's auth_ref")
        if len(body) + hpke.TAG_BYTES > MAX_BODY_BYTES:
            raise ValueError(f"the body has {len(body)} bytes, above {MAX_BODY_BYTES - hpke.TAG_BYTES}")
        self._sealed = True
        aad = place.aad()
        sealed_hdr = self.context.seal(aad, header.encode())
        body_key = self.context.export(_BODY_KEY, hpke.KEY_BYTES)
        sealed_body = hpke.xchacha_seal(body_key, place.nonce(), aad, body)
        lengths = _LENGTHS.pack(len(sealed_hdr), len(sealed_body))
        ciphertext = self.enc + lengths + sealed_hdr + sealed_body
        padding = -len(ciphertext) % pad_block if pad_block else 0
        return ciphertext + bytes(padding)

    def _check_unsealed(self) -> None:
        if self._sealed:
            raise ValueError("this message is already sealed")


def seal(reader_pk: bytes, place: Place, header: PayloadHdr, body: bytes, pad_block: int) -> bytes:
    """Seal a payload without attachments to `reader_pk`."""
    return Sealer(reader_pk, place).seal(header, body, pad_block)


def check_sizes(ciphertext: bytes, limits: Limits) -> tuple[int, int]:
    """Return `(hdr_len, body_len)`, or raise `Malformed` if they exceed the limits or the ciphertext.

    These are all checks that need no key: hubs run them at admission, readers before decryption. Spec §14.2.
    """
    if len(ciphertext) > limits.max_msg_bytes:
        raise _wrong_size(f"{len(ciphertext)} bytes, above {limits.max_msg_bytes}")
    if len(ciphertext) < _LENGTHS_END:
        raise _wrong_size(f"{len(ciphertext)} bytes, too short for the length fields")
    hdr_len, body_len = _LENGTHS.unpack_from(ciphertext, ENC_BYTES)
    if hdr_len > limits.max_hdr_bytes:
        raise _wrong_size(f"hdr_len {hdr_len} is above {limits.max_hdr_bytes}")
    if body_len > limits.max_body_bytes:
        raise _wrong_size(f"body_len {body_len} is above {limits.max_body_bytes}")
    if _LENGTHS_END + hdr_len + body_len > len(ciphertext):
        raise _wrong_size(f"{len(ciphertext)} bytes, less than hdr_len and body_len claim")
    return hdr_len, body_len


def open_sealed(key: DhKey, place: Place, ciphertext: bytes, limits: Limits) -> Opened:
    """Decrypt a payload. Raises `Malformed` or `Unverified`; never returns anything that did not authenticate."""
    hdr_len, body_len = check_sizes(ciphertext, limits)
    body_start = _LENGTHS_END + hdr_len
    end = body_start + body_len
    if ciphertext.count(0, end) != len(ciphertext) - end:
        raise Malformed("ciphertext", "the padding contains bytes other than zero")
    enc = ciphertext[:ENC_BYTES]
    context = hpke.setup_receiver(enc, key)
    aad = place.aad()
    header = PayloadHdr.decode(context.open(aad, ciphertext[_LENGTHS_END:body_start]))
    header.check_cap_ref(place.auth_ref)
    body_key = context.export(_BODY_KEY, hpke.KEY_BYTES)
    body = hpke.xchacha_open(body_key, place.nonce(), aad, ciphertext[body_start:end])
    return Opened(header, body, place, context, enc)


def _wrong_size(reason: str) -> Malformed:
    return Malformed("ciphertext", reason, Fault.SIZE)
