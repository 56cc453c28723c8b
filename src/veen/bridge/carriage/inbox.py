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

from veen.client import durable
from veen.client.durable import DISK
from veen.core import Malformed, Unavailable
from veen.core.hashing import u64be

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


class NoRoom(Exception):
    """There is no room for it, now."""


@dataclass(frozen=True, slots=True)
class Room:
    """The bounds of an inbox."""

    seen: int = 1 << 16
    heads: int = 1 << 12
    staged_bytes: int = 1 << 26
    found: int = 64  # one is enough: the rest is for those who want to see more
    # Of files that nobody has taken out.
    evidence_bytes: int = 1 << 28
    bundle_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class KeptHead:
    """A checkpoint that was received, as it came, and how it stands to what is known here."""

    shown: bytes
    standing: str
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """A contradiction that is proved: the hub signed both halves of what is in the file."""

    file: str
    reason: str
    label: bytes | None = None  # of a checkpoint that was compared here
    untold: bool = False  # made here, and not yet said to the others


class Inbox:
    """A folder that one receiver has at a time, for one hub."""

    def __init__(self, folder: Path, hub_id: bytes, room: Room | None = None) -> None:
        self.folder = folder
        self.room = room or Room()
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

    def open_heads(self) -> list[KeptHead]:
        """Those that need another look, the oldest first."""
        found = self.rows.execute("SELECT shown, standing, reason FROM heads WHERE open ORDER BY n")
        return [KeptHead(*row) for row in found]

    def heads_at(self, label: bytes, size: int) -> list[bytes]:
        """All that were received of one size of one label."""
        found = self.rows.execute("SELECT shown FROM heads WHERE label = ? AND size = ?", (label, u64be(size)))
        return [row[0] for row in found]

    def put_head(self, label: bytes, size: int, kept: KeptHead, *, is_open: bool) -> None:
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
                raise NoRoom

    # What was found.

    def found(self) -> list[Found]:
        found = self.rows.execute("SELECT file, reason, label, untold FROM found ORDER BY file")
        return [Found(file, reason, label, bool(untold)) for file, reason, label, untold in found]

    def found_at(self, label: bytes) -> Found | None:
        """What the hub was caught at before in a label: each further proof of it would say the same."""
        return next((one for one in self.found() if one.label == label), None)

    def put_found(self, one: Found) -> None:
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
                raise NoRoom
            DISK.write_file(path, data)
            DISK.sync_folder(path.parent)
        return path
