"""Seals are bound to tag, namespace and epoch; signatures cover header and ciphertext."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil.builders import ADDRESS, KEY, NONCE, SIGNER
from tests.veil.vector_files import DIALECT, unhex
from veil import (
    Address,
    DeliveryKey,
    Flags,
    Malformed,
    NamespacePolicy,
    ObjectV1,
    Recipient,
    Refused,
    SharedKey,
    SigningKey,
    Unverified,
)
from veil.encryption import check_policy, pad, sign_object, unpad, verify_object
from veil.objects import ErasureMode, Namespace

KNOWN = DIALECT["aead"]
PLAIN = ObjectV1(ADDRESS, Flags.PUBLIC, NONCE, b"sealed payload")
SIGNED = sign_object(PLAIN, SIGNER)


def test_the_additional_data_is_the_known_38_bytes() -> None:
    known = DIALECT["aad"]
    assert Address(unhex(known["tag"]), known["namespace"], known["epoch"]).aad().hex() == known["aad"]


def test_the_known_plaintext_has_the_known_ciphertext() -> None:
    address = Address(unhex(KNOWN["tag"]), KNOWN["namespace"], KNOWN["epoch"])
    key, nonce, plaintext = SharedKey(unhex(KNOWN["key"])), unhex(KNOWN["nonce"]), unhex(KNOWN["plaintext"])
    assert key.seal(address, nonce, plaintext).hex() == KNOWN["ciphertext"]
    assert key.open(address, nonce, unhex(KNOWN["ciphertext"])) == plaintext


@pytest.mark.parametrize(
    "other",
    [replace(ADDRESS, tag=bytes(32)), replace(ADDRESS, namespace=43), replace(ADDRESS, epoch=20_001)],
    ids=["tag", "namespace", "epoch"],
)
@pytest.mark.parametrize("kind", ["shared", "private"])
def test_a_seal_does_not_open_under_another_address(other: Address, kind: str) -> None:
    delivery = DeliveryKey.generate()
    lock, key = (KEY, KEY) if kind == "shared" else (Recipient(delivery.public_key), delivery)
    sealed = lock.seal(ADDRESS, NONCE, b"payload")
    assert len(sealed) == len(b"payload") + lock.overhead
    assert key.open(ADDRESS, NONCE, sealed) == b"payload"
    with pytest.raises(Unverified):
        key.open(other, NONCE, sealed)


@pytest.mark.parametrize("kind", ["shared", "private"])
def test_a_seal_does_not_open_when_any_byte_of_it_changed(kind: str) -> None:
    delivery = DeliveryKey.generate()
    lock, key = (KEY, KEY) if kind == "shared" else (Recipient(delivery.public_key), delivery)
    sealed = lock.seal(ADDRESS, NONCE, b"payload")
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes((sealed[at] ^ 4,)) + sealed[at + 1 :]
        with pytest.raises(Unverified):
            key.open(ADDRESS, NONCE, changed)
    for length in range(len(sealed)):
        with pytest.raises(Unverified):
            key.open(ADDRESS, NONCE, sealed[:length])


def test_a_seal_does_not_open_with_another_key_or_nonce() -> None:
    sealed = KEY.seal(ADDRESS, NONCE, b"payload")
    for key, nonce in [(SharedKey.generate(), NONCE), (KEY, bytes(24)), (KEY, bytes(23)), (KEY, b"")]:
        with pytest.raises(Unverified):
            key.open(ADDRESS, nonce, sealed)
    private = Recipient(DeliveryKey.generate().public_key).seal(ADDRESS, NONCE, b"payload")
    with pytest.raises(Unverified):
        DeliveryKey.generate().open(ADDRESS, NONCE, private)


@given(st.binary(max_size=60), st.integers(1, 80))
def test_padding_round_trips(payload: bytes, more: int) -> None:
    padded = pad(payload, len(payload) + more)
    assert len(padded) == len(payload) + more
    assert unpad(padded) == payload


def test_a_payload_that_does_not_fit_is_not_padded() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        pad(b"1234", 4)


@pytest.mark.parametrize(
    "padded", [b"", b"\x00", b"payload", b"payload\x81\x00", b"payload\x80\x00\x01", b"\x80x\x00", bytes(99)]
)
def test_a_payload_whose_end_is_not_marked_is_refused(padded: bytes) -> None:
    with pytest.raises(Malformed):
        unpad(padded)


def test_a_signature_holds() -> None:
    assert SIGNED.sender_pubkey == SIGNER.public_key
    assert SIGNED.flags == Flags.PUBLIC | Flags.SIGNED
    verify_object(SIGNED)


ALTERED = {
    "tag": replace(SIGNED, address=replace(ADDRESS, tag=bytes(32))),
    "namespace": replace(SIGNED, address=replace(ADDRESS, namespace=43)),
    "epoch": replace(SIGNED, address=replace(ADDRESS, epoch=1)),
    "flags": replace(SIGNED, flags=Flags.SIGNED),
    "nonce": replace(SIGNED, nonce=bytes(24)),
    "ciphertext": replace(SIGNED, ciphertext=b"sealed Payload"),
    "sender": replace(SIGNED, sender_pubkey=SigningKey.generate().public_key),
    "a sender that is no key": replace(SIGNED, sender_pubkey=b"\xff" * 32),
    "signature": replace(SIGNED, signature=SIGNER.sign(b"something else")),
    "a signature of zeros": replace(SIGNED, signature=bytes(64)),
    "a key and signature of small order": replace(
        SIGNED, sender_pubkey=b"\x01" + bytes(31), signature=b"\x01" + bytes(63)
    ),
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_signature_does_not_hold_with_another(name: str) -> None:
    with pytest.raises(Unverified):
        verify_object(ALTERED[name])
    with pytest.raises(Unverified):
        check_policy(ALTERED[name], NamespacePolicy())


@pytest.mark.parametrize("namespace", [Namespace.PUBLIC_FEED, Namespace.TRUST, Namespace.RELAY])
def test_an_unsigned_object_is_refused_where_signatures_are_required(namespace: int) -> None:
    unsigned = replace(PLAIN, address=replace(ADDRESS, namespace=namespace))
    with pytest.raises(Refused):
        check_policy(unsigned, NamespacePolicy())
    check_policy(sign_object(unsigned, SIGNER), NamespacePolicy())
    check_policy(unsigned, NamespacePolicy(signed=frozenset()))


def test_an_unsigned_object_is_accepted_in_other_namespaces() -> None:
    check_policy(PLAIN, NamespacePolicy())
    with pytest.raises(Refused):
        check_policy(PLAIN, NamespacePolicy(signed=frozenset({ADDRESS.namespace})))


def test_only_configured_namespaces_are_systematic() -> None:
    policy = NamespacePolicy()
    assert policy.erasure_mode(Namespace.PUBLIC_FEED) is ErasureMode.SYSTEMATIC
    for namespace in (0, 2, 3, 4, 5, 31, 32, 65_535):
        assert policy.erasure_mode(namespace) is ErasureMode.HARDENED


@pytest.mark.parametrize("size", [0, 31, 33])
@pytest.mark.parametrize("kind", [SharedKey, DeliveryKey, Recipient])
def test_a_key_of_another_length_is_refused(kind: type, size: int) -> None:
    with pytest.raises(Malformed):
        kind(bytes(size))


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_nothing_is_sealed_to_a_key_of_small_order(point: bytes) -> None:
    with pytest.raises(Malformed):
        Recipient(point).seal(ADDRESS, NONCE, b"payload")


@pytest.mark.parametrize("key", [KEY, SIGNER, DeliveryKey(b"\x55" * 32)], ids=repr)
def test_a_secret_is_neither_shown_nor_pickled(key: object) -> None:
    for secret in (b"\x22", b"\x33", b"\x55"):
        assert (secret * 32).hex()[:16] not in repr(key)
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_a_secret_can_be_exported_for_key_storage() -> None:
    assert SIGNER.seed == b"\x33" * 32
    assert DeliveryKey(DeliveryKey(b"\x55" * 32).secret).public_key == DeliveryKey(b"\x55" * 32).public_key
