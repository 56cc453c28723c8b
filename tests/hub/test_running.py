"""Running and stopping under load, with dying workers, wrong clocks and bad disks. Nothing acknowledged is lost."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.hub.client import ISSUER, PATIENCE_S, START, Clock, Hub, Reply, Writer, let_go, make_dir, running, until
from tests.hub.disks import FailingDisk, FullDisk, GatedDisk, NoLogDisk
from veen.core import Msg, Receipt, SigningKey, Unavailable, Unverified, cap_token, naming
from veen.core.envelopes import StreamRequest, StreamResponse
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.hub.verifier import VerifierPool
from veen.storage.journal import JournalBroken

OPEN: dict[str, Any] = {"admission": Admission.OPEN}


@contextmanager
def in_background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def entries(hub: Hub, label: bytes) -> list[tuple[Msg, Receipt]]:
    """The whole label, with each entry verified."""
    reply = hub.post("/v1/stream", StreamRequest(label, 1, with_receipts=True))
    found = []
    for number, item in enumerate(reply.read(StreamResponse).items, 1):
        assert item.receipt is not None
        assert item.stream_seq == item.receipt.stream_seq == number
        item.receipt.verify_signature(hub.hub_pk)
        item.receipt.check_binds(item.msg)
        found.append((item.msg, item.receipt))
    return found


def check_kept(hub: Hub, label: bytes, acknowledged: list[Receipt]) -> None:
    """Every receipt that was sent is in the log unchanged, and the log has no gap."""
    logged = {receipt.stream_seq: receipt for _, receipt in entries(hub, label)}
    assert [logged[receipt.stream_seq] for receipt in acknowledged] == acknowledged
    assert sorted(logged) == list(range(1, len(logged) + 1))


# Stopping.


def test_accepted_messages_are_answered_before_the_hub_stops(tmp_path: Path) -> None:
    disk = GatedDisk()
    data_dir = make_dir(tmp_path)
    hub = Hub(data_dir, disk=disk, settings=OPEN).start()
    label = hub.label("s")
    disk.gate.clear()
    with in_background() as pool:
        asked = [pool.submit(hub.submit, hub.writer().message()) for _ in range(8)]
        assert disk.waiting.wait(PATIENCE_S)
        wait_for_all_in_flight(hub, 8)
        stopping = pool.submit(hub.stop)
        wait_for_stopping(hub)
        assert not any(one.done() for one in asked)
        disk.gate.set()
        acknowledged = [one.result(PATIENCE_S).receipt() for one in asked]
        stopping.result(PATIENCE_S)
    with running(data_dir) as hub:
        assert hub.service.replayed == 0
        check_kept(hub, label, acknowledged)
        assert hub.status()["entries"] == 8


def wait_for_all_in_flight(hub: Hub, count: int) -> None:
    """Each check takes a turn of the hub's loop, so no sleep is needed."""

    async def look() -> int:
        return hub.service.pipeline.in_flight

    until(lambda: hub.do(look()) == count)


def wait_for_stopping(hub: Hub) -> None:
    async def look() -> bool:
        return hub.service.status.stopping

    until(lambda: hub.do(look()))


def test_a_stopped_hub_takes_no_more_connections(tmp_path: Path) -> None:
    hub = Hub(make_dir(tmp_path), settings=OPEN).start()
    message = hub.writer().message()
    hub.stop()
    with pytest.raises(ConnectionRefusedError):
        hub.submit(message)


def test_a_stopped_hub_starts_again_where_it_was(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    writer: Writer | None = None
    told: list[Receipt] = []
    for run in range(4):
        with running(data_dir) as hub:
            writer = writer or hub.writer()
            writer.hub = hub
            told += writer.send_many(3)
            assert [receipt.stream_seq for receipt in told] == list(range(1, 3 * run + 4))
            check_kept(hub, writer.label, told)


def test_a_second_hub_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        with pytest.raises(Unavailable) as caught:
            HubService(HubConfig(data_dir, port=0), clocks=Clock().read)
        assert "a hub is already running" in str(caught.value)
        hub.writer().send()
    with running(data_dir) as hub:
        assert hub.status()["entries"] == 1


def test_a_folder_that_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        HubService(HubConfig(tmp_path, port=0))
    assert "is not a data directory of a hub" in str(caught.value)


# Load.


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_full_queue_says_try_again_later(tmp_path: Path, most: int) -> None:
    disk = GatedDisk()
    with running(make_dir(tmp_path), disk=disk, max_in_flight=most) as hub, in_background() as pool:
        disk.gate.clear()
        asked = [pool.submit(hub.submit, hub.writer().message()) for _ in range(most)]
        wait_for_all_in_flight(hub, most)
        writer = hub.writer()
        refused = hub.submit(writer.message())
        as_json = hub.post_json("/v1/submit", b"{")  # a malformed message is reported even under overload
        disk.gate.set()
        assert sorted(one.result(PATIENCE_S).receipt().stream_seq for one in asked) == list(range(1, most + 1))
        assert (refused.status, refused.error().code) == (503, "E.UNAVAILABLE")
        assert refused.error().retry_after == 1
        assert refused.headers["retry-after"] == "1"
        assert as_json.refusal()[3] == "CBOR_INVALID"
        assert writer.send().stream_seq == most + 1


def test_a_batch_larger_than_the_queue_is_refused_in_part(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), max_in_flight=3) as hub:
        items = hub.writer().next_messages(5)
        found = hub.batch(*items)
        codes = [item.code if not isinstance(item, Receipt) else item.stream_seq for item in found]
        assert codes == [1, 2, 3, "E.UNAVAILABLE", "E.UNAVAILABLE"]


def test_reading_goes_on_while_a_sync_hangs(tmp_path: Path) -> None:
    disk = GatedDisk()
    with running(make_dir(tmp_path), disk=disk) as hub, in_background() as pool:
        first = hub.writer().send()
        disk.gate.clear()
        hanging = pool.submit(hub.submit, hub.writer().message())
        assert disk.waiting.wait(PATIENCE_S)
        # Entries that are not durable are not visible.
        assert [receipt for _, receipt in entries(hub, first.label)] == [first]
        assert hub.get("/healthz").status == 200
        assert hub.status()["entries"] == 1
        disk.gate.set()
        assert hanging.result(PATIENCE_S).receipt().stream_seq == 2


def test_many_clients_at_once_share_syncs_and_lose_nothing(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub, in_background() as pool:
        writers = [hub.writer() for _ in range(16)]
        sent = [pool.submit(writer.send_many, 10) for writer in writers]
        acknowledged = [receipt for one in sent for receipt in one.result(PATIENCE_S)]
        assert len({receipt.stream_seq for receipt in acknowledged}) == 160
        check_kept(hub, writers[0].label, acknowledged)


# Verification workers.


def workers(hub: Hub) -> list[int]:
    return cast(VerifierPool, hub.service.pipeline._verifier).pids


def test_a_worker_process_decides_as_the_thread_does(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), workers=1) as hub:
        writer = hub.writer()
        writer.send_many(3)
        assert hub.submit(writer.message(sig=bytes(64))).refusal()[3] == "SIG_INVALID"
        writer.send()


def test_a_worker_killed_under_load_loses_nothing(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), workers=1) as hub, in_background() as pool:
        writers = [hub.writer() for _ in range(8)]
        sent = [pool.submit(writer.send_many, 30) for writer in writers]
        killed: set[int] = set()
        while len(killed) < 3 and not all(one.done() for one in sent):
            pid = workers(hub)[0]
            if pid not in killed and hub.service.metrics._ok._value.get() > 40 * len(killed):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        acknowledged = [receipt for one in sent for receipt in one.result(PATIENCE_S)]
        assert len(killed) >= 1
        assert workers(hub)[0] not in killed
        assert len(acknowledged) == 240
        check_kept(hub, writers[0].label, acknowledged)


def test_a_worker_killed_while_idle_is_replaced(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), workers=1) as hub:
        before = workers(hub)[0]
        os.kill(before, signal.SIGKILL)
        hub.writer().send()
        assert workers(hub)[0] != before


def test_workers_end_with_the_hub(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), workers=2) as hub:
        pids = workers(hub)
        hub.writer().send()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# Clocks.


def test_time_in_receipts_never_goes_back(tmp_path: Path) -> None:
    clock = Clock(START + 1000)
    data_dir = make_dir(tmp_path)
    times = []
    with running(data_dir, clock) as hub:
        writer = hub.writer()
        for step in (0, -1, -999, 1001, -0.1, -995.9):
            clock.step(step)
            times.append(writer.send().hub_ts - START)
    assert times == [1000, 1000, 1000, 1001, 1001, 1001]
    clock.step(5)
    with running(data_dir, clock) as hub:
        writer.hub = hub
        assert writer.send().hub_ts == START + 1001
        clock.now += 2
        assert writer.send().hub_ts == START + 1002


def test_a_clock_that_went_back_does_not_revive_a_capability(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path), clock, admission=Admission.CAPABILITY) as hub:
        writer, other = hub.granted(ttl=10), hub.granted("other", ttl=1000)
        clock.now += 11
        other.send()
        clock.now -= 11
        assert hub.submit(writer.message()).refusal()[3] == "CAP_TTL"


# Disks.


def test_a_full_disk_refuses_and_resumes_without_a_gap(tmp_path: Path) -> None:
    disk = FullDisk()
    data_dir = make_dir(tmp_path)
    with running(data_dir, disk=disk) as hub:
        writer = hub.writer()
        told = writer.send_many(3)
        disk.full = True
        for _ in range(3):
            reply = hub.submit(writer.message())
            assert (reply.status, reply.error().code) == (503, "E.UNAVAILABLE")
            assert reply.headers["retry-after"] == "1"
        assert hub.status()["entries"] == 3
        check_kept(hub, writer.label, told)
        disk.full = False
        told += writer.send_many(3)
        assert [receipt.stream_seq for receipt in told] == [1, 2, 3, 4, 5, 6]
        check_kept(hub, writer.label, told)
    with running(data_dir) as hub:
        check_kept(hub, writer.label, told)
        writer.hub = hub
        assert writer.send().stream_seq == 7


def test_a_full_disk_undoes_capabilities_and_streams_too(tmp_path: Path) -> None:
    disk = FullDisk()
    with running(make_dir(tmp_path), disk=disk, admission=Admission.CAPABILITY) as hub:
        hub.granted("other").send()
        key = SigningKey.generate()
        token = cap_token.mint(ISSUER, key.public_key, [naming.stream_id("s")], 100)
        disk.full = True
        reply = hub.authorize(token)
        assert (reply.status, reply.error().code) == (503, "E.UNAVAILABLE")
        disk.full = False
        writer = hub.writer("s", key, token)
        assert hub.submit(writer.message()).refusal()[3] == "CAP_MISSING"
        assert hub.authorize(token).status == 200
        assert writer.send().stream_seq == 1


def test_a_disk_that_cannot_sync_ends_the_hub_and_nothing_is_claimed(tmp_path: Path) -> None:
    disk = FailingDisk()
    data_dir = make_dir(tmp_path)
    hub = Hub(data_dir, disk=disk, settings=OPEN).start()
    writer = hub.writer()
    told = writer.send_many(3)
    with in_background() as pool:
        disk.fail_next = True
        unanswered = pool.submit(hub.submit, writer.message(b"unknown"))
        assert isinstance(broken(hub), JournalBroken)
        assert not unanswered.done()
        hub.abandon()
        check_no_receipt(unanswered)
    with running(data_dir) as hub:
        check_kept(hub, writer.label, told)


def broken(hub: Hub) -> BaseException:
    future = hub.service.broken
    assert future is not None
    return hub.do(future)


def check_no_receipt(asked: "Future[Reply]") -> None:
    """It got no answer, or an error."""
    error = asked.exception(PATIENCE_S)
    assert error is not None or asked.result().status != 200


def test_run_until_raises_what_broke_the_hub(tmp_path: Path) -> None:
    disk = FailingDisk()
    hub = Hub(make_dir(tmp_path), disk=disk, settings=OPEN)

    async def run() -> None:
        hub.service = HubService(HubConfig(hub.data_dir, port=0, workers=0, **OPEN), disk=disk, clocks=Clock().read)
        stopped = asyncio.Event()
        running_hub = asyncio.create_task(hub.service.run_until(stopped))
        while not hub.service.server.sockets:
            await asyncio.sleep(0)
        hub.port = hub.service.server.port
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, hub.writer().send)
        disk.fail_next = True
        asked = loop.run_in_executor(None, hub.submit, hub.writer().message())
        with pytest.raises(JournalBroken):
            await asyncio.wait_for(running_hub, PATIENCE_S)
        await let_go(hub.service)
        await asyncio.wait([asked])
        assert asked.exception() is not None

    asyncio.run(run())


def test_a_journal_that_is_torn_at_its_end_is_cut_and_goes_on(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir, disk=NoLogDisk()) as hub:
        writer = hub.writer()
        told = writer.send_many(3)
    last = max((data_dir / "journal").glob("*.wal"))
    with last.open("ab") as file:
        file.write(b"and then the power went")
    with running(data_dir) as hub:
        check_kept(hub, writer.label, told)
        writer.hub = hub
        assert writer.send().stream_seq == 4


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    for path in (data_dir / "keys").iterdir():
        path.chmod(0o644)
    with pytest.raises(Unavailable) as caught:
        HubService(HubConfig(data_dir, port=0), clocks=Clock().read)
    assert "600" in str(caught.value)


def test_an_identity_that_was_changed_is_refused(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    path = data_dir / "hub-identity.json"
    text = path.read_text()
    path.write_text(text.replace(f'"valid_from":{START}', f'"valid_from":{START - 1}'))
    with pytest.raises(Unverified):
        HubService(HubConfig(data_dir, port=0), clocks=Clock().read)
