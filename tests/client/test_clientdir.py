"""A client directory is created atomically, is private, and allows one sending process at a time."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.disks import Died, DyingDisk, FailingDisk, FullDisk, Last
from tests.client.ledger import NOW, Ledger, messages
from tests.client.test_state import full_disk
from veen.client import Busy, ClientDir, Cost, WrongPassphrase
from veen.client.local_files import Disk
from veen.client.writer_keys import WriterRequest
from veen.core import Malformed, Unavailable, Unverified

CHEAP = Cost(passes=1, memory_kib=8_192)


def made(path: Path, passphrase: bytes | None = None, disk: Disk | None = None) -> ClientDir:
    return ClientDir.create(path, passphrase, NOW, cost=CHEAP, disk=disk or Disk())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_client_has_all_its_parts(place: Path) -> None:
    made(place / "a", b"secret").close()
    assert names(place / "a") == ["caps", "card.cbor", "evidence", "keystore.enc", "state"]
    made(place / "b").close()
    assert names(place / "b") == ["caps", "card.cbor", "evidence", "keystore.key", "state"]
    assert names(place) == ["a", "b"]


def test_a_client_is_the_same_when_it_is_opened_again(place: Path) -> None:
    with made(place / "a", b"secret") as client:
        identity, card = client.identity, client.card
    with ClientDir.open(place / "a", b"secret") as again:
        assert again.card == card
        assert again.identity.id_sign.seed == identity.id_sign.seed
        assert again.identity.id_dh.secret == identity.id_dh.secret
        assert again.identity.client_seed == identity.client_seed
        assert again.identity.created_at == NOW


def test_one_can_tell_whether_a_passphrase_is_needed(place: Path) -> None:
    made(place / "a", b"secret").close()
    made(place / "b").close()
    assert ClientDir.is_encrypted(place / "a")
    assert not ClientDir.is_encrypted(place / "b")


def test_a_wrong_passphrase_opens_nothing(place: Path) -> None:
    made(place / "a", b"secret").close()
    with pytest.raises(WrongPassphrase):
        ClientDir.open(place / "a", b"Secret")
    with pytest.raises(Unavailable, match="a passphrase is required"):
        ClientDir.open(place / "a")


def test_only_the_owner_can_read_anything(place: Path) -> None:
    before = os.umask(0)
    try:
        client = made(place / "a")
        ledger = Ledger()
        writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=NOW + 86_400))
        client.outbox.put(writer, messages(writer, 1))
        client.stream_keys.create("news")
        with client.sending():
            pass
        client.close()
    finally:
        os.umask(before)
    paths = [place / "a", *(place / "a").rglob("*")]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes == {path.name: 0o700 if path.is_dir() else 0o600 for path in paths}
    assert {"lock", "keystore.lock", "data.mdb", "lock.mdb", "card.cbor", "keystore.key"} <= modes.keys()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
def test_a_keystore_that_others_can_read_is_refused(place: Path, mode: int) -> None:
    made(place / "a").close()
    path = place / "a" / "keystore.key"
    path.chmod(mode)
    with pytest.raises(Unavailable) as caught:
        ClientDir.open(place / "a")
    assert (
        str(caught.value) == f"{path} contains secrets but is accessible to others (mode {mode:o}): run chmod 600 on it"
    )


@pytest.mark.parametrize("name", [".", "state"])
def test_a_folder_that_others_can_look_into_is_refused(place: Path, name: str) -> None:
    made(place / "a").close()
    path = place / "a" / name
    path.chmod(0o750)
    with pytest.raises(Unavailable, match="run chmod 700 on it"):
        ClientDir.open(place / "a")


def test_a_client_is_not_created_over_existing_files(place: Path) -> None:
    (place / "a").mkdir()
    (place / "a" / "thesis.txt").write_text("years of work")
    (place / "b").write_text("a file")
    for path in (place / "a", place / "b"):
        with pytest.raises(Unavailable, match="exists and is not an empty folder"):
            made(path)
    made(place / "c").close()
    with pytest.raises(Unavailable, match="exists and is not an empty folder"):
        made(place / "c")
    assert (place / "a" / "thesis.txt").read_text() == "years of work"
    assert names(place) == ["a", "b", "c"]


def test_an_empty_folder_becomes_a_client(place: Path) -> None:
    (place / "a").mkdir(mode=0o755)
    made(place / "a").close()
    assert stat.S_IMODE((place / "a").stat().st_mode) == 0o700


def test_a_client_needs_an_existing_parent_folder(place: Path) -> None:
    with pytest.raises(Unavailable, match="there is no folder"):
        made(place / "missing" / "a")


def test_an_empty_passphrase_makes_nothing(place: Path) -> None:
    with pytest.raises(Unavailable, match="passphrase is empty"):
        made(place / "a", b"")
    assert names(place) == []


@pytest.mark.parametrize("name", ["nothing", "empty", "file", "half", "hub"])
def test_a_folder_that_is_not_a_client_directory_is_rejected(place: Path, name: str) -> None:
    (place / "empty").mkdir()
    (place / "file").write_text("x")
    (place / "half").mkdir()
    (place / "half" / "card.cbor").write_bytes(b"x")
    (place / "hub").mkdir()
    (place / "hub" / "hub-identity.json").write_text("{}")
    for ask in (ClientDir.open, ClientDir.is_encrypted):
        with pytest.raises(Unavailable, match=r"no client directory|is not a client directory: it has no"):
            ask(place / name)


def test_a_client_without_its_keystore_says_so(place: Path) -> None:
    made(place / "a").close()
    (place / "a" / "keystore.key").unlink()
    with pytest.raises(Unavailable, match=r"has neither keystore\.enc nor keystore\.key"):
        ClientDir.open(place / "a")


def test_a_card_that_was_altered_is_noticed(place: Path) -> None:
    made(place / "a").close()
    path = place / "a" / "card.cbor"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        with pytest.raises((Malformed, Unverified)):
            ClientDir.open(place / "a")


def test_the_card_of_another_identity_is_noticed(place: Path) -> None:
    made(place / "a").close()
    made(place / "b").close()
    (place / "a" / "card.cbor").write_bytes((place / "b" / "card.cbor").read_bytes())
    with pytest.raises(Unverified, match="its keys differ from those of the keystore"):
        ClientDir.open(place / "a")


def calls_of_a_create(place: Path) -> int:
    disk = FailingDisk()
    made(place / "counted", b"secret", disk).close()
    return disk.calls


@pytest.mark.parametrize("last", Last)
def test_a_create_that_dies_at_any_call_leaves_nothing_or_all_of_it(place: Path, last: Last) -> None:
    calls = calls_of_a_create(place)
    assert calls > 8
    whole = 0
    for n in range(1, calls + 1):
        path = place / f"died {n}" / "client"
        path.parent.mkdir()
        with pytest.raises(Died):
            made(path, b"secret", DyingDisk(n, last))
        if path.exists():
            whole += 1
        else:
            made(path, b"secret").close()
        # The next create removes the leftovers, unless the directory is complete.
        assert names(path.parent) == ["client"]
        with ClientDir.open(path, b"secret") as client:
            assert client.writers.current().generation == 0
    assert whole == {Last.LOST: 1, Last.DONE: 2}[last]  # the rename, and the sync after it


def test_a_create_on_a_full_disk_says_so_and_leaves_nothing(place: Path) -> None:
    calls = calls_of_a_create(place)
    for n in range(1, calls):
        with pytest.raises(Unavailable, match="No space left on device"):
            made(place / "full", b"secret", FullDisk(n))
        assert names(place) == ["counted"]


def test_a_create_that_no_file_has_room_for_leaves_nothing(place: Path) -> None:
    with full_disk(10), pytest.raises(Unavailable):
        made(place / "a")
    assert names(place) == []
    with full_disk(100), pytest.raises(Unavailable):
        made(place / "a")
    assert names(place) == []


def test_a_stream_key_that_no_file_has_room_for_loses_none_that_was_there(place: Path) -> None:
    with made(place / "a", b"secret") as client:
        key = client.stream_keys.create("kept")
        with full_disk(100), pytest.raises(Unavailable, match="File too large"):
            client.stream_keys.create("lost")
        assert [each.name for each, _ in client.stream_keys.all()] == ["kept"]
    with ClientDir.open(place / "a", b"secret") as client:
        assert [(each.name, each.public_key) for each, _ in client.stream_keys.all()] == [("kept", key.public_key)]
    assert [name for name in names(place / "a") if name.startswith(".")] == []


KILLED = """
import os, signal, sys
from pathlib import Path
from veen.client import ClientDir
from veen.client.local_files import Disk
class Killing(Disk):
    def replace(self, source, target):
        os.kill(os.getpid(), signal.SIGKILL)
ClientDir.create(Path(sys.argv[1]), None, 1, disk=Killing())
"""


def test_what_a_killed_create_left_behind_is_removed_by_the_next(place: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(place / "a")], check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = names(place)
    assert left.startswith(".a.scaffold-")
    (place / ".ab.scaffold-other").mkdir()
    made(place / "a").close()
    assert names(place) == [".ab.scaffold-other", "a"]


SENDING = """
import sys
from pathlib import Path
from veen.client import ClientDir
with ClientDir.open(Path(sys.argv[1])) as client, client.sending():
    print("sending", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_send_at_once_and_the_second_learns_who_the_first_is(client: ClientDir) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SENDING, str(client.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout
        assert first.stdin
        assert first.stdout.readline() == "sending\n"
        with pytest.raises(Busy) as caught, client.sending():
            pytest.fail("both send")
        assert caught.value.pid == first.pid
        assert str(caught.value) == f"{client.path} is in use by process {first.pid}"
        first.stdin.close()
        first.wait()
    with client.sending():
        pass


def test_a_killed_sender_does_not_keep_the_lock(client: ClientDir) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SENDING, str(client.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout
        assert first.stdout.readline() == "sending\n"
        first.kill()
        first.wait()
    with client.sending():
        pass


def test_the_lock_is_free_again_after_a_failure_while_sending(client: ClientDir) -> None:
    with pytest.raises(ZeroDivisionError), client.sending():
        _ = 1 // 0
    with client.sending(), pytest.raises(Busy, match=f"process {os.getpid()}"), client.sending():
        pytest.fail("both send")


def test_a_lock_whose_holder_wrote_nothing_is_still_a_lock(client: ClientDir) -> None:
    with client.sending():
        (client.path / "lock").write_text("not a number")
        with pytest.raises(Busy, match="process unknown") as caught, client.sending():
            pytest.fail("both send")
    assert caught.value.pid is None


def test_a_card_that_cannot_be_written_is_an_error(client: ClientDir) -> None:
    (client.path / "card.cbor").unlink()
    (client.path / "card.cbor").mkdir()
    with pytest.raises(Unavailable, match=r"card\.cbor"):
        client.renew_card(NOW)
    assert [name for name in names(client.path) if name.startswith(".")] == []
