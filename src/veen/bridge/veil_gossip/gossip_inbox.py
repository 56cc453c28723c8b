"""Received items on disk. Each is stored once, however often it arrives and whenever the receiver is killed.

    received.db   position in the node's events; seen, rejected, incomplete and proved items
    evidence/     verified evidence files, named by the hash of their contents
    bundles/      verified bundles, named by their id; input of `veen bridge watch` and `import`

Everything that one event causes is one transaction, including the position in the node's events. A file is written,
under the name its contents determine, before its transaction commits: after a crash in between, the same event is read
again and leaves the file as it is.

Senders cannot make the inbox exceed its limits. Newer items displace remembered ones. Items that need a decision are
never displaced; when they use all the space, new items are rejected.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from veen.bridge.veil_gossip.gossip_items import PartsManifest, part_name
from veen.client import local_files
from veen.client.local_files import DISK
from veen.core import Malformed, Unavailable
from veen.core.hashing import h, u64be

FORMAT = 1
EVIDENCE, BUNDLES = "evidence", "bundles"
_FILE = "received.db"
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cursors (node BLOB PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (n INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS heads (n INTEGER PRIMARY KEY AUTOINCREMENT, label BLOB NOT NULL, size BLOB NOT NULL,
    shown BLOB NOT NULL UNIQUE, standing TEXT NOT NULL, reason TEXT NOT NULL, open INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS heads_at ON heads (label, size);
CREATE TABLE IF NOT EXISTS found (file TEXT PRIMARY KEY, reason TEXT NOT NULL, label BLOB, untold INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (n INTEGER PRIMARY KEY AUTOINCREMENT, name BLOB NOT NULL UNIQUE, sender BLOB NOT NULL,
    cost INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS manifests (name BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS wanted (part BLOB, manifest BLOB, PRIMARY KEY (part, manifest)) WITHOUT ROWID;
"""


class InboxFull(Exception):
    """No space for this item now."""


@dataclass(frozen=True, slots=True)
class InboxLimits:
    """Limits of an inbox."""

    seen: int = 1 << 16
    heads: int = 1 << 12
    staged_bytes: int = 1 << 26
    found: int = 64  # one contradiction is enough proof; the rest is for inspection
    # Files that have not been removed by the user.
    evidence_bytes: int = 1 << 28
    bundle_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A received checkpoint as encoded by its sender, and its comparison result."""

    shown: bytes
    standing: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProvedContradiction:
    """A proved contradiction: the hub signed both statements in the file."""

    file: str
    reason: str
    label: bytes | None = None  # label of the checkpoint that was compared here
    untold: bool = False  # proved here and not yet published


class Inbox:
    """The folder of one receiver for one hub; locked while open."""

    def __init__(self, folder: Path, hub_id: bytes, limits: InboxLimits | None = None) -> None:
        self.folder = folder
        self.limits = limits or InboxLimits()
        for path in (folder, folder / EVIDENCE, folder / BUNDLES):
            DISK.make_folder(path)
        with ExitStack() as stack, self._database_errors():
            stack.enter_context(local_files.locked_folder(folder))
            self.rows = sqlite3.connect(folder / _FILE, isolation_level=None)
            stack.callback(self.rows.close)
            self.rows.execute("PRAGMA synchronous = FULL")
            self.rows.executescript(_TABLES)
            self._check(hub_id)
            self._resources = stack.pop_all()

    def _check(self, hub_id: bytes) -> None:
        with self.change():
            for name, value in (("format", bytes((FORMAT,))), ("hub_id", hub_id)):
                self.rows.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, value))
            kept = dict(self.rows.execute("SELECT name, value FROM meta"))
        if kept["format"] != bytes((FORMAT,)):
            raise Malformed(
                str(self.folder), f"has format {kept['format'].hex()}, this program reads format {FORMAT:02x}"
            )
        if kept["hub_id"] != hub_id:
            raise Malformed(str(self.folder), f"belongs to hub {kept['hub_id'].hex()}; use another folder for each hub")

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """One transaction: everything in it is on disk when it ends, or nothing."""
        with self._database_errors():
            self.rows.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.rows.execute("COMMIT")
            except BaseException:
                if self.rows.in_transaction:
                    self.rows.execute("ROLLBACK")
                raise

    @contextmanager
    def _database_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise Unavailable(f"{self.folder / _FILE}: {error}") from None

    # Position and counters.

    def cursor(self, node: bytes) -> int:
        row = self.rows.execute("SELECT seq FROM cursors WHERE node = ?", (node,)).fetchone()
        return int(row[0]) if row else 0

    def put_cursor(self, node: bytes, seq: int) -> None:
        self.rows.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?)", (node, seq))

    def count(self, name: str, number: int = 1) -> None:
        self.rows.execute(
            "INSERT INTO counts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = number + excluded.number",
            (name, number),
        )

    def counts(self) -> dict[str, int]:
        return dict(self.rows.execute("SELECT name, number FROM counts ORDER BY name"))

    # Seen digests.

    def has_seen(self, digest: bytes) -> bool:
        return self.rows.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,)).fetchone() is not None

    def see(self, digest: bytes) -> None:
        if self.has_seen(digest):
            return
        self.rows.execute("INSERT INTO seen (digest) VALUES (?)", (digest,))
        self.rows.execute("DELETE FROM seen WHERE n <= (SELECT MAX(n) FROM seen) - ?", (self.limits.seen,))

    # Checkpoints.

    def open_heads(self) -> list[StoredCheckpoint]:
        """Checkpoints to compare again, oldest first."""
        found = self.rows.execute("SELECT shown, standing, reason FROM heads WHERE open ORDER BY n")
        return [StoredCheckpoint(*row) for row in found]

    def heads_at(self, label: bytes, size: int) -> list[bytes]:
        """All received checkpoints of one size of one label."""
        found = self.rows.execute("SELECT shown FROM heads WHERE label = ? AND size = ?", (label, u64be(size)))
        return [row[0] for row in found]

    def put_head(self, label: bytes, size: int, kept: StoredCheckpoint, *, is_open: bool) -> None:
        """Store a checkpoint or its new result. Raises `InboxFull` if every stored one needs another comparison."""
        row = (label, u64be(size), kept.shown, kept.standing, kept.reason, is_open)
        self.rows.execute(
            "INSERT INTO heads (label, size, shown, standing, reason, open) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (shown) DO UPDATE SET standing = excluded.standing, reason = excluded.reason, "
            "open = excluded.open",
            row,
        )
        if self.rows.execute("SELECT COUNT(*) FROM heads").fetchone()[0] > self.limits.heads:
            oldest = "SELECT MIN(n) FROM heads WHERE NOT open AND shown != ?"
            gone = self.rows.execute(f"DELETE FROM heads WHERE n = ({oldest})", (kept.shown,)).rowcount
            if not gone:
                self.rows.execute("DELETE FROM heads WHERE shown = ?", (kept.shown,))
                raise InboxFull

    # Proved contradictions.

    def found(self) -> list[ProvedContradiction]:
        found = self.rows.execute("SELECT file, reason, label, untold FROM found ORDER BY file")
        return [ProvedContradiction(file, reason, label, bool(untold)) for file, reason, label, untold in found]

    def found_at(self, label: bytes) -> ProvedContradiction | None:
        """The contradiction that is already proved at a label; more proofs would add nothing."""
        return next((one for one in self.found() if one.label == label), None)

    def put_found(self, one: ProvedContradiction) -> None:
        row = (one.file, one.reason, one.label, one.untold)
        self.rows.execute("INSERT OR IGNORE INTO found VALUES (?, ?, ?, ?)", row)

    def mark_published(self, file: str) -> None:
        self.rows.execute("UPDATE found SET untold = 0 WHERE file = ?", (file,))

    # Files.

    def put_file(self, folder: str, name: str, data: bytes) -> Path:
        """Write a verified file. An existing one is left alone, because its name identifies its contents."""
        path = self.folder / folder / name
        if not path.exists():
            limit = self.limits.evidence_bytes if folder == EVIDENCE else self.limits.bundle_bytes
            if len(data) + sum(one.stat().st_size for one in path.parent.rglob("*")) > limit:
                raise InboxFull
            DISK.write_file(path, data)
            DISK.sync_folder(path.parent)
        return path


# Cost of a row in addition to its bytes: without it, a flood of small parts could exceed the limit.
_ROW_BYTES = 1024


class PartStore:
    """Incomplete items of one inbox: parts and manifests. Call its methods within `Inbox.change`."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._rows = inbox.rows

    def put_manifest(self, encoded: bytes, sender: bytes) -> list[PartsManifest]:
        """Store a manifest that decodes. Returns it if all its parts are present."""
        name = h(encoded)
        if not self._put(name, sender, b""):
            return []
        self._rows.execute("INSERT OR REPLACE INTO manifests VALUES (?, ?)", (name, encoded))
        manifest = PartsManifest.decode(encoded)
        self._rows.execute("UPDATE parts SET cost = cost + ? WHERE name = ?", (self._manifest_cost(manifest), name))
        self._rows.executemany("INSERT OR IGNORE INTO wanted VALUES (?, ?)", [(part, name) for part in manifest.parts])
        self._make_room()
        return self._complete([name])

    def put_part(self, body: bytes, sender: bytes) -> list[PartsManifest]:
        """Store a part. Returns every manifest that is complete now."""
        name = part_name(body)
        if not self._put(name, sender, body):
            return []
        waiting = self._rows.execute("SELECT manifest FROM wanted WHERE part = ?", (name,)).fetchall()
        self._make_room()
        return self._complete([row[0] for row in waiting])

    def take(self, manifest: PartsManifest) -> bytes | None:
        """Assemble the content and delete its parts. None if the parts do not match the manifest."""
        content = b"".join(self._body(part) for part in manifest.parts)
        self._delete(h(manifest.encode()))
        for part in manifest.parts:
            if not self._rows.execute("SELECT 1 FROM wanted WHERE part = ?", (part,)).fetchone():
                self._rows.execute("DELETE FROM parts WHERE name = ?", (part,))
        return content if manifest.holds(content) else None

    def bytes_held(self) -> int:
        return int(self._rows.execute("SELECT COALESCE(SUM(cost), 0) FROM parts").fetchone()[0])

    @staticmethod
    def _manifest_cost(manifest: PartsManifest) -> int:
        return 3 * sum(map(len, manifest.parts))  # stored in the manifest and in both columns of `wanted`

    def _put(self, name: bytes, sender: bytes, body: bytes) -> bool:
        row = (name, sender, _ROW_BYTES + len(body), body)
        done = self._rows.execute("INSERT OR IGNORE INTO parts (name, sender, cost, body) VALUES (?, ?, ?, ?)", row)
        return done.rowcount == 1

    def _body(self, name: bytes) -> bytes:
        row = self._rows.execute("SELECT body FROM parts WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else b""

    def _complete(self, names: list[bytes]) -> list[PartsManifest]:
        missing = "SELECT 1 FROM wanted WHERE manifest = ? AND part NOT IN (SELECT name FROM parts) LIMIT 1"
        manifest_body = "SELECT body FROM manifests WHERE name = ?"
        found = [
            self._rows.execute(manifest_body, (name,)).fetchone()
            for name in names
            if not self._rows.execute(missing, (name,)).fetchone()
        ]
        return [PartsManifest.decode(row[0]) for row in found if row]

    def _make_room(self) -> None:
        while self.bytes_held() > self._inbox.limits.staged_bytes:
            largest = "SELECT sender FROM parts GROUP BY sender ORDER BY SUM(cost) DESC LIMIT 1"
            oldest = f"SELECT name FROM parts WHERE sender = ({largest}) ORDER BY n LIMIT 1"
            self._delete(self._rows.execute(oldest).fetchone()[0])
            self._inbox.count("let go")

    def _delete(self, name: bytes) -> None:
        """Delete a part, or a manifest and its entries in `wanted`."""
        self._rows.execute("DELETE FROM parts WHERE name = ?", (name,))
        self._rows.execute("DELETE FROM manifests WHERE name = ?", (name,))
        self._rows.execute("DELETE FROM wanted WHERE manifest = ?", (name,))
