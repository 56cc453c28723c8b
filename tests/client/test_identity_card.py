"""Identities, prekeys and cards: derivation, signatures and expiry."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.client.ledger import NOW
from veen.client import Card, ClientIdentity, Prekey, client_identity, client_state
from veen.client import client_identity as cards
from veen.core import DhKey, SigningKey, Unverified, hashing

DAY = 86_400
ME = ClientIdentity(SigningKey(b"\1" * 32), DhKey(b"\2" * 32), b"\3" * 32, NOW)
OTHER = ClientIdentity.generate(NOW)
CARD = cards.make_card(ME, 5, NOW, DAY)
OLDER = replace(CARD, confirmations=None)  # as older versions made them


def hkdf(secret: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=info).derive(secret)


def test_a_client_key_is_what_another_library_derives() -> None:
    seed = hkdf(ME.client_seed, b"veen/client-id" + (7).to_bytes(8, "big"))
    assert ME.client_key(7).public_key == SigningKey(seed).public_key


def test_a_prekey_is_what_another_library_derives() -> None:
    secret = hkdf(ME.id_dh.secret, b"veen/prekey" + (7).to_bytes(8, "big"))
    assert ME.prekey(7).secret == secret


def test_the_ladder_is_what_another_library_derives() -> None:
    label = b"\4" * 32
    rung = hkdf(ME.client_seed, b"veen/rk" + label)
    assert ME.first_rk(label) == rung
    for stream_seq in (1, 2, 70_000):
        expected = hkdf(rung, b"veen/rk" + stream_seq.to_bytes(8, "big"))
        rung = client_state.step(rung, stream_seq)
        assert rung == expected


def test_the_order_of_receipts_makes_the_rung() -> None:
    foot = bytes(32)
    assert client_state.step(client_state.step(foot, 1), 2) != client_state.step(client_state.step(foot, 2), 1)


def test_no_two_derived_secrets_are_the_same() -> None:
    label = bytes(32)
    derived = [ME.client_key(n).seed for n in range(20)] + [ME.prekey(n).secret for n in range(20)]
    derived += [ME.state_key(), ME.first_rk(label), ME.first_rk(b"\1" * 32), ME.client_seed, ME.id_dh.secret]
    assert len(set(derived)) == len(derived)


def test_another_seed_gives_other_client_ids_and_the_same_prekeys() -> None:
    copy = replace(ME, client_seed=b"\5" * 32)
    assert copy.client_key(0).public_key != ME.client_key(0).public_key
    assert copy.prekey(0).public_key == ME.prekey(0).public_key


def test_two_identities_share_nothing() -> None:
    assert OTHER.id_sign.public_key != ME.id_sign.public_key
    assert OTHER.id_dh.public_key != ME.id_dh.public_key
    assert OTHER.client_key(0).public_key != ME.client_key(0).public_key


def test_a_card_lists_the_client_ids_from_its_generation_on() -> None:
    CARD.verify()
    assert CARD.client_ids == tuple(ME.client_key(n).public_key for n in range(5, 5 + cards.NEXT_CLIENT_IDS))
    assert [prekey.number for prekey in CARD.prekeys] == list(range(5, 5 + cards.NEXT_CLIENT_IDS))
    assert [prekey.expires_at for prekey in CARD.prekeys] == [NOW + DAY * n for n in range(1, 9)]


def test_a_card_reads_back_as_it_was() -> None:
    assert Card.decode(CARD.encode()) == CARD
    assert len(CARD.encode()) <= cards.MAX_CARD_BYTES


SPOILED = {
    "another signer": replace(CARD, id_sign=OTHER.id_sign.public_key),
    "another dh key": replace(CARD, id_dh=OTHER.id_dh.public_key),
    "another generation": replace(CARD, generation=6),
    "another time": replace(CARD, created_at=NOW + 1),
    "a client_id of someone else": replace(CARD, client_ids=(OTHER.client_key(0).public_key, *CARD.client_ids[1:])),
    "a client_id more": replace(CARD, client_ids=(*CARD.client_ids, OTHER.client_key(0).public_key)),
    "a client_id less": replace(CARD, client_ids=CARD.client_ids[:-1]),
    "client_ids swapped": replace(CARD, client_ids=CARD.client_ids[::-1]),
    "a prekey less": replace(CARD, prekeys=CARD.prekeys[1:]),
    "no signature": replace(CARD, sig=bytes(64)),
    "the signature of a prekey": replace(CARD, sig=CARD.prekeys[0].sig),
}


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED.keys())
def test_a_card_that_was_changed_does_not_verify(spoiled: Card) -> None:
    with pytest.raises(Unverified):
        spoiled.verify()


def test_a_prekey_of_someone_else_on_a_card_does_not_verify_even_if_the_card_is_signed() -> None:
    foreign = replace(CARD, prekeys=(replace(client_identity.make_prekey(OTHER, 5, NOW + DAY)), *CARD.prekeys[1:]))
    digest = hashing.ht("veen/card", _unsigned(foreign))
    with pytest.raises(Unverified, match="prekey 5"):
        replace(foreign, sig=ME.id_sign.sign(digest)).verify()


def _unsigned(card: Card) -> bytes:
    """The encoding without its last two entries: a map of eight entries without the keys 9 and 10."""
    return b"\xa8" + replace(card, confirmations=None).encode()[1 : -(1 + 2 + 64)]


def test_the_signature_is_over_the_card_without_it() -> None:
    assert ME.id_sign.sign(hashing.ht("veen/card", _unsigned(CARD))) == CARD.sig


@pytest.mark.parametrize(
    "card",
    [
        replace(OLDER, client_ids=CARD.client_ids[:1] * 2),
        replace(CARD, prekeys=CARD.prekeys[::-1]),
        replace(CARD, prekeys=CARD.prekeys[:1] * 2),
        replace(OLDER, client_ids=()),
        replace(CARD, prekeys=()),
        replace(OLDER, client_ids=tuple(bytes((n,)) * 32 for n in range(65))),
    ],
)
def test_a_card_with_duplicate_or_missing_items_has_no_encoding(card: Card) -> None:
    with pytest.raises(ValueError, match=r"listed twice|ascending|items"):
        card.encode()


def test_the_first_prekey_that_has_not_expired_is_selected() -> None:
    first, second, last = CARD.prekeys[0], CARD.prekeys[1], CARD.prekeys[-1]
    assert CARD.seal_to(NOW) == first
    assert CARD.seal_to(first.expires_at) == first
    assert CARD.seal_to(first.expires_at + 1) == second
    assert CARD.seal_to(last.expires_at) == last
    with pytest.raises(Unverified, match="get a new card"):
        CARD.seal_to(last.expires_at + 1)


PREKEY = CARD.prekeys[0]


@pytest.mark.parametrize(
    "changed",
    [
        replace(PREKEY, number=PREKEY.number + 1),
        replace(PREKEY, public_key=ME.prekey(99).public_key),
        replace(PREKEY, expires_at=PREKEY.expires_at + 1),
        replace(PREKEY, sig=CARD.prekeys[1].sig),
        client_identity.make_prekey(OTHER, PREKEY.number, PREKEY.expires_at),
    ],
)
def test_a_changed_prekey_does_not_verify(changed: Prekey) -> None:
    with pytest.raises(Unverified):
        changed.verify(ME.id_sign.public_key)


def test_a_later_card_never_lets_a_prekey_live_longer() -> None:
    for age in (0, 1, DAY - 1, DAY):
        later = cards.make_card(ME, 6, NOW + age, DAY)
        expiry = {prekey.number: prekey.expires_at for prekey in later.prekeys}
        assert all(expiry[prekey.number] <= prekey.expires_at for prekey in CARD.prekeys if prekey.number in expiry)


def test_a_card_cannot_claim_the_client_ids_of_somebody_else() -> None:
    stolen = replace(cards.make_card(OTHER, 0, NOW, DAY), client_ids=CARD.client_ids, sig=bytes(64))
    signed = replace(stolen, sig=OTHER.id_sign.sign(hashing.ht("veen/card", stolen.unsigned(without_last=2))))
    with pytest.raises(Unverified, match="confirmation"):
        signed.verify()
    replace(signed, confirmations=None).verify()  # as older cards: valid, but it proves no writer


def test_an_older_card_without_confirmations_is_read() -> None:
    OLDER.verify()
    assert Card.decode(OLDER.encode()) == OLDER
    with pytest.raises(ValueError, match="7 confirmations for 8 client_ids"):
        replace(CARD, confirmations=(CARD.confirmations or ())[1:]).encode()
