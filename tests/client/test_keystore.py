"""The keystore: only the passphrase opens it."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from tests.client.ledger import NOW
from veen.client import keystore
from veen.client.client_identity import ClientIdentity
from veen.client.keystore import ENCRYPTED, PLAIN, Keystore, Secrets, StreamSecret
from veen.client.local_files import DISK
from veen.core import Malformed, Unavailable
from veen.core.cbor import heads
from veen.core.passphrase import Cost, WrongPassphrase

CHEAP = Cost(passes=1, memory_kib=8_192)
PASSPHRASE = b"correct horse battery staple"
SECRETS = replace(
    Secrets.of(ClientIdentity.generate(NOW)), streams=(StreamSecret(bytes(32), "zeros", bytes.fromhex("07" * 32)),)
)


def made(folder: Path, passphrase: bytes | None = PASSPHRASE, secrets: Secrets = SECRETS) -> Keystore:
    return Keystore.create(folder, secrets, passphrase, CHEAP, DISK)


def opened(folder: Path, passphrase: bytes | None = PASSPHRASE) -> Secrets:
    return Keystore.open(folder, passphrase, DISK).secrets


def test_what_goes_in_comes_out(place: Path) -> None:
    made(place)
    assert opened(place) == SECRETS


def test_what_goes_in_without_a_passphrase_comes_out_without_one(place: Path) -> None:
    made(place, None)
    assert [path.name for path in place.iterdir()] == [PLAIN]
    assert opened(place, None) == SECRETS


@pytest.mark.parametrize("wrong", [b"", b"x", PASSPHRASE[:-1], PASSPHRASE + b"\0", PASSPHRASE.upper()])
def test_any_other_passphrase_opens_nothing(place: Path, wrong: bytes) -> None:
    made(place)
    with pytest.raises(WrongPassphrase) as caught:
        opened(place, wrong)
    assert "the passphrase is wrong, or the file was altered" in str(caught.value)
    assert str(place / ENCRYPTED) in str(caught.value)


def test_an_encrypted_keystore_requires_a_passphrase(place: Path) -> None:
    made(place)
    with pytest.raises(Unavailable, match="is encrypted: a passphrase is required"):
        opened(place, None)


def test_an_empty_passphrase_is_refused_when_it_would_guard_something(place: Path) -> None:
    with pytest.raises(Unavailable, match="passphrase is empty"):
        made(place, b"")
    assert list(place.iterdir()) == []


def test_the_encrypted_file_contains_no_secret(place: Path) -> None:
    made(place)
    data = (place / ENCRYPTED).read_bytes()
    held = (SECRETS.id_sign, SECRETS.id_dh, SECRETS.client_seed, SECRETS.streams[0].secret, PASSPHRASE, b"zeros")
    assert [secret for secret in held if secret in data] == []


def test_a_bit_changed_anywhere_opens_nothing(place: Path) -> None:
    made(place)
    path = place / ENCRYPTED
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1 << at % 8,)) + whole[at + 1 :])
        with pytest.raises((WrongPassphrase, Malformed)):
            opened(place)


def test_a_file_cut_short_or_gone_on_with_opens_nothing(place: Path) -> None:
    made(place)
    path = place / ENCRYPTED
    whole = path.read_bytes()
    for data in (b"", whole[:1], whole[: len(whole) // 2], whole[:-1], whole + b"\0"):
        path.write_bytes(data)
        with pytest.raises(Malformed):
            opened(place)


def test_a_file_that_is_too_long_is_not_read(place: Path) -> None:
    path = place / ENCRYPTED
    with path.open("wb") as file:
        file.truncate(keystore.MAX_KEYSTORE_BYTES + 1)
    with pytest.raises(Unavailable, match="is longer than"):
        opened(place)


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        (heads.write_head(heads.UINT, 262_144 + 1), "memory_kib"),
        (heads.write_head(heads.UINT, (1 << 64) - 1), "memory_kib"),
        (heads.write_head(heads.UINT, 8_191), "memory_kib"),
        (heads.write_head(heads.UINT, 0), "memory_kib"),
    ],
)
def test_a_hostile_file_cannot_ask_for_more_memory_than_the_bound(place: Path, field: bytes, wanted: str) -> None:
    made(place)
    path = place / ENCRYPTED
    cheap = CHEAP.encode()
    hostile = cheap.replace(heads.write_head(heads.UINT, CHEAP.memory_kib), field)
    path.write_bytes(path.read_bytes().replace(cheap, hostile))
    with pytest.raises(Malformed, match=wanted):
        opened(place)


@pytest.mark.parametrize("passes", [0, 17, 1 << 32])
def test_a_hostile_file_cannot_ask_for_more_time_than_the_bound(place: Path, passes: int) -> None:
    made(place)
    path = place / ENCRYPTED
    hostile = CHEAP.encode().replace(b"\x01\x01\x02", b"\x01" + heads.write_head(heads.UINT, passes) + b"\x02")
    path.write_bytes(path.read_bytes().replace(CHEAP.encode(), hostile))
    with pytest.raises(Malformed, match="passes"):
        opened(place)


def test_the_cost_in_the_file_is_the_one_that_was_asked_for(place: Path) -> None:
    made(place)
    assert CHEAP.encode() in (place / ENCRYPTED).read_bytes()
    assert Keystore.open(place, PASSPHRASE, DISK).cost == CHEAP


def test_the_key_is_argon2id_as_another_library_computes_it() -> None:
    salt = os.urandom(16)
    theirs = Argon2id(salt=salt, length=32, iterations=1, lanes=1, memory_cost=8_192).derive(PASSPHRASE)
    assert CHEAP.key(PASSPHRASE, salt) == theirs


SHORT_OF_MEMORY = """
import resource
from veen.core.passphrase import Cost
from veen.core import Unavailable
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20),) * 2)
try:
    Cost().key(b"passphrase", bytes(16))
except Unavailable as error:
    print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells how much memory a process has")
def test_a_machine_without_the_memory_says_so() -> None:
    ended = subprocess.run([sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True, check=True)
    assert ended.stdout == "not enough memory: the keystore's key derivation needs 65536 KiB\n"


def test_two_writes_never_share_salt_or_nonce(place: Path) -> None:
    (place / "a").mkdir()
    (place / "b").mkdir()
    one, two = made(place / "a"), made(place / "b")
    first, second = (place / "a" / ENCRYPTED).read_bytes(), (place / "b" / ENCRYPTED).read_bytes()
    one.update(lambda secrets: secrets)
    again = (place / "a" / ENCRYPTED).read_bytes()
    assert len({first, second, again}) == 3
    assert one.secrets == two.secrets
    assert opened(place / "a") == SECRETS


def test_a_folder_with_two_keystores_is_rejected(place: Path) -> None:
    made(place)
    made(place, None)
    with pytest.raises(Unavailable, match=r"has both keystore\.enc and keystore\.key"):
        opened(place)


def test_a_folder_without_a_keystore_says_so(place: Path) -> None:
    with pytest.raises(Unavailable, match=r"has neither keystore\.enc nor keystore\.key"):
        opened(place)


@pytest.mark.parametrize("passphrase", [None, PASSPHRASE])
def test_concurrent_updates_of_a_keystore_are_both_kept(place: Path, passphrase: bytes | None) -> None:
    made(place, passphrase, replace(SECRETS, streams=()))
    names = [f"stream {number}" for number in range(8)]
    start = threading.Barrier(len(names))

    def add(name: str) -> None:
        mine = Keystore.open(place, passphrase, DISK)
        start.wait()
        stream = StreamSecret(name.encode().ljust(32), name, os.urandom(32))
        mine.update(
            lambda secrets: replace(
                secrets, streams=tuple(sorted((*secrets.streams, stream), key=lambda s: s.stream_id))
            )
        )

    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [stream.name for stream in opened(place, passphrase).streams] == names


def test_a_change_that_fails_changes_nothing(place: Path) -> None:
    keys = made(place)

    def fail(secrets: Secrets) -> Secrets:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keys.update(fail)
    assert keys.secrets == opened(place) == SECRETS


def test_a_keystore_of_another_passphrase_put_in_its_place_is_noticed(place: Path) -> None:
    keys = made(place)
    made(place, b"another")
    with pytest.raises(WrongPassphrase):
        keys.reload()


@pytest.mark.parametrize("secret", ["id_sign", "id_dh", "client_seed"])
def test_secrets_do_not_show_in_what_is_printed(secret: str) -> None:
    identity = SECRETS.identity()
    shown = repr(SECRETS) + repr(identity) + repr(SECRETS.streams)
    assert getattr(SECRETS, secret).hex() not in shown
    assert repr(getattr(SECRETS, secret)) not in shown


def test_streams_out_of_order_or_twice_are_refused() -> None:
    one, two = StreamSecret(bytes(32), "a", bytes(32)), StreamSecret(b"\1" * 32, "b", bytes(32))
    for streams in ((two, one), (one, one)):
        with pytest.raises(ValueError, match="ascending order"):
            replace(SECRETS, streams=streams).encode()
