"""The signer process: it alone has the secret keys, and its death loses nothing."""

import http.client
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from plumbing.durable import Disk
from tests.hub.client import PATIENCE_S, make_dir, running
from tests.hub.softhsm import make_token
from tests.hub.test_kill import COMMAND, start
from tests.hub.test_running import check_kept, in_background
from veen.core import Malformed, Unavailable, naming
from veen.core.envelopes import CheckpointRequest, CheckpointResponse
from veen.storage import fsck, lock, rotation
from veen.storage.paths import Folders


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
    assert init(data_dir).returncode == 0
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


def test_a_signer_killed_while_it_signs_receipts_and_checkpoints_loses_nothing(tmp_path: Path) -> None:
    """Both channels notice the end of the process, in any order, and send their requests again."""
    with running(make_dir(tmp_path)) as hub, in_background() as pool:
        writers = [hub.writer() for _ in range(8)]
        first = writers[0].send()
        sent = [pool.submit(writer.send_many, 40) for writer in writers]

        def ask_for_checkpoints() -> None:
            while not all(one.done() for one in sent):
                answer = hub.post("/v1/checkpoint", CheckpointRequest(first.label, 1)).read(CheckpointResponse)
                answer.checkpoint.verify_signature(hub.hub_pk)

        asked = [pool.submit(ask_for_checkpoints) for _ in range(3)]
        killed: set[int] = set()
        while len(killed) < 8 and not all(one.done() for one in sent):
            pid = hub.service.signer.pid
            if pid not in killed and hub.service.metrics._ok._value.get() > 30 * len(killed):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        acknowledged = [receipt for one in sent for receipt in one.result(PATIENCE_S)]
        for one in asked:
            one.result(PATIENCE_S)
        assert killed
        assert len(acknowledged) == 320
        check_kept(hub, writers[0].label, [first, *acknowledged])


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


# Where the secrets are.


def init(data_dir: Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "init", "--data-dir", data_dir, "--no-root", *options]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def passphrase_in(path: Path, words: str = "correct horse") -> Path:
    path.touch(0o600)
    path.write_text(f"{words}\n")
    return path


def check_signs(data_dir: Path) -> None:
    """A hub signs with its keys, also with those of a rotation, and nothing in its directory is a seed."""
    for _ in range(2):
        with running(data_dir, clock=time.time) as hub:
            receipt = hub.writer().send()
            hub.service.hub_metadata.identity.verify_receipt(receipt)
            hub.register(naming.stream_id("doors"))
        with lock.exclusive(Folders(data_dir).lock):
            rotation.rotate_key(Disk(), Folders(data_dir), receipt.hub_ts + 1, 0)
    assert {path.suffix for path in (data_dir / "keys").iterdir()} == {".key"}
    assert fsck.check(data_dir).verdict is fsck.FsckVerdict.CLEAN


def test_a_hub_signs_with_keys_that_a_passphrase_protects(tmp_path: Path) -> None:
    data_dir, secret = tmp_path / "hub", passphrase_in(tmp_path / "passphrase")
    assert init(data_dir, "--key-passphrase-file", secret).returncode == 0
    check_signs(data_dir)
    passphrase_in(secret, "wrong horse")
    with pytest.raises(Malformed, match="the passphrase is wrong"), running(data_dir):
        pass
    secret.unlink()
    with pytest.raises(Unavailable, match=r"passphrase cannot be read: No such file"), running(data_dir):
        pass


def test_a_hub_signs_with_keys_in_a_pkcs11_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTHSM2_CONF", "")
    data_dir, token = tmp_path / "hub", make_token(tmp_path / "hsm")
    options = ("--pkcs11-module", token.module, "--pkcs11-token", token.token, "--pkcs11-pin-file", token.pin_file)
    made = init(data_dir, *options)
    assert made.returncode == 0, made.stderr
    check_signs(data_dir)
    token.pin_file.write_text("1234\n")
    with pytest.raises(Unavailable, match=r"the token veen of .* cannot be opened"), running(data_dir):
        pass


def test_a_token_that_cannot_be_opened_leaves_no_directory(tmp_path: Path) -> None:
    data_dir, pin = tmp_path / "hub", passphrase_in(tmp_path / "pin")
    failed = init(data_dir, "--pkcs11-module", tmp_path / "no.so", "--pkcs11-token", "veen", "--pkcs11-pin-file", pin)
    assert (failed.returncode, data_dir.exists()) == (6, False), failed.stderr
    partial = init(data_dir, "--pkcs11-token", "veen")
    assert (partial.returncode, data_dir.exists()) == (2, False)
    assert "--pkcs11-module" in partial.stderr
