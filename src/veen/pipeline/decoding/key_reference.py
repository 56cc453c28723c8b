"""Reader keys by reference: plans, jobs and logs contain only locations; each worker reads the keys itself.

A reference is the path of a client directory, the path of a key file (`veen stream-key export`), or
`python:MODULE:NAME`, a function in the worker's environment that maps a stream_id to 32 bytes or None.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from veen.client import local_files
from veen.client.keystore import Keystore, keystore_file
from veen.client.local_files import DISK
from veen.client.stream_keys import ReaderKey
from veen.core import DhKey, Malformed, Unavailable, naming

PROVIDER = "python:"
VARIABLE = b"VEEN_PASSPHRASE"
_MAX_KEY_FILE_BYTES = 1 << 16
_MAX_PASSPHRASE_BYTES = 1 << 12

Provider = Callable[[bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class Keys:
    """The locations of reader keys. It contains no secrets."""

    references: tuple[str, ...] = ()
    passphrase_file: str | None = None  # for client directories; default: the worker's VEEN_PASSPHRASE

    def key(self, stream_id: bytes) -> DhKey | None:
        """The key of a stream, from the first location that has it. Raises `Unavailable` for an unreadable location."""
        for reference in self.references:
            found = _opened(reference, self.passphrase_file)(stream_id)
            if found is not None:
                return DhKey(found)
        return None

    def names(self) -> tuple[str, ...]:
        """The names of the streams whose keys are in directories and files; functions list none."""
        named: dict[str, None] = {}
        for reference in self.references:
            if not reference.startswith(PROVIDER):
                named |= dict.fromkeys(_secrets(reference, self.passphrase_file))
        return tuple(named)


@lru_cache(maxsize=64)
def _opened(reference: str, passphrase_file: str | None) -> Provider:
    """A function from stream_id to key; each worker opens a reference once."""
    if reference.startswith(PROVIDER):
        return _provider(reference)
    return dict(_secrets(reference, passphrase_file).values()).get


def _secrets(reference: str, passphrase_file: str | None) -> dict[str, tuple[bytes, bytes]]:
    """Stream name to stream id and secret key."""
    path = Path(reference)
    if path.is_dir():
        for private in (path, keystore_file(path)):
            local_files.check_private(private)
        store = Keystore.open(path, _passphrase(passphrase_file), DISK)
        return {one.name: (one.stream_id, one.secret) for one in store.secrets.streams}
    local_files.check_private(path)
    try:
        key = ReaderKey.decode(local_files.read_file(path, _MAX_KEY_FILE_BYTES))
    except Malformed:
        raise Malformed(reference, "it is neither a client directory nor a reader key file") from None
    return {key.name: (naming.stream_id(key.name), key.secret)}


def _passphrase(path: str | None) -> bytes | None:
    if path is None:
        return os.environb.get(VARIABLE) or None
    return local_files.read_file(Path(path), _MAX_PASSPHRASE_BYTES).removesuffix(b"\n").removesuffix(b"\r")


def _provider(reference: str) -> Provider:
    module, _, name = reference.removeprefix(PROVIDER).rpartition(":")
    try:
        found: Provider = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise Unavailable(f"cannot import {reference}; check MODULE:NAME and the worker's Python path") from None
    return found
