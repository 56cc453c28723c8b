"""Secrets encrypted with a passphrase, and the file of a root key."""

import pytest

from veen.core import SigningKey
from veen.core.errors import Malformed, Unavailable
from veen.core.limits import LEAST_KDF_KIB
from veen.core.passphrase import Cost, PassphraseLock, SealedSecrets, WrongPassphrase
from veen.core.root_key import RootSecret

CHEAP = Cost(passes=1, memory_kib=LEAST_KDF_KIB)
KEY = SigningKey(b"\x01" * 32)
SECRET = RootSecret(KEY.seed, b"\x02" * 32, 1_000)


def test_a_root_key_file_opens_with_its_passphrase_only() -> None:
    file = SECRET.sealed(b"horse", CHEAP)
    assert KEY.seed not in file
    assert RootSecret.unseal(file, b"horse", "hub.root") == SECRET
    assert SECRET.key.public_key == KEY.public_key
    assert KEY.seed.hex() not in repr(SECRET)
    with pytest.raises(WrongPassphrase, match=r"hub\.root: the passphrase is wrong"):
        RootSecret.unseal(file, b"house", "hub.root")


def test_an_altered_or_foreign_file_is_not_a_root_key() -> None:
    file = SECRET.sealed(b"horse", CHEAP)
    with pytest.raises(WrongPassphrase):
        RootSecret.unseal(file[:-1] + bytes([file[-1] ^ 1]), b"horse", "hub.root")
    with pytest.raises(Malformed, match="not a root key file"):
        RootSecret.unseal(b"other", b"horse", "hub.root")
    other = PassphraseLock.new(b"horse", CHEAP).seal(b"other secrets")
    with pytest.raises(Malformed, match="other secrets than a root key"):
        RootSecret.unseal(other, b"horse", "hub.root")


def test_an_empty_passphrase_protects_nothing() -> None:
    with pytest.raises(Unavailable, match="empty"):
        PassphraseLock.new(b"", CHEAP)


def test_a_file_cannot_demand_more_memory_or_less_work_than_the_bounds() -> None:
    file = SealedSecrets.decode(SECRET.sealed(b"horse", CHEAP))
    assert file.cost == CHEAP
    for cost in (Cost(17, LEAST_KDF_KIB), Cost(1, LEAST_KDF_KIB - 1), Cost(1, 1 << 40)):
        with pytest.raises(ValueError, match="is"):
            cost.encode()
