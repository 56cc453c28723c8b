"""With a recorder, the service is one of its producers and must follow its event map."""

import asyncio
from pathlib import Path

import pytest

from tests.query.query_fixture import asking
from tests.recorder.recorder_fixture import TYPES, WEB, RecorderSetup, recorder_setup
from veen.client import ClientDir
from veen.client.client import Client
from veen.core import Refused, naming
from veen.overlays.record import CHANGES
from veen.pipeline.decoding import Keys
from veen.query.audit_events import ANSWERED, ORIGIN, REQUESTS, RESULTS, SUBMITTED, QueryRecorder
from veen.query.policy import QueryPrincipal
from veen.query.query_server import Settings, execution_of
from veen.query.query_service import QueryService
from veen.query.query_store import JobStore, QueryStatus
from veen.recorder import SetupPlan

ALICE = QueryPrincipal("alice", "a1" * 32, ("record/*",))
MAPPED = {**TYPES, SUBMITTED: REQUESTS, ANSWERED: RESULTS}


def hired(at: RecorderSetup) -> None:
    """Enrol the service as a producer, and give it the reader keys it needs."""
    at.enrol("service", ORIGIN, streams=(REQUESTS, RESULTS))
    with ClientDir.open(at.root / "admin") as admin:
        secrets = {one: admin.stream_keys.secret(naming.stream_id(one)) for one in (REQUESTS, RESULTS, WEB)}
    with ClientDir.open(at.root / "service") as folder:
        for stream, key in secrets.items():
            assert key is not None
            folder.stream_keys.import_secret(stream, key)


def test_the_profile_of_the_recorder_is_named_in_the_digest(place: Path) -> None:
    async def run() -> None:
        async with at.client("service") as client:
            keys = Keys((str(place / "service"),))
            settings = Settings(place / "queries", place / "tables", source=at.url, keys=keys)
            with JobStore(settings.folder) as store:
                service = QueryService(client, store, execution_of(client, settings), lambda *_: None)
                await service.start()
                query = asking(scope=[REQUESTS], evidence={"mode": "full"}, projection=["*"], query_id="q-1")
                await service.ended(await service.submit(ALICE, {**query, "query_id": "q-0", "scope": [CHANGES]}), 60)
                job = await service.ended(await service.submit(ALICE, query), 60)
                await service.stop()
            assert job.status is QueryStatus.COMPLETED, job.message
            digest, page = service.page(job, 0, 10)
            assert digest.profile_id is not None
            assert len(page.rows) >= 1  # the previous query is an event too

    with recorder_setup(place, plan=SetupPlan(MAPPED)) as at:
        hired(at)
        asyncio.run(run())


def test_a_service_does_not_start_if_the_map_sends_queries_elsewhere(place: Path) -> None:
    async def start(client: Client) -> None:
        await QueryRecorder(client).open()

    with recorder_setup(place, plan=SetupPlan(TYPES, streams=(REQUESTS, RESULTS))) as at:
        hired(at)
        with pytest.raises(Refused, match=r"query.submitted is mapped to None"):
            at.does("service", start)
