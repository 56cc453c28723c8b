"""A query of one zone, replayed in the other over imported events, has the same digest. §9.1"""

import asyncio
import time
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.bridge_fixture import Zones, allow, zones
from tests.query.query_fixture import COUNT, WEB, asking, event
from veen.bridge.zone_roles import StreamMapping
from veen.client import ClientDir
from veen.core import Unverified, naming
from veen.overlays.record import RecordEvent
from veen.pipeline.decoding import Keys
from veen.query import descriptor as descriptors
from veen.query.answer_verify import ReplayedQuery, replay
from veen.query.audit_events import REQUESTS, RESULTS
from veen.query.digest import ResultDigest
from veen.query.policy import QueryPrincipal
from veen.query.query_server import Settings, execution_of
from veen.query.query_service import QueryService
from veen.query.query_store import JobStore, QueryStatus

STREAMS = (WEB, REQUESTS, RESULTS)
PAIRS = tuple((stream, f"import/{stream}") for stream in STREAMS)
MAPPING = StreamMapping((("record/", "import/record/"),))
ALICE = QueryPrincipal("alice", "a1" * 32, ("record/*",))
EVENTS = [event(number) for number in range(COUNT)]
SCHEMA = RecordEvent.SCHEMA

QUERIES: dict[str, dict[str, Any]] = {
    "rows": asking(projection=["*"]),
    "full": asking(projection=["*"], evidence={"mode": "full"}),
    "spot": asking(evidence={"mode": "spot", "sample_rate": 0.3}),
    "filtered": asking(filter={"subject_id": "user:1"}, projection=["receipt_id", "hub_commit_time", "principal_id"]),
    "grouped": asking(
        projection=["*"],
        aggregate={"group_by": ["payload.http.status"], "metrics": ["count", "max(hub_commit_seq)", "min(event_time)"]},
        evidence={"mode": "full"},
    ),
}


@asynccontextmanager
async def asker(at: Zones, person: str, online: bool, root: Path, identities: Any = None):  # type: ignore[no-untyped-def]
    """A client of a zone, and its query execution."""
    hub = at.online if online else at.offline
    async with at.client(person, hub) as client:
        source = f"http://127.0.0.1:{hub.port}"
        keys = Keys((str(at.root / person),))
        settings = Settings(root / "queries", root / "tables", source=source, keys=keys, identities=identities or {})
        yield client, execution_of(client, settings), settings


async def submit(at: Zones, query: dict[str, Any]) -> ResultDigest:
    """Execute and record a query in the first zone, as the service does."""
    async with asker(at, "service", True, at.root / "z1") as (client, execution, settings):
        with JobStore(settings.folder) as store:
            service = QueryService(client, store, execution, lambda *_: None)
            await service.start()
            job = await service.ended(await service.submit(ALICE, query), 60)
            await service.stop()
        assert job.status is QueryStatus.COMPLETED, job.message
        return service.digest(job)


async def carry(at: Zones) -> None:
    """Carry all new events across the air gap."""
    for stream in STREAMS:
        for data in await at.export(stream):
            outcome = await at.take(data, mapping=MAPPING)
            assert outcome.ok, outcome


async def again(at: Zones, query_id: str, identities: Any = None) -> ReplayedQuery:
    known = {at.source_id: at.online.service.hub_metadata.identity} if identities is None else identities
    async with asker(at, "analyst", False, at.root / "z2", known) as (client, execution, _):
        return await replay(client, execution, query_id)


@pytest.fixture
def at(place: Path):  # type: ignore[no-untyped-def]
    with ExitStack() as stack:
        made = stack.enter_context(zones(place, *PAIRS))
        service = stack.enter_context(ClientDir.create(place / "service", None, int(time.time())))
        made.folders["service"] = service
        analyst = made.folders["analyst"]
        for stream in STREAMS:
            key = analyst.stream_keys.secret(naming.stream_id(stream))
            assert key is not None
            service.stream_keys.import_secret(stream, key)
        allow(service, REQUESTS, RESULTS)
        for zone in ("z1", "z2"):
            (place / zone).mkdir()
        yield made


def test_the_same_query_has_the_same_digest_in_both_zones(at: Zones) -> None:
    async def run() -> None:
        await at.produce(*(one.encode() for one in EVENTS), stream=WEB, schema=SCHEMA)
        first = {name: await submit(at, {**query, "query_id": f"q-{name}"}) for name, query in QUERIES.items()}
        await carry(at)
        for name, digest in first.items():
            found = await again(at, f"q-{name}")
            assert found.found.digest == digest
            assert found.agrees, (name, found.differences)
            assert found.result.digest.hub_id != digest.hub_id
            assert (found.result.digest.rows_hash, found.result.digest.evidence_hash) == (
                digest.rows_hash,
                digest.evidence_hash,
            )

    asyncio.run(run())


def test_later_events_of_the_first_zone_change_nothing(at: Zones) -> None:
    async def run() -> None:
        await at.produce(*(one.encode() for one in EVENTS[:5]), stream=WEB, schema=SCHEMA)
        await submit(at, {**QUERIES["full"], "query_id": "q-1"})
        await at.produce(*(one.encode() for one in EVENTS[5:]), stream=WEB, schema=SCHEMA)
        await carry(at)
        assert (await again(at, "q-1")).agrees
        async with asker(at, "service", True, at.root / "z1") as (client, execution, _):
            assert (await replay(client, execution, "q-1")).agrees

    asyncio.run(run())


def test_events_that_were_not_imported_are_noticed(at: Zones) -> None:
    async def run() -> None:
        await at.produce(*(one.encode() for one in EVENTS[:5]), stream=WEB, schema=SCHEMA)
        await carry(at)
        await at.produce(*(one.encode() for one in EVENTS[5:]), stream=WEB, schema=SCHEMA)
        await submit(at, {**QUERIES["full"], "query_id": "q-1"})  # a sample might not include the missing events
        for stream in (REQUESTS, RESULTS):
            for data in await at.export(stream):
                assert (await at.take(data, mapping=MAPPING)).ok
        found = await again(at, "q-1")
        assert not found.agrees
        assert set(found.differences) == {"row_count", "rows_hash", "evidence_hash"}

    asyncio.run(run())


def test_evidence_of_another_hub_needs_its_identity_record(at: Zones) -> None:
    async def run() -> None:
        await at.produce(*(one.encode() for one in EVENTS), stream=WEB, schema=SCHEMA)
        for name in ("rows", "full"):
            await submit(at, {**QUERIES[name], "query_id": f"q-{name}"})
        await carry(at)
        assert (await again(at, "q-rows", identities={})).agrees
        with pytest.raises(Unverified, match="no identity record of hub"):
            await again(at, "q-full", identities={})
        other = {at.source_id: at.offline.service.hub_metadata.identity}
        with pytest.raises(Unverified):
            await again(at, "q-full", identities=other)

    asyncio.run(run())


def test_a_stream_of_the_other_zone_can_be_queried_by_its_name(at: Zones) -> None:
    async def run() -> None:
        await at.produce(*(one.encode() for one in EVENTS), stream=WEB, schema=SCHEMA)
        await carry(at)
        known = {at.source_id: at.online.service.hub_metadata.identity}
        asked = descriptors.normalise({**QUERIES["full"], "query_id": "q-there"}, "")
        async with asker(at, "analyst", False, at.root / "z2", known) as (_, execution, _settings):
            await execution.refresh()
            there = await execution.run(asked)
            copies = await execution.run(descriptors.normalise({**asking(), "scope": [f"import/{WEB}"]}, "q-copies"))
        async with asker(at, "service", True, at.root / "z1") as (_, execution, _settings):
            await execution.refresh()
            here = await execution.run(asked)
        assert there.texts == here.texts
        assert there.digest.differences(here.digest) == ()
        assert there.digest.basis == here.digest.basis
        assert len(copies.texts) == COUNT

    asyncio.run(run())
