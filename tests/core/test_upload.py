"""The upload proof is valid for one attachment, at one hub, by one capability's subject, for a limited time."""

from dataclasses import replace

import pytest

from veen.core import Malformed, SigningKey, Unverified, attachment
from veen.core.attachment import UploadProof
from veen.core.hashing import h, ht, u64be
from veen.core.limits import MAX_UPLOAD_SKEW_SEC

KEY = SigningKey(b"\x05" * 32)
HUB_ID, COID, AUTH_REF = h(b"hub"), h(b"attachment"), h(b"capability")
MADE_AT = 1_750_000_000
PROOF = attachment.sign_upload(KEY, hub_id=HUB_ID, coid=COID, auth_ref=AUTH_REF, size=1000, made_at=MADE_AT)


def test_a_proof_holds_for_what_it_was_made_for() -> None:
    PROOF.verify(HUB_ID, COID, KEY.public_key)
    digest = ht("veen/att-put", HUB_ID + COID + AUTH_REF + u64be(1000) + u64be(MADE_AT))
    assert KEY.sign(digest) == PROOF.sig


@pytest.mark.parametrize("number", range(3))
def test_a_proof_holds_for_nothing_else(number: int) -> None:
    given = [HUB_ID, COID, KEY.public_key]
    given[number] = SigningKey(b"\x06" * 32).public_key
    with pytest.raises(Unverified):
        PROOF.verify(*given)


@pytest.mark.parametrize(
    "changed",
    [
        replace(PROOF, auth_ref=h(b"other")),
        replace(PROOF, size=1001),
        replace(PROOF, made_at=MADE_AT + 1),
        replace(PROOF, sig=bytes(64)),
        replace(PROOF, sig=PROOF.sig[:63] + bytes([PROOF.sig[63] ^ 1])),
    ],
)
def test_a_changed_proof_does_not_hold(changed: UploadProof) -> None:
    with pytest.raises(Unverified):
        changed.verify(HUB_ID, COID, KEY.public_key)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_proof_is_of_use_for_a_while(sign: int) -> None:
    PROOF.check_time(MADE_AT + sign * MAX_UPLOAD_SKEW_SEC)
    with pytest.raises(Unverified) as caught:
        PROOF.check_time(MADE_AT + sign * (MAX_UPLOAD_SKEW_SEC + 1))
    assert str(MADE_AT) in str(caught.value)


def test_a_header_carries_a_proof() -> None:
    assert UploadProof.from_header(PROOF.header()) == PROOF
    assert UploadProof.from_header(PROOF.header().replace("veen-upload", "Veen-Upload")) == PROOF


@pytest.mark.parametrize(
    "text",
    [
        "",
        "veen-upload",
        "veen-upload ",
        "Bearer x",
        PROOF.encode().hex(),
        PROOF.header()[:-1],
        PROOF.header()[:-2],
        PROOF.header() + "00",
        PROOF.header().replace(" ", "  "),
        "veen-upload " + PROOF.encode().hex().upper(),
        "veen-upload zz",
        "veen-upload \u0660\u0661",
    ],
)
def test_any_other_header_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        UploadProof.from_header(text)
