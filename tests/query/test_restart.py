"""A service stopped or killed at any point resumes: nothing is lost, changed or recorded twice. §8."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.query.query_fixture import LOGIN, PATIENCE_S, WEB, QuerySetup, asking
from veen.query.audit_events import ANSWERED, REQUESTS, RESULTS, SUBMITTED, QueryRecorder, events
from veen.query.descriptor import normalise
from veen.query.execution import QueryExecution
from veen.query.policy import QueryPrincipal
from veen.query.query_server import execution_of
from veen.query.query_service import QueryService
from veen.query.query_store import MOVES, JobStore, QueryEnded, QueryJob, QueryStatus

ALICE = QueryPrincipal("alice", "a1" * 32)


def job(query_id: str = "q-left", **changes: Any) -> QueryJob:
    asked = normalise(asking(query_id=query_id, evidence={"mode": "full"}), "")
    now_ms = int(time.time() * 1000)
    made = QueryJob(asked.query_id, asked.result_id, "alice", ALICE.subject_id, now_ms, asked.text())
    return QueryJob(**{**{name: getattr(made, name) for name in asdict(made)}, **changes})


def logged(own: QuerySetup) -> tuple[list[str], list[str]]:
    """The query_ids of the events on both streams."""

    async def read(client: Any) -> Any:
        asked = await events(client, REQUESTS, SUBMITTED)
        told = await events(client, RESULTS, ANSWERED)
        return tuple([json.loads(one.content)["query_id"] for one, _ in found] for found in (asked, told))

    found: tuple[list[str], list[str]] = own.does(read)
    return found


def finished(own: QuerySetup, result_id: str) -> dict[str, Any]:
    """The result, once the service has finished the query."""
    while True:
        answer = own.get(f"/api/query/result/{result_id}")
        if answer.status_code != 425:
            assert answer.status_code == 200, answer.text
            return dict(answer.json())
        assert answer.json()["error_code"] == "result_not_ready"


def left_at(own: QuerySetup, stage: str) -> QueryJob:
    """The state on disk and in the log after a kill between two writes."""
    left = job()
    with JobStore(own.folder) as store:
        store.add(left)
        if stage == "pending":
            return left

        async def go_on(client: Any) -> None:
            recording = QueryRecorder(client)
            await recording.open()
            request = await recording.request(left)
            if stage == "request logged":
                return
            store.move(left.result_id, QueryStatus.PENDING, request=request)
            if stage == "request known":
                return
            store.move(left.result_id, QueryStatus.RUNNING)
            if stage == "running":
                return
            execution: QueryExecution = execution_of(client, own.settings())
            asked = normalise(json.loads(left.descriptor), "")
            result = await execution.run(asked, request_receipt_id=request.receipt_id)
            store.put_rows(left.result_id, result.texts, result.evidence())
            if stage == "rows kept":
                return
            store.move(left.result_id, QueryStatus.RUNNING, digest=result.digest.text())
            if stage == "digest kept":
                return
            await recording.result(result.digest)

        own.does(go_on)
    return left


STAGES = ["pending", "request logged", "request known", "running", "rows kept", "digest kept", "digest logged"]


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupted_query_is_finished_once(own: QuerySetup, stage: str) -> None:
    left = left_at(own, stage)
    with own.serving():
        found = finished(own, left.result_id)
        assert found["result_digest"]["query_id"] == "q-left"
        again = own.submit(asking(query_id="q-left"))
        assert again.json()["error_code"] == "duplicate_query_id"
    assert logged(own) == (["q-left"], ["q-left"])
    with own.serving():
        assert finished(own, left.result_id) == found
    assert logged(own) == (["q-left"], ["q-left"])


def test_workers_survive_a_disk_that_cannot_store_a_failure(own: QuerySetup) -> None:
    lefts = [job(f"q-{number}") for number in range(2)]

    async def work(client: Any) -> list[QueryStatus]:
        jobs, away = own.folder / "jobs", own.folder / "away"
        with JobStore(own.folder) as store:
            for left in lefts:
                store.add(left)
            told = asyncio.Event()
            execution = execution_of(client, own.settings())
            service = QueryService(client, store, execution, lambda what, error: told.set(), workers=2)
            jobs.rename(away)  # from here on no job can be written
            await service.start()
            async with asyncio.timeout(PATIENCE_S):
                await told.wait()
            away.rename(jobs)
            ended = [await service.ended(left, PATIENCE_S) for left in lefts]
            asked = await service.submit(QueryPrincipal("alice", ALICE.subject_id, ("*",)), asking(query_id="q-after"))
            ended.append(await service.ended(asked, PATIENCE_S))
            await service.stop()
        return [one.status for one in ended]

    *failed, after = own.does(work)
    assert set(failed) <= {QueryStatus.FAILED, QueryStatus.COMPLETED}
    assert QueryStatus.FAILED in failed
    assert after is QueryStatus.COMPLETED


def test_results_survive_a_restart(own: QuerySetup) -> None:
    with own.serving():
        before = own.answer(scope=[WEB, LOGIN], evidence={"mode": "full"})
    with own.serving():
        found = finished(own, before["result_digest"]["result_id"])
    assert (found["result_digest"], found["rows"]) == (before["result_digest"], before["rows"])


def test_a_failure_survives_a_restart_and_is_not_retried(own: QuerySetup) -> None:
    with JobStore(own.folder) as store:
        store.add(job())
        store.move(job().result_id, QueryStatus.FAILED, error_code="execution_failed", message="it was so")
    with own.serving():
        answer = own.get(f"/api/query/result/{job().result_id}")
        assert (answer.status_code, answer.json()["message"]) == (500, "it was so")
    assert logged(own) == ([], [])


@pytest.mark.parametrize("before", list(QueryStatus))
@pytest.mark.parametrize("after", list(QueryStatus))
def test_a_job_follows_the_state_machine(tmp_path: Path, before: QueryStatus, after: QueryStatus) -> None:
    with JobStore(tmp_path) as store:
        store.add(job(status=before))
        result_id = job().result_id
        if after in MOVES[before]:
            assert store.move(result_id, after).status is after
        else:
            with pytest.raises(QueryEnded):
                store.move(result_id, after)
    with JobStore(tmp_path) as store:
        found = store.job(result_id)
        assert found is not None
        assert found.status is (after if after in MOVES[before] else before)


def test_the_state_machine_matches_the_specification() -> None:
    steps = {(a, b) for a, others in MOVES.items() for b in others if a is not b}
    assert steps == {
        (QueryStatus.PENDING, QueryStatus.RUNNING),
        (QueryStatus.PENDING, QueryStatus.FAILED),
        (QueryStatus.RUNNING, QueryStatus.COMPLETED),
        (QueryStatus.RUNNING, QueryStatus.FAILED),
    }
    assert not MOVES[QueryStatus.COMPLETED]
    assert not MOVES[QueryStatus.FAILED]


def test_a_folder_is_locked_by_one_service(own: QuerySetup) -> None:
    from veen.client.local_files import Busy

    with own.serving(), pytest.raises(Busy), JobStore(own.folder):
        pass


def test_a_killed_service_finishes_accepted_queries(own: QuerySetup) -> None:
    """A real process, killed after it has answered 202 a few times."""
    command = [sys.executable, "-m", "veen.cli", "query", "serve", str(own.folder), "--tables", str(own.tables)]
    command += ["--client", str(own.root / "service"), "--hub", own.hub_url, "--pin", own.hub_id.hex()]
    command += ["--listen", "127.0.0.1:0", "--json"]
    env = {**os.environ, "HOME": str(own.root), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        own.port = httpx.URL(json.loads(process.stdout.readline())["url"]).port or 0
        accepted = []
        for number in range(6):
            answer = own.submit(asking(query_id=f"q-{number}", evidence={"mode": "full"}), wait=False)
            assert answer.status_code == 202
            accepted.append(answer.json()["result_id"])
        process.send_signal(signal.SIGKILL)
        process.wait()
    with own.serving():
        for result_id in accepted:
            finished(own, result_id)
    asked, told = logged(own)
    assert sorted(asked) == sorted(told) == [f"q-{number}" for number in range(6)]
