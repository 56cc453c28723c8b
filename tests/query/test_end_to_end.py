"""From an exporter in one zone to a digest in the other, and the effect of one flipped bit on the way."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip(
    "opentelemetry.proto", reason="OpenTelemetry's formats are not installed: pip install '.[recorder]'"
)

from tests.bridge.bridge_fixture import Zones, allow, zones
from tests.hub.client import ISSUER
from tests.query.query_fixture import WEB, asking
from tests.query.test_zones import MAPPING, PAIRS, STREAMS, again, carry, submit
from tests.recorder.test_otlp import form, request
from veen.client import ClientDir
from veen.client.client import Client
from veen.core import naming
from veen.overlays.bridge_logs import BridgeResult, BundleImported
from veen.query.audit_events import ANSWERED, ORIGIN, REQUESTS, RESULTS, SUBMITTED
from veen.recorder import Enrolment, SetAside, SetupPlan, Shipper, SpoolFeed, SpoolWriter, enrol, init, otlp
from veen.recorder.normalize import Defaults
from veen.recorder.otlp import OtlpServer

TYPES = {"otel.log": WEB, SUBMITTED: REQUESTS, ANSWERED: RESULTS}


@pytest.fixture
def at(place: Path) -> Iterator[Zones]:
    """Two zones; the first has a recorder with two producers: a shop and the query service."""
    with ExitStack() as stack:
        made = stack.enter_context(zones(place, *PAIRS))
        for name in ("admin", "shop", "service"):
            made.folders[name] = stack.enter_context(ClientDir.create(place / name, None, int(time.time())))
        for stream in STREAMS:
            key = made.folders["analyst"].stream_keys.secret(naming.stream_id(stream))
            assert key is not None
            for name in ("admin", "service"):
                made.folders[name].stream_keys.import_secret(stream, key)
        allow(made.folders["service"], REQUESTS, RESULTS)
        for zone in ("z1", "z2"):
            (place / zone).mkdir()
        yield made


async def set_up(at: Zones) -> None:
    async with at.client("admin", at.online) as client:
        await init(client, SetupPlan(TYPES), ISSUER)
        who = Enrolment("shop", at.folders["shop"].card, ("shop",), (WEB,), 86_400)
        kit = await enrol(client, who, ISSUER)
        service = Enrolment("queries", at.folders["service"].card, (ORIGIN,), (REQUESTS, RESULTS), 86_400)
        await enrol(client, service, ISSUER)
    kit.join(at.folders["shop"])


async def export_logs(at: Zones, *bodies: str) -> None:
    """Export logs like an OpenTelemetry exporter to the recorder of the first zone."""
    spool = at.root / "spool"
    writer = SpoolWriter(spool, sync=True)
    async with (
        OtlpServer(writer, Defaults("shop", "otel.log"), "127.0.0.1", 0) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http,
    ):
        data = request(*bodies).SerializeToString()
        assert (await http.post("/v1/logs", content=data, headers=form(otlp.PROTOBUF))).status_code == 200
    writer.close()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Client]:
        async with at.client("shop", at.online) as client:
            yield client

    count = await Shipper(connect, SpoolFeed(spool, "otlp", follow=False), SetAside(at.root / "refused")).run()
    assert (count.sent, count.refused) == (len(bodies), 0)


QUERY = asking(query_id="q-across", projection=["*"], filter={"event_type": ["otel.log"]}, evidence={"mode": "full"})


def test_events_of_an_exporter_have_the_same_digest_in_the_other_zone(at: Zones) -> None:
    async def run() -> None:
        await set_up(at)
        await export_logs(at, "one", "two", "three")
        digest = await submit(at, QUERY)
        assert digest.row_count == 3
        await carry(at)
        found = await again(at, "q-across")
        assert found.agrees
        assert found.found.digest == digest
        assert [text.count(b'"body":"') for text in found.result.texts] == [1, 1, 1]

    asyncio.run(run())


def test_a_bundle_with_a_flipped_bit_is_rejected_logged_and_not_imported(at: Zones) -> None:
    async def run() -> None:
        await set_up(at)
        await export_logs(at, "one", "two", "three")
        await submit(at, QUERY)
        (data,) = await at.export(WEB)
        wrong = bytearray(data)
        wrong[len(wrong) // 2] ^= 1
        outcome = await at.take(bytes(wrong), mapping=MAPPING)
        assert outcome.result is BridgeResult.FAILURE
        assert await at.imported(f"import/{WEB}") == []
        (told,) = await at.audit_entries()
        assert BundleImported.decode(told.body or b"").result == BridgeResult.FAILURE
        assert (await at.take(data, mapping=MAPPING)).ok
        await carry(at)
        assert (await again(at, "q-across")).agrees

    asyncio.run(run())
