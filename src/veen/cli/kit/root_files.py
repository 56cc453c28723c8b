"""Root key files, requests to a root and its endorsements, as commands read and write them."""

import os
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

from plumbing.cli.command import Misuse, option
from plumbing.durable import PRIVATE_FILE, Disk
from veen.cli.kit import key_files, output_files
from veen.cli.kit.exit_status import hinted
from veen.client import local_files
from veen.core import Malformed, Unavailable, Unverified, wire_json
from veen.core.cbor import Wire
from veen.core.limits import MAX_ROOT_REQUEST_BYTES, MAX_SEALED_BYTES
from veen.core.root_key import RootEndorsement, RootRequest, RootSecret

RootFile: TypeAlias = Annotated[Path, option("--root FILE", "the file of the hub's root key")]
ADVICE = (
    "move the root key file {file} off this machine, keep a second copy, and remember its passphrase. The hub runs "
    "without it, but no key of the hub can be changed without it"
)
ACCEPTANCE = (
    "clients that hold later receipts reject this hub until they run veen verify --stream NAME --accept-recovery"
)
_W = TypeVar("_W", bound=Wire)


def default_file(data_dir: Path) -> Path:
    """Beside the data directory, so that a copy or a backup of the directory does not contain the root key."""
    found = data_dir.absolute()
    return found.with_name(f"{found.name}.root")


def check_new_file(file: Path, data_dir: Path) -> None:
    """Raise if the root key cannot be created there."""
    if file.resolve().is_relative_to(data_dir.resolve()):
        raise Misuse(f"{file} is inside the data directory", "a root key protects the hub only outside of it")
    output_files.check_new(file)


def new_passphrase(passphrase_file: Path | None, file: Path) -> bytes:
    """The passphrase of a new root key. A root key is never stored without one."""
    try:
        found = key_files.passphrase_for_new(passphrase_file, False, str(file))
    except Misuse as error:
        error.add_note("--no-root creates a throw-away hub without a root key")
        raise
    assert found is not None
    return found


def write(file: Path, secret: RootSecret, passphrase: bytes) -> None:
    """Create a root key file, and sync it: the identity of a hub will depend on it."""
    sealed, disk, path = secret.sealed(passphrase), Disk(), file.absolute()
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))
        disk.write_file(path, sealed, PRIVATE_FILE)
        disk.sync_folder(path.parent)
    except FileExistsError:
        raise Misuse(f"{file} already exists", "name another file with --root") from None
    except OSError as error:
        raise hinted(
            Unavailable(f"the root key cannot be written to {file}: {error.strerror}"), "name another file with --root"
        ) from None


def read(file: Path, passphrase_file: Path | None) -> RootSecret:
    """Open a root key file."""
    data = local_files.read_file(file, MAX_SEALED_BYTES)
    passphrase = key_files.passphrase_for_existing(passphrase_file, str(file))
    try:
        return RootSecret.unseal(data, passphrase, str(file))
    except (Malformed, Unverified) as error:
        raise hinted(error, "give the file that veen hub init --root or veen root adopt created") from None


def read_request(file: Path) -> RootRequest:
    return _read(file, RootRequest, "veen hub rotate-key --request writes such a file")


def read_endorsement(file: Path) -> RootEndorsement:
    return _read(file, RootEndorsement, "veen root endorse writes such a file")


def _read(file: Path, wire: type[_W], hint: str) -> _W:
    try:
        return wire_json.decode_canonical(wire, local_files.read_file(file, MAX_ROOT_REQUEST_BYTES).strip())
    except Malformed as error:
        raise hinted(Malformed(str(file), error.reason), hint) from None
