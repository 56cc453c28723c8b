"""The proof of a shared secret, compared with plain integers, and forgeries that must fail."""

from dataclasses import replace
from hashlib import sha512
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectors.ed25519_points import BASE, IDENTITY, TORSION, L, P, Point, decode_leniently
from veen.core import dleq
from veen.core.dleq import SharedProof
from veen.core.errors import Malformed, Unverified
from veen.core.hpke import KEY_BYTES, DhKey

KEY, OTHER = DhKey(bytes(range(KEY_BYTES))), DhKey(b"\x05" * KEY_BYTES)
ENC = DhKey(b"\x09" * KEY_BYTES).public_key
SHARED = KEY.exchange(ENC)
LEAF = b"\x11" * 32
PROOF = dleq.prove(KEY, ENC, LEAF)
SECRETS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
EIGHTH = pow(8, -1, L)


# The formulas of docs/wire.md, in plain integers.


def lift(u_bytes: bytes, negative: bool = False) -> Point:
    u = int.from_bytes(u_bytes, "little")
    y = (u - 1) * pow(u + 1, P - 2, P) % P
    return decode_leniently((y | negative << 255).to_bytes(32, "little"))


def drop(point: Point) -> bytes:
    """The u coordinate of a point."""
    _, y = point.xy()
    return ((1 + y) * pow(1 - y, P - 2, P) % P).to_bytes(32, "little")


def negated(point: Point) -> Point:
    x, y = point.xy()
    return Point.affine(-x % P, y)


def even(point: Point) -> bool:
    return point.xy()[0] % 2 == 0


def number(*parts: bytes) -> int:
    return int.from_bytes(sha512(b"".join(parts)).digest(), "little") % L


def scalar_of(secret: bytes) -> int:
    return int.from_bytes(secret, "little") % 2**254 // 8 * 8 + 2**254


def challenge(leaf: bytes, names: tuple[bytes, bytes, bytes], points: tuple[Point, ...]) -> int:
    encoded = (point.encode() for point in points)
    return number(b"veen/shared-proof\x00", leaf, *names, *encoded)


def judged(proof: SharedProof, leaf: bytes, reader_pk: bytes, enc: bytes, shared: bytes) -> bool:
    """The verifier, without libsodium."""
    public, common, base = lift(reader_pk), lift(shared, proof.negative), EIGHTH * (8 * lift(enc))
    if any(L * point != IDENTITY or 8 * point == IDENTITY for point in (public, common)):
        return False
    c, z = (int.from_bytes(part, "little") for part in (proof.challenge, proof.response))
    first = z * BASE + (L - c) * public
    second = z * base + (L - c) * common
    return c == challenge(leaf, (reader_pk, enc, shared), (public, base, common, first, second))


def proved(w: int, leaf: bytes, enc: bytes, nonce: int) -> tuple[bytes, bytes, SharedProof]:
    """The prover, without libsodium: `reader_pk`, `shared` and the proof."""
    base = EIGHTH * (8 * lift(enc))
    if not even(w * BASE):
        w = -w % L
    public, common = w * BASE, w * base
    names = drop(public), enc, drop(common)
    c = challenge(leaf, names, (public, base, common, nonce * BASE, nonce * base))
    z = (nonce + c * w) % L
    made = SharedProof(not even(common), c.to_bytes(32, "little"), z.to_bytes(32, "little"))
    return names[0], names[2], made


def changed(name: str, number: int) -> SharedProof:
    """The proof with another challenge or response."""
    fields: dict[str, Any] = {name: number.to_bytes(32, "little")}
    return replace(PROOF, **fields)


def assert_rejected(proof: SharedProof = PROOF, **changes: Any) -> str:
    given = {"leaf_hash": LEAF, "reader_pk": KEY.public_key, "enc": ENC, "shared": SHARED, **changes}
    with pytest.raises(Unverified) as caught:
        dleq.verify(proof, **given)
    return caught.value.reason


@given(secret=SECRETS, ephemeral=SECRETS, leaf=SECRETS)
def test_what_is_proved_holds_here_and_in_plain_integers(secret: bytes, ephemeral: bytes, leaf: bytes) -> None:
    key, enc = DhKey(secret), DhKey(ephemeral).public_key
    made = dleq.prove(key, enc, leaf)
    dleq.verify(made, leaf, key.public_key, enc, key.exchange(enc))
    assert judged(made, leaf, key.public_key, enc, key.exchange(enc))


@given(secret=SECRETS, ephemeral=SECRETS, leaf=SECRETS, nonce=st.integers(1, L - 1))
def test_what_plain_integers_prove_holds_and_is_the_shared_secret(
    secret: bytes, ephemeral: bytes, leaf: bytes, nonce: int
) -> None:
    key, enc = DhKey(secret), DhKey(ephemeral).public_key
    reader_pk, shared, made = proved(scalar_of(secret) % L, leaf, enc, nonce)
    assert (reader_pk, shared) == (key.public_key, key.exchange(enc))
    dleq.verify(made, leaf, reader_pk, enc, shared)


def test_a_proof_that_was_made_once_holds_for_ever() -> None:
    kept = SharedProof(
        False,
        bytes.fromhex("06052b9fd89f0079d3bfb81a69526548529b333e4cd7411fccc1097c5a3aa309"),
        bytes.fromhex("43f3f7ee88fb3fe6ad3d2200feeb75147590b735a5401d288731eec039a5bd0e"),
    )
    dleq.verify(kept, LEAF, KEY.public_key, ENC, SHARED)


def test_no_two_proofs_are_alike_and_none_has_a_nonce_that_another_had() -> None:
    made = [dleq.prove(KEY, ENC, LEAF) for _ in range(5)]
    assert len({one.challenge for one in made}) == len({one.response for one in made}) == 5
    # z - cw is the nonce.
    w = scalar_of(KEY.secret) % L
    w = w if even(w * BASE) else -w % L
    pairs = [[int.from_bytes(part, "little") for part in (one.challenge, one.response)] for one in made]
    assert len({(z - c * w) % L for c, z in pairs}) == 5


@pytest.mark.parametrize("name", ["challenge", "response"])
def test_a_proof_with_a_bit_of_a_number_flipped_is_refused(name: str) -> None:
    old = int.from_bytes(getattr(PROOF, name), "little")
    for bit in range(256):
        assert_rejected(changed(name, old ^ 1 << bit))


def test_a_proof_for_the_other_point_is_refused() -> None:
    assert_rejected(replace(PROOF, negative=not PROOF.negative))


@pytest.mark.parametrize("name", ["leaf_hash", "reader_pk", "enc", "shared"])
def test_a_proof_is_for_one_statement_and_no_other(name: str) -> None:
    fresh = {"leaf_hash": bytes(32), "reader_pk": OTHER.public_key, "enc": OTHER.public_key}
    another: dict[str, Any] = {name: fresh.get(name, OTHER.exchange(ENC))}
    assert_rejected(**another)


@pytest.mark.parametrize("name", ["challenge", "response"])
@pytest.mark.parametrize("value", [0, L, L + 1, 2**256 - 1])
def test_a_number_that_is_zero_or_not_reduced_is_refused(name: str, value: int) -> None:
    assert_rejected(changed(name, value))


@pytest.mark.parametrize("name", ["challenge", "response"])
def test_the_same_number_with_the_groups_order_added_is_refused(name: str) -> None:
    more = int.from_bytes(getattr(PROOF, name), "little") + L
    assert "not reduced" in assert_rejected(changed(name, more))


@pytest.mark.parametrize("name", ["reader_pk", "shared"])
@pytest.mark.parametrize("change", ["top bit", "prime added", "zero", "one", "minus one", "small order", "the twist"])
def test_non_canonical_encodings_are_rejected(name: str, change: str) -> None:
    """The bytes enter the keys that open the message, so one point must not have two encodings."""
    old = int.from_bytes(KEY.public_key if name == "reader_pk" else SHARED, "little")
    small = {
        "zero": 0,
        "one": 1,
        "minus one": P - 1,
        "small order": int.from_bytes(drop(TORSION[1]), "little"),
        "the twist": 2,
        "top bit": old + 2**255,
        "prime added": 9 + P,  # the base point itself
    }
    renamed: dict[str, Any] = {name: small[change].to_bytes(32, "little")}
    assert "curve" in assert_rejected(**renamed)


# Reader keys, secrets and encs with a component of small order.


@pytest.mark.parametrize("torsion", TORSION[1:])
def test_a_part_of_small_order_cannot_hide_in_the_readers_key_or_the_secret(torsion: Point) -> None:
    """A forger with the key tries nonces until the challenge clears the component, so that both equations hold."""
    base = EIGHTH * (8 * lift(ENC))
    for in_key, in_secret in ((torsion, IDENTITY), (IDENTITY, torsion)):
        w = scalar_of(KEY.secret) % L
        public, common = w * BASE + in_key, w * base + in_secret
        if not even(public):
            w, public, common = -w % L, negated(public), negated(common)
        names = drop(public), ENC, drop(common)
        for nonce in range(1, 40):
            c = challenge(LEAF, names, (public, base, common, nonce * BASE, nonce * base))
            if c % 8 == 0:
                break
        z = (nonce + c * w) % L
        assert z * BASE + (8 * L - c) * public == nonce * BASE
        assert z * base + (8 * L - c) * common == nonce * base
        made = SharedProof(not even(common), c.to_bytes(32, "little"), z.to_bytes(32, "little"))
        assert "of the curve" in assert_rejected(made, reader_pk=names[0], shared=names[2])


@pytest.mark.parametrize("torsion", TORSION)
def test_an_enc_with_a_part_of_small_order_has_the_one_secret_that_x25519_has(torsion: Point) -> None:
    enc = drop(lift(ENC) + torsion)
    shared = KEY.exchange(enc)
    assert shared == SHARED
    made = dleq.prove(KEY, enc, LEAF)
    dleq.verify(made, LEAF, KEY.public_key, enc, shared)
    assert_rejected(made, enc=enc, shared=drop(lift(SHARED) + TORSION[1]))
    assert_rejected(made, enc=enc, shared=OTHER.exchange(enc))
    if enc != ENC:
        assert_rejected(made)


def test_an_enc_is_read_as_x25519_reads_it() -> None:
    """Its bytes are signed with the message, so another encoding of the point gives nothing to a forger."""
    for enc in (ENC[:-1] + bytes((ENC[-1] | 0x80,)), (9 + P).to_bytes(32, "little")):
        made = dleq.prove(KEY, enc, LEAF)
        dleq.verify(made, LEAF, KEY.public_key, enc, KEY.exchange(enc))
        assert_rejected(made, enc=enc, shared=OTHER.exchange(enc))
        assert_rejected(made)


@pytest.mark.parametrize("u", [2, P + 2, 2 + 2**255], ids=["canonical", "prime added", "top bit"])
def test_an_enc_on_the_twist_is_refused_by_prover_and_verifier(u: int) -> None:
    enc = u.to_bytes(32, "little")
    assert KEY.exchange(enc)  # X25519 accepts it
    with pytest.raises(Malformed, match="cannot be proved"):
        dleq.prove(KEY, enc, LEAF)
    assert "enc is not a public key" in assert_rejected(enc=enc, shared=KEY.exchange(enc))


@pytest.mark.parametrize("enc", [*map(drop, TORSION[1:]), (P - 1).to_bytes(32, "little"), bytes(32)], ids=bytes.hex)
def test_an_enc_of_small_order_is_refused(enc: bytes) -> None:
    with pytest.raises(Malformed):
        dleq.prove(KEY, enc, LEAF)
    assert "enc is not a public key" in assert_rejected(enc=enc, shared=bytes(32))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_enc_of_another_size_is_refused(size: int) -> None:
    enc = (ENC + b"\0")[:size]
    with pytest.raises(Malformed):
        dleq.prove(KEY, enc, LEAF)
    assert_rejected(enc=enc)


def test_without_the_key_an_invented_secret_cannot_be_proved() -> None:
    """The best attempt of a forger without the key: commit, and fail because the challenge differs."""
    made_up = DhKey.generate().public_key
    for _ in range(20):
        reader_pk, _, made = proved(7, LEAF, ENC, number(made_up))
        assert_rejected(made, reader_pk=reader_pk, shared=made_up)
        assert_rejected(made, shared=made_up)
