"""The portable set: a client as a folder that another machine can import. Spec 001 §15.

    manifest.cbor            the list of files, signed by the identity itself
    card.cbor                the identity card
    keystore.enc             the secrets; keystore.key without a passphrase
    routing_secret.cborseq   the routing_key of each hub
    receipts.cborseq         every stored RECEIPT
    checkpoints.cborseq      every stored CHECKPOINT
    payloads.cborseq         every MSG that waits for an answer, in order
    sync_state.cborseq       the hub of each label, and how far the label was verified
    cap_tokens.cborseq       the capabilities
    state.cborseq            the rest of the state, row by row
    evidence.cborseq         evidence of contradictions, if there is any

Attachments are uploaded before their message, so the set contains none. The rekey ladder is not portable: the importing
client starts a new one.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

from veen.client import cbor_sequence, local_files, writer_keys
from veen.client.capabilities import MAX_FILE_BYTES, decode_capabilities
from veen.client.client_dir import CAPS, CARD, EVIDENCE, ClientDir, write_client
from veen.client.client_identity import MAX_CARD_BYTES, SEED_BYTES, Card, ClientIdentity
from veen.client.client_state import CaughtRow, ClientState, LabelState, TableRows
from veen.client.evidence import MAX_EVIDENCE_BYTES, Evidence, EvidenceStore
from veen.client.keystore import MAX_KEYSTORE_BYTES, Keystore, Secrets, StreamKey, keystore_file
from veen.client.local_files import DISK, Disk, scaffold
from veen.client.trust import HubRecord, HubTrust
from veen.core import Checkpoint, Malformed, Msg, Receipt, Unavailable, Unverified, signing
from veen.core.cbor import Bstr, Bytes, Constant, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.hashing import HASH_BYTES, ht, u64be
from veen.core.limits import MAX_MSG_BYTES, MAX_TEXT_BYTES
from veen.core.passphrase import DEFAULT_COST, Cost
from veen.core.proof import Head, decode_head, label_of, size_of
from veen.core.signing import SIGNATURE_BYTES

CARRIED_EVIDENCE = "evidence.cborseq"


@int_map("routing secret", VersionField())
class Routing(Wire):
    """A hub's routing_key, from which the labels of its streams are derived."""

    hub_id: Annotated[bytes, Bstr()]
    routing_key: Annotated[bytes, Bstr()]


@int_map("sync state", VersionField())
class SyncState(Wire):
    """The hub of a label, and how far it was verified; no state if it only has pending messages."""

    hub_id: Annotated[bytes, Bstr()]
    label: Annotated[bytes, Bstr()]
    state: Annotated[LabelState | None, Nested(LabelState, optional=True)] = None


@int_map("state row", VersionField())
class StateRow(Wire):
    """One row of a table, unchanged."""

    table: Annotated[str, Text(MAX_TEXT_BYTES)]
    key: Annotated[bytes, Bytes(511)]
    row: Annotated[bytes, Bytes(MAX_MSG_BYTES)]

    def flaw(self) -> str | None:
        if self.table not in CARRIED:
            return f"table {self.table!r} is not part of a portable set"
        size, wire = CARRIED[self.table]
        if size is not None and len(self.key) != size:
            return f"a key of {self.table} has {size} bytes, not {len(self.key)}"
        if isinstance(wire, int):
            return None if len(self.row) == wire else f"a row of {self.table} has {wire} bytes, not {len(self.row)}"
        try:
            wire.decode(self.row)
        except Malformed as error:
            return str(error)
        return None


# The tables that are copied row by row: length of the keys, and length or type of the rows.
CARRIED: dict[str, tuple[int | None, int | type[Wire]]] = {
    "generations": (8, writer_keys.ClientKeyUse),
    "eras": (8 + 32, 8),
    "writers": (3 * 32, writer_keys.WriterState),
    "hubs": (32, HubRecord),
    "caught": (2 * 32, CaughtRow),
    "urls": (None, 32),
    "streams": (32, StreamKey),
    "grants": (2 * 32, 8),
    "marks": (None, 32),
}


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
        return ht("veen/portable", self.unsigned())


def sign_manifest(identity: ClientIdentity, folder: Path, now: int) -> PortableManifest:
    """The signed manifest of all files in the folder."""
    files = tuple(FileEntry.of(folder, name) for name in names_in(folder))
    manifest = PortableManifest(identity.id_sign.public_key, now, files, bytes(SIGNATURE_BYTES))
    return replace(manifest, sig=identity.id_sign.sign(manifest._digest()))


def read_manifest(folder: Path) -> PortableManifest:
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


_PLACE = 2 * HASH_BYTES


def export_identity(
    client: ClientDir,
    out: Path,
    now: int,
    *,
    passphrase: bytes | None = None,
    cost: Cost = DEFAULT_COST,
) -> PortableManifest:
    """Write the portable set of a client into a new folder, atomically.

    The keystore is copied unchanged, or encrypted with `passphrase` if given.
    """
    disk = client.disk
    with scaffold(out, disk) as folder:
        _copy_keystore(client, folder, passphrase, cost)
        disk.write_file(folder / CARD, client.card.encode())
        disk.write_file(folder / "cap_tokens.cborseq", (one.encode() for one in client.caps.all()))
        with client.state.tables.read() as rows:  # one snapshot, so that the files are consistent
            for name, parts in _sequences(rows):
                disk.write_file(folder / name, parts)
            files = [client.path / CaughtRow.decode(row).file for _, row in rows.scan("caught")]
        kept = [local_files.read_file(file, MAX_EVIDENCE_BYTES) for file in files if file.exists()]
        if kept:
            disk.write_file(folder / CARRIED_EVIDENCE, kept)
        manifest = sign_manifest(client.identity, folder, now)
        disk.write_file(folder / MANIFEST, manifest.encode())
    return manifest


def _sequences(rows: TableRows) -> Iterator[tuple[str, Iterator[bytes]]]:
    yield "routing_secret.cborseq", _routing(rows)
    yield "receipts.cborseq", (row for _, row in rows.scan("receipts"))
    yield "checkpoints.cborseq", (row for _, row in rows.scan("checkpoints"))
    yield "payloads.cborseq", (row for _, row in rows.scan("outbox"))
    yield "sync_state.cborseq", _sync_states(rows)
    yield "state.cborseq", (StateRow(table, key, row).encode() for table in CARRIED for key, row in rows.scan(table))


def _routing(rows: TableRows) -> Iterator[bytes]:
    for hub_id, row in rows.scan("hubs"):
        yield Routing(hub_id, HubRecord.decode(row).identity.routing_key).encode()


def _sync_states(rows: TableRows) -> Iterator[bytes]:
    """The state of every label that occurs in the set."""
    places: set[bytes] = set()
    for table in ("labels", "receipts", "checkpoints", "outbox"):
        places.update(key[:_PLACE] for key, _ in rows.scan(table))
    for place in sorted(places):
        row = rows.get(place, db=rows.db["labels"])
        state = None if row is None else LabelState.decode(row)
        yield SyncState(place[:HASH_BYTES], place[HASH_BYTES:], state).encode()


def _copy_keystore(client: ClientDir, folder: Path, passphrase: bytes | None, cost: Cost) -> None:
    if passphrase is not None:
        Keystore.create(folder, client.keystore.reload(), passphrase, cost, client.disk)
        return
    path = keystore_file(client.path)
    client.disk.write_file(folder / path.name, local_files.read_file(path, MAX_KEYSTORE_BYTES))


def import_identity(
    source: Path,
    path: Path,
    passphrase: bytes | None,
    now: int,
    *,
    moved: bool = False,
    bounds: writer_keys.KeyBounds = writer_keys.DEFAULT_BOUNDS,
    disk: Disk = DISK,
) -> ClientDir:
    """Create a client directory from a portable set, atomically. Raises if anything in the set does not verify.

    The exporting directory may still send. Two directories with the same client_ids would use the same places for
    different messages. So the import draws its own client_ids, which need new capabilities. `moved` keeps the old
    client_ids and their capabilities: only for when the exporting directory has not sent since and never will.
    """
    manifest = read_manifest(source)
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
            decode_capabilities(tokens, "cap_tokens.cborseq")
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
        use, identity = writer_keys.current(self._rows), self._state.identity
        if not moved:
            writer_keys.begin(self._rows, identity, use.generation + 1, now)
        elif use.client_id != identity.client_key(use.generation).public_key:
            raise Unverified("portable set", "the client_id in use does not belong to the identity")

    def _put_rows(self) -> None:
        for row in cbor_sequence.read_file(StateRow, self._source / "state.cborseq"):
            self._rows.put(row.key, row.row, db=self._rows.db[row.table])
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
                head = decode_head(sync.state.head)
                signed = self._checked(sync.hub_id, head), head.mmr_root
                if signed != (key + u64be(sync.state.size), sync.state.root):
                    raise Unverified("sync state", f"label {sync.label.hex()[:8]} does not match its signed head")
                self._rows.put(key, sync.state.encode(), db=self._rows.db["labels"])

    def _put_outbox(self) -> None:
        for msg in cbor_sequence.read_file(Msg, self._source / "payloads.cborseq"):
            msg.check_ct_hash()
            msg.verify_signature()
            hubs = self._hubs_with(msg.label)
            if len(hubs) > 1:
                raise Unavailable(
                    "cannot import the outbox: its messages have a label that both a hub and its fork use"
                )
            writer_keys.append(self._rows, hubs[0] + msg.label, [writer_keys.Pending.of(msg)])

    def _put_signed(self, table: str, head: Receipt | Checkpoint) -> None:
        """Store it for every hub that it verifies for: a fork also signs for the prefix of its origin."""
        refusal: Unverified | None = None
        kept = 0
        for hub_id in self._hubs_with(label_of(head)):
            try:
                self._rows.put(self._checked(hub_id, head), head.encode(), db=self._rows.db[table])
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
        known.verify(head)
        return hub_id + label_of(head) + u64be(size_of(head))

    def _hubs_with(self, label: bytes) -> list[bytes]:
        hubs = self._hubs_of.get(label)
        if not hubs:
            raise Unverified("portable set", f"it does not say which hub label {label.hex()[:8]} belongs to")
        return hubs
