"""Taking a portable set up again, after checking all of it."""

import os
from dataclasses import replace
from pathlib import Path

from veen.client import durable, sequence
from veen.client import tree as trees
from veen.client.caps import MAX_FILE_BYTES, decode_tokens
from veen.client.card import MAX_CARD_BYTES, Card
from veen.client.clientdir import CAPS, CARD, ClientDir, write_client
from veen.client.durable import DISK, Disk
from veen.client.identity import SEED_BYTES
from veen.client.keystore import Keystore, Secrets
from veen.client.outbox import Pending, append
from veen.client.portable import manifest as manifests
from veen.client.portable.rows import Routing, StateRow, SyncState
from veen.client.scaffold import scaffold
from veen.client.state import State
from veen.client.tables import Rows
from veen.client.trust import HubRecord
from veen.client.writers import DEFAULT_BOUNDS, KeyBounds, begin, current
from veen.core import Checkpoint, Msg, Receipt, Unverified
from veen.core.hashing import u64be
from veen.core.proof import Head


def import_identity(
    source: Path,
    path: Path,
    passphrase: bytes | None,
    now: int,
    *,
    moved: bool = False,
    bounds: KeyBounds = DEFAULT_BOUNDS,
    disk: Disk = DISK,
) -> ClientDir:
    """A client directory from a portable set, all of it or nothing. Raises where anything in the set does not hold.

    The directory the set came from may still send, or may have sent since: two that write with the same client_ids
    would use the same places for different messages. So this one draws client_ids of its own, and capabilities have
    to be issued for them. With `moved` it goes on with the old ones and their capabilities: for when the other has
    not sent since the export and never will.
    """
    manifest = manifests.read(source)
    opened = Keystore.open(source, passphrase, disk)
    _check_one_identity(source, manifest.id_sign, opened.secrets)
    secrets = opened.secrets if moved else replace(opened.secrets, client_seed=os.urandom(SEED_BYTES))
    with scaffold(path, disk) as folder:
        write_client(
            folder,
            secrets,
            passphrase if opened.is_encrypted else None,
            opened.cost,
            bounds,
            disk,
            lambda state, rows: _Restored(source, state, rows).fill(moved, now),
        )
        tokens = durable.read_file(source / "cap_tokens.cborseq", MAX_FILE_BYTES)
        if tokens:
            decode_tokens(tokens, "cap_tokens.cborseq")
            disk.write_file(folder / CAPS / "imported.cbor", tokens)
            disk.sync_folder(folder / CAPS)
    client = ClientDir.open(path, passphrase, bounds=bounds, disk=disk)
    client.renew_card(now)
    return client


def _check_one_identity(source: Path, id_sign: bytes, secrets: Secrets) -> None:
    card = Card.decode(durable.read_file(source / CARD, MAX_CARD_BYTES))
    card.verify()
    own = secrets.identity()
    if not id_sign == card.id_sign == own.id_sign.public_key or card.id_dh != own.id_dh.public_key:
        raise Unverified("portable set", "its manifest, card and keystore are not of one identity")


class _Restored:
    """The state of a set on its way into a new environment, in the one transaction that makes it."""

    def __init__(self, source: Path, state: State, rows: Rows) -> None:
        self._source = source
        self._state = state
        self._rows = rows
        self._hubs: dict[bytes, HubRecord] = {}
        self._hub_of: dict[bytes, bytes] = {}  # label to hub_id

    def fill(self, moved: bool, now: int) -> None:
        self._put_rows()
        # Each key is checked as it is read, and can be worked out again, so none is stored.
        routing = sequence.read_file(Routing, self._source / "routing_secret.cborseq")
        if {each.hub_id for each in routing} != set(self._hubs):
            raise Unverified("portable set", "its routing secrets are not those of its hubs")
        self._put_labels()
        for receipt in sequence.read_file(Receipt, self._source / "receipts.cborseq"):
            self._rows.put("receipts", self._checked(receipt), receipt.encode())
        for checkpoint in sequence.read_file(Checkpoint, self._source / "checkpoints.cborseq"):
            self._rows.put("checkpoints", self._checked(checkpoint), checkpoint.encode())
        self._put_outbox()
        use, identity = current(self._rows), self._state.identity
        if not moved:
            begin(self._rows, identity, use.generation + 1, now)
        elif use.client_id != identity.client_key(use.generation).public_key:
            raise Unverified("portable set", "the client_id in use is not the identity's")

    def _put_rows(self) -> None:
        for row in sequence.read_file(StateRow, self._source / "state.cborseq"):
            self._rows.put(row.table, row.key, row.row)
            if row.table == "hubs":
                record = self._hubs[row.key] = HubRecord.decode(row.row)
                record.identity.verify(record.signature, row.key)

    def _put_labels(self) -> None:
        for sync in sequence.read_file(SyncState, self._source / "sync_state.cborseq"):
            self._hub_of[sync.label] = sync.hub_id
            key = sync.hub_id + sync.label
            self._state.start_ladder(self._rows, key)
            if sync.state is not None:
                head = trees.decode_head(sync.state.head)
                signed = self._checked(head), head.mmr_root
                if signed != (key + u64be(sync.state.size), sync.state.root):
                    raise Unverified("sync state", f"label {sync.label.hex()[:8]} is not where its head says")
                self._rows.put("labels", key, sync.state.encode())

    def _put_outbox(self) -> None:
        for msg in sequence.read_file(Msg, self._source / "payloads.cborseq"):
            msg.check_ct_hash()
            msg.verify_signature()
            append(self._rows, self._hub(msg.label) + msg.label, [Pending.of(msg)])

    def _checked(self, head: Head) -> bytes:
        """The key of a receipt or checkpoint that its hub signed."""
        label = trees.label_of(head)
        hub_id = self._hub(label)
        known = self._hubs.get(hub_id)
        if known is None:
            raise Unverified("portable set", f"nothing in it says who hub {hub_id.hex()[:8]} is")
        if isinstance(head, Receipt):
            known.identity.verify_receipt(head)
        else:
            known.identity.verify_checkpoint(head, known.profile)
        return hub_id + label + u64be(trees.size_of(head))

    def _hub(self, label: bytes) -> bytes:
        hub_id = self._hub_of.get(label)
        if hub_id is None:
            raise Unverified("portable set", f"nothing in it says whose label {label.hex()[:8]} is")
        return hub_id
