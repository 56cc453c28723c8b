"""The bundles of the vector files verify with our verifier and a second reader; invalid ones are rejected."""

from hashlib import sha256
from typing import Any

import cbor2
import pytest

from tests import vectors_oracle as oracle
from tests.vectors_files import entries, load, unhex
from veen.bridge import bundle
from veen.bridge.bundle import Bundle, BundleFault
from veen.client.reader import Opener
from veen.core import DhKey

DOC = load("bundle.json")
HUB_ID, READER = unhex(DOC["hub_id"]), DhKey(unhex(DOC["reader"]["secret"]))
BUNDLES = entries("bundle.json", "bundles")
each = pytest.mark.parametrize("case", BUNDLES, ids=lambda case: case["name"])


@each
def test_each_bundle_verifies_offline(case: dict[str, Any]) -> None:
    data = unhex(case["cbor"])
    found = bundle.verify(data, {HUB_ID}).to_json()
    assert {name: found[name] for name in ("bundle_id", "bundle_hash", "export_seq_from", "export_seq_to")} == {
        name: case[name] for name in ("bundle_id", "bundle_hash", "export_seq_from", "export_seq_to")
    }
    assert found["export_checkpoint"] == {
        "id": case["checkpoint_id"],
        "root": case["root"],
        "last_seq": case["last_seq"],
        "timestamp": 1_700_000_000 + case["last_seq"],
        "hub_public": DOC["hub"]["public_key"],
    }


@each
def test_a_reader_of_the_stream_opens_each_event(case: dict[str, Any]) -> None:
    events = Bundle.decode(unhex(case["cbor"])).events
    bodies = [Opener(READER).entry(0, event.msg, event.receipt).body for event in events]
    assert bodies == [unhex(body) for body in case["bodies"]]


@each
def test_a_second_reader_decodes_the_same_values(case: dict[str, Any]) -> None:
    data = unhex(case["cbor"])
    found = cbor2.loads(data)
    assert list(found) == [1, 2, 3, 4]
    assert (found[1], found[2], found[3].hex()) == ("veen.bundle.v1", 1, case["bundle_id"])
    contents = data[data.index(found[3]) + 33 :]  # after the id and the key of the last field
    assert oracle.ht("veen/bundle", contents).hex() == case["bundle_id"]
    assert sha256(data).hexdigest() == case["bundle_hash"]
    header, checkpoint, events = found[4][1], found[4][3], found[4][4]
    assert (header[3], header[4].hex()) == (DOC["stream"], sha256(DOC["stream"].encode()).hexdigest())
    assert [event[2][2] for event in events] == list(range(header[6], header[7] + 1))
    assert (checkpoint[1].hex(), checkpoint[2]) == (case["root"], case["last_seq"])


@pytest.mark.parametrize("case", entries("bundle.json", "refused"), ids=lambda case: case["name"])
def test_each_invalid_bundle_is_rejected_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(BundleFault) as caught:
        bundle.verify(unhex(case["cbor"]), {HUB_ID})
    assert str(caught.value.code) == case["error_code"]


def test_the_file_has_enough_cases() -> None:
    assert len(BUNDLES) >= 4
    assert len(entries("bundle.json", "refused")) >= 8
