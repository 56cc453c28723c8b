"""A disk that becomes read-only under a running hub, an index that would crash it, an incomplete log."""

import errno
import random
import signal
from pathlib import Path

import pytest

from tests.hub.client import START, Clock, Hub, make_dir, running, until
from tests.hub.test_kill import ended, start
from tests.hub.test_running import check_kept
from tests.storage.disks import FailingFrom
from veen.core import Malformed
from veen.core.envelopes import StreamRequest
from veen.hub import submit
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.storage import fsck
from veen.storage.index import Index


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC], ids=["read-only", "full"])
def test_a_disk_that_takes_nothing_any_more_refuses_and_goes_on_when_it_does(tmp_path: Path, number: int) -> None:
    disk = FailingFrom(None, number)
    data_dir = make_dir(tmp_path)
    with running(data_dir, disk=disk) as hub:
        writer = hub.writer()
        told = writer.send_many(5)
        disk.n = 0
        for _ in range(3):
            reply = hub.submit(writer.message())
            assert (reply.status, reply.error().code) == (503, "E.UNAVAILABLE")
            assert reply.headers["retry-after"] == "1"
            assert "the journal cannot be written" in reply.error().message
        check_kept(hub, writer.label, told)
        disk.heal()
        told += writer.send_many(5)
        check_kept(hub, writer.label, told)
    with running(data_dir) as hub:
        check_kept(hub, writer.label, told)
    assert fsck.check(data_dir).findings == []


def test_a_hub_starts_on_an_index_whose_pages_are_damaged(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        hub.writer().send_many(30)
    rng, path = random.Random(7), data_dir / "index" / "data.mdb"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        at = page * 4096 + 16 + rng.randrange(40)
        data[at : at + 4] = rng.randbytes(4)
    path.write_bytes(data)
    process, port = start(data_dir)
    try:
        hub = Hub(data_dir)
        hub.port = port
        assert hub.status()["entries"] == 30
    finally:
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0
    assert fsck.check(data_dir).findings == []


def test_a_hub_does_not_start_where_its_open_chunk_is_missing(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        hub.writer().send_many(3)
    next((data_dir / "log").glob("chunk-*-open.log")).unlink()
    with pytest.raises(Malformed, match="does not hold the 3 entries that the index lists"):
        HubService(HubConfig(data_dir, port=0), clocks=Clock(START).read)


def test_a_damaged_entry_is_the_hubs_fault_and_not_the_readers(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        label = hub.writer().label
        hub.writer().send_many(3)
    (chunk,) = (data_dir / "log").glob(f"chunk-{label.hex()}-*.log")
    data = bytearray(chunk.read_bytes())
    data[200] ^= 1
    chunk.write_bytes(data)
    with running(data_dir) as hub:
        reply = hub.post("/v1/stream", StreamRequest(label, 1))
        assert (reply.status, reply.error().code) == (500, "E.UNAVAILABLE")
        assert "damaged" in reply.error().message
        assert hub.post("/v1/stream", b"\xff").error().code == "E.BAD_REQUEST"


def test_a_commit_whose_file_could_not_be_extended_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction was committed; only extending the file afterwards failed."""
    failed: list[Path] = []
    extend_file = Index.extend_file

    def fails_twice(index: Index) -> None:
        if len(failed) < 2:
            failed.append(data_dir)
            raise OSError(errno.ENOSPC, "No space left on device")
        extend_file(index)

    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        monkeypatch.setattr(Index, "extend_file", fails_twice)
        monkeypatch.setattr(submit, "RETRY_S", 0.01)
        writer = hub.writer()
        kept = writer.send_many(3)
        until(lambda: len(failed) == 2)
        until(lambda: hub.get("/readyz").status == 200)
        kept += writer.send_many(2)
        assert [receipt.stream_seq for receipt in kept] == [1, 2, 3, 4, 5]
    assert fsck.check(data_dir).findings == []
