"""A client directory: everything that one identity stores.

    card.cbor      the public identity card
    keystore.enc   the secrets, encrypted with a passphrase; keystore.key without one
    state/         LMDB: labels, outbox, client_ids, hubs, receipts and checkpoints
    caps/          capabilities, as CBOR sequences of cap_token and cap_presentation
    evidence/      evidence of contradictions of hubs
    lock           held by the process that sends; keystore.lock by the process that changes the keystore

Folders have mode 0700, files 0600. A directory that others can read is not opened.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from veen.client import client_identity as cards
from veen.client import local_files
from veen.client.capabilities import CapabilityStore
from veen.client.client_identity import MAX_CARD_BYTES, Card, ClientIdentity
from veen.client.client_state import ClientState, TableRows
from veen.client.keystore import ENCRYPTED, Keystore, Secrets, StreamKeys, keystore_file
from veen.client.local_files import DISK, Disk, scaffold
from veen.client.writer_keys import (
    DEFAULT_BOUNDS,
    ClientKeyUse,
    KeyBounds,
    Outbox,
    WriterKey,
    WriterKeys,
    WriterRequest,
    begin,
    current,
)
from veen.core import Unavailable, Unverified
from veen.core.passphrase import DEFAULT_COST, Cost

CARD = "card.cbor"
_STATE = "state"
CAPS = "caps"
_LOCK = "lock"
EVIDENCE = "evidence"


class ClientDir:
    """An opened client directory. One process at a time may send from it; any number may read."""

    def __init__(self, path: Path, opened: Keystore, bounds: KeyBounds, disk: Disk) -> None:
        self.path = path
        self.disk = disk
        self.keystore = opened
        self.identity = opened.secrets.identity()
        self.card = _read_card(path, self.identity)
        self.state = ClientState(path / _STATE, self.identity)
        try:
            self.caps = CapabilityStore(path / CAPS, self.state, disk)
            self.stream_keys = StreamKeys(opened, self.state)
            self.writers = WriterKeys(self.state, self.identity, self.caps, bounds)
            self.outbox = Outbox(self.state)
            self.writers.current()  # raises if the state lost its rows, which would assign used places again
        except BaseException:
            self.state.close()
            raise

    @classmethod
    def create(
        cls,
        path: Path,
        passphrase: bytes | None,
        now: int,
        *,
        cost: Cost = DEFAULT_COST,
        bounds: KeyBounds = DEFAULT_BOUNDS,
        disk: Disk = DISK,
    ) -> Self:
        """Create a new identity in a new or empty directory. A crash leaves a complete directory or none."""
        secrets = Secrets.of(ClientIdentity.generate(now))
        with scaffold(path, disk) as folder:
            write_client(
                folder, secrets, passphrase, cost, bounds, disk, lambda state, rows: begin(rows, state.identity, 0, now)
            )
        return cls.open(path, passphrase, bounds=bounds, disk=disk)

    @classmethod
    def open(
        cls, path: Path, passphrase: bytes | None = None, *, bounds: KeyBounds = DEFAULT_BOUNDS, disk: Disk = DISK
    ) -> Self:
        """Raises `Unavailable` if this is not a client directory or others can read it, `WrongPassphrase`."""
        check_client(path)
        return cls(path, Keystore.open(path, passphrase, disk), bounds, disk)

    @staticmethod
    def is_encrypted(path: Path) -> bool:
        """Whether a passphrase is needed to open the directory."""
        check_client(path)
        return keystore_file(path).name == ENCRYPTED

    def close(self) -> None:
        self.state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def evidence(self) -> Path:
        return self.path / EVIDENCE

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Hold the right to send. Raises `Busy` with the pid if another process holds it."""
        with local_files.locked(self.path / _LOCK, str(self.path)):
            yield

    def writer(self, wanted: WriterRequest) -> WriterKey:
        """As `WriterKeys.writer`, in its own transaction. After a rotation it also renews the card."""
        with self.state.tables.write() as rows:
            writer = self.writers.writer(rows, wanted)
        if writer.generation > self.card.generation:
            self.renew_card(wanted.now)
        return writer

    def renew_card(self, now: int) -> Card:
        """Write a card with the client_ids and prekeys from the current generation on, for issuers and peers."""
        self.card = _make_card(self.identity, self.writers.refresh(now), self.writers.bounds)
        self.disk.write_file(self.path / CARD, self.card.encode())
        self.disk.sync_folder(self.path)
        return self.card

    def cards_of(self, card: Card, client_ids: Collection[bytes]) -> list[Card]:
        """The card, or, if it is this client's own, a card for each of these client_ids, whatever its generation."""
        if card.id_sign != self.card.id_sign:
            return [card]
        uses = [use for use in self.writers.history() if use.client_id in client_ids]
        return [_make_card(self.identity, use, self.writers.bounds, 1) for use in uses]


def check_client(path: Path) -> None:
    """Raise `Unavailable` unless this is a client directory that only its owner can read."""
    if not path.is_dir():
        raise Unavailable(f"no client directory at {path}")
    missing = [name for name in (CARD, _STATE, CAPS) if not (path / name).exists()]
    if missing:
        raise Unavailable(f"{path} is not a client directory: it has no {missing[0]}")
    for private in (path, path / _STATE, keystore_file(path)):
        local_files.check_private(private)


def write_client(
    folder: Path,
    secrets: Secrets,
    passphrase: bytes | None,
    cost: Cost,
    bounds: KeyBounds,
    disk: Disk,
    fill: Callable[[ClientState, TableRows], object],
) -> None:
    """Write the files of a client directory. `fill` writes the state, with at least one generation in use."""
    identity = secrets.identity()
    for name in (_STATE, CAPS, EVIDENCE):
        disk.make_folder(folder / name)
    state = ClientState(folder / _STATE, identity)
    try:
        with state.tables.write() as rows:
            fill(state, rows)
            use = current(rows)
    finally:
        state.close()
    Keystore.create(folder, secrets, passphrase, cost, disk)
    disk.write_file(folder / CARD, _make_card(identity, use, bounds).encode())


def _make_card(
    identity: ClientIdentity, use: ClientKeyUse, bounds: KeyBounds, count: int = cards.NEXT_CLIENT_IDS
) -> Card:
    return cards.make_card(identity, use.generation, use.created_at, bounds.max_client_id_lifetime_sec, count)


def _read_card(path: Path, identity: ClientIdentity) -> Card:
    card = Card.decode(local_files.read_file(path / CARD, MAX_CARD_BYTES))
    card.verify()
    if (card.id_sign, card.id_dh) != (identity.id_sign.public_key, identity.id_dh.public_key):
        raise Unverified(str(path / CARD), "its keys differ from those of the keystore")
    return card
