"""Import of a portable set. Everything in it is verified first."""

import os
from dataclasses import replace
from pathlib import Path

from veen.client import cbor_sequence, local_files
from veen.client import local_tree as trees
from veen.client.capabilities import MAX_FILE_BYTES, decode_tokens
from veen.client.client_dir import CAPS, CARD, EVIDENCE, ClientDir, write_client
from veen.client.client_identity import SEED_BYTES
from veen.client.client_state import ClientState
from veen.client.evidence import MAX_EVIDENCE_BYTES, Evidence, EvidenceStore
from veen.client.identity_card import MAX_CARD_BYTES, Card
from veen.client.keystore import Keystore, Secrets
from veen.client.lmdb_tables import TableRows
from veen.client.local_files import DISK, Disk, scaffold
from veen.client.outbox import Pending, append
from veen.client.portable import manifest as manifests
from veen.client.portable.rows import CARRIED_EVIDENCE, Routing, StateRow, SyncState
from veen.client.trust import HubRecord, HubTrust
from veen.client.writer_keys import DEFAULT_BOUNDS, KeyBounds, begin, current
from veen.core import Checkpoint, Msg, Receipt, Unavailable, Unverified
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
    """Create a client directory from a portable set, atomically. Raises if anything in the set does not verify.

    The exporting directory may still send. Two directories with the same client_ids would use the same places for
    different messages. So the import draws its own client_ids, which need new capabilities. `moved` keeps the old
    client_ids and their capabilities: only for when the exporting directory has not sent since and never will.
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
        if (source / CARRIED_EVIDENCE).exists():
            box = EvidenceStore(folder / EVIDENCE, disk)
            for one in cbor_sequence.read_file(Evidence, source / CARRIED_EVIDENCE, MAX_EVIDENCE_BYTES):
                box.save(one)
        tokens = local_files.read_file(source / "cap_tokens.cborseq", MAX_FILE_BYTES)
        if tokens:
            decode_tokens(tokens, "cap_tokens.cborseq")
            disk.write_file(folder / CAPS / "imported.cbor", tokens)
            disk.sync_folder(folder / CAPS)
    client = ClientDir.open(path, passphrase, bounds=bounds, disk=disk)
    client.renew_card(now)
    return client


def _check_one_identity(source: Path, id_sign: bytes, secrets: Secrets) -> None:
    card = Card.decode(local_files.read_file(source / CARD, MAX_CARD_BYTES))
    card.verify()
    own = secrets.identity()
    if not id_sign == card.id_sign == own.id_sign.public_key or card.id_dh != own.id_dh.public_key:
        raise Unverified("portable set", "manifest, card and keystore belong to different identities")


class _Restored:
    """Writes the state of a set into a new environment, in one transaction."""

    def __init__(self, source: Path, state: ClientState, rows: TableRows) -> None:
        self._source = source
        self._state = state
        self._rows = rows
        self._hubs: dict[bytes, HubTrust] = {}
        self._hubs_of: dict[bytes, list[bytes]] = {}  # by label; a fork shares labels with its origin

    def fill(self, moved: bool, now: int) -> None:
        self._put_rows()
        # The hub records contain the same keys, so they are compared and not stored.
        routing = cbor_sequence.read_file(Routing, self._source / "routing_secret.cborseq")
        known = {hub_id: hub.known.identity.routing_key for hub_id, hub in self._hubs.items()}
        if {each.hub_id: each.routing_key for each in routing} != known:
            raise Unverified("portable set", "routing_secret.cborseq does not match the hubs in state.cborseq")
        self._put_labels()
        for receipt in cbor_sequence.read_file(Receipt, self._source / "receipts.cborseq"):
            self._put_signed("receipts", receipt)
        for checkpoint in cbor_sequence.read_file(Checkpoint, self._source / "checkpoints.cborseq"):
            self._put_signed("checkpoints", checkpoint)
        self._put_outbox()
        use, identity = current(self._rows), self._state.identity
        if not moved:
            begin(self._rows, identity, use.generation + 1, now)
        elif use.client_id != identity.client_key(use.generation).public_key:
            raise Unverified("portable set", "the client_id in use does not belong to the identity")

    def _put_rows(self) -> None:
        for row in cbor_sequence.read_file(StateRow, self._source / "state.cborseq"):
            self._rows.put(row.table, row.key, row.row)
            if row.table == "hubs":
                record = HubRecord.decode(row.row)
                record.identity.verify(record.signature, row.key)
                self._hubs[row.key] = HubTrust(record)

    def _put_labels(self) -> None:
        for sync in cbor_sequence.read_file(SyncState, self._source / "sync_state.cborseq"):
            self._hubs_of.setdefault(sync.label, []).append(sync.hub_id)
            key = sync.hub_id + sync.label
            self._state.start_ladder(self._rows, key)
            if sync.state is not None:
                head = trees.decode_head(sync.state.head)
                signed = self._checked(sync.hub_id, head), head.mmr_root
                if signed != (key + u64be(sync.state.size), sync.state.root):
                    raise Unverified("sync state", f"label {sync.label.hex()[:8]} does not match its signed head")
                self._rows.put("labels", key, sync.state.encode())

    def _put_outbox(self) -> None:
        for msg in cbor_sequence.read_file(Msg, self._source / "payloads.cborseq"):
            msg.check_ct_hash()
            msg.verify_signature()
            hubs = self._hubs_with(msg.label)
            if len(hubs) > 1:
                raise Unavailable(
                    "cannot import the outbox: its messages have a label that both a hub and its fork use"
                )
            append(self._rows, hubs[0] + msg.label, [Pending.of(msg)])

    def _put_signed(self, table: str, head: Receipt | Checkpoint) -> None:
        """Store it for every hub that it verifies for: a fork also signs for the prefix of its origin."""
        refusal: Unverified | None = None
        kept = 0
        for hub_id in self._hubs_with(trees.label_of(head)):
            try:
                self._rows.put(table, self._checked(hub_id, head), head.encode())
                kept += 1
            except Unverified as error:
                refusal = error
        if refusal is not None and not kept:
            raise refusal

    def _checked(self, hub_id: bytes, head: Head) -> bytes:
        """Verify a receipt or checkpoint of the hub. Returns its key in the table."""
        known = self._hubs.get(hub_id)
        if known is None:
            raise Unverified("portable set", f"it has no record of hub {hub_id.hex()[:8]}")
        if isinstance(head, Receipt):
            known.verify_receipt(head)
        else:
            known.verify_checkpoint(head)
        return hub_id + trees.label_of(head) + u64be(trees.size_of(head))

    def _hubs_with(self, label: bytes) -> list[bytes]:
        hubs = self._hubs_of.get(label)
        if not hubs:
            raise Unverified("portable set", f"it does not say which hub label {label.hex()[:8]} belongs to")
        return hubs
