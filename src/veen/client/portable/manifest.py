"""The manifest of a portable set, signed by the identity. It detects missing, added and changed files."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

from veen.client import local_files
from veen.client.client_identity import ClientIdentity
from veen.core import Malformed, Unverified, signing
from veen.core.cbor import Bstr, Constant, ListOf, Map, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.hashing import ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES

MANIFEST = "manifest.cbor"
MAX_FILES = 64
MAX_MANIFEST_BYTES = 65_536
# Plain names only, so that no name can point outside the set.
_NAME = re.compile(r"[a-z_]+\.(cbor|cborseq|enc|key)")
_BLOCK_BYTES = 1 << 20


@int_map("file")
class FileEntry(Wire):
    """One file of the set."""

    name: Annotated[str, Text(MAX_TEXT_BYTES)]
    size: Annotated[int, Uint()]
    hash: Annotated[bytes, Bstr()]

    @classmethod
    def of(cls, folder: Path, name: str) -> Self:
        digest, size = hashlib.sha256(), 0
        for block in _blocks(folder / name):
            digest.update(block)
            size += len(block)
        return cls(name, size, digest.digest())


@int_map("manifest", VersionField(), Constant("veen/portable", name="kind"))
class PortableManifest(Wire):
    """All files of the set."""

    id_sign: Annotated[bytes, Bstr()]
    exported_at: Annotated[int, Uint()]
    files: Annotated[tuple[FileEntry, ...], ListOf(Nested(FileEntry, name="file"), most=MAX_FILES)]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def flaw(self) -> str | None:
        names = [file.name for file in self.files]
        if names != sorted(set(names)):
            return "its files are not in strictly ascending order"
        strange = next((name for name in names if not _NAME.fullmatch(name)), None)
        return None if strange is None else f"{strange!r} is not a file name of a portable set"

    def check_files(self, folder: Path) -> None:
        """Raise `Unverified` unless the folder has exactly these files and the identity signed the list."""
        signing.verify(self.id_sign, self._digest(), self.sig, MANIFEST)
        there, listed = set(names_in(folder)), {file.name for file in self.files}
        for name in sorted(there ^ listed):
            raise Unverified("portable set", f"{name} is missing" if name in listed else f"{name} was added")
        for file in self.files:
            if FileEntry.of(folder, file.name) != file:
                raise Unverified("portable set", f"{file.name} was changed")

    def _digest(self) -> bytes:
        return ht("veen/portable", _UNSIGNED.write([self.id_sign, self.exported_at, self.files]))


_UNSIGNED = Map("manifest without sig", dict(zip(range(1, 6), PortableManifest.LAYOUT.kinds, strict=False)))


def make(identity: ClientIdentity, folder: Path, now: int) -> PortableManifest:
    """The signed manifest of all files in the folder."""
    files = tuple(FileEntry.of(folder, name) for name in names_in(folder))
    manifest = PortableManifest(identity.id_sign.public_key, now, files, bytes(SIGNATURE_BYTES))
    return replace(manifest, sig=identity.id_sign.sign(manifest._digest()))


def read(folder: Path) -> PortableManifest:
    """Read the manifest of a set and verify its files."""
    try:
        manifest = PortableManifest.decode(local_files.read_file(folder / MANIFEST, MAX_MANIFEST_BYTES))
    except Malformed as error:
        raise Malformed(str(folder / MANIFEST), error.reason) from None
    manifest.check_files(folder)
    return manifest


def names_in(folder: Path) -> list[str]:
    """All files below the folder except the manifest, sorted."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return sorted(name for name in found if name != MANIFEST)


def _blocks(path: Path) -> Iterator[bytes]:
    with local_files.named(path), path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
