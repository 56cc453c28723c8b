"""A client directory: everything one identity keeps.

    card.cbor      the public identity card
    keystore.enc   the secrets, under a passphrase; or keystore.key, without one
    state/         LMDB: labels, outbox, client_ids, hubs, receipts and checkpoints
    caps/          capabilities, CBOR sequences of cap_token
    evidence/      what a hub contradicted itself with
    lock           held by whoever sends; keystore.lock by whoever changes the keystore

Folders have mode 0700, files 0600. One that others can look into is not opened.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from veen.client import durable
from veen.client import identity_card as cards
from veen.client.capabilities import CapBox
from veen.client.client_identity import ClientIdentity
from veen.client.client_state import ClientState
from veen.client.durable import DISK, Disk, scaffold
from veen.client.identity_card import MAX_CARD_BYTES, Card
from veen.client.keystore import DEFAULT_COST, ENCRYPTED, Cost, Keystore, Secrets, keystore_file
from veen.client.lmdb_tables import TableRows
from veen.client.outbox import Outbox
from veen.client.stream_keys import StreamKeys
from veen.client.writer_keys import DEFAULT_BOUNDS, ClientKeyUse, KeyBounds, WriterKey, WriterKeys, begin, current
from veen.core import Limits, Unavailable, Unverified

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
            self.caps = CapBox(path / CAPS, self.state, disk)
            self.stream_keys = StreamKeys(opened, self.state)
            self.writers = WriterKeys(self.state, self.identity, self.caps, bounds)
            self.outbox = Outbox(self.state)
            self.writers.current()  # a state that lost its rows would hand out places that were used before
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
        """A new identity in a new directory, or in an empty one: it is there whole, or not at all."""
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
        """Raises `Unavailable` where this is no client directory or others can read it, `WrongPassphrase`."""
        check_client(path)
        return cls(path, Keystore.open(path, passphrase, disk), bounds, disk)

    @staticmethod
    def is_encrypted(path: Path) -> bool:
        """Whether opening takes a passphrase."""
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
        """The right to send. Raises `Busy`, which names the process, where another has it."""
        with durable.locked(self.path / _LOCK, str(self.path)):
            yield

    def writer(
        self,
        hub_id: bytes,
        label: bytes,
        stream_id: bytes,
        *,
        now: int,
        epoch: int = 0,
        capability: bool = False,
        limits: Limits | None = None,
    ) -> WriterKey:
        """As `Writers.writer` says; after a rotation the card lists the client_ids from there on."""
        writer = self.writers.writer(
            hub_id, label, stream_id, now=now, epoch=epoch, capability=capability, limits=limits
        )
        if writer.generation > self.card.generation:
            self.renew_card(now)
        return writer

    def renew_card(self, now: int) -> Card:
        """A card with the client_ids and prekeys from the current generation on, for issuers and peers."""
        self.card = _make_card(self.identity, self.writers.refresh(now), self.writers.bounds)
        self.disk.write_file(self.path / CARD, self.card.encode())
        self.disk.sync_folder(self.path)
        return self.card


def check_client(path: Path) -> None:
    """Raise unless this is a client directory that only its owner can look into."""
    if not path.is_dir():
        raise Unavailable(f"there is no client directory at {path}")
    missing = [name for name in (CARD, _STATE, CAPS) if not (path / name).exists()]
    if missing:
        raise Unavailable(f"{path} is not a client directory: it has no {missing[0]}")
    for private in (path, path / _STATE, keystore_file(path)):
        durable.check_private(private)


def write_client(
    folder: Path,
    secrets: Secrets,
    passphrase: bytes | None,
    cost: Cost,
    bounds: KeyBounds,
    disk: Disk,
    fill: Callable[[ClientState, TableRows], object],
) -> None:
    """The files of a client whose state is what `fill` puts there: a generation in use at least."""
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


def _make_card(identity: ClientIdentity, use: ClientKeyUse, bounds: KeyBounds) -> Card:
    return cards.make(identity, use.generation, use.created_at, bounds.max_client_id_lifetime_sec)


def _read_card(path: Path, identity: ClientIdentity) -> Card:
    card = Card.decode(durable.read_file(path / CARD, MAX_CARD_BYTES))
    card.verify()
    if (card.id_sign, card.id_dh) != (identity.id_sign.public_key, identity.id_dh.public_key):
        raise Unverified(str(path / CARD), "it is not the card of this keystore's identity")
    return card
