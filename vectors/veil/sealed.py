"""Feeds, private messages and groups: keys and tags derived from a few secrets, and sealed objects."""

from pyhpke import AEADId, CipherSuite, KDFId, KEMId, KEMKeyPair

from vectors.form import Doc
from veil import Address, DeliveryKey, GroupSecret, Recipient, SharedKey, SigningKey
from veil.encryption import write_letter
from veil.hashing import derive, h
from veil.tags import feed_tag, rv_tag

EPOCH = 20_000
NONCE = h(b"veil vectors/nonce")[:24]
_SUITE = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.CHACHA20_POLY1305)


def secret(name: str) -> bytes:
    """32 bytes for a publicly known key."""
    return h(b"veil vectors/" + name.encode())


def channels() -> Doc:
    return {"epoch": EPOCH, "feed": _feed(), "private": _private(), "groups": _groups()}


def _feed() -> Doc:
    key = SigningKey(secret("publisher"))
    tag = feed_tag(key.public_key, 1)
    return {
        "seed": key.seed,
        "public_key": key.public_key,
        "namespace": 1,
        "tag": tag,
        "key": derive("veil public feed v1", tag),
    }


def _private() -> Doc:
    """Sealed with a fixed ephemeral key and content key, which is allowed only here."""
    recipient, sender, ephemeral = DeliveryKey(secret("recipient")), SigningKey(secret("sender")), secret("ephemeral")
    address, content_key = Recipient(recipient.public_key).address(2, EPOCH), secret("content key")
    letter = write_letter(address, sender, b"hello, Bob")
    enc, wrapped = _hpke(recipient.public_key, ephemeral, b"veil private v1" + address.aad(), content_key)
    return {
        "recipient_secret": recipient.secret,
        "recipient_public_key": recipient.public_key,
        "sender_seed": sender.seed,
        "sender_public_key": sender.public_key,
        "namespace": 2,
        "tag": address.tag,
        "aad": address.aad(),
        "body": b"hello, Bob",
        "letter": letter,
        "nonce": NONCE,
        "ephemeral_secret": ephemeral,
        "content_key": content_key,
        "ciphertext": enc + wrapped + SharedKey(content_key).seal(address, NONCE, letter),
    }


def _hpke(public_key: bytes, ephemeral: bytes, info: bytes, plaintext: bytes) -> tuple[bytes, bytes]:
    """Made with another library, because ours generates its own ephemeral key."""
    pair = KEMKeyPair(
        _SUITE.kem.deserialize_private_key(ephemeral),
        _SUITE.kem.deserialize_public_key(DeliveryKey(ephemeral).public_key),
    )
    enc, context = _SUITE.create_sender_context(_SUITE.kem.deserialize_public_key(public_key), info=info, eks=pair)
    return enc, context.seal(plaintext)


def _groups() -> list[Doc]:
    first = GroupSecret(secret("group id"), 0, secret("group secret"))
    return [_group(generation) for generation in (first, first.ratchet(), first.ratchet().ratchet())]


def _group(generation: GroupSecret) -> Doc:
    address: Address = generation.address(40, EPOCH)
    return {
        "group_id": generation.group_id,
        "generation": generation.generation,
        "secret": generation.secret,
        "share": generation.encode(),
        "locator": generation.locator(),
        "namespace": 40,
        "tag": address.tag,
        "next_tag": rv_tag(generation.locator(), EPOCH + 1, 40),
        "nonce": NONCE,
        "plaintext": b"hello, group",
        "ciphertext": generation.key().seal(address, NONCE, b"hello, group"),
    }
