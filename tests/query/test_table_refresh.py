"""A service that loads its tables keeps them up to date and in few files."""

import os
import shutil
import threading

import pytest

from tests.hub.client import until
from tests.query.query_fixture import COUNT, QUICK, WEB, QuerySetup, asking, event
from veen.core import Unavailable
from veen.pipeline.sources import HubChunks
from veen.pipeline.tables import Table, Tables, TablesView
from veen.pipeline.tables.compaction import due
from veen.query.audit_events import RESULTS
from veen.query.query_server import Stopped, TableRefresher, refresher_of, run_jobs

OFTEN_S = 0.02


def refresher(own: QuerySetup) -> TableRefresher:
    own.source = own.hub_url
    made = refresher_of(own.settings(), own.hub_id)
    assert made is not None
    return made


def view(own: QuerySetup) -> TablesView:
    return Tables(own.tables).view()


def upto(own: QuerySetup, stream: str) -> int:
    return max(span.last for span in view(own).spans.values() if span.stream == stream)


def test_a_service_merges_the_files_of_many_queries(own: QuerySetup) -> None:
    own.source = own.hub_url
    with own.serving(refresh_every_s=OFTEN_S):
        for number in range(6):
            own.record(WEB, [event(number)], "auditor")
            assert own.answer()["result_digest"]["row_count"] == COUNT + number + 1
        until(lambda: upto(own, RESULTS) == 6 and not due(view(own)))
        assert len(view(own).of(Table.EVENTS, [WEB])) <= 4
        assert own.answer()["result_digest"]["row_count"] == COUNT + 6
    assert own.failures == []


def test_tables_are_refreshed_without_queries(own: QuerySetup) -> None:
    own.source = own.hub_url
    with own.serving(refresh_every_s=OFTEN_S):
        own.record(WEB, [event(number) for number in range(3)], "auditor")
        until(lambda: upto(own, WEB) == COUNT + 3)
    assert own.failures == []


def test_a_service_without_a_source_leaves_the_tables_as_they_are(own: QuerySetup) -> None:
    for number in range(4):
        own.record(WEB, [event(number)])
        own.load()
    before = view(own).number
    with own.serving(refresh_every_s=OFTEN_S):
        assert own.answer()["result_digest"]["row_count"] == COUNT + 4
    assert view(own).number == before


def test_a_refresh_error_is_reported_once_and_queries_fail(own: QuerySetup) -> None:
    own.source, broken = own.hub_url, own.tables / "_veen" / "commits" / "00009999.json"
    with own.serving(refresh_every_s=OFTEN_S):
        broken.write_bytes(b"not a commit")
        until(lambda: len(own.failures) == 1)
        answer = own.submit(asking())
        assert (answer.status_code, answer.json()["error_code"]) == (500, "internal_error")
        broken.unlink()
        assert own.answer()["result_digest"]["row_count"] == COUNT
    assert [where for where, _ in own.failures] == ["tables", "answer"]


def test_a_hub_is_asked_only_for_new_entries(own: QuerySetup) -> None:
    label = own.label(WEB)
    for known, first in ((0, 1), (1, 1), (5, 5), (COUNT, COUNT), (COUNT + 1, 1)):
        found = HubChunks(own.hub_url, QUICK).chunks_since(frozenset({label}), {label: known})
        assert [(one.start_seq, one.end_seq) for one in found] == [(first, COUNT)], known


def test_a_hub_with_fewer_entries_than_the_tables_is_rejected(own: QuerySetup) -> None:
    hub, older = own.hub, own.root / "older"
    hub.stop()
    shutil.copytree(hub.data_dir, older)
    hub.start()
    own.record(WEB, [event(1)])
    refresher(own).refresh((0,))
    hub.stop()
    hub.data_dir = older
    hub.start()
    with pytest.raises(Unavailable, match=f"ends before entry {COUNT + 1}, which the tables have"):
        refresher(own).refresh((0,))


def test_a_stopping_service_leaves_unread_entries_to_the_next(own: QuerySetup) -> None:
    own.record(WEB, [event(number) for number in range(5)])
    ending = refresher(own)
    ending.stop()
    with pytest.raises(Stopped):
        ending.refresh((0,))
    assert upto(own, WEB) == COUNT
    assert refresher(own).refresh((0,)).entries == 5
    assert upto(own, WEB) == COUNT + 5


@pytest.mark.slow
def test_many_jobs_run_in_processes_and_a_failure_stops_them() -> None:
    assert run_jobs(_whose, [1, 2]) == [_own(), _own()]
    assert _own() not in run_jobs(_whose, [1, 2, 3, 4])
    with pytest.raises(Unavailable, match="job 3"):
        run_jobs(_failing, [1, 2, 3, 4])


def _own() -> bytes:
    return str(os.getpid()).encode()


def _whose(job: int) -> bytes:
    return _own()


def _failing(job: int) -> bytes:
    if job == 3:
        raise Unavailable("job 3")
    return b""


def test_threads_of_a_service_wait_for_each_other_instead_of_failing(own: QuerySetup) -> None:
    shared, failed = refresher(own), list[BaseException]()

    def work() -> None:
        try:
            for _ in range(3):
                shared.refresh((0,))
                shared.tidy()
        except BaseException as error:  # noqa: BLE001  told to the test, below
            failed.append(error)

    own.record(WEB, [event(number) for number in range(5)])
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error for error in failed if "to merge files" not in str(error)] == []
    assert upto(own, WEB) == COUNT + 5


def test_tables_locked_by_another_process_are_left_alone(own: QuerySetup) -> None:
    own.source = own.hub_url
    with Tables(own.tables).writing(), own.serving(refresh_every_s=OFTEN_S):
        assert own.answer()["result_digest"]["row_count"] == COUNT
    assert own.failures == []
