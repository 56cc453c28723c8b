"""Query results as evidence: exported from a real service, verified without it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.query.query_fixture import LOGIN, WEB, QuerySetup, event, query_setup
from veen.client import Card, ClientDir
from veen.client.client import Client
from veen.client.client_dir import CARD
from veen.client.evidence import Knowledge
from veen.core import Profile, Unverified, naming
from veen.core.limits import MAX_PAGE_ITEMS
from veen.query import answer_verify, result_evidence
from veen.query.answer_verify import export
from veen.query.audit_events import REQUESTS, RESULTS
from veen.query.query_client import QueryClient, ServiceAccess
from veen.query.result_evidence import ResultEvidence

FULL = {"mode": "full"}


def exported(setup: QuerySetup, *, who: str = "alice", disclose: bool = False, **changes: Any) -> ResultEvidence:
    """Submit a query, and export its result with the keys of the auditor."""
    given = setup.answer(who, **changes)["result_digest"]
    with QueryClient(ServiceAccess(f"http://127.0.0.1:{setup.port}", setup.tokens[who])) as service:
        whole, summary = service.result(given["result_id"]), service.evidence(given["result_id"])
        value, request = service.descriptor(given["query_id"])
    descriptor = answer_verify.descriptor_of(value)
    answer_verify.check_rows(descriptor, whole, summary)

    async def work(client: Client) -> ResultEvidence:
        await answer_verify.check_log(client, descriptor, request, whole, summary)
        return await export(client, request, whole, summary, disclose=disclose, writers=(service_card(setup),))

    made: ResultEvidence = setup.does(work, "auditor")
    return made


def service_card(setup: QuerySetup) -> Card:
    return Card.decode((setup.root / "service" / CARD).read_bytes())


def reader_pk(setup: QuerySetup, stream: str) -> bytes:
    with ClientDir.open(setup.root / "auditor") as folder:
        key = folder.stream_keys.secret(naming.stream_id(stream))
    assert key is not None
    return key.public_key


def test_an_exported_result_verifies_without_the_service(shared: QuerySetup) -> None:
    data = exported(shared, evidence=FULL, projection=["receipt_id", "subject_id"]).encode()
    found = result_evidence.verify(data, shared.hub_id)
    assert (len(found.rows), found.receipts, found.elsewhere) == (12, 12, 0)
    assert found.streams == [WEB]
    assert found.asked_by.startswith("client:")
    assert [row["subject_id"] for row in found.rows] == [event(number).subject_id for number in range(12)]
    assert not found.evidence.contradictions
    assert not result_evidence.verify(data).evidence.pinned
    with pytest.raises(Unverified, match="not the hub that was entered"):
        result_evidence.verify(data, bytes(32))


def test_a_changed_row_or_another_digest_is_refused(shared: QuerySetup) -> None:
    made, other = exported(shared, evidence=FULL), exported(shared, evidence=FULL)
    wrong = {
        "rows_hash": replace(made, rows=made.rows.replace("user:1", "user:2")),
        "evidence_hash": replace(made, summary=other.summary),
        "the file does not show the event": replace(made, parts=(replace(made.parts[0], exhibits=()),)),
    }
    for reason, one in wrong.items():
        with pytest.raises(Unverified, match=reason):
            result_evidence.verify(one.encode(), shared.hub_id)
    mixed = replace(made.parts[0], exhibits=(made.parts[0].exhibits[0], other.parts[0].exhibits[1]))
    with pytest.raises(Unverified):
        result_evidence.verify(replace(made, parts=(mixed,)).encode(), shared.hub_id)


def test_the_reader_keys_of_both_streams_and_the_service_can_be_required(shared: QuerySetup) -> None:
    data = exported(shared).encode()
    keys = [reader_pk(shared, stream) for stream in (REQUESTS, RESULTS)]
    service = Knowledge(writers=(service_card(shared),))
    found = result_evidence.verify(data, shared.hub_id, keys, service).evidence
    assert (found.reader_pinned, found.writer_pinned) == (True, True)
    with pytest.raises(Unverified, match="not by the reader key that was entered"):
        result_evidence.verify(data, shared.hub_id, keys[:1])


def test_the_events_behind_the_rows_are_disclosed_on_request_only(shared: QuerySetup) -> None:
    sealed, shown = (
        exported(shared, disclose=disclose, scope=[LOGIN, WEB], evidence=FULL) for disclose in (False, True)
    )
    sealed_entries, shown_entries = (
        result_evidence.verify(one.encode(), shared.hub_id).evidence.entries for one in (sealed, shown)
    )
    assert (len(sealed_entries), len(shown_entries)) == (2, 2 + 12 + 5)
    assert all(entry.opened is not None and entry.proved and entry.writer is not None for entry in shown_entries)


def test_a_sample_and_an_aggregate_are_exported(shared: QuerySetup) -> None:
    spot = exported(shared, evidence={"mode": "spot", "sample_rate": 0.01})
    counted = exported(shared, evidence=FULL, aggregate={"group_by": ["subject_id"], "metrics": ["count"]})
    assert 1 <= result_evidence.verify(spot.encode(), shared.hub_id).receipts < 12
    found = result_evidence.verify(counted.encode(), shared.hub_id)
    assert (len(found.rows), found.receipts) == (4, 12)


def test_a_result_of_a_hub_with_epochs_is_exported(place: Path) -> None:
    with query_setup(place, Profile(epoch_sec=3_600)) as made, made.serving():
        data = exported(made, evidence=FULL).encode()
        assert result_evidence.verify(data, made.hub_id).receipts == 12


def test_a_result_with_more_receipts_than_a_list_may_have_is_in_several_parts(own: QuerySetup) -> None:
    own.record(WEB, [event(number) for number in range(MAX_PAGE_ITEMS)])
    own.load()
    with own.serving():
        made = exported(own, evidence=FULL, aggregate={"group_by": ["subject_id"], "metrics": ["count"]})
    assert len(made.parts) > 1
    found = result_evidence.verify(made.encode(), own.hub_id)
    assert (len(found.rows), found.receipts) == (4, 12 + MAX_PAGE_ITEMS)
