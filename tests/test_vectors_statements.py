"""The statements of a hub in the vector files verify, match a second implementation, and invalid ones are rejected."""

from typing import Any

import pytest

from tests import vectors_oracle as oracle
from tests.vectors_files import entries, load, unhex
from veen.core import HubIdentity, Unverified, wire_json
from veen.core.admin import OperatorRevocation
from veen.core.handover import HandOver, ProvedSize
from veen.core.profile import LoweredLimits
from veen.core.recovery import RecoveryStatement

Doc = dict[str, Any]
FILE = "statements.json"
DOC = load(FILE)
SEEDS = {name: unhex(key["seed"]) for name, key in DOC["keys"].items()}
HUB, NEXT, ROOT = (oracle.ed25519_public(SEEDS[name]) for name in ("hub", "hub-2", "hub-root"))
TREE_OF_NOTHING = oracle.root([])


def record(name: str) -> HubIdentity:
    (found,) = (one["hub_identity_json"] for one in DOC["identities"] if one["name"] == name)
    return wire_json.decode_canonical(HubIdentity, found.encode())


def key_id(public_key: bytes) -> bytes:
    return oracle.ht("veen/hub-key-id", public_key)


def rows_root(labels: int) -> bytes:
    leaves = []
    for row in DOC["rows"][:labels]:
        label, size, root = (oracle.uncbor(unhex(row["cbor"]))[number] for number in (1, 2, 3))
        leaves.append(oracle.ht("veen/label-size", label, oracle.u64(size), root))
        assert leaves[-1] == unhex(row["leaf_hash"])
    return oracle.root(leaves) if leaves else TREE_OF_NOTHING


def test_each_schema_is_that_of_its_name() -> None:
    assert {name: oracle.h(name.encode()).hex() for name in DOC["schemas"]} == DOC["schemas"]
    assert len(DOC["schemas"]) == 4


@pytest.mark.parametrize("case", entries(FILE, "handovers"), ids=lambda case: case["name"])
def test_each_hand_over_verifies_and_matches_the_second_implementation(case: Doc) -> None:
    identity = record(case["identity"])
    HandOver.decode(unhex(case["cbor"])).verify(identity)
    assert unhex(case["rows_root"]) == rows_root(case["labels"])
    numbers = oracle.u64(case["hub_ts"]), oracle.u64(case["labels"])
    digest = oracle.ht("veen/hand-over", identity.hub_id, HUB, NEXT, *numbers, unhex(case["rows_root"]))
    assert unhex(case["digest"]) == digest
    sigs = [oracle.ed25519(SEEDS[name], digest) for name in ("hub", "hub-2", "hub-root")]
    shown = [*sigs[:2], *(sigs[2:] if case["identity"] == "rooted" else [])]
    values = [1, identity.hub_id, HUB, NEXT, case["hub_ts"], case["labels"], unhex(case["rows_root"]), *shown]
    assert case["cbor"] == oracle.cbor(dict(enumerate(values, 1))).hex()


def test_each_row_is_proved() -> None:
    for case in entries(FILE, "proofs"):
        proved = ProvedSize.decode(unhex(case["cbor"]))
        proved.verify(case["labels"], unhex(case["rows_root"]))
        assert unhex(case["rows_root"]) == rows_root(case["labels"])
        leaves = [unhex(row["leaf_hash"]) for row in DOC["rows"]]
        row = oracle.uncbor(unhex(DOC["rows"][case["place"] - 1]["cbor"]))
        expected = {1: row, 2: case["place"], 3: oracle.proof(leaves, case["place"])}
        assert case["cbor"] == oracle.cbor(expected).hex()


@pytest.mark.parametrize("case", entries(FILE, "unverified_handovers"), ids=lambda case: case["name"])
def test_each_invalid_hand_over_is_rejected(case: Doc) -> None:
    made = HandOver.decode(unhex(case["cbor"]))
    with pytest.raises(Unverified):
        made.verify(record(case["identity"]))


@pytest.mark.parametrize("case", entries(FILE, "recoveries"), ids=lambda case: case["name"])
def test_each_recovery_verifies_and_matches_the_second_implementation(case: Doc) -> None:
    identity = record(case["identity"])
    made = RecoveryStatement.decode(unhex(case["cbor"]))
    made.verify(identity)
    assert unhex(case["labels_root"]) == rows_root(case["labels"])
    begins = case["identity"] == "incarnation"
    old = key_id(ROOT if begins else HUB)
    values = [1, identity.hub_id, old, key_id(NEXT), case["recovered_at"], case["labels"], unhex(case["labels_root"])]
    said = dict(enumerate(values, 1))
    digest = oracle.ht("veen/recovery", oracle.cbor(said))
    assert (case["recovery"], case["digest"]) == (oracle.cbor(said).hex(), digest.hex())
    endorser = "hub" if case["identity"] == "plain" else "hub-root"
    signed = {1: 1, 2: said, 3: oracle.ed25519(SEEDS["hub-2"], digest), 4: oracle.ed25519(SEEDS[endorser], digest)}
    reset = oracle.ht("veen/witness-reset", oracle.cbor(said))
    sigs = [oracle.ed25519(SEEDS[f"witness-{number + 1}"], reset) for number in range(case["witnesses"])]
    assert case["reset_digest"] == reset.hex()
    assert case["cbor"] == oracle.cbor(signed | ({5: sigs} if sigs else {})).hex()
    assert made.is_incarnation(identity) is begins


@pytest.mark.parametrize("case", entries(FILE, "unverified_recoveries"), ids=lambda case: case["name"])
def test_each_invalid_recovery_is_rejected(case: Doc) -> None:
    made = RecoveryStatement.decode(unhex(case["cbor"]))
    with pytest.raises(Unverified):
        made.verify(record(case["identity"]))


@pytest.mark.parametrize("case", entries(FILE, "revocations"), ids=lambda case: case["name"])
def test_each_revocation_matches_the_second_implementation(case: Doc) -> None:
    made = OperatorRevocation.decode(unhex(case["cbor"]))
    shown = {"kind": case["kind"], "target": unhex(case["target"])}
    shown |= {name: case[name] for name in ("reason", "ts", "ttl") if case[name] is not None}
    assert oracle.uncbor(unhex(case["cbor"])) == shown
    assert (made.kind, made.ts, made.ttl) == (case["kind"], case["ts"], case["ttl"])


def test_each_change_of_limits_has_the_limits_before_and_after() -> None:
    first, second = entries(FILE, "lowered_limits")
    for case in (first, second):
        before, after = (oracle.uncbor(unhex(case[name])) for name in ("before", "after"))
        assert case["cbor"] == oracle.cbor({1: 1, 2: before, 3: after}).hex()
        assert LoweredLimits.decode(unhex(case["cbor"])).after.encode() == unhex(case["after"])
        assert before.keys() == after.keys()
        assert {name for name in before if before[name] != after[name]}
        assert all(after[name] <= before[name] for name in before)
    assert second["before"] == first["after"]


def test_the_file_has_every_kind_of_statement() -> None:
    counts = [len(entries(FILE, name)) for name in ("handovers", "recoveries", "revocations", "lowered_limits")]
    assert counts == [3, 5, 2, 2]
    assert len(entries(FILE, "unverified_handovers")) == len(entries(FILE, "unverified_recoveries")) == 7
