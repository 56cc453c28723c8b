"""The sizes that each primitive rejects, and the errors."""

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from veen.core import hpke
from veen.core.errors import Malformed, Unverified, VeenError
from veen.core.hashing import HASH_BYTES
from veen.core.hpke import KEY_BYTES, DhKey

Seal = Callable[[bytes, bytes, bytes, bytes], bytes]

CIPHERS = pytest.mark.parametrize(
    ("seal", "open_", "nonce_bytes", "what"),
    [
        pytest.param(hpke.chacha_seal, hpke.chacha_open, hpke.CHACHA_NONCE_BYTES, "header", id="chacha"),
        pytest.param(hpke.xchacha_seal, hpke.xchacha_open, hpke.XCHACHA_NONCE_BYTES, "body", id="xchacha"),
    ],
)
AEAD_KEY = bytes(range(hpke.KEY_BYTES))


@CIPHERS
def test_what_is_sealed_is_the_tag_longer(seal: Seal, open_: Seal, nonce_bytes: int, what: str) -> None:
    nonce = bytes(nonce_bytes)
    for plaintext in (b"", b"x", bytes(64), bytes(65)):
        sealed = seal(AEAD_KEY, nonce, b"aad", plaintext)
        assert len(sealed) == len(plaintext) + hpke.TAG_BYTES
        assert open_(AEAD_KEY, nonce, b"aad", sealed) == plaintext


@CIPHERS
@pytest.mark.parametrize("size", [0, 1, hpke.TAG_BYTES - 1])
def test_what_is_shorter_than_a_tag_is_refused(seal: Seal, open_: Seal, nonce_bytes: int, what: str, size: int) -> None:
    tag = seal(AEAD_KEY, bytes(nonce_bytes), b"", b"")
    with pytest.raises(Unverified) as caught:
        open_(AEAD_KEY, bytes(nonce_bytes), b"", tag[:size])
    assert caught.value.what == what


@CIPHERS
@pytest.mark.parametrize("altered", ["key", "nonce", "aad", "sealed", "truncated", "extended"])
def test_each_altered_input_is_refused(seal: Seal, open_: Seal, nonce_bytes: int, what: str, altered: str) -> None:
    nonce = bytes(nonce_bytes)
    sealed = seal(AEAD_KEY, nonce, b"aad", b"plaintext")
    inputs = {
        "key": (AEAD_KEY[::-1], nonce, b"aad", sealed),
        "nonce": (AEAD_KEY, b"\x01" * nonce_bytes, b"aad", sealed),
        "aad": (AEAD_KEY, nonce, b"", sealed),
        "sealed": (AEAD_KEY, nonce, b"aad", bytes([sealed[0] ^ 1]) + sealed[1:]),
        "truncated": (AEAD_KEY, nonce, b"aad", sealed[:-1]),
        "extended": (AEAD_KEY, nonce, b"aad", sealed + b"\x00"),
    }
    with pytest.raises(Unverified) as caught:
        open_(*inputs[altered])
    assert caught.value.what == what


@CIPHERS
@pytest.mark.parametrize(("key_extra", "nonce_extra"), [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_sealing_with_a_key_or_nonce_of_another_size_is_a_value_error(
    seal: Seal, open_: Seal, nonce_bytes: int, what: str, key_extra: int, nonce_extra: int
) -> None:
    # libsodium would read past the end of a short one. The two libraries raise different builtin errors.
    key, nonce = bytes(hpke.KEY_BYTES + key_extra), bytes(nonce_bytes + nonce_extra)
    with pytest.raises((ValueError, TypeError)) as caught:
        seal(key, nonce, b"", b"plaintext")
    assert not isinstance(caught.value, VeenError)


@CIPHERS
@pytest.mark.parametrize(("key_extra", "nonce_extra"), [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_opening_with_a_key_or_nonce_of_another_size_is_a_value_error(
    seal: Seal,
    open_: Seal,
    nonce_bytes: int,
    what: str,
    key_extra: int,
    nonce_extra: int,
) -> None:
    sealed = seal(AEAD_KEY, bytes(nonce_bytes), b"", b"plaintext")
    key, nonce = bytes(hpke.KEY_BYTES + key_extra), bytes(nonce_bytes + nonce_extra)
    with pytest.raises((ValueError, TypeError)):
        open_(key, nonce, b"", sealed)


@pytest.mark.parametrize(
    "length", [1, HASH_BYTES - 1, HASH_BYTES, HASH_BYTES + 1, hpke.MAX_OUTPUT_BYTES - 1, hpke.MAX_OUTPUT_BYTES]
)
def test_hkdf_expands_to_each_length_as_another_library_does(length: int) -> None:
    prk = hpke.extract(b"salt", b"ikm")
    okm = hpke.expand(prk, b"info", length)
    assert len(okm) == length
    assert okm == HKDFExpand(SHA256(), length, b"info").derive(prk)


def test_hkdf_gives_at_most_255_hashes() -> None:
    assert hpke.MAX_OUTPUT_BYTES == 255 * 32
    with pytest.raises(ValueError, match="8161"):
        hpke.expand(bytes(HASH_BYTES), b"info", hpke.MAX_OUTPUT_BYTES + 1)


def test_an_empty_salt_is_a_hash_of_zeros() -> None:
    assert hpke.extract(b"", b"ikm") == hpke.extract(bytes(HASH_BYTES), b"ikm")


@pytest.mark.parametrize("size", [0, KEY_BYTES - 1, KEY_BYTES + 1])
def test_a_dh_secret_of_another_size_is_malformed(size: int) -> None:
    with pytest.raises(Malformed) as caught:
        DhKey(bytes(size))
    assert caught.value.what == "dh key"
    assert str(size) in caught.value.reason


@pytest.mark.parametrize("size", [0, KEY_BYTES - 1, KEY_BYTES + 1])
def test_a_dh_peer_of_another_size_is_malformed(size: int) -> None:
    key = DhKey.generate()
    with pytest.raises(Malformed) as caught:
        key.exchange((key.public_key + b"\x00")[:size])
    assert caught.value.what == "dh key"
    assert str(size) in caught.value.reason


def test_both_sides_of_an_exchange_agree_and_a_third_does_not() -> None:
    one, other, third = DhKey.generate(), DhKey.generate(), DhKey.generate()
    assert one.exchange(other.public_key) == other.exchange(one.public_key)
    assert one.exchange(other.public_key) != third.exchange(other.public_key)


def test_a_dh_secret_is_the_whole_key() -> None:
    key = DhKey.generate()
    assert DhKey(key.secret).public_key == key.public_key


def test_the_secret_is_absent_from_the_repr_of_a_dh_key() -> None:
    key = DhKey(bytes(range(KEY_BYTES)))
    shown = f"{key!r} {key}"
    assert key.public_key.hex()[:8] in shown
    assert key.secret.hex()[:8] not in shown
    assert repr(key.secret)[2:10] not in shown
