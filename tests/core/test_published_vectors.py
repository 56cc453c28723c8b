"""Our primitives against the vectors others publish: RFCs 5869, 7748, 8032, 8439 and 9180, Wycheproof, BoringSSL."""

import pytest

from tests.core import published
from tests.core.published import AeadCase, ExchangeCase, HkdfCase, VerifyCase
from veen.core import hpke, signing
from veen.core.errors import Malformed, Unverified
from veen.core.hpke import DhKey
from veen.core.signing import SigningKey

ED25519 = published.ed25519_verifications()
X25519 = published.x25519_rfc_7748() + published.x25519_exchanges()
CHACHA = published.chacha20_poly1305_cases()
XCHACHA = published.xchacha20_poly1305_cases()
HKDF = published.hkdf_sha256_rfc_5869() + published.hkdf_sha256_cases()

# RFC 7748 §5.2, after 1,000 iterations; the package carries only the first.
X25519_AFTER_1000 = bytes.fromhex("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51")


def test_every_published_ed25519_key_and_signature_is_the_one_we_make() -> None:
    for case in published.ed25519_signatures():
        key = SigningKey(case.seed)
        assert (key.public_key, key.sign(case.message)) == (case.public_key, case.signature), case.name


def test_every_published_ed25519_signature_verifies_and_holds_for_no_other_message() -> None:
    for case in published.ed25519_signatures():
        altered = case.message[:-1] + bytes([case.message[-1] ^ 1]) if case.message else b"\x00"
        assert signing.is_valid(case.public_key, case.message, case.signature), case.name
        assert not signing.is_valid(case.public_key, altered, case.signature), case.name
        assert not signing.is_valid(case.public_key, case.message + b"\x00", case.signature), case.name


@pytest.mark.parametrize("case", [case for case in ED25519 if case.valid], ids=lambda case: case.name)
def test_a_signature_that_wycheproof_calls_valid_verifies(case: VerifyCase) -> None:
    signing.verify(case.public_key, case.message, case.signature)


@pytest.mark.parametrize("case", [case for case in ED25519 if not case.valid], ids=lambda case: case.name)
def test_a_signature_that_wycheproof_calls_invalid_is_refused(case: VerifyCase) -> None:
    with pytest.raises(Unverified):
        signing.verify(case.public_key, case.message, case.signature)


@pytest.mark.parametrize("case", [case for case in X25519 if not case.is_small_order], ids=lambda case: case.name)
def test_the_shared_secret_is_the_published_one(case: ExchangeCase) -> None:
    assert DhKey(case.secret).exchange(case.peer) == case.shared


@pytest.mark.parametrize("case", [case for case in X25519 if case.is_small_order], ids=lambda case: case.name)
def test_a_peer_that_makes_the_shared_secret_zero_is_refused(case: ExchangeCase) -> None:
    key = DhKey(case.secret)
    with pytest.raises(Malformed) as caught:
        key.exchange(case.peer)
    assert caught.value.what == "dh key"


def test_x25519_iterated_1000_times_ends_where_rfc_7748_says() -> None:
    first = published.x25519_rfc_7748()[-1]
    k, u = first.secret, first.peer
    for iteration in range(1, 1001):
        k, u = DhKey(k).exchange(u), k
        if iteration == 1:
            assert k == first.shared
    assert k == X25519_AFTER_1000


@pytest.mark.parametrize("case", [case for case in CHACHA if case.valid], ids=lambda case: case.name)
def test_chacha_seals_to_the_published_bytes_and_opens_them(case: AeadCase) -> None:
    assert hpke.chacha_seal(case.key, case.nonce, case.aad, case.plaintext) == case.sealed
    assert hpke.chacha_open(case.key, case.nonce, case.aad, case.sealed) == case.plaintext


@pytest.mark.parametrize("case", [case for case in CHACHA if not case.valid], ids=lambda case: case.name)
def test_chacha_refuses_what_is_published_as_invalid(case: AeadCase) -> None:
    with pytest.raises(Unverified):
        hpke.chacha_open(case.key, case.nonce, case.aad, case.sealed)


@pytest.mark.parametrize("case", [case for case in XCHACHA if case.valid], ids=lambda case: case.name)
def test_xchacha_seals_to_the_published_bytes_and_opens_them(case: AeadCase) -> None:
    assert hpke.xchacha_seal(case.key, case.nonce, case.aad, case.plaintext) == case.sealed
    assert hpke.xchacha_open(case.key, case.nonce, case.aad, case.sealed) == case.plaintext


@pytest.mark.parametrize("case", [case for case in XCHACHA if not case.valid], ids=lambda case: case.name)
def test_xchacha_refuses_what_is_published_as_invalid(case: AeadCase) -> None:
    with pytest.raises(Unverified):
        hpke.xchacha_open(case.key, case.nonce, case.aad, case.sealed)


@pytest.mark.parametrize("case", [case for case in HKDF if case.valid], ids=lambda case: case.name)
def test_hkdf_derives_the_published_bytes(case: HkdfCase) -> None:
    prk = hpke.extract(case.salt, case.ikm)
    assert case.prk in (None, prk)
    assert hpke.expand(prk, case.info, case.length) == case.okm
    assert hpke.hkdf(case.ikm, salt=case.salt, info=case.info, length=case.length) == case.okm


@pytest.mark.parametrize("case", [case for case in HKDF if not case.valid], ids=lambda case: case.name)
def test_hkdf_refuses_a_published_length_that_is_too_large(case: HkdfCase) -> None:
    assert case.length > hpke.MAX_OUTPUT_BYTES
    with pytest.raises(ValueError, match=str(case.length)):
        hpke.hkdf(case.ikm, salt=case.salt, info=case.info, length=case.length)


def test_the_hpke_sender_makes_every_published_byte() -> None:
    case = published.hpke_base_case()
    enc, context = hpke.setup_sender(case.receiver_public_key, case.info, DhKey(case.ephemeral_secret))
    assert enc == case.enc
    for number, encryption in enumerate(case.encryptions):
        assert context.seal(encryption.aad, encryption.plaintext) == encryption.sealed, number
    for export in case.exports:
        assert context.export(export.exporter_context, export.length) == export.value, export.exporter_context


def test_the_hpke_receiver_opens_every_published_byte() -> None:
    case = published.hpke_base_case()
    key = DhKey(case.receiver_secret)
    assert key.public_key == case.receiver_public_key
    context = hpke.setup_receiver(case.enc, key, case.info)
    for number, encryption in enumerate(case.encryptions):
        assert context.open(encryption.aad, encryption.sealed) == encryption.plaintext, number
    for export in case.exports:
        assert context.export(export.exporter_context, export.length) == export.value, export.exporter_context
