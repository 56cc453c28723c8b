"""Identity cards, stream keys, root keys and their requests, and passphrases, as commands read and write them."""

import getpass
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

from plumbing.cli.command import Misuse, option
from plumbing.durable import PRIVATE_FILE, Disk
from veen.cli.kit import output_files
from veen.cli.kit.exit_status import hinted
from veen.client import Card, ReaderKey, StreamKey, capabilities, local_files
from veen.client.client_dir import CARD
from veen.client.client_identity import MAX_CARD_BYTES
from veen.core import DhKey, Malformed, Unavailable, Unverified, VeenError, wire_json
from veen.core.cap_token import Capability
from veen.core.cbor import Wire
from veen.core.limits import MAX_ROOT_REQUEST_BYTES, MAX_SEALED_BYTES
from veen.core.root_key import RootEndorsement, RootRequest, RootSecret


def read_card(path: Path) -> Card:
    """Read a card, or the card of a client directory, and verify its signatures. No passphrase is needed."""
    file = path / CARD if path.is_dir() else path
    try:
        data = local_files.read_file(file, MAX_CARD_BYTES)
    except Unavailable as error:
        raise hinted(error, "a card is the card.cbor of a client directory") from None
    try:
        card = Card.decode(data)
        card.verify()
    except Malformed as error:
        raise hinted(Malformed(str(file), f"not an identity card: {error.reason}"), _ASK_AGAIN) from None
    except Unverified as error:
        raise hinted(Unverified(str(file), error.reason), _ASK_AGAIN) from None
    return card


def read_confirmed_card(path: Path) -> Card:
    """Read a card that proves whose client_ids it lists."""
    card = read_card(path)
    if card.confirmations is None:
        raise hinted(
            Unverified(str(path), "its client_ids do not confirm it, so they may belong to somebody else"),
            "ask its owner for a new card: veen card --renew --out FILE",
        )
    return card


def read_capabilities(file: Path) -> tuple[Capability, ...]:
    """Read and verify the capabilities of a file."""
    try:
        return capabilities.read_capabilities(file)
    except VeenError as error:
        raise hinted(error, "veen cap issue --out creates such a file") from None


_ASK_AGAIN = "ask its owner for card.cbor of the client directory"


_MAX_KEY_FILE_BYTES = 1 << 16


def read_stream_key(file: Path) -> ReaderKey | StreamKey:
    """Read a stream key file: a secret key (`ReaderKey`) or a public one (`StreamKey`)."""
    data = local_files.read_file(file, _MAX_KEY_FILE_BYTES)
    try:
        return ReaderKey.decode(data)
    except Malformed:
        pass
    try:
        return StreamKey.decode(data)
    except Malformed as error:
        hint = "veen stream-key export writes such a file"
        raise hinted(Malformed(str(file), f"not a stream key file: {error.reason}"), hint) from None


def public_half(key: ReaderKey | StreamKey) -> StreamKey:
    """Return the public half of a stream key."""
    return StreamKey(key.name, DhKey(key.secret).public_key) if isinstance(key, ReaderKey) else key


PASSPHRASE_VARIABLE = "VEEN_PASSPHRASE"
_PASSPHRASE_HINT = f"give --passphrase-file FILE, or set {PASSPHRASE_VARIABLE}"


def passphrase_for_new(file: Path | None, none: bool, what: str) -> bytes | None:
    """Return the passphrase for a new keystore, or None if it stays unencrypted."""
    if none and file is not None:
        raise Misuse("--no-passphrase and --passphrase-file contradict each other", "give one of them")
    if none:
        return None
    return _from_options(file) or _prompt_twice(what)


def passphrase_for_existing(file: Path | None, what: str) -> bytes:
    """Return the passphrase of an existing keystore."""
    return _from_options(file) or _prompt(f"passphrase of {what}: ")


def _from_options(file: Path | None) -> bytes | None:
    if file is not None:
        return _from_file(file)
    return os.environb.get(PASSPHRASE_VARIABLE.encode()) or None


def _from_file(file: Path) -> bytes:
    """Read a file of one line. The newline that an editor adds is not part of the passphrase."""
    try:
        found = local_files.read_file(file, _MAX_KEY_FILE_BYTES).removesuffix(b"\n").removesuffix(b"\r")
    except Unavailable as error:
        raise Misuse(f"the passphrase cannot be read: {error}", _PASSPHRASE_HINT) from None
    if not found or b"\n" in found:
        raise Misuse(f"{file} must contain one line, the passphrase", "remove everything else from the file")
    return found


def _prompt_twice(what: str) -> bytes:
    """Prompt twice: a mistyped passphrase would make the keystore unusable."""
    first = _prompt(f"new passphrase for {what}: ")
    if not first:
        raise Misuse("the passphrase is empty", "choose one, or give --no-passphrase")
    if _prompt("repeat the passphrase: ") != first:
        raise Misuse("passphrases do not match", "nothing was created; start again")
    return first


def _prompt(question: str) -> bytes:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        raise Misuse("a passphrase is needed, but there is no terminal for a prompt", _PASSPHRASE_HINT) from None
    with _interruptible():
        return getpass.getpass(question).encode()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let ctrl-c end a prompt at once. In an event loop it would only cancel the task that waits for the prompt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


RootFile: TypeAlias = Annotated[Path, option("--root FILE", "the file of the hub's root key")]
ROOT_ADVICE = (
    "move the root key file {file} off this machine, keep a second copy, and remember its passphrase. The hub runs "
    "without it, but no key of the hub can be changed without it"
)
ACCEPT_RECOVERY_ADVICE = (
    "clients that hold later receipts reject this hub until they run veen verify --stream NAME --accept-recovery"
)
_W = TypeVar("_W", bound=Wire)


def default_root_file(data_dir: Path) -> Path:
    """Beside the data directory, so that a copy or a backup of the directory does not contain the root key."""
    found = data_dir.absolute()
    return found.with_name(f"{found.name}.root")


def check_new_root(file: Path, data_dir: Path) -> None:
    """Raise if the root key cannot be created there."""
    if file.resolve().is_relative_to(data_dir.resolve()):
        raise Misuse(f"{file} is inside the data directory", "a root key protects the hub only outside of it")
    output_files.check_new(file)


def new_root_passphrase(passphrase_file: Path | None, file: Path) -> bytes:
    """The passphrase of a new root key. A root key is never stored without one."""
    try:
        found = passphrase_for_new(passphrase_file, False, str(file))
    except Misuse as error:
        error.add_note("--no-root creates a throw-away hub without a root key")
        raise
    assert found is not None
    return found


def write_root(file: Path, secret: RootSecret, passphrase: bytes) -> None:
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


def read_root(file: Path, passphrase_file: Path | None) -> RootSecret:
    """Open a root key file."""
    data = local_files.read_file(file, MAX_SEALED_BYTES)
    passphrase = passphrase_for_existing(passphrase_file, str(file))
    try:
        return RootSecret.unseal(data, passphrase, str(file))
    except (Malformed, Unverified) as error:
        raise hinted(error, "give the file that veen hub init --root or veen root adopt created") from None


def read_request(file: Path) -> RootRequest:
    return _read_wire(file, RootRequest, "veen hub rotate-key --request writes such a file")


def read_endorsement(file: Path) -> RootEndorsement:
    return _read_wire(file, RootEndorsement, "veen root endorse writes such a file")


def _read_wire(file: Path, wire: type[_W], hint: str) -> _W:
    try:
        return wire_json.decode_canonical(wire, local_files.read_file(file, MAX_ROOT_REQUEST_BYTES).strip())
    except Malformed as error:
        raise hinted(Malformed(str(file), error.reason), hint) from None
