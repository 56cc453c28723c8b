"""Sealing and signatures: shared keys, signed objects, groups, and private delivery. Spec §7.2 and §9.3.

XChaCha20-Poly1305 seals padded plaintext and binds the address of the object. A `Lock` seals and a `Key` opens; a
shared key is both. Padding is a byte 0x80 and zeros after the plaintext, inside the seal, so a node without the key
cannot learn the length of the plaintext.

    object signature   over derive("veil object signature v1", CBOR(header))
        header         [1, namespace, epoch, flags, tag, nonce, sender_pubkey, H(ciphertext)]
"""

import os
from dataclasses import dataclass, field, replace
from typing import NoReturn, Protocol, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from plumbing import sodium
from plumbing.cbor_heads import ARRAY, UINT, write_array, write_head, write_items
from plumbing.sodium import AEAD_KEY_BYTES as KEY_BYTES
from plumbing.sodium import AEAD_TAG_BYTES as TAG_BYTES
from plumbing.sodium import SigningKey, is_valid
from veil.codec import Reader, object_head
from veil.hashing import HASH_BYTES, derive, h, u32be
from veil.objects import NONCE_BYTES, PUBKEY_BYTES, SIGNATURE_BYTES, Address, Flags, NamespacePolicy, ObjectV1
from veil.tags import DEFAULT_EPOCHS, Epochs, rv_tag, rv_tags
from veil.veil_errors import Malformed, Refused, Unverified
from veil.veil_limits import MAX_GROUP_GENERATIONS, MAX_OBJECT_BYTES, MAX_UINT32

_END = b"\x80"


class Lock(Protocol):
    """Seals. The ciphertext is `overhead` bytes longer than the plaintext."""

    @property
    def overhead(self) -> int: ...

    def seal(self, address: Address, nonce: bytes, plaintext: bytes) -> bytes: ...


class Key(Protocol):
    """Opens a ciphertext or raises `Unverified`."""

    def open(self, address: Address, nonce: bytes, ciphertext: bytes) -> bytes: ...


class SharedKey:
    """A key that seals and opens. It never shows in `repr` and is not pickled."""

    __slots__ = ("_key",)

    overhead = TAG_BYTES

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise Malformed("key", f"{len(key)} bytes, not {KEY_BYTES}")
        self._key = key

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    def seal(self, address: Address, nonce: bytes, plaintext: bytes) -> bytes:
        return sodium.aead_seal(self._key, nonce, address.aad(), plaintext)

    def open(self, address: Address, nonce: bytes, ciphertext: bytes) -> bytes:
        if len(nonce) != NONCE_BYTES:
            raise Unverified("object", f"the nonce has {len(nonce)} bytes, not {NONCE_BYTES}")
        try:
            return sodium.aead_open(self._key, nonce, address.aad(), ciphertext)
        except sodium.CannotOpen as error:
            raise Unverified("object", str(error)) from None

    def __repr__(self) -> str:
        return "SharedKey(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled")


def pad(payload: bytes, length: int) -> bytes:
    """The payload, an end mark, and zeros up to `length`."""
    if len(payload) >= length:
        raise ValueError(f"{len(payload)} bytes and an end mark do not fit into {length}")
    return payload + _END + bytes(length - len(payload) - 1)


def unpad(padded: bytes) -> bytes:
    """The payload without padding. Raise `Malformed` if there is no end mark."""
    end = padded.rfind(_END)
    if end < 0 or padded[end + 1 :] != bytes(len(padded) - end - 1):
        raise Malformed("payload", "the padding has no end mark")
    return padded[:end]


_SIGNATURE_CONTEXT = "veil object signature v1"
_SIGNED_FIELDS = 8


def verify(public_key: bytes, message: bytes, signature: bytes, what: str) -> None:
    """Raise `Unverified` unless the signature verifies."""
    if not is_valid(public_key, message, signature):
        raise Unverified(what, "the signature does not verify under the key")


def signing_digest(obj: ObjectV1, sender_pubkey: bytes) -> bytes:
    head = write_head(ARRAY, _SIGNED_FIELDS) + object_head(obj.address, obj.flags, obj.nonce)
    return derive(_SIGNATURE_CONTEXT, head + write_items(sender_pubkey, h(obj.ciphertext)))


def sign_object(obj: ObjectV1, key: SigningKey) -> ObjectV1:
    """The object with sender, signature and the flag `signed`."""
    named = replace(obj, flags=obj.flags | Flags.SIGNED, sender_pubkey=key.public_key, signature=bytes(SIGNATURE_BYTES))
    return replace(named, signature=key.sign(signing_digest(named, key.public_key)))


def verify_object(obj: ObjectV1) -> None:
    """Raise `Unverified` if an object is signed and the signature fails."""
    if obj.sender_pubkey is not None and obj.signature is not None:
        verify(obj.sender_pubkey, signing_digest(obj, obj.sender_pubkey), obj.signature, "object")


def check_policy(obj: ObjectV1, policy: NamespacePolicy) -> None:
    """Verify a signature if there is one, and raise `Refused` if the namespace requires one and it is missing.

    This needs no key, so a node can reject invalid objects that it cannot open.
    """
    if not obj.signed and policy.requires_signature(obj.address.namespace):
        raise Refused("object", f"objects of namespace {obj.address.namespace} must be signed")
    verify_object(obj)


SHARE_VERSION = 1
_SHARE_FIELDS = 4


@dataclass(frozen=True, slots=True)
class GroupSecret:
    """One generation of a group's secret. Tags and keys are derived from it, and rotation replaces it.

        locator      = derive("veil group locator v1", group_id || u32be(generation) || secret)
        tag          = rv_tag(locator, epoch, namespace)
        content key  = derive("veil group content v1", the same)
        next secret  = derive("veil group ratchet v1", the same)
        agreed id    = derive("veil group agreed v1", secret)

    Only members can recognise the tags of a group, or link two of them. `ratchet` derives the next secret without a
    message; a member that deletes the old secret can no longer open older objects. `rotate` draws a new secret, which
    remaining members receive by private delivery; a member that does not receive it is excluded. An agreed group has a
    secret that its members got elsewhere: it has one generation and no invitations.
    """

    group_id: bytes
    generation: int
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.group_id) != HASH_BYTES or len(self.secret) != KEY_BYTES:
            raise Malformed("group secret", "the group id and the secret must have 32 bytes each")
        if not 0 <= self.generation <= MAX_UINT32:
            raise Malformed("group secret", f"generation {self.generation} is not a 32-bit number")

    @classmethod
    def create(cls) -> Self:
        return cls(os.urandom(HASH_BYTES), 0, os.urandom(KEY_BYTES))

    @classmethod
    def agreed(cls, secret: bytes) -> Self:
        """The agreed group of a secret. The id is derived from the secret, so members need not communicate."""
        return cls(derive("veil group agreed v1", secret), 0, secret)

    @property
    def is_agreed(self) -> bool:
        return self.generation == 0 and self == self.agreed(self.secret)

    def locator(self) -> bytes:
        """Takes the place of a public key in the tags of the group."""
        return self._derive("veil group locator v1")

    def address(self, namespace: int, epoch: int) -> Address:
        return Address(rv_tag(self.locator(), epoch, namespace), namespace, epoch)

    def key(self) -> SharedKey:
        return SharedKey(self._derive("veil group content v1"))

    def ratchet(self) -> Self:
        """The next generation, which every member can derive alone."""
        return type(self)(self.group_id, self.generation + 1, self._derive("veil group ratchet v1"))

    def rotate(self) -> Self:
        """The next generation with a new random secret, for the members that receive it."""
        return type(self)(self.group_id, self.generation + 1, os.urandom(KEY_BYTES))

    def encode(self) -> bytes:
        """The share that a member receives in a letter."""
        return write_array(SHARE_VERSION, self.group_id, self.generation, self.secret)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        reader = Reader(data, "group secret")
        reader.exactly(ARRAY, _SHARE_FIELDS)
        reader.exactly(UINT, SHARE_VERSION)
        share = cls(reader.fixed(HASH_BYTES), reader.uint(MAX_UINT32), reader.fixed(KEY_BYTES))
        reader.end()
        return share

    def _derive(self, context: str) -> bytes:
        return derive(context, self.group_id + u32be(self.generation) + self.secret)


@dataclass(frozen=True, slots=True)
class Group:
    """The generations that a member reads, ascending. The last one is used for writing."""

    secrets: tuple[GroupSecret, ...]

    @property
    def newest(self) -> GroupSecret:
        return self.secrets[-1]

    def adopt(self, secret: GroupSecret) -> "Group":
        """Add a newer generation and drop the oldest. Raise `Refused` for an older one or another group."""
        if secret.group_id != self.newest.group_id:
            raise Refused("group secret", "it belongs to another group")
        if secret == self.newest:
            return self
        if secret.generation <= self.newest.generation:
            raise Refused("group secret", f"generation {secret.generation} is not after {self.newest.generation}")
        return Group((*self.secrets, secret)[-MAX_GROUP_GENERATIONS:])

    def tags(self, namespace: int, now_s: float, epochs: Epochs = DEFAULT_EPOCHS) -> dict[bytes, GroupSecret]:
        """The tags to request at a time, each with the secret that opens its objects."""
        return {tag: secret for secret in self.secrets for tag in rv_tags(secret.locator(), namespace, now_s, epochs)}


_LETTER_CONTEXT = "veil letter v1"
_LETTER_FIELDS = 3
# Maximum size of a letter minus its body.
LETTER_BYTES = 1 + (2 + PUBKEY_BYTES) + (2 + SIGNATURE_BYTES) + 5


@dataclass(frozen=True, slots=True)
class Letter:
    """A verified letter of private delivery: sender and signature are inside the seal.

        letter   = [sender_pubkey, signature, body]
        digest   = derive("veil letter v1", aad || body)

    The signature covers the address, and a rendezvous tag depends on the recipient's key. A recipient therefore cannot
    present a letter as if it had been written to someone else.
    """

    sender_pubkey: bytes
    body: bytes


def write_letter(address: Address, key: SigningKey, body: bytes) -> bytes:
    """The payload with `body`, signed by a key."""
    signature = key.sign(_digest(address, body))
    return write_array(key.public_key, signature, body)


def read_letter(address: Address, payload: bytes) -> Letter:
    """Decode and verify a letter. Raise `Unverified` if the signature fails for this address."""
    reader = Reader(payload, "letter")
    reader.exactly(ARRAY, _LETTER_FIELDS)
    sender_pubkey, signature = reader.fixed(PUBKEY_BYTES), reader.fixed(SIGNATURE_BYTES)
    body = reader.byte_string(MAX_OBJECT_BYTES)
    reader.end()
    verify(sender_pubkey, _digest(address, body), signature, "letter")
    return Letter(sender_pubkey, body)


def _digest(address: Address, body: bytes) -> bytes:
    return derive(_LETTER_CONTEXT, address.aad() + body)


WRAPPED_BYTES = 32 + KEY_BYTES + TAG_BYTES
_INFO = b"veil private v1"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class Recipient:
    """The public half of a delivery key."""

    __slots__ = ("_key", "public_key")

    overhead = WRAPPED_BYTES + TAG_BYTES

    def __init__(self, public_key: bytes) -> None:
        if len(public_key) != KEY_BYTES:
            raise Malformed("delivery key", f"the public key has {len(public_key)} bytes, not {KEY_BYTES}")
        self.public_key = public_key
        self._key = X25519PublicKey.from_public_bytes(public_key)

    def address(self, namespace: int, epoch: int) -> Address:
        """The address of objects for the recipient during an epoch."""
        return Address(rv_tag(self.public_key, epoch, namespace), namespace, epoch)

    def seal(self, address: Address, nonce: bytes, plaintext: bytes) -> bytes:
        content_key = os.urandom(KEY_BYTES)
        try:
            wrapped = _SUITE.encrypt(content_key, self._key, _INFO + address.aad())
        except ValueError:
            raise Malformed("delivery key", "the public key has small order") from None
        return wrapped + SharedKey(content_key).seal(address, nonce, plaintext)


class DeliveryKey:
    """An X25519 key pair that opens objects sealed to it. `repr` never shows the secret half."""

    __slots__ = ("_key", "public_key")

    public_key: bytes

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise Malformed("delivery key", f"the secret key has {len(secret)} bytes, not {KEY_BYTES}")
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self.public_key = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    @property
    def secret(self) -> bytes:
        """The 32 secret bytes, for key storage only."""
        return self._key.private_bytes_raw()

    def open(self, address: Address, nonce: bytes, ciphertext: bytes) -> bytes:
        wrapped, sealed = ciphertext[:WRAPPED_BYTES], ciphertext[WRAPPED_BYTES:]
        try:
            content_key = _SUITE.decrypt(wrapped, self._key, _INFO + address.aad())
        except (InvalidTag, ValueError):
            raise Unverified("object", "not sealed to this key, or altered") from None
        if len(content_key) != KEY_BYTES:
            raise Unverified("object", "the sealed content key has the wrong length")
        return SharedKey(content_key).open(address, nonce, sealed)

    def __repr__(self) -> str:
        return f"DeliveryKey({self.public_key.hex()[:8]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled")
