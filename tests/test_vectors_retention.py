"""The manifests and tombstones of the vector file verify, and changed ones are rejected."""

from typing import Any

import pytest

from tests import vectors_oracle as oracle
from tests.vectors_files import entries, load, unhex
from veen.core import HubIdentity, Unverified, wire_json
from veen.core.retention import AttachmentTombstone, Manifest, Tombstone

DOC = load("retention.json")
HUB = wire_json.decode(HubIdentity, DOC["hub_identity_json"].encode())
SEED, COID = unhex(DOC["hub"]["seed"]), unhex(DOC["coid"])
LEAVES = [unhex(row["leaf_hash"]) for row in entries("retention.json", "segments")]


def test_the_manifest_matches_the_second_implementation() -> None:
    manifest, row = Manifest.decode(unhex(DOC["manifest"]["cbor"])), oracle.uncbor(unhex(DOC["manifest"]["cbor"]))
    manifest.verify(HUB)
    assert [oracle.ht("veen/segment", oracle.cbor(one)) for one in row[6]] == LEAVES
    root = oracle.root(LEAVES)
    assert root.hex() == DOC["manifest"]["segments_root"]
    numbers = oracle.u64(row[4]), oracle.u64(row[5]), oracle.u64(len(LEAVES))
    assert oracle.ed25519(SEED, oracle.ht("veen/manifest", row[2], row[3], *numbers, root)) == row[7]


@pytest.mark.parametrize("case", entries("retention.json", "tombstones"), ids=lambda case: str(case["place"]))
def test_each_tombstone_matches_the_second_implementation(case: dict[str, Any]) -> None:
    Tombstone.decode(unhex(case["cbor"])).verify(HUB)
    row = oracle.uncbor(unhex(case["cbor"]))
    assert row[10] == oracle.proof(LEAVES, case["place"])
    assert row[11] == oracle.uncbor(unhex(DOC["manifest"]["cbor"]))[7]


def test_the_tombstone_of_an_attachment_matches_the_second_implementation() -> None:
    data = unhex(DOC["attachment_tombstone"])
    AttachmentTombstone.decode(data).verify(HUB, COID)
    row = oracle.uncbor(data)
    digest = oracle.ht("veen/attachment-pruned", row[2], row[3], oracle.u64(row[4]), oracle.u64(row[5]))
    assert (row[3], row[6]) == (COID, oracle.ed25519(SEED, digest))


@pytest.mark.parametrize("case", entries("retention.json", "refused"), ids=lambda case: case["name"])
def test_each_changed_statement_is_rejected(case: dict[str, Any]) -> None:
    data = unhex(case["cbor"])
    checks = {
        "manifest": lambda: Manifest.decode(data).verify(HUB),
        "tombstone": lambda: Tombstone.decode(data).verify(HUB),
        "attachment tombstone": lambda: AttachmentTombstone.decode(data).verify(HUB, COID),
    }
    with pytest.raises(Unverified):
        checks[case["kind"]]()
