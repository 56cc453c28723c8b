"""The signer process: it alone has the secret keys, and its death loses nothing."""

import http.client
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.hub.client import PATIENCE_S, make_dir, running
from tests.hub.test_kill import COMMAND, start
from tests.hub.test_running import check_kept, in_background
from veen.core import Malformed
from veen.core.envelopes import CheckpointRequest, CheckpointResponse


def memory_of(pid: int) -> bytes:
    """The writable memory of a process."""
    found = bytearray()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights, *_ = line.split()
            if rights.startswith("rw") and "[vv" not in line:
                first, last = (int(one, 16) for one in place.split("-"))
                memory.seek(first)
                found += memory.read(last - first)
    return bytes(found)


def test_a_running_hub_has_no_secret_key_in_its_memory(tmp_path: Path) -> None:
    data_dir = tmp_path / "hub"
    subprocess.run([*COMMAND, "init", "--data-dir", str(data_dir)], check=True, capture_output=True)
    hub, port = start(data_dir)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/tooling/status")
        assert b"hub_pk" in connection.getresponse().read()
        connection.close()
        memory = memory_of(hub.pid)
    finally:
        hub.send_signal(signal.SIGTERM)
        with hub:
            hub.wait()
    assert str(data_dir).encode() in memory  # the memory was read
    seeds = [path.read_bytes() for path in (data_dir / "keys").iterdir()]
    assert [seed in memory for seed in seeds] == [False, False]


def test_a_signer_killed_under_load_loses_nothing(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub, in_background() as pool:
        writers = [hub.writer() for _ in range(8)]
        sent = [pool.submit(writer.send_many, 30) for writer in writers]
        killed: set[int] = set()
        while len(killed) < 3 and not all(one.done() for one in sent):
            pid = hub.service.signer.pid
            if pid not in killed and hub.service.metrics._ok._value.get() > 40 * len(killed):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        acknowledged = [receipt for one in sent for receipt in one.result(PATIENCE_S)]
        assert killed
        assert hub.service.signer.pid not in killed
        assert len(acknowledged) == 240
        check_kept(hub, writers[0].label, acknowledged)


def test_a_signer_that_ends_while_a_checkpoint_is_signed_is_replaced(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        receipt = hub.writer().send()
        before = hub.service.signer.pid
        os.kill(before, signal.SIGKILL)
        answer = hub.post("/v1/checkpoint", CheckpointRequest(receipt.label, 1)).read(CheckpointResponse)
        assert answer.checkpoint.mmr_root == receipt.mmr_root
        assert hub.service.signer.pid != before
        hub.writer().send()


def test_the_signer_ends_with_the_hub(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        pid = hub.service.signer.pid
        hub.writer().send()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_key_file_of_another_hub_signs_nothing(tmp_path: Path) -> None:
    data_dir, other = make_dir(tmp_path / "a"), make_dir(tmp_path / "b")
    mine, theirs = (next((root / "keys").glob("hub-*.seed")) for root in (data_dir, other))
    mine.write_bytes(theirs.read_bytes())
    with pytest.raises(Malformed, match="does not match the public key"), running(data_dir):
        pass
