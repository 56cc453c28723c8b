"""Hub metadata: created once, with private modes, and rejected if damaged."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.hubs import NOW, QuickDisk
from veen.core import Limits, Malformed, Profile, Unavailable, VeenError, hub_identity, wire_json
from veen.storage import metadata, secret_keys
from veen.storage.paths import Folders


@pytest.fixture
def root(tmp_path: Path) -> Path:
    metadata.create(QuickDisk(), tmp_path / "hub", Profile(epoch_sec=60), Limits(max_checkpoint_interval=9), NOW)
    return tmp_path / "hub"


CONTROL_FILE = "keys/control.seed"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_made_is_read_back(root: Path) -> None:
    hub_metadata = metadata.read_metadata(Folders(root))
    assert hub_metadata.profile == Profile(epoch_sec=60)
    assert hub_metadata.limits == Limits(max_checkpoint_interval=9)
    key = metadata.read_signing_key(Folders(root), hub_metadata.identity.newest.key_id)
    assert key.public_key == hub_metadata.identity.newest.hub_pk
    assert secret_keys.load(root / "keys", metadata.CONTROL_KEY).public_key != key.public_key


def test_the_keys_are_private(root: Path) -> None:
    assert mode(root / "keys") == 0o700
    assert {mode(path) for path in (root / "keys").iterdir()} == {0o600}
    assert len(list((root / "keys").iterdir())) == 2


@pytest.mark.parametrize("allowed", [0o640, 0o604, 0o620, 0o601])
def test_a_key_that_others_can_get_at_is_refused(root: Path, allowed: int) -> None:
    path = root / CONTROL_FILE
    path.chmod(allowed)
    with pytest.raises(Unavailable, match="run: chmod 600"):
        metadata.check_key(root / CONTROL_FILE, None)


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_a_key_of_another_length_is_refused(root: Path, seed: bytes) -> None:
    (root / CONTROL_FILE).write_bytes(seed)
    with pytest.raises(Malformed, match="32"):
        metadata.check_key(root / CONTROL_FILE, None)


def test_a_missing_key_is_named(root: Path) -> None:
    (root / CONTROL_FILE).unlink()
    with pytest.raises(Unavailable, match=r"control\.seed cannot be read"):
        metadata.check_key(root / CONTROL_FILE, None)


@pytest.mark.parametrize("name", ["file", ".hidden", "log"])
def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(Unavailable, match="is not empty"):
        metadata.create(QuickDisk(), tmp_path, Profile(), Limits(), NOW)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    metadata.create(QuickDisk(), tmp_path, Profile(), Limits(), NOW)
    assert metadata.read_metadata(Folders(tmp_path)).limits == Limits()


METADATA_FILES = ["hub-identity.json", "hub-identity.sig", "hub-key-map.json", "limits.json", "profile.json"]


def _swap(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "short": lambda data: data[:-2],
    "space": lambda data: data + b" ",
    "case": lambda data: data.replace(b"a", b"A"),
    "bit": _swap,
    "twice": lambda data: data + data,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", METADATA_FILES)
def test_a_damaged_metadata_file_is_rejected(root: Path, name: str, damage: str) -> None:
    data = (root / name).read_bytes()
    broken = DAMAGE[damage](data)
    assert broken != data
    (root / name).write_bytes(broken)
    with pytest.raises(VeenError):
        metadata.read_metadata(Folders(root))


@pytest.mark.parametrize("name", METADATA_FILES)
def test_a_missing_metadata_file_is_named(root: Path, name: str) -> None:
    (root / name).unlink()
    with pytest.raises(Unavailable, match=name):
        metadata.read_metadata(Folders(root))


def test_metadata_of_another_hub_is_rejected(root: Path, tmp_path: Path) -> None:
    metadata.create(QuickDisk(), tmp_path / "other", Profile(), Limits(), NOW)
    for name in METADATA_FILES[:3]:
        mine = (root / name).read_bytes()
        (root / name).write_bytes((tmp_path / "other" / name).read_bytes())
        with pytest.raises(VeenError):
            metadata.read_metadata(Folders(root))
        (root / name).write_bytes(mine)
    metadata.read_metadata(Folders(root))


def test_a_new_key_is_kept_before_the_record_names_it(root: Path) -> None:
    folders = Folders(root)
    hub_metadata = metadata.read_metadata(folders)
    old = metadata.read_signing_key(folders, hub_metadata.identity.newest.key_id)
    made = metadata.next_key(folders, hub_metadata.identity)
    new = made.signer
    record = hub_identity.rotate(hub_metadata.identity, old, new, NOW + 60)
    metadata.add_signing_key(QuickDisk(), folders, made)
    metadata.write_identity(QuickDisk(), folders, record, hub_identity.sign(record, new))
    again = metadata.read_metadata(folders)
    assert again.identity == record
    assert metadata.read_signing_key(folders, again.identity.newest.key_id).public_key == new.public_key
    assert (root / "hub-identity.json").read_bytes() == wire_json.encode(record)
