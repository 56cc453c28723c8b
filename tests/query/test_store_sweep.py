"""After a fault at any call of the query service's store, a job is as last reported, and its rows match their hash."""

from pathlib import Path

import pytest

from lab.sweep import Extent, StoreCase, sweep
from veen.core import Unavailable
from veen.query import digest as digests
from veen.query.query_store import JobStore, QueryJob, QueryStatus

ROWS = tuple(b'{"row":%d}' % number for number in range(5))
EVIDENCE = b'{"events":5}'
DIGEST = digests.rows_hash(list(ROWS))
ORDER = [QueryStatus.PENDING, QueryStatus.RUNNING, QueryStatus.COMPLETED]


class Answering(StoreCase):
    """Runs two queries to their end."""

    errors = (Unavailable,)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reported: dict[str, QueryStatus] = {}

    def operate(self) -> None:
        with JobStore(self.root / "queries") as store:
            for number in range(2):
                self._run(store, f"r{number}")

    def check(self) -> None:
        for _ in range(2):
            with JobStore(self.root / "queries") as store:
                for result_id, status in self.reported.items():
                    job = store.job(result_id)
                    assert job is not None, f"{result_id} is lost"
                    assert ORDER.index(job.status) >= ORDER.index(status), f"{result_id} went back"
                for job in store:
                    if job.status is QueryStatus.COMPLETED:
                        assert job.digest == DIGEST
                        assert tuple(store.rows(job.result_id, DIGEST, 0, 100, 1 << 20)) == ROWS
                        assert store.evidence(job.result_id) == {"events": 5}
                for number in range(2):
                    self._run(store, f"r{number}")
            assert self.reported == dict.fromkeys(("r0", "r1"), QueryStatus.COMPLETED)
        names = sorted(path.name for folder in ("jobs", "rows") for path in (self.root / "queries" / folder).iterdir())
        assert len(names) == 8, f"drafts are left: {names}"

    def _run(self, store: JobStore, result_id: str) -> None:
        """Bring a job to its end from where it is."""
        job = store.job(result_id)
        if job is None:
            job = QueryJob(f"q-{result_id}", result_id, "alice", "alice", 1, "{}")
            store.add(job)
        self.reported[result_id] = job.status
        if job.status is QueryStatus.PENDING:
            job = store.move(result_id, QueryStatus.RUNNING)
            self.reported[result_id] = job.status
        if job.status is QueryStatus.RUNNING:
            store.put_rows(result_id, ROWS, EVIDENCE)
            job = store.move(result_id, QueryStatus.COMPLETED, digest=DIGEST)
        self.reported[result_id] = job.status


@pytest.mark.parametrize("extent", [Extent.SAMPLE, pytest.param(Extent.ALL, marks=pytest.mark.slow)])
def test_a_job_is_as_last_reported_after_a_fault_at_any_call(extent: Extent, tmp_path: Path) -> None:
    report = sweep(Answering, tmp_path, extent)
    assert report.points >= report.calls > 0
