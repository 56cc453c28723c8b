"""The read proofs of the vector files verify, and invalid ones are rejected."""

from typing import Any

import pytest

from tests import vectors_oracle as oracle
from tests.vectors_files import entries, load, unhex
from veen.core import Malformed, Unverified
from veen.core.limits import MAX_READ_PROOF_SEC
from veen.core.read_proof import ReadProof

DOC = load("read.json")
HUB_ID, READER = unhex(DOC["hub_id"]), unhex(DOC["reader"]["public_key"])


@pytest.mark.parametrize("case", entries("read.json", "proofs"), ids=lambda case: case["name"])
def test_each_proof_verifies_and_matches_the_second_implementation(case: dict[str, Any]) -> None:
    proof, body = ReadProof.decode(unhex(case["cbor"])), unhex(case["body"])
    proof.verify(HUB_ID, case["method"], case["target"], body)
    assert ReadProof.from_header(case["authorization"]) == proof
    auth_ref = unhex(case["auth_ref"] or "")
    request = oracle.h(f"{case['method']} {case['target']}".encode()), oracle.h(body)
    digest = oracle.ht("veen/read", HUB_ID, READER, oracle.u64(case["not_after"]), auth_ref, *request)
    sig = oracle.ed25519(unhex(DOC["reader"]["seed"]), digest)
    fields: dict[int, Any] = {1: 1, 2: READER, 3: case["not_after"], 4: sig}
    if auth_ref:
        fields[5] = auth_ref
    assert case["sig"] == sig.hex()
    assert case["cbor"] == oracle.cbor(fields).hex()
    assert case["authorization"] == f"veen-read {case['cbor']}"


@pytest.mark.parametrize("case", entries("read.json", "refused"), ids=lambda case: case["name"])
def test_each_invalid_proof_is_rejected(case: dict[str, Any]) -> None:
    first = entries("read.json", "proofs")[0]
    with pytest.raises(Unverified):
        ReadProof.decode(unhex(case["cbor"])).verify(HUB_ID, first["method"], first["target"], unhex(first["body"]))


def test_a_proof_is_valid_until_its_end_and_not_for_longer_than_the_limit() -> None:
    proof = ReadProof.decode(unhex(entries("read.json", "proofs")[0]["cbor"]))
    assert DOC["max_sec"] == MAX_READ_PROOF_SEC
    for hub_ts in (proof.not_after, proof.not_after - MAX_READ_PROOF_SEC):
        proof.check_time(hub_ts)
    for hub_ts in (proof.not_after + 1, proof.not_after - MAX_READ_PROOF_SEC - 1):
        with pytest.raises(Unverified):
            proof.check_time(hub_ts)


@pytest.mark.parametrize("change", ["", "veen-read", "Bearer x", "veen-read zz", "veen-upload 00", "veen-read 00"])
def test_any_other_header_is_malformed(change: str) -> None:
    with pytest.raises(Malformed):
        ReadProof.from_header(change)
