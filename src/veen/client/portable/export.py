"""Export of a portable set."""

from collections.abc import Iterator
from pathlib import Path

from veen.client import local_files
from veen.client.client_dir import CARD, ClientDir
from veen.client.client_state import CaughtRow, LabelState
from veen.client.evidence import MAX_EVIDENCE_BYTES
from veen.client.keystore import DEFAULT_COST, MAX_KEYSTORE_BYTES, Cost, Keystore, keystore_file
from veen.client.lmdb_tables import TableRows
from veen.client.local_files import scaffold
from veen.client.portable import manifest as manifests
from veen.client.portable.manifest import MANIFEST, PortableManifest
from veen.client.portable.rows import CARRIED, CARRIED_EVIDENCE, Routing, StateRow, SyncState
from veen.client.trust import HubRecord
from veen.core.hashing import HASH_BYTES

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
        disk.write_file(folder / "cap_tokens.cborseq", (token.encode() for token in client.caps))
        with client.state.tables.read() as rows:  # one snapshot, so that the files are consistent
            for name, parts in _sequences(rows):
                disk.write_file(folder / name, parts)
            files = [client.path / CaughtRow.decode(row).file for _, row in rows.scan("caught")]
        kept = [local_files.read_file(file, MAX_EVIDENCE_BYTES) for file in files if file.exists()]
        if kept:
            disk.write_file(folder / CARRIED_EVIDENCE, kept)
        manifest = manifests.make(client.identity, folder, now)
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
        row = rows.get("labels", place)
        state = None if row is None else LabelState.decode(row)
        yield SyncState(place[:HASH_BYTES], place[HASH_BYTES:], state).encode()


def _copy_keystore(client: ClientDir, folder: Path, passphrase: bytes | None, cost: Cost) -> None:
    if passphrase is not None:
        Keystore.create(folder, client.keystore.reload(), passphrase, cost, client.disk)
        return
    path = keystore_file(client.path)
    client.disk.write_file(folder / path.name, local_files.read_file(path, MAX_KEYSTORE_BYTES))
