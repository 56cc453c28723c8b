"""Secret keys in files, each named for what it signs: `NAME.seed` is 32 bytes that only their owner may read.

This module is imported by the signer process, so it imports little: the process starts in 40 ms.
"""

import os
import stat
from pathlib import Path

from plumbing.sodium import SEED_BYTES, DigestSigner, SigningKey

SEED_SUFFIX = ".seed"
OTHERS = 0o077
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class ExposedKeyError(OSError):
    """Other users can read the file."""


def load(folder: Path, name: str) -> DigestSigner:
    """The key of that name. Raises `OSError` if it cannot be read, `ValueError` if it is not a key."""
    return read_seed(folder / f"{name}{SEED_SUFFIX}")


def read_seed(path: Path) -> SigningKey:
    fd = os.open(path, _FLAGS)
    with open(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("it is not a regular file")
        if mode & OTHERS:
            raise ExposedKeyError(f"{path} is readable by other users; run: chmod 600 {path}")
        seed = file.read(SEED_BYTES + 1)
    if len(seed) != SEED_BYTES:
        raise ValueError(f"{os.stat(path).st_size} bytes, not {SEED_BYTES}")
    return SigningKey(seed)
