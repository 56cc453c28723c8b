"""What was received, on disk: each thing once, however often it comes and whenever the receiver is killed.

    received.db   how far the node's events were read; what was seen, refused, put aside and found
    evidence/     evidence files that verify, by the hash of their contents
    bundles/      bundles that verify, by their id: `veen bridge watch` and `import` take them from here

All that one event leads to is one transaction, and the place in the node's events is part of it. A file is written,
under the name that its contents give it, before the transaction that knows of it ends: a crash in between leaves a file
that the same event, read again, leaves as it is.

Nobody can make it grow beyond its bounds. What is only remembered gives way to what is newer; what still needs a
decision never does, and where that takes all the room, new things are refused.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from veen.bridge.veil_gossip.gossip_items import PartsManifest, part_name
from veen.client import durable
from veen.client.durable import DISK
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
    """There is no room for it, now."""


@dataclass(frozen=True, slots=True)
class InboxLimits:
    """The bounds of an inbox."""

    seen: int = 1 << 16
    heads: int = 1 << 12
    staged_bytes: int = 1 << 26
    found: int = 64  # one is enough: the rest is for those who want to see more
    # Of files that nobody has taken out.
    evidence_bytes: int = 1 << 28
    bundle_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint that was received, as it came, and how it stands to what is known here."""

    shown: bytes
    standing: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProvedContradiction:
    """A contradiction that is proved: the hub signed both halves of what is in the file."""

    file: str
    reason: str
    label: bytes | None = None  # of a checkpoint that was compared here
    untold: bool = False  # made here, and not yet said to the others


class Inbox:
    """A folder that one receiver has at a time, for one hub."""

    def __init__(self, folder: Path, hub_id: bytes, room: InboxLimits | None = None) -> None:
        self.folder = folder
        self.room = room or InboxLimits()
        for path in (folder, folder / EVIDENCE, folder / BUNDLES):
            DISK.make_folder(path)
        with ExitStack() as stack, self._named():
            stack.enter_context(durable.locked_folder(folder))
            self.rows = sqlite3.connect(folder / _FILE, isolation_level=None)
            stack.callback(self.rows.close)
            self.rows.execute("PRAGMA synchronous = FULL")
            self.rows.executescript(_TABLES)
            self._check(hub_id)
            self._held = stack.pop_all()

    def _check(self, hub_id: bytes) -> None:
        with self.change():
            for name, value in (("format", bytes((FORMAT,))), ("hub_id", hub_id)):
                self.rows.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, value))
            kept = dict(self.rows.execute("SELECT name, value FROM meta"))
        if kept["format"] != bytes((FORMAT,)):
            raise Malformed(str(self.folder), f"its format is not {FORMAT}, which this program knows")
        if kept["hub_id"] != hub_id:
            raise Malformed(str(self.folder), f"it is of hub {kept['hub_id'].hex()}: each hub has a folder of its own")

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """All that is done in here is on disk when it ends, or none of it."""
        with self._named():
            self.rows.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.rows.execute("COMMIT")
            except BaseException:
                if self.rows.in_transaction:
                    self.rows.execute("ROLLBACK")
                raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise Unavailable(f"{self.folder / _FILE}: {error}") from None

    # How far, and how much.

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

    # What was seen.

    def has_seen(self, digest: bytes) -> bool:
        return self.rows.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,)).fetchone() is not None

    def see(self, digest: bytes) -> None:
        if self.has_seen(digest):
            return
        self.rows.execute("INSERT INTO seen (digest) VALUES (?)", (digest,))
        self.rows.execute("DELETE FROM seen WHERE n <= (SELECT MAX(n) FROM seen) - ?", (self.room.seen,))

    # Checkpoints.

    def open_heads(self) -> list[StoredCheckpoint]:
        """Those that need another look, the oldest first."""
        found = self.rows.execute("SELECT shown, standing, reason FROM heads WHERE open ORDER BY n")
        return [StoredCheckpoint(*row) for row in found]

    def heads_at(self, label: bytes, size: int) -> list[bytes]:
        """All that were received of one size of one label."""
        found = self.rows.execute("SELECT shown FROM heads WHERE label = ? AND size = ?", (label, u64be(size)))
        return [row[0] for row in found]

    def put_head(self, label: bytes, size: int, kept: StoredCheckpoint, *, is_open: bool) -> None:
        """Keep a checkpoint, or how it stands by now. Raises `NoRoom` where all that are kept need another look."""
        row = (label, u64be(size), kept.shown, kept.standing, kept.reason, is_open)
        self.rows.execute(
            "INSERT INTO heads (label, size, shown, standing, reason, open) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (shown) DO UPDATE SET standing = excluded.standing, reason = excluded.reason, "
            "open = excluded.open",
            row,
        )
        if self.rows.execute("SELECT COUNT(*) FROM heads").fetchone()[0] > self.room.heads:
            oldest = "SELECT MIN(n) FROM heads WHERE NOT open AND shown != ?"
            gone = self.rows.execute(f"DELETE FROM heads WHERE n = ({oldest})", (kept.shown,)).rowcount
            if not gone:
                self.rows.execute("DELETE FROM heads WHERE shown = ?", (kept.shown,))
                raise InboxFull

    # What was found.

    def found(self) -> list[ProvedContradiction]:
        found = self.rows.execute("SELECT file, reason, label, untold FROM found ORDER BY file")
        return [ProvedContradiction(file, reason, label, bool(untold)) for file, reason, label, untold in found]

    def found_at(self, label: bytes) -> ProvedContradiction | None:
        """What the hub was caught at before in a label: each further proof of it would say the same."""
        return next((one for one in self.found() if one.label == label), None)

    def put_found(self, one: ProvedContradiction) -> None:
        row = (one.file, one.reason, one.label, one.untold)
        self.rows.execute("INSERT OR IGNORE INTO found VALUES (?, ?, ?, ?)", row)

    def told(self, file: str) -> None:
        self.rows.execute("UPDATE found SET untold = 0 WHERE file = ?", (file,))

    # Files.

    def put_file(self, folder: str, name: str, data: bytes) -> Path:
        """A file that verifies. One that is there is left as it is: its name is that of its contents."""
        path = self.folder / folder / name
        if not path.exists():
            most = self.room.evidence_bytes if folder == EVIDENCE else self.room.bundle_bytes
            if len(data) + sum(one.stat().st_size for one in path.parent.rglob("*")) > most:
                raise InboxFull
            DISK.write_file(path, data)
            DISK.sync_folder(path.parent)
        return path


# What a row costs beside its bytes, so that many small parts are no way around the bound.
_ROW_BYTES = 1024


class PartStore:
    """The parts and manifests of one inbox. Its methods are called within a change of the inbox."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._rows = inbox.rows

    def put_manifest(self, encoded: bytes, sender: bytes) -> list[PartsManifest]:
        """Take a manifest that decodes. Gives it back where all its parts are there."""
        name = h(encoded)
        if not self._put(name, sender, b""):
            return []
        self._rows.execute("INSERT OR REPLACE INTO manifests VALUES (?, ?)", (name, encoded))
        manifest = PartsManifest.decode(encoded)
        self._rows.execute("UPDATE parts SET cost = cost + ? WHERE name = ?", (self._weight(manifest), name))
        self._rows.executemany("INSERT OR IGNORE INTO wanted VALUES (?, ?)", [(part, name) for part in manifest.parts])
        self._make_room()
        return self._whole([name])

    def put_part(self, body: bytes, sender: bytes) -> list[PartsManifest]:
        """Take a part. Gives every manifest that lacks nothing now."""
        name = part_name(body)
        if not self._put(name, sender, body):
            return []
        waiting = self._rows.execute("SELECT manifest FROM wanted WHERE part = ?", (name,)).fetchall()
        self._make_room()
        return self._whole([row[0] for row in waiting])

    def take(self, manifest: PartsManifest) -> bytes | None:
        """What was cut, and let go of all of it; None where the parts are not those of what the manifest says."""
        content = b"".join(self._body(part) for part in manifest.parts)
        self._let_go(h(manifest.encode()))
        for part in manifest.parts:
            if not self._rows.execute("SELECT 1 FROM wanted WHERE part = ?", (part,)).fetchone():
                self._rows.execute("DELETE FROM parts WHERE name = ?", (part,))
        return content if manifest.holds(content) else None

    def bytes_held(self) -> int:
        return int(self._rows.execute("SELECT COALESCE(SUM(cost), 0) FROM parts").fetchone()[0])

    @staticmethod
    def _weight(manifest: PartsManifest) -> int:
        return 3 * sum(map(len, manifest.parts))  # in the manifest, and in both columns of what it wants

    def _put(self, name: bytes, sender: bytes, body: bytes) -> bool:
        row = (name, sender, _ROW_BYTES + len(body), body)
        done = self._rows.execute("INSERT OR IGNORE INTO parts (name, sender, cost, body) VALUES (?, ?, ?, ?)", row)
        return done.rowcount == 1

    def _body(self, name: bytes) -> bytes:
        row = self._rows.execute("SELECT body FROM parts WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else b""

    def _whole(self, names: list[bytes]) -> list[PartsManifest]:
        missing = "SELECT 1 FROM wanted WHERE manifest = ? AND part NOT IN (SELECT name FROM parts) LIMIT 1"
        there = "SELECT body FROM manifests WHERE name = ?"
        found = [
            self._rows.execute(there, (name,)).fetchone()
            for name in names
            if not self._rows.execute(missing, (name,)).fetchone()
        ]
        return [PartsManifest.decode(row[0]) for row in found if row]

    def _make_room(self) -> None:
        while self.bytes_held() > self._inbox.room.staged_bytes:
            most = "SELECT sender FROM parts GROUP BY sender ORDER BY SUM(cost) DESC LIMIT 1"
            oldest = f"SELECT name FROM parts WHERE sender = ({most}) ORDER BY n LIMIT 1"
            self._let_go(self._rows.execute(oldest).fetchone()[0])
            self._inbox.count("let go")

    def _let_go(self, name: bytes) -> None:
        """Of a part, or of a manifest and what it wants."""
        self._rows.execute("DELETE FROM parts WHERE name = ?", (name,))
        self._rows.execute("DELETE FROM manifests WHERE name = ?", (name,))
        self._rows.execute("DELETE FROM wanted WHERE manifest = ?", (name,))
