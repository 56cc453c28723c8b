"""The upload proofs of the vector files verify, and invalid ones are rejected."""

from typing import Any

import pytest

from tests import vectors_oracle as oracle
from tests.vectors_files import entries, load, unhex
from veen.core import Unverified
from veen.core.attachment import UploadProof
from veen.core.limits import MAX_UPLOAD_SKEW_SEC

DOC = load("upload.json")
HUB_ID, SUBJECT = unhex(DOC["hub_id"]), unhex(DOC["subject"]["public_key"])


@pytest.mark.parametrize("case", entries("upload.json", "proofs"), ids=lambda case: case["name"])
def test_each_proof_verifies_and_matches_the_second_implementation(case: dict[str, Any]) -> None:
    proof = UploadProof.decode(unhex(case["cbor"]))
    label = unhex(case["label"]) if "label" in case else None
    proof.verify(HUB_ID, unhex(case["coid"]), SUBJECT, label)
    assert UploadProof.from_header(case["authorization"]) == proof
    numbers = oracle.u64(case["size"]), oracle.u64(case["made_at"])
    digest = oracle.ht("veen/att-put", HUB_ID, unhex(case["coid"]), unhex(case["auth_ref"]), *numbers, label or b"")
    sig = oracle.ed25519(unhex(DOC["subject"]["seed"]), digest)
    fields = {1: 1, 2: unhex(case["auth_ref"]), 3: case["size"], 4: case["made_at"], 5: sig}
    assert case["sig"] == sig.hex()
    assert case["cbor"] == oracle.cbor(fields).hex()
    assert case["authorization"] == f"veen-upload {case['cbor']}"


@pytest.mark.parametrize("case", entries("upload.json", "refused"), ids=lambda case: case["name"])
def test_each_invalid_proof_is_rejected(case: dict[str, Any]) -> None:
    proof = UploadProof.decode(unhex(case["cbor"]))
    with pytest.raises(Unverified):
        proof.verify(HUB_ID, unhex(case["coid"]), SUBJECT)


def test_the_file_states_the_allowed_skew() -> None:
    assert DOC["max_skew_sec"] == MAX_UPLOAD_SKEW_SEC
    assert len(entries("upload.json", "proofs")) >= 3
    assert len(entries("upload.json", "refused")) >= 7
