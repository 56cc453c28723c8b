"""Keys by reference are read by the worker, never sent, and rejected if others could read them."""

import os
import pickle
from pathlib import Path

import pytest

from bench.sealed_log import SealedLog
from tests.pipeline.tables.logs import DOORS, OTHERS
from veen.client import ClientDir
from veen.core import DhKey, Malformed, Unavailable, naming
from veen.pipeline.decoding import Keys

SECRET = DhKey.generate()


def provided(stream_id: bytes) -> bytes | None:
    return SECRET.secret if stream_id == naming.stream_id(DOORS) else None


@pytest.fixture
def client(tmp_path: Path) -> Path:
    with ClientDir.create(tmp_path / "reader", None, 1) as made:
        made.stream_keys.import_secret(DOORS, SECRET)
    return tmp_path / "reader"


def found(keys: Keys, stream: str = DOORS) -> bytes | None:
    key = keys.key(naming.stream_id(stream))
    return None if key is None else key.secret


def test_a_client_directory_has_the_keys_of_its_streams(client: Path) -> None:
    keys = Keys((str(client),))
    assert (found(keys), found(keys, OTHERS), keys.names()) == (SECRET.secret, None, (DOORS,))


def test_an_encrypted_one_opens_with_the_passphrase_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClientDir.create(tmp_path / "reader", b"open sesame", 1) as made:
        made.stream_keys.import_secret(DOORS, SECRET)
    (tmp_path / "words").write_bytes(b"open sesame\n")
    named = Keys((str(tmp_path / "reader"),), str(tmp_path / "words"))
    assert found(named) == SECRET.secret
    silent = Keys((str(tmp_path / "reader"),))
    with pytest.raises(Unavailable, match="a passphrase is required"):
        found(silent)
    monkeypatch.setitem(os.environb, b"VEEN_PASSPHRASE", b"open sesame")
    assert found(silent) == SECRET.secret


def test_a_key_file_or_a_function_gives_keys_and_the_first_match_wins(tmp_path: Path, client: Path) -> None:
    log = SealedLog(tmp_path / "hub", [DOORS, OTHERS])
    file, function = str(log.key_file(DOORS, tmp_path)), f"python:{__name__}:provided"
    assert found(Keys((file,))) == log.keys[DOORS].secret
    assert (found(Keys((function,))), found(Keys((function,)), OTHERS)) == (SECRET.secret, None)
    assert found(Keys((function, file))) == SECRET.secret
    assert found(Keys((file, function))) == log.keys[DOORS].secret
    assert Keys((function, file, str(client))).names() == (DOORS,)


def test_without_a_reference_there_is_no_key() -> None:
    assert (found(Keys()), Keys().names()) == (None, ())


def test_keys_that_others_could_read_are_rejected(tmp_path: Path, client: Path) -> None:
    path = SealedLog(tmp_path / "hub", [DOORS]).key_file(DOORS, tmp_path)
    path.chmod(0o640)
    with pytest.raises(Unavailable, match="is accessible to others"):
        found(Keys((str(path),)))
    client.chmod(0o755)
    with pytest.raises(Unavailable, match="is accessible to others"):
        found(Keys((str(client),)))


@pytest.mark.parametrize("reference", ["python:nowhere:nothing", "python:os:nothing", "python:", "python:os"])
def test_a_missing_function_is_named(reference: str) -> None:
    with pytest.raises(Unavailable, match="cannot import python:"):
        found(Keys((reference,)))


def test_an_invalid_key_is_rejected_without_showing_it(tmp_path: Path) -> None:
    log = SealedLog(tmp_path / "hub", [DOORS])
    path = log.key_file(DOORS, tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Malformed, match="neither a client directory nor a reader key") as caught:
        found(Keys((str(path),)))
    assert log.keys[DOORS].secret[:8].hex() not in str(caught.value)
    assert caught.value.__suppress_context__


def test_keys_that_were_read_are_not_pickled(client: Path) -> None:
    keys = Keys((str(client),))
    assert found(keys) == SECRET.secret
    assert SECRET.secret not in pickle.dumps(keys)
    assert SECRET.secret.hex() not in repr(keys)
