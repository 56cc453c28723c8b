"""The signer process: it alone has the secret keys, and its death loses nothing."""

import asyncio
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from plumbing.durable import Disk
from tests.hub.client import PATIENCE_S, TOKEN, Hub, log_file, log_rows, make_dir, running, until
from tests.hub.disks import GatedFullDisk
from tests.hub.softhsm import PIN, make_token
from tests.hub.test_kill import COMMAND, start
from tests.hub.test_running import check_kept, in_background
from veen.core import Malformed, Receipt, Refused, Unavailable, naming
from veen.core.envelopes import CheckpointRequest, CheckpointResponse, StreamRegistration
from veen.hub.admission_state import Outcome
from veen.hub.submit import FULL_GROUP
from veen.storage import fsck, lock, metadata, rotation
from veen.storage.paths import Folders
from veen.storage.secret_keys import TokenSource


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

    def scrub_passes() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/tooling/status")
        found = json.loads(connection.getresponse().read())
        connection.close()
        assert "hub_pk" in found
        return int(found["scrub"]["passes"])

    try:
        until(lambda: scrub_passes() > 0)  # it has checked the metadata, too
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


async def put(hub: Hub, heard: list[Outcome], encoded: Sequence[bytes]) -> None:
    for one in encoded:
        hub.service.pipeline.submit(one, heard.append)


def check_signed(hub: Hub, receipts: list[Receipt]) -> None:
    for receipt in receipts:
        hub.service.hub_metadata.identity.verify_receipt(receipt)


async def decided(hub: Hub) -> int:
    """Items that are decided but not durable."""
    return sum(len(group.outcomes) for group in hub.service.sequencer.state.undurable())


def test_a_signer_killed_with_several_groups_loses_none_and_keeps_their_order(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        writer, heard = hub.writer(), list[Outcome]()
        messages = writer.next_messages(1 + 2 * FULL_GROUP)
        os.kill(hub.service.signer.pid, signal.SIGSTOP)
        hub.do(put(hub, heard, messages[:1]))
        until(lambda: hub.do(decided(hub)) == 1)
        hub.do(put(hub, heard, messages[1 : 1 + FULL_GROUP]))
        until(lambda: hub.do(decided(hub)) == 1 + FULL_GROUP)  # decided while the first group is being signed
        hub.do(put(hub, heard, messages[1 + FULL_GROUP :]))
        assert heard == []
        os.kill(hub.service.signer.pid, signal.SIGKILL)
        until(lambda: len(heard) == len(messages))
        receipts = [Receipt.decode(outcome) for outcome in heard if isinstance(outcome, bytes)]
        assert [receipt.stream_seq for receipt in receipts] == list(range(1, len(messages) + 1))
        check_signed(hub, receipts)
        check_kept(hub, writer.label, receipts)


def test_a_failed_write_undoes_a_group_that_is_being_signed(tmp_path: Path) -> None:
    """Its signatures arrive later, for places that other messages have by then."""
    disk = GatedFullDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        first, writer, heard = hub.writer().send(), hub.writer(), list[Outcome]()
        messages = writer.next_messages(1 + FULL_GROUP)
        disk.full = True
        hub.do(put(hub, heard, messages[:1]))
        assert disk.waiting.wait(PATIENCE_S)
        os.kill(hub.service.signer.pid, signal.SIGSTOP)
        hub.do(put(hub, heard, messages[1:]))
        until(lambda: hub.do(decided(hub)) == len(messages))
        disk.gate.set()
        until(lambda: len(heard) == len(messages))
        assert [outcome.code for outcome in heard if isinstance(outcome, Refused)] == ["E.UNAVAILABLE"] * len(messages)
        disk.full = False
        heard.clear()
        other = hub.writer()
        again = [*other.next_messages(FULL_GROUP), *messages]
        hub.do(put(hub, heard, again))  # decided behind the request of the undone group
        os.kill(hub.service.signer.pid, signal.SIGCONT)
        until(lambda: len(heard) == len(again))
        receipts = [Receipt.decode(outcome) for outcome in heard if isinstance(outcome, bytes)]
        assert sorted(receipt.stream_seq for receipt in receipts) == list(range(2, 2 + len(again)))
        check_signed(hub, receipts)
        check_kept(hub, writer.label, [first, *receipts])


def lose(keys: Path) -> Callable[[], None]:
    """Take away the folder that has the keys. Returns a function that brings it back."""
    lost = keys.rename(keys.with_name(f"{keys.name}-lost"))

    def bring_back() -> None:
        if keys.exists():  # the source may have made an empty one
            shutil.rmtree(keys)
        lost.rename(keys)

    return bring_back


def check_survives_loss(data_dir: Path, keys: Path, logged: Path) -> None:
    """A hub refuses messages while its keys cannot be used, undoes decided groups, and resumes by itself."""
    with log_file(logged) as lines, running(data_dir, time.time, scrub_bytes_per_s=0) as hub:
        writer, heard = hub.writer(), list[Outcome]()
        first = writer.send()
        messages = writer.next_messages(1 + FULL_GROUP)
        os.kill(hub.service.signer.pid, signal.SIGSTOP)
        hub.do(put(hub, heard, messages[:1]))
        until(lambda: hub.do(decided(hub)) == 1)
        hub.do(put(hub, heard, messages[1:]))
        until(lambda: hub.do(decided(hub)) == len(messages))
        bring_back = lose(keys)
        os.kill(hub.service.signer.pid, signal.SIGKILL)
        until(lambda: len(heard) == len(messages))
        assert [outcome.code for outcome in heard if isinstance(outcome, Refused)] == ["E.UNAVAILABLE"] * len(messages)
        assert hub.do(decided(hub)) == 0
        ready = hub.get("/readyz")
        assert "signing_key" in ready.json(503)["bad_states"]
        assert b'veen_hub_bad_state{reason="signing_key"} 1.0' in hub.get("/metrics").body
        heard.clear()
        hub.do(put(hub, heard, messages[:1]))
        until(lambda: len(heard) == 1)
        assert isinstance(heard[0], Refused)
        assert heard[0].code == "E.UNAVAILABLE"
        registration = StreamRegistration(naming.stream_id("doors"))
        assert hub.post("/tooling/streams", registration, authorization=f"Bearer {TOKEN}").status == 503
        bring_back()
        until(lambda: hub.get("/readyz").status == 200)
        heard.clear()
        hub.do(put(hub, heard, messages))
        until(lambda: len(heard) == len(messages))
        receipts = [Receipt.decode(outcome) for outcome in heard if isinstance(outcome, bytes)]
        assert [receipt.stream_seq for receipt in receipts] == list(range(2, 2 + len(messages)))
        check_signed(hub, receipts)
        check_kept(hub, writer.label, [first, *receipts])
        hub.register(naming.stream_id("doors"))
        until(lambda: hub.get("/readyz").json()["bad_states"] == [])
    of_key = [row["event"] for row in log_rows(lines) if row.get("reason") == "signing_key"]
    assert of_key == ["bad_state_entered", "bad_state_left"]
    assert fsck.check(data_dir).verdict is fsck.FsckVerdict.CLEAN


def test_a_key_file_that_is_lost_refuses_messages_until_it_is_back(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    check_survives_loss(data_dir, data_dir / "keys", tmp_path / "log")


def test_a_token_that_is_removed_refuses_messages_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTHSM2_CONF", "")
    data_dir, token = tmp_path / "hub", make_token(tmp_path / "hsm")
    options = ("--pkcs11-module", token.module, "--pkcs11-token", token.token, "--pkcs11-pin-file", token.pin_file)
    assert init(data_dir, *options).returncode == 0
    check_survives_loss(data_dir, tmp_path / "hsm" / "tokens", tmp_path / "log")


def test_a_key_file_that_is_replaced_while_the_hub_runs_signs_nothing(tmp_path: Path) -> None:
    data_dir, other = make_dir(tmp_path / "a"), make_dir(tmp_path / "b")
    mine, theirs = (next((root / "keys").glob("hub-*.seed")) for root in (data_dir, other))
    sound = mine.read_bytes()
    with running(data_dir, scrub_bytes_per_s=0) as hub:
        writer, heard = hub.writer(), list[Outcome]()
        first = writer.send()
        messages = writer.next_messages(1)
        mine.write_bytes(theirs.read_bytes())
        os.kill(hub.service.signer.pid, signal.SIGKILL)
        hub.do(put(hub, heard, messages))
        until(lambda: len(heard) == 1)
        assert isinstance(heard[0], Refused)
        mine.write_bytes(sound)
        until(lambda: hub.get("/readyz").status == 200)
        hub.do(put(hub, heard, messages))
        until(lambda: len(heard) == 2)
        assert isinstance(heard[1], bytes)
        check_kept(hub, writer.label, [first, Receipt.decode(heard[1])])


def test_work_between_groups_waits_for_groups_that_are_being_signed(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        heard, found = list[Outcome](), list[tuple[int, int]]()

        def begin() -> Callable[[], object]:
            undurable = hub.service.sequencer.state.undurable()
            found.append((len(heard), sum(len(group.outcomes) for group in undurable)))
            return lambda: None

        async def wait_for_work() -> None:
            done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            hub.service.pipeline.between_groups(begin, done.set_result)
            hub.service.pipeline.submit(later, heard.append)
            os.kill(hub.service.signer.pid, signal.SIGCONT)
            await done

        *messages, later = hub.writer().next_messages(2 + FULL_GROUP)
        os.kill(hub.service.signer.pid, signal.SIGSTOP)
        hub.do(put(hub, heard, messages[:1]))
        until(lambda: hub.do(decided(hub)) == 1)
        hub.do(put(hub, heard, messages[1:]))
        until(lambda: hub.do(decided(hub)) == len(messages))
        hub.do(wait_for_work())
        assert found == [(len(messages), 0)]
        until(lambda: len(heard) == len(messages) + 1)


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
            hub.register(naming.stream_id("doors"))
            receipt = hub.writer().send()  # the last entry before the rotation
            hub.service.hub_metadata.identity.verify_receipt(receipt)
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


def test_a_key_in_a_token_is_destroyed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTHSM2_CONF", "")
    data_dir, token = tmp_path / "hub", make_token(tmp_path / "hsm")
    options = ("--pkcs11-module", token.module, "--pkcs11-token", token.token, "--pkcs11-pin-file", token.pin_file)
    assert init(data_dir, *options).returncode == 0
    old = metadata.read_metadata(Folders(data_dir)).identity.newest
    label = json.loads((data_dir / "keys" / f"{metadata.key_name(old.key_id)}.key").read_bytes())["label"]
    assert load_from(token, label).stdout.strip() == old.hub_pk.hex()
    command = [*COMMAND, "rotate-key", "--data-dir", data_dir, "--destroy-old", "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert json.loads(done.stdout)["destroyed"] == [old.key_id.hex()], done.stderr
    assert "no usable key of that label" in load_from(token, label).stderr
    assert fsck.check(data_dir).verdict is fsck.FsckVerdict.CLEAN


def load_from(token: TokenSource, label: str) -> subprocess.CompletedProcess[str]:
    """Load a key in another process: a process has one session of a token."""
    program = f"""
from pathlib import Path
from veen.storage.token_keys import load_key
print(load_key(Path({str(token.module)!r}), {token.token!r}, {PIN.encode()!r}, {label!r}).public_key.hex())
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_a_token_that_cannot_be_opened_leaves_no_directory(tmp_path: Path) -> None:
    data_dir, pin = tmp_path / "hub", passphrase_in(tmp_path / "pin")
    failed = init(data_dir, "--pkcs11-module", tmp_path / "no.so", "--pkcs11-token", "veen", "--pkcs11-pin-file", pin)
    assert (failed.returncode, data_dir.exists()) == (6, False), failed.stderr
    partial = init(data_dir, "--pkcs11-token", "veen")
    assert (partial.returncode, data_dir.exists()) == (2, False)
    assert "--pkcs11-module" in partial.stderr
