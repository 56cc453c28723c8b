"""Ed25519: the signatures that every implementation accepts, tested where libraries disagree.

The rule of the bundled libsodium: S < L; A is canonically encoded; neither A nor R has small order; and the bytes of R
are those of [S]B − [k]A, without the cofactor. Of the encodings with y ≥ p, only those of small order can be tested
here: for the others the discrete logarithm is unknown, so no signature can satisfy the equation.
"""

import pickle

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from vectors.ed25519_points import IDENTITY, TORSION, L
from vectors.signatures import (
    CANONICAL,
    NON_CANONICAL,
    PAIRS,
    Forgery,
    cancels,
    mixed_order,
    small_order_key,
    small_order_nonce,
)
from veen.core import DhKey, signing
from veen.core.errors import Unverified
from veen.core.signing import PUBLIC_KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES, SigningKey

KEY = SigningKey(bytes(range(SEED_BYTES)))
MESSAGE = b"a message"
SIGNATURE = KEY.sign(MESSAGE)


def is_valid(forgery: Forgery) -> bool:
    return signing.is_valid(forgery.public_key, forgery.message, forgery.signature)


def is_valid_to_openssl(forgery: Forgery) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(forgery.public_key).verify(forgery.signature, forgery.message)
    except InvalidSignature:
        return False
    return True


def test_the_torsion_points_are_eight_with_fourteen_encodings() -> None:
    assert len(set(TORSION)) == 8
    assert {8 * point for point in TORSION} == {IDENTITY}
    assert len({string for _, string in CANONICAL + NON_CANONICAL}) == 14


@pytest.mark.parametrize(("i", "string"), CANONICAL + NON_CANONICAL)
def test_a_key_of_small_order_is_refused_in_every_encoding_though_the_equation_holds(i: int, string: bytes) -> None:
    forgery = small_order_key(i, string)
    left, right = forgery.sides()
    assert left == right
    assert not is_valid(forgery)


@pytest.mark.parametrize(("j", "string"), CANONICAL + NON_CANONICAL)
def test_an_r_of_small_order_is_refused_in_every_encoding_though_the_equation_holds(j: int, string: bytes) -> None:
    forgery = small_order_nonce(j, string)
    left, right = forgery.sides()
    assert left == right
    assert not is_valid(forgery)


@pytest.mark.parametrize(("i", "j"), [pair for pair in PAIRS if cancels(*pair)])
def test_a_key_of_mixed_order_is_accepted_where_the_cofactorless_equation_holds(i: int, j: int) -> None:
    forgery = mixed_order(i, j, cofactorless=True)
    left, right = forgery.sides()
    assert left == right
    assert is_valid(forgery)


@pytest.mark.parametrize(("i", "j"), [pair for pair in PAIRS if pair != (0, 0)])
def test_a_signature_that_holds_only_with_the_cofactor_is_refused(i: int, j: int) -> None:
    forgery = mixed_order(i, j, cofactorless=False)
    left, right = forgery.sides()
    assert left != right
    assert 8 * left == 8 * right
    assert not is_valid(forgery)


@pytest.mark.parametrize(("i", "string"), CANONICAL + NON_CANONICAL)
def test_openssl_accepts_a_key_of_small_order_that_we_refuse(i: int, string: bytes) -> None:
    forgery = small_order_key(i, string)
    assert is_valid_to_openssl(forgery)
    assert not is_valid(forgery)


@pytest.mark.parametrize(("j", "string"), CANONICAL)
def test_openssl_accepts_an_r_of_small_order_that_we_refuse(j: int, string: bytes) -> None:
    forgery = small_order_nonce(j, string)
    assert is_valid_to_openssl(forgery)
    assert not is_valid(forgery)


@pytest.mark.parametrize("multiple", range(1, 16))
def test_an_s_of_l_or_more_is_refused_though_the_equation_holds(multiple: int) -> None:
    s = int.from_bytes(SIGNATURE[32:], "little")
    forgery = Forgery(KEY.public_key, MESSAGE, SIGNATURE[:32] + (s + multiple * L).to_bytes(32, "little"))
    left, right = forgery.sides()
    assert left == right
    assert not is_valid(forgery)


@pytest.mark.parametrize("bit", range(8 * SIGNATURE_BYTES))
def test_no_bit_of_a_signature_is_free(bit: int) -> None:
    assert not signing.is_valid(KEY.public_key, MESSAGE, flip(SIGNATURE, bit))


@pytest.mark.parametrize("bit", range(8 * PUBLIC_KEY_BYTES))
def test_no_bit_of_a_key_is_free(bit: int) -> None:
    assert not signing.is_valid(flip(KEY.public_key, bit), MESSAGE, SIGNATURE)


def flip(data: bytes, bit: int) -> bytes:
    return (int.from_bytes(data, "little") ^ 1 << bit).to_bytes(len(data), "little")


@pytest.mark.parametrize("size", [0, SEED_BYTES - 1, SEED_BYTES + 1, 2 * SEED_BYTES])
def test_a_seed_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes"):
        SigningKey(bytes(size))


@pytest.mark.parametrize("size", [0, PUBLIC_KEY_BYTES - 1, PUBLIC_KEY_BYTES + 1])
def test_a_key_of_another_size_verifies_nothing(size: int) -> None:
    assert not signing.is_valid((KEY.public_key + b"\x00")[:size], MESSAGE, SIGNATURE)


@pytest.mark.parametrize("size", [0, SIGNATURE_BYTES - 1, SIGNATURE_BYTES + 1])
def test_a_signature_of_another_size_is_refused(size: int) -> None:
    # libsodium's input is the signature followed by the message: a moved boundary must not verify.
    signed = SIGNATURE + MESSAGE
    assert signing.is_valid(KEY.public_key, signed[SIGNATURE_BYTES:], signed[:SIGNATURE_BYTES])
    assert not signing.is_valid(KEY.public_key, signed[size:], signed[:size])


def test_an_honest_signature_verifies() -> None:
    signing.verify(KEY.public_key, MESSAGE, SIGNATURE)


def test_verify_says_what_did_not_verify() -> None:
    with pytest.raises(Unverified) as caught:
        signing.verify(KEY.public_key, b"another message", SIGNATURE, "receipt")
    assert caught.value.what == "receipt"


def test_verify_refuses_the_signature_of_another_key() -> None:
    other = SigningKey.generate()
    with pytest.raises(Unverified):
        signing.verify(other.public_key, MESSAGE, SIGNATURE)


def test_a_seed_is_the_whole_key() -> None:
    key = SigningKey.generate()
    again = SigningKey(key.seed)
    assert (again.public_key, again.sign(MESSAGE)) == (key.public_key, key.sign(MESSAGE))


def test_generated_keys_differ() -> None:
    assert SigningKey.generate().seed != SigningKey.generate().seed


def test_the_secret_is_absent_from_the_repr_of_a_signing_key() -> None:
    shown = f"{KEY!r} {KEY}"
    assert KEY.public_key.hex()[:8] in shown
    assert KEY.seed.hex()[:8] not in shown
    assert repr(KEY.seed)[2:10] not in shown


@pytest.mark.parametrize("key", [signing.SigningKey.generate(), DhKey.generate()], ids=["signing", "dh"])
def test_a_secret_key_is_not_pickled(key: object) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)
