"""`veen hub init --incarnate`: a hub with only its root key begins again, and its clients decide whether to go on."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.runner import Ran, Veen
from tests.cli.test_hub_lifecycle import background
from veen.cli.kit import key_files
from veen.core import Receipt, SigningKey, naming
from veen.core import hub_identity as identities
from veen.core.recovery import RecoveredLog
from veen.core.root_key import RootSecret
from veen.storage import metadata
from veen.storage.paths import Folders

STREAM = "doors"


class Container:
    """A hub whose volume is empty at each start, with its root key in a folder that it cannot write."""

    def __init__(self, veen: Veen, root: Path) -> None:
        self.veen, self.root = veen, root
        secrets = root / "secrets"
        secrets.mkdir()
        (secrets / "passphrase").write_text("correct horse battery staple\n")
        self.key = ("--root", secrets / "hub.root", "--passphrase-file", secrets / "passphrase")
        first = veen.done("hub", "init", "--data-dir", root / "made", *self.key, "--json").json()
        shutil.rmtree(root / "made")  # only the root key is left
        self.hub_id = first["hub_id"]
        for path in secrets.iterdir():
            path.chmod(0o444)
        secrets.chmod(0o555)
        for name in ("alice", "bob"):
            veen.done("keygen", "--out", root / name, "--no-passphrase")
            for stream in (STREAM, "other"):
                veen.done("stream-key", "create", stream, "--client", root / name)

    def init(self, data_dir: Path) -> Ran:
        """Create the directory if it is not there."""
        return self.veen.done("hub", "init", "--data-dir", data_dir, "--incarnate", *self.key)

    @contextmanager
    def running(self, name: str, *options: object) -> Iterator[str]:
        """A hub on the volume with that name, which is empty the first time."""
        self.init(self.root / name)
        with background(self.veen, self.root / name, "--admission", "open", *options) as shown:
            yield str(shown["url"])

    def run(self, url: str, client: str, command: str, *options: object, stream: str = STREAM) -> Ran:
        given = ("--hub", url, "--client", self.root / client, "--stream", stream, "--pin", self.hub_id)
        return self.veen(command, *options, *given)

    def send(self, url: str, client: str, *bodies: str, stream: str = STREAM) -> None:
        for body in bodies:
            ran = self.run(url, client, "send", "--body", body, stream=stream)
            assert ran.status == 0, ran.err


@pytest.fixture
def container(veen: Veen, tmp_path: Path) -> Iterator[Container]:
    made = Container(veen, tmp_path)
    yield made
    (tmp_path / "secrets").chmod(0o755)


def receipt_of(container: Container, url: str, client: str, seq: int) -> Receipt:
    ran = container.run(url, client, "receipt", seq, "--json")
    assert ran.status == 0, ran.err
    return Receipt.decode(bytes.fromhex(str(ran.json()["receipt"])))


def test_each_empty_start_signs_with_a_new_key_and_states_that_it_has_no_entries(container: Container) -> None:
    records, receipts = [], []
    for name in ("first", "second"):
        with container.running(name) as url:
            container.send(url, "alice" if name == "first" else "bob", name)
            receipts.append(receipt_of(container, url, "alice" if name == "first" else "bob", 1))
        found = metadata.read_metadata(Folders(container.root / name))
        records.append(found.identity)
        (file,) = (container.root / name / "recoveries").glob("*.cbor")
        log = RecoveredLog.decode(file.read_bytes())
        log.statement.verify(found.identity)
        assert log.labels == ()
        assert container.veen("fsck", container.root / name).status == 0
    one, two = records
    assert one.hub_id == two.hub_id == bytes.fromhex(container.hub_id)
    assert one.newest.hub_pk != two.newest.hub_pk
    assert [receipt.stream_seq for receipt in receipts] == [1, 1]
    assert receipts[0].label == receipts[1].label
    assert one.verify_receipt(receipts[0]) == one.newest
    assert two.verify_receipt(receipts[1]) == two.newest


def test_a_client_with_receipts_rejects_the_next_incarnation_for_each_stream_until_it_accepts_it(
    container: Container,
) -> None:
    with container.running("first") as url:
        container.send(url, "alice", "1", "2")
        container.send(url, "alice", "1", stream="other")
    with container.running("second") as url:
        container.send(url, "bob", "another 1")  # a new client needs nothing but the hub's id
        assert container.run(url, "bob", "verify").status == 0
        for command in (["send", "--body", "3"], ["stream"], ["verify"], ["checkpoint"]):
            ran = container.run(url, "alice", *command)
            assert ran.status == 4, (command, ran.err)
            assert ran.error.startswith("recovery: the hub stated on 20"), ran.error
            assert "it has 0 entries of this label; it had signed 2" in ran.error
            assert "--accept-recovery continues" in ran.err
        evidence = max((container.root / "alice" / "evidence").iterdir())
        for pin in (container.hub_id, container.root / "first", container.root / "second"):
            checked = container.veen("evidence", "verify", evidence, "--pin", pin)
            assert checked.status == 0, checked.err
            assert "the hub states that it lost the entries" in checked.out
        accepted = container.run(url, "alice", "verify", "--accept-recovery")
        assert accepted.status == 0, accepted.err
        container.send(url, "alice", "3", "4")
        assert container.run(url, "alice", "verify").status == 0
        other = container.run(url, "alice", "stream", stream="other")
        assert other.status == 4, other.err
        assert "it has 0 entries of this label; it had signed 1" in other.error
        assert container.run(url, "alice", "verify", "--accept-recovery", stream="other").status == 0
        for file in (container.root / "alice" / "evidence").iterdir():
            assert container.veen("evidence", "verify", file, "--pin", container.hub_id).status == 0, file


def test_a_volume_that_is_lost_twice_gives_three_keys_and_two_acceptances(container: Container) -> None:
    signed = []
    for name in ("first", "second", "third"):
        with container.running(name) as url:
            if name != "first":
                refused = container.run(url, "alice", "verify")
                assert refused.status == 4, refused.err
                assert "it has 0 entries of this label; it had signed 1" in refused.error
                assert container.run(url, "alice", "verify", "--accept-recovery").status == 0
            container.send(url, "alice", name)
            signed.append(receipt_of(container, url, "alice", 1))
    records = [metadata.read_metadata(Folders(container.root / name)).identity for name in ("first", "second", "third")]
    keys = [record.verify_receipt(receipt).key_id for record, receipt in zip(records, signed, strict=True)]
    assert len(set(keys)) == 3
    assert {(receipt.label, receipt.stream_seq) for receipt in signed} == {(signed[0].label, 1)}
    kept = sorted((container.root / "alice" / "evidence").iterdir())
    assert len(kept) >= 2
    for file in kept:
        assert container.veen("evidence", "verify", file, "--pin", container.hub_id).status == 0, file


def test_a_second_start_on_the_same_volume_changes_nothing(container: Container) -> None:
    with container.running("first") as url:
        container.send(url, "alice", "1")
    before = {path: path.read_bytes() for path in (container.root / "first").glob("*.json")}
    again = container.init(container.root / "first")
    assert "nothing was changed" in again.err
    assert before == {path: path.read_bytes() for path in (container.root / "first").glob("*.json")}
    with container.running("first") as url:
        container.send(url, "alice", "2")
        assert container.run(url, "alice", "verify").status == 0


def test_a_client_rejects_an_incarnation_that_another_one_replaced(container: Container) -> None:
    with container.running("first") as one, container.running("second") as two:
        container.send(one, "alice", "1")
        container.send(two, "bob", "another 1")
        container.send(two, "alice", "1", stream="other")  # alice learns of the second
        ran = container.run(one, "alice", "send", "--body", "2", stream="other")
        assert ran.status == 4, ran.err
        assert ran.error.startswith("forked history: it answers as its incarnation of 20"), ran.error
        assert "two copies of the hub may run" in ran.error
        container.send(two, "alice", "2", stream="other")  # nothing is proven, so the hub is not caught
    audited = container.veen("audit", container.root / "first", container.root / "second", "--json")
    assert audited.status == 11, audited.err
    (found,) = audited.json()["equivocations"]
    assert "retired" not in found


def test_incarnations_that_are_lost_at_once_begin_one_after_the_other(container: Container) -> None:
    """Also the first, which the command made together with the root key."""
    secret = key_files.read_root(container.root / "secrets" / "hub.root", container.root / "secrets" / "passphrase")
    records = [identities.create(SigningKey.generate(), secret.created_at, root=secret.key)]
    for name in ("first", "second", "third"):
        container.init(container.root / name)
        records.append(metadata.read_metadata(Folders(container.root / name)).identity)
        assert all(records[-1].begins_after(before) for before in records[:-1]), name
        made_at = int((container.root / name).stat().st_ctime)
        assert made_at > records[-1].newest.valid_from, "the next one could begin in the same second"


def test_an_incarnation_is_refused_while_the_clock_is_before_its_root_key(veen: Veen, tmp_path: Path) -> None:
    key, passphrase = SigningKey.generate(), tmp_path / "passphrase"
    passphrase.write_text("correct horse battery staple\n")
    passphrase.chmod(0o600)
    later = RootSecret(key.seed, naming.hub_id(key.public_key), int(time.time()) + 86_400)
    key_files.write_root(tmp_path / "hub.root", later, b"correct horse battery staple")
    given = ("--root", tmp_path / "hub.root", "--passphrase-file", passphrase)
    refused = veen("hub", "init", "--data-dir", tmp_path / "hub", "--incarnate", *given)
    assert refused.status == 6
    assert "is before the creation of the root key" in refused.error
    assert not (tmp_path / "hub").exists()


def test_an_incarnation_needs_the_root_key_of_the_hub(container: Container, veen: Veen) -> None:
    container.init(container.root / "first")
    veen.done("hub", "init", "--data-dir", container.root / "x", "--no-root")
    other = veen("hub", "init", "--data-dir", container.root / "x", "--incarnate", *container.key)
    assert other.status == 6
    assert "has hub" in other.error
    both = veen("hub", "init", "--data-dir", container.root / "y", "--incarnate", "--no-root")
    assert both.status == 2
    missing = veen("hub", "init", "--data-dir", container.root / "y", "--incarnate", "--root", container.root / "none")
    assert missing.status != 0
    assert not (container.root / "y").exists()
    adopted = ("--root", container.root / "x.root", *container.key[2:])
    veen.done("root", "adopt", "--data-dir", container.root / "x", *adopted)
    refused = veen("hub", "init", "--data-dir", container.root / "y", "--incarnate", *adopted)
    assert refused.status == 6
    assert "was adopted by an older hub" in refused.error
