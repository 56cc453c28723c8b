"""The secret keys of a hub, each in a file named for what it signs, which only its owner may read.

    NAME.seed   the 32 secret bytes
    NAME.key    JSON: the public key, and where the secret is: encrypted in this file, or in a PKCS#11 token

A `.key` file names the file with the passphrase or the PIN, so no command needs an option for it. The signer process
imports this module, so it imports little: with a seed the process starts in 40 ms.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from plumbing.sodium import SEED_BYTES, DigestSigner, SigningKey

SEED_SUFFIX, REFERENCE_SUFFIX = ".seed", ".key"
OTHERS = 0o077
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAX_REFERENCE_BYTES = 1 << 16
_MAX_PASSPHRASE_BYTES = 1 << 12
_CREDENTIALS = "CREDENTIALS_DIRECTORY"  # of systemd: `LoadCredential=`


class ExposedKeyError(OSError):
    """Other users can read the file."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was made, and the file that will restore it."""

    signer: DigestSigner
    suffix: str
    content: bytes


class KeySource(Protocol):
    """The place that stores the secret half of new keys."""

    def new_key(self) -> NewKey:
        """Make a key. Raises `OSError` or `ValueError` if the source cannot be used."""


class PlainSource:
    """Seeds in files."""

    def new_key(self) -> NewKey:
        key = SigningKey.generate()
        return NewKey(key, SEED_SUFFIX, key.seed)


PLAIN = PlainSource()


@dataclass(frozen=True, slots=True)
class PassphraseSource:
    """Seeds encrypted with the passphrase in a file, which need not be on the same disk."""

    passphrase_file: Path

    def new_key(self) -> NewKey:
        from veen.core.passphrase import PassphraseLock  # it starts slowly, and most hubs have no such key

        key = SigningKey.generate()
        sealed = PassphraseLock.new(_read_secret(self.passphrase_file)).seal(key.seed)
        fields = {"source": "passphrase", "passphrase_file": str(self.passphrase_file), "sealed": sealed.hex()}
        return _referenced(key, fields)

    def load(self, sealed: str) -> SigningKey:
        from veen.core.errors import VeenError
        from veen.core.passphrase import PassphraseLock, SealedSecrets

        try:
            file = SealedSecrets.decode(bytes.fromhex(sealed))
            return SigningKey(PassphraseLock.of(file, _read_secret(self.passphrase_file)).unseal(file, "key"))
        except VeenError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Keys that never leave a PKCS#11 token."""

    module: Path
    token: str
    pin_file: Path

    def new_key(self) -> NewKey:
        label = f"veen-{os.urandom(8).hex()}"
        key = self._tokens().make_key(self.module, self.token, _read_secret(self.pin_file), label)
        where = {"module": str(self.module), "token": self.token, "pin_file": str(self.pin_file)}
        return _referenced(key, {"source": "pkcs11", **where, "label": label})

    def load(self, label: str) -> DigestSigner:
        key: DigestSigner = self._tokens().load_key(self.module, self.token, _read_secret(self.pin_file), label)
        return key

    def destroy(self, label: str) -> None:
        self._tokens().destroy_key(self.module, self.token, _read_secret(self.pin_file), label)

    @staticmethod
    def _tokens() -> ModuleType:
        try:
            from veen.storage import token_keys  # needs an optional extra
        except ImportError:
            raise OSError('PKCS#11 needs an extra; run: pip install "veen[pkcs11]"') from None
        return token_keys


def load(folder: Path, name: str) -> DigestSigner:
    """The key of that name. Raises `OSError` if it cannot be read, `ValueError` if it is not a key."""
    path = key_path(folder, name)
    return read_seed(path) if path.suffix == SEED_SUFFIX else _read_reference(path)


def key_path(folder: Path, name: str) -> Path:
    """The file of a key: its `.key` file if there is one, else its seed."""
    reference = folder / f"{name}{REFERENCE_SUFFIX}"
    return reference if reference.exists() else folder / f"{name}{SEED_SUFFIX}"


def key_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix in (SEED_SUFFIX, REFERENCE_SUFFIX))


def source_of(path: Path) -> KeySource:
    """The source of the key in a file, for its successor."""
    return PLAIN if path.suffix == SEED_SUFFIX else _source(_reference(path))


def destroy_in_token(path: Path) -> None:
    """Destroy the secret of a file if it is in a token. Raises `OSError` if the token cannot do it."""
    if path.suffix == REFERENCE_SUFFIX:
        fields = _reference(path)
        source = _source(fields)
        if isinstance(source, TokenSource):
            source.destroy(_text(fields, "label"))


def public_key_of(path: Path) -> bytes:
    """The public key of a file, without opening a token or decrypting anything."""
    if path.suffix == SEED_SUFFIX:
        return read_seed(path).public_key
    return bytes.fromhex(_text(_reference(path), "public_key"))


def read_seed(path: Path) -> SigningKey:
    seed = _read_private(path, SEED_BYTES)
    if len(seed) != SEED_BYTES:
        raise ValueError(f"{os.stat(path).st_size} bytes, not {SEED_BYTES}")
    return SigningKey(seed)


def _read_reference(path: Path) -> DigestSigner:
    fields = _reference(path)
    source, expected = _source(fields), bytes.fromhex(_text(fields, "public_key"))
    key: DigestSigner
    if isinstance(source, PassphraseSource):
        key = source.load(_text(fields, "sealed"))
    else:
        key = source.load(_text(fields, "label"))
    if key.public_key != expected:
        raise ValueError("the secret does not belong to the public key in the file")
    return key


def _reference(path: Path) -> Mapping[str, object]:
    found = json.loads(_read_private(path, _MAX_REFERENCE_BYTES))
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _source(fields: Mapping[str, object]) -> PassphraseSource | TokenSource:
    kind = _text(fields, "source")
    if kind == "passphrase":
        return PassphraseSource(Path(_text(fields, "passphrase_file")))
    if kind == "pkcs11":
        return TokenSource(Path(_text(fields, "module")), _text(fields, "token"), Path(_text(fields, "pin_file")))
    raise ValueError(f"its source is {kind!r}, not passphrase or pkcs11")


def _text(fields: Mapping[str, object], name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str):
        raise ValueError(f"it has no text field {name}")
    return found


def _referenced(key: DigestSigner, fields: dict[str, str]) -> NewKey:
    content = json.dumps({"public_key": key.public_key.hex(), **fields}, indent=2) + "\n"
    return NewKey(key, REFERENCE_SUFFIX, content.encode())


def _read_secret(path: Path) -> bytes:
    """A passphrase or a PIN: the content of a file without the end of its line.

    A credential of the same name takes precedence: then systemd has read the file, which may belong to root.
    """
    found = credential(path.name)
    return _read_private(path, _MAX_PASSPHRASE_BYTES).rstrip(b"\r\n") if found is None else found


def credential(name: str) -> bytes | None:
    """A credential that the unit of this process loads, without the end of its line; None if there is none.

    Its folder is closed to other users. The mode of the file may show an ACL as a permission of its group.
    """
    folder = os.environ.get(_CREDENTIALS)
    file = Path(folder, name) if folder else None
    return file.read_bytes()[:_MAX_PASSPHRASE_BYTES].rstrip(b"\r\n") if file and file.is_file() else None


def _read_private(path: Path, most: int) -> bytes:
    """At most one byte more than `most`. Raises unless it is a regular file that only its owner may use."""
    fd = os.open(path, _FLAGS)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("it is not a regular file")
        if mode & OTHERS:
            raise ExposedKeyError(f"{path} is readable by other users; run: chmod 600 {path}")
        return os.read(fd, most + 1)
    finally:
        os.close(fd)
