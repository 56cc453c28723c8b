"""HPKE, compared with an independent library, and everything that a receiver rejects."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyhpke import AEADId, CipherSuite, KDFId, KEMId

from tests.core import published
from veen.core import hpke
from veen.core.errors import Malformed, Unverified
from veen.core.hpke import ENC_BYTES, KEY_BYTES, DhKey, HpkeContext

SUITE = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.CHACHA20_POLY1305)
KEY = DhKey(bytes(range(KEY_BYTES)))
EXPORTER_CONTEXT = b"exporter"
SEQ_MAX = (1 << 8 * hpke.CHACHA_NONCE_BYTES) - 1

SECRETS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
BYTES = st.binary(max_size=300)

agreement = settings(max_examples=60)


def sealed(aad: bytes = b"aad", plaintext: bytes = b"header", info: bytes = b"") -> tuple[bytes, bytes]:
    enc, context = hpke.setup_sender(KEY.public_key, info)
    return enc, context.seal(aad, plaintext)


def pair() -> tuple[HpkeContext, HpkeContext]:
    enc, sender = hpke.setup_sender(KEY.public_key)
    return sender, hpke.setup_receiver(enc, KEY)


@agreement
@given(receiver=SECRETS, ephemeral=SECRETS, info=BYTES, aad=BYTES, header=BYTES, length=st.integers(1, 500))
def test_what_we_seal_pyhpke_opens_and_exports_alike(
    receiver: bytes, ephemeral: bytes, info: bytes, aad: bytes, header: bytes, length: int
) -> None:
    enc, ours = hpke.setup_sender(DhKey(receiver).public_key, info, DhKey(ephemeral))
    theirs = SUITE.create_recipient_context(enc, SUITE.kem.deserialize_private_key(receiver), info)
    for _ in range(3):
        assert theirs.open(ours.seal(aad, header), aad) == header
    assert ours.export(EXPORTER_CONTEXT, length) == theirs.export(EXPORTER_CONTEXT, length)


@agreement
@given(receiver=SECRETS, info=BYTES, aad=BYTES, header=BYTES, length=st.integers(1, 500))
def test_what_pyhpke_seals_we_open_and_export_alike(
    receiver: bytes, info: bytes, aad: bytes, header: bytes, length: int
) -> None:
    key = DhKey(receiver)
    enc, theirs = SUITE.create_sender_context(SUITE.kem.deserialize_public_key(key.public_key), info)
    ours = hpke.setup_receiver(enc, key, info)
    for _ in range(3):
        assert ours.open(aad, theirs.seal(header, aad)) == header
    assert ours.export(EXPORTER_CONTEXT, length) == theirs.export(EXPORTER_CONTEXT, length)


def test_an_empty_info_is_an_info_like_any_other() -> None:
    enc, body = sealed(info=b"")
    theirs = SUITE.create_recipient_context(enc, SUITE.kem.deserialize_private_key(KEY.secret), b"")
    assert theirs.open(body, b"aad") == b"header"


def test_another_aad_is_refused() -> None:
    enc, body = sealed(aad=b"aad")
    context = hpke.setup_receiver(enc, KEY)
    with pytest.raises(Unverified) as caught:
        context.open(b"aae", body)
    assert caught.value.what == "header"


def test_another_info_is_refused() -> None:
    enc, body = sealed(info=b"info")
    context = hpke.setup_receiver(enc, KEY, b"")
    with pytest.raises(Unverified):
        context.open(b"aad", body)


def test_another_receiver_is_refused() -> None:
    enc, body = sealed()
    context = hpke.setup_receiver(enc, DhKey.generate())
    with pytest.raises(Unverified):
        context.open(b"aad", body)


def test_a_stranger_shares_no_export() -> None:
    enc, sender = hpke.setup_sender(KEY.public_key)
    stranger = hpke.setup_receiver(enc, DhKey.generate())
    assert stranger.export(EXPORTER_CONTEXT, 32) != sender.export(EXPORTER_CONTEXT, 32)


@pytest.mark.parametrize("bit", range(8 * ENC_BYTES))
def test_every_bit_of_enc_is_authenticated(bit: int) -> None:
    # X25519 ignores bit 255, so there the shared point is the same and only the KEM context differs.
    enc, body = sealed()
    altered = (int.from_bytes(enc, "little") ^ 1 << bit).to_bytes(ENC_BYTES, "little")
    context = hpke.setup_receiver(altered, KEY)
    with pytest.raises(Unverified):
        context.open(b"aad", body)


def test_every_byte_of_a_ciphertext_is_authenticated() -> None:
    enc, body = sealed()
    for at in range(len(body)):
        altered = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        context = hpke.setup_receiver(enc, KEY)
        with pytest.raises(Unverified):
            context.open(b"aad", altered)


def test_what_is_truncated_or_extended_is_refused() -> None:
    enc, body = sealed()
    for altered in (*(body[:size] for size in range(len(body))), body + b"\x00"):
        context = hpke.setup_receiver(enc, KEY)
        with pytest.raises(Unverified):
            context.open(b"aad", altered)


@pytest.mark.parametrize("size", [0, ENC_BYTES - 1, ENC_BYTES + 1])
def test_an_enc_of_another_size_is_malformed(size: int) -> None:
    with pytest.raises(Malformed) as caught:
        hpke.setup_receiver((KEY.public_key + b"\x00")[:size], KEY)
    assert caught.value.what == "hpke"


@pytest.mark.parametrize("size", [0, KEY_BYTES - 1, KEY_BYTES + 1])
def test_a_receiver_key_of_another_size_is_malformed(size: int) -> None:
    with pytest.raises(Malformed):
        hpke.setup_sender((KEY.public_key + b"\x00")[:size])


@pytest.mark.parametrize("point", published.x25519_small_order_keys(), ids=bytes.hex)
def test_an_enc_of_small_order_is_refused(point: bytes) -> None:
    with pytest.raises(Malformed, match="small order"):
        hpke.setup_receiver(point, KEY)


@pytest.mark.parametrize("point", published.x25519_small_order_keys(), ids=bytes.hex)
def test_nothing_is_sealed_to_a_key_of_small_order(point: bytes) -> None:
    with pytest.raises(Malformed, match="small order"):
        hpke.setup_sender(point)


def test_each_sender_context_has_its_own_enc() -> None:
    assert hpke.setup_sender(KEY.public_key)[0] != hpke.setup_sender(KEY.public_key)[0]


def test_the_second_seal_uses_another_nonce() -> None:
    sender, receiver = pair()
    first, second = sender.seal(b"aad", b"header"), sender.seal(b"aad", b"header")
    assert first != second
    assert receiver.open(b"aad", first) == b"header"
    assert receiver.open(b"aad", second) == b"header"


def test_what_is_sealed_opens_only_in_its_turn() -> None:
    sender, receiver = pair()
    sender.seal(b"aad", b"first")
    second = sender.seal(b"aad", b"second")
    with pytest.raises(Unverified):
        receiver.open(b"aad", second)


def test_what_is_opened_once_does_not_open_again() -> None:
    sender, receiver = pair()
    first = sender.seal(b"aad", b"first")
    receiver.open(b"aad", first)
    with pytest.raises(Unverified):
        receiver.open(b"aad", first)


def test_a_refused_message_does_not_use_up_the_turn() -> None:
    sender, receiver = pair()
    first = sender.seal(b"aad", b"first")
    with pytest.raises(Unverified):
        receiver.open(b"other", first)
    assert receiver.open(b"aad", first) == b"first"


def test_a_context_seals_and_opens_with_its_last_nonce() -> None:
    sender, receiver = pair()
    sender._seq = receiver._seq = SEQ_MAX - 1
    assert receiver.open(b"aad", sender.seal(b"aad", b"last")) == b"last"


def test_a_context_without_a_nonce_left_seals_nothing() -> None:
    sender, _ = pair()
    sender._seq = SEQ_MAX - 1
    sender.seal(b"aad", b"last")
    with pytest.raises(ValueError, match="no unused nonce"):
        sender.seal(b"aad", b"one more")


def test_a_context_without_a_nonce_left_opens_nothing() -> None:
    sender, receiver = pair()
    receiver._seq = SEQ_MAX
    body = sender.seal(b"aad", b"header")
    with pytest.raises(ValueError, match="no unused nonce"):
        receiver.open(b"aad", body)


def test_exports_do_not_depend_on_what_was_sealed() -> None:
    sender, receiver = pair()
    sender.seal(b"aad", b"header")
    assert sender.export(EXPORTER_CONTEXT, 32) == receiver.export(EXPORTER_CONTEXT, 32)


def test_exports_are_bound_to_their_context_and_their_length() -> None:
    sender, _ = pair()
    assert sender.export(b"one", 32) != sender.export(b"two", 32)
    assert sender.export(b"one", 32) != sender.export(b"one", 33)[:32]


def test_the_longest_export_is_what_hkdf_gives() -> None:
    sender, receiver = pair()
    longest = sender.export(EXPORTER_CONTEXT, hpke.MAX_OUTPUT_BYTES)
    assert len(longest) == hpke.MAX_OUTPUT_BYTES
    assert longest == receiver.export(EXPORTER_CONTEXT, hpke.MAX_OUTPUT_BYTES)
    with pytest.raises(ValueError, match="limited to"):
        sender.export(EXPORTER_CONTEXT, hpke.MAX_OUTPUT_BYTES + 1)


def test_no_secret_is_in_the_repr_of_a_context() -> None:
    sender, _ = pair()
    shown = f"{sender!r} {sender}"
    for secret in (sender._key, sender._exporter):
        assert secret.hex()[:8] not in shown
        assert repr(secret)[2:10] not in shown
