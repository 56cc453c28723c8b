"""A submitted query is recorded and executed, and its digest is recorded."""

from pathlib import Path

from tests.query.query_fixture import COUNT, LOGIN, WEB, QuerySetup, event, query_setup
from veen.client.client import Client
from veen.core import Profile
from veen.query.answer_verify import ReplayedQuery, replay
from veen.query.query_server import execution_of


def test_an_answer_has_the_requested_rows(shared: QuerySetup) -> None:
    found = shared.answer()
    assert [row["payload.n"] for row in found["rows"]] == list(range(COUNT))
    assert found["result_digest"]["row_count"] == COUNT


def test_evidence_of_every_row_is_verified(shared: QuerySetup) -> None:
    found = shared.answer(scope=[WEB, LOGIN], evidence={"mode": "full"}, projection=["*"])
    shown = shared.get(f"/api/query/evidence/{found['result_digest']['result_id']}").json()["evidence_summary"]
    assert [one["receipt_id"] for one in shown["verified"]] == [row["receipt_id"] for row in found["rows"]]


def test_a_hub_with_epochs_can_be_queried(place: Path) -> None:
    with query_setup(place, Profile(epoch_sec=3_600)) as own:
        own.source = own.hub_url
        own.record(WEB, [event(50)])
        with own.serving():
            found = own.answer(evidence={"mode": "full"}, query_id="q-epochs")
            assert found["result_digest"]["row_count"] == COUNT + 1
        own.record(WEB, [event(51)])

        async def again(client: Client) -> ReplayedQuery:
            return await replay(client, execution_of(client, own.settings()), "q-epochs")

        assert own.does(again).agrees
