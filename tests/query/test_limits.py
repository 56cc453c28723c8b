"""Limits: results that are too large, queries that take too long, and too many queries are rejected."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.query.query_fixture import COUNT, PATIENCE_S, WEB, QuerySetup, asking
from tests.query.test_http import refusal
from veen.core import canonical_json
from veen.pipeline.engine import EventQuery, QueryWatch
from veen.query.audit_events import RESULTS, results
from veen.query.execution import Budget, QueryLimits
from veen.query.query_client import QueryClient, ServiceAccess
from veen.query.query_errors import QueryCode, QueryFault
from veen.query.table_query import NO_IMPORTS, QueryTables

GROUPS = {"group_by": ["payload.n"], "metrics": ["count"]}
ONE_GROUP = {"metrics": ["count"]}
FULL = {"mode": "full"}


def limits(**given: Any) -> QueryLimits:
    return QueryLimits(fill_wait_s=PATIENCE_S, **given)


def recorded(own: QuerySetup) -> Sequence[str]:
    """The ids of queries with a digest in the log."""
    return list(own.does(lambda client: results(client, RESULTS)))


@pytest.mark.parametrize(
    "asked", [{}, {"evidence": FULL}, {"aggregate": GROUPS}, {"aggregate": GROUPS, "evidence": FULL}], ids=str
)
def test_a_result_with_too_many_rows_fails_and_is_not_recorded(own: QuerySetup, asked: dict[str, Any]) -> None:
    with own.serving(limits=limits(max_rows=COUNT - 1)):
        answer = own.submit(asking(query_id="q-large", **asked))
        assert refusal(answer) == (422, "result_too_large")
        assert f"more than {COUNT - 1} rows" in answer.json()["message"]
    with own.serving(limits=limits(max_rows=COUNT)):  # a failed query stays failed; this is another one
        assert own.answer(query_id="q-as-large", **asked)["result_digest"]["row_count"] == COUNT
    assert recorded(own) == ["q-as-large"]


def test_every_path_reports_a_limit_failure_and_it_is_final(own: QuerySetup) -> None:
    with own.serving(limits=limits(max_rows=1)):
        own.submit(asking(query_id="q-large"))
    (job,) = (own.folder / "jobs").iterdir()
    with own.serving():
        status = own.get(f"/api/query/status/{job.stem}").json()
        assert (status["status"], status["error_code"]) == ("failed", "result_too_large")
        for what in ("result", "evidence"):
            assert refusal(own.get(f"/api/query/{what}/{job.stem}")) == (422, "result_too_large")


def test_counted_events_are_not_rows_unless_they_are_verified(own: QuerySetup) -> None:
    with own.serving(limits=limits(max_rows=1)):
        assert own.answer(aggregate=ONE_GROUP)["rows"] == [{"count": COUNT}]
        assert refusal(own.submit(asking(aggregate=ONE_GROUP, evidence=FULL))) == (422, "result_too_large")


def test_a_result_may_have_max_bytes_and_no_more(own: QuerySetup) -> None:
    with own.serving():
        size = sum(len(canonical_json.encode(row)) for row in own.answer()["rows"])
    with own.serving(limits=limits(max_bytes=size)):
        assert own.answer()["result_digest"]["row_count"] == COUNT
    with own.serving(limits=limits(max_bytes=size - 1)):
        answer = own.submit(asking())
        assert refusal(answer) == (422, "result_too_large")
        assert f"more than {size - 1} bytes" in answer.json()["message"]


def test_a_query_over_its_time_fails_and_frees_its_worker(own: QuerySetup) -> None:
    with own.serving(workers=1, limits=limits(max_run_s=0)):
        for number in range(3):
            answer = own.submit(asking(query_id=f"q-{number}", evidence=FULL))
            assert refusal(answer) == (422, "query_timeout")
            assert "more than 0 seconds" in answer.json()["message"]
    assert recorded(own) == []
    assert own.failures == []


@pytest.mark.parametrize("bounded", [False, True])
def test_the_thread_of_a_stopped_query_ends(own: QuerySetup, bounded: bool) -> None:
    asker, budget = QueryTables(own.tables), Budget(QueryLimits())
    streams = asker.streams((WEB,), NO_IMPORTS)
    budget.end()
    with pytest.raises(QueryFault) as caught:
        asker.ask(EventQuery((WEB,)), b"", streams, NO_IMPORTS, {} if bounded else None, budget.watch)
    assert caught.value.code == QueryCode.QUERY_TIMEOUT


@pytest.mark.parametrize("most", [{"max_rows": COUNT - 1}, {"max_bytes": 100}], ids=str)
def test_the_limits_apply_to_row_by_row_queries(own: QuerySetup, most: dict[str, int]) -> None:
    asker = QueryTables(own.tables)
    streams, label = asker.streams((WEB,), NO_IMPORTS), own.label(WEB).hex()
    asked = EventQuery((WEB,)), b"", streams, NO_IMPORTS, {label: COUNT}
    assert len(asker.ask(*asked, Budget(QueryLimits(max_rows=COUNT)).watch).rows) == COUNT
    with pytest.raises(QueryFault) as caught:
        asker.ask(*asked, Budget(QueryLimits(**most)).watch)
    assert caught.value.code == QueryCode.RESULT_TOO_LARGE


def test_row_by_row_queries_are_watched_from_the_first_event(own: QuerySetup) -> None:
    seen: list[int] = []
    asker, bounds = QueryTables(own.tables), {own.label(WEB).hex(): COUNT}
    watch = QueryWatch(lambda held, size: seen.append(held))
    asker.ask(EventQuery((WEB,)), b"", asker.streams((WEB,), NO_IMPORTS), NO_IMPORTS, bounds, watch)
    assert seen == [*range(COUNT), COUNT]


def test_one_principal_does_not_block_others(own: QuerySetup) -> None:
    with own.serving(workers=0, limits=limits(max_open=2)):
        for _ in range(2):
            assert own.submit(asking(), wait=False).status_code == 202
        answer = own.submit(asking(query_id="q-third"), wait=False)
        assert refusal(answer) == (429, "too_many_queries")
        assert int(answer.headers["retry-after"]) > 0
        assert own.submit(asking(), "bob", wait=False).status_code == 202
    with own.serving(workers=0, limits=limits(max_open=2)):  # jobs of an earlier run count too
        assert refusal(own.submit(asking(), wait=False)) == (429, "too_many_queries")
        assert own.submit(asking(query_id="q-third"), "bob", wait=False).status_code == 202


def test_a_finished_query_makes_room_however_it_ended(own: QuerySetup) -> None:
    with own.serving(limits=limits(max_open=1, max_rows=COUNT)):
        for _ in range(2):
            assert own.submit(asking()).status_code == 200
            assert own.submit(asking(scope=["record/security/login", WEB])).status_code == 422
            assert own.submit(asking(scope=["nowhere"])).status_code == 400


def test_all_principals_together_have_a_limit(own: QuerySetup) -> None:
    with own.serving(workers=0, limits=limits(max_waiting=2)):
        assert own.submit(asking(), "alice", wait=False).status_code == 202
        assert own.submit(asking(), "bob", wait=False).status_code == 202
        answer = own.submit(asking(), "auditor", wait=False)
        assert refusal(answer) == (503, "unavailable")
        assert int(answer.headers["retry-after"]) > 0


def test_concurrent_submissions_respect_the_limit(own: QuerySetup) -> None:
    """Queries being accepted count too; otherwise all would pass the check before the first is stored."""

    async def ask() -> list[int]:
        asked = [asyncio.to_thread(own.submit, asking(), "alice", wait=False) for _ in range(12)]
        return [answer.status_code for answer in await asyncio.gather(*asked)]

    with own.serving(workers=0, limits=limits(max_open=3)):
        answers = asyncio.run(ask())
    assert sorted(set(answers)) == [202, 429]
    assert answers.count(202) == 3


def test_a_page_ends_at_its_byte_limit_and_gives_the_next_offset(own: QuerySetup) -> None:
    with own.serving():
        rows = own.answer(query_id="q-1")["rows"]
    size = len(canonical_json.encode(rows[0])) + 1  # all rows have this length, or one digit more
    with own.serving(limits=limits(max_page_bytes=3 * size + 2)):
        accepted = own.submit(asking(query_id="q-2"))
        assert accepted.status_code == 202  # an immediate result has all rows or is not given
        path, found = f"/api/query/result/{accepted.json()['result_id']}", list[Any]()
        while True:
            told = own.get(path, params={"offset": len(found), "limit": 10}).json()
            more = len(found) + len(told["rows"]) < COUNT
            assert told["page"]["has_more"] is more
            assert told["page"]["limit"] == (len(told["rows"]) if more else 10)
            assert len(told["rows"]) == 3 or not more
            found += told["rows"]
            if not more:
                break
        assert found == rows
        with QueryClient(ServiceAccess(f"http://127.0.0.1:{own.port}", own.tokens["alice"])) as remote:
            assert remote.result(accepted.json()["result_id"]).rows == rows


def test_a_row_larger_than_the_page_limit_is_a_page(own: QuerySetup) -> None:
    with own.serving(limits=limits(max_page_bytes=1)):
        result_id = own.submit(asking()).json()["result_id"]
        told = own.get(f"/api/query/result/{result_id}", params={"offset": COUNT - 1}).json()
        assert len(told["rows"]) == 1
        assert told["page"] == {"offset": COUNT - 1, "limit": 1000, "total": COUNT, "has_more": False}


def test_limits_and_name_options_of_the_command_apply(own: QuerySetup) -> None:
    command = [sys.executable, "-m", "veen.cli", "query", "serve", str(own.folder), "--tables", str(own.tables)]
    command += ["--client", str(own.root / "service"), "--hub", own.hub_url, "--pin", own.hub_id.hex()]
    command += ["--listen", "127.0.0.1:0", "--json", "--max-rows", str(COUNT), "--max-bytes", "1000"]
    command += ["--max-open", "1", "--max-time", "1h", "--name", "queries.example"]
    env = {**os.environ, "HOME": str(own.root), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        own.port = httpx.URL(json.loads(process.stdout.readline())["url"]).port or 0
        try:
            assert "1000 bytes" in own.submit(asking(projection=["*"])).json()["message"]
            answer = own.submit(asking(scope=[WEB, "record/security/login"], projection=["origin"]))
            assert f"{COUNT} rows" in answer.json()["message"]
            assert own.get("/api/openapi.json", headers={"host": "queries.example"}).status_code == 200
            assert own.get("/api/openapi.json", headers={"host": "evil.example"}).status_code == 403
        finally:
            process.terminate()
            process.wait()
