"""What is known beside the log, as a JSON file: read strictly, and checked where it can be."""

import json
from typing import Any

import pytest

from tests.overlays.logs import START
from tests.overlays.operation_logs import HUB, KEYS, STREAM, A, B, C, D
from veen.core import Malformed, Unverified, VeenError
from veen.core.cap_token import mint
from veen.core.receipt import sign
from veen.overlays.operations.rules import (
    AccessFact,
    CapabilityFact,
    Decision,
    Effect,
    ExternalFacts,
    FactSource,
    LogPlace,
    Survivorship,
    UsedVersion,
    read,
)

TOKEN = mint(KEYS[0], A, [STREAM], 60)
RECEIPT = sign(HUB, label=C, stream_seq=7, leaf_hash=A, mmr_root=B, hub_ts=START)
a, b, c, d = (one.hex() for one in (A, B, C, D))
KNOWN_RECEIPT = {"hub_identifier": "hub", "hub_pk": HUB.public_key.hex(), "receipt": RECEIPT.encode().hex()}
WHOLE: dict[str, Any] = {
    "speakers": [{"identity": a, "client_id": b}, {"identity": a, "client_id": c}],
    "processed": [{"label": a, "stream_seq": 3}],
    "effects": [{"operation_id": a, "idempotent": False, "key": b}, {"operation_id": a, "idempotent": True}],
    "granters": [a],
    "bootstrapped": [],
    "capabilities": [{"token": TOKEN.encode().hex(), "issued_at": START}],
    "decisions": [{"agreement_id": a, "version": 1, "party_identity": b, "decision": "accept"}],
    "survivorship": "highest",
    "taken": [{"publication_id": a, "version": "v1"}],
    "executors": [c],
    "accesses": [{"requester_identity": a, "resource_identifier": "x", "resource_class": "y"}],
    "regulated": ["y"],
    "sources": [KNOWN_RECEIPT],
}


def told(**given: Any) -> ExternalFacts:
    return read(json.dumps(given).encode(), STREAM)


def test_an_empty_file_has_no_facts() -> None:
    assert told() == ExternalFacts(STREAM)


def test_every_name_is_read() -> None:
    assert told(**WHOLE) == ExternalFacts(
        stream_id=STREAM,
        speakers={A: frozenset({B, C})},
        processed=(LogPlace(A, 3),),
        effects=(Effect(A, False, B), Effect(A, True)),
        granters=frozenset({A}),
        bootstrapped=frozenset(),
        capabilities={TOKEN.auth_ref(): CapabilityFact(TOKEN, START)},
        decisions=(Decision(A, 1, B, "accept"),),
        survivorship=Survivorship.HIGHEST,
        taken=(UsedVersion(A, "v1"),),
        executors=frozenset({C}),
        accesses=(AccessFact(A, "x", "y"),),
        regulated=frozenset({"y"}),
        sources={FactSource("hub", C, 7): RECEIPT},
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"unknown": []},
        {"granters": a},
        {"granters": [a[:-2]]},
        {"granters": [a.upper()]},
        {"granters": None},
        {"speakers": [{"identity": a}]},
        {"processed": [{"label": a}]},
        {"processed": [{"label": a, "stream_seq": 1, "more": 1}]},
        {"effects": [{"operation_id": a, "idempotent": 1}]},
        {"survivorship": "newest"},
        {"capabilities": [{"token": "00"}]},
        {"regulated": [7]},
        {"sources": [{**KNOWN_RECEIPT, "receipt": "00"}]},
    ],
    ids=str,
)
def test_a_malformed_facts_file_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        told(**wrong)


def test_a_receipt_that_its_hub_did_not_sign_is_refused() -> None:
    with pytest.raises(Unverified):
        told(sources=[{**KNOWN_RECEIPT, "hub_pk": KEYS[0].public_key.hex()}])


def test_two_receipts_for_one_message_are_refused() -> None:
    other = sign(HUB, label=C, stream_seq=7, leaf_hash=D, mmr_root=B, hub_ts=START)
    assert told(sources=[KNOWN_RECEIPT, KNOWN_RECEIPT]).sources
    with pytest.raises(VeenError, match="two different receipts"):
        told(sources=[KNOWN_RECEIPT, {**KNOWN_RECEIPT, "receipt": other.encode().hex()}])
