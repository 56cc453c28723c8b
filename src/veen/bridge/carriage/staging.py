"""Parts that wait for the rest, in the inbox. Each is known by its hash, so it does not matter who brought it.

Whoever puts down most loses its own oldest first, so that nobody can push out what others brought.
"""

from veen.bridge.carriage.inbox import Inbox
from veen.bridge.carriage.items import Manifest, part_name
from veen.core.hashing import h

# What a row costs beside its bytes, so that many small parts are no way around the bound.
_ROW_BYTES = 1024


class Staging:
    """The parts and manifests of one inbox. Its methods are called within a change of the inbox."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._rows = inbox.rows

    def put_manifest(self, encoded: bytes, sender: bytes) -> list[Manifest]:
        """Take a manifest that decodes. Gives it back where all its parts are there."""
        name = h(encoded)
        if not self._put(name, sender, b""):
            return []
        self._rows.execute("INSERT OR REPLACE INTO manifests VALUES (?, ?)", (name, encoded))
        manifest = Manifest.decode(encoded)
        self._rows.execute("UPDATE parts SET cost = cost + ? WHERE name = ?", (self._weight(manifest), name))
        self._rows.executemany("INSERT OR IGNORE INTO wanted VALUES (?, ?)", [(part, name) for part in manifest.parts])
        self._make_room()
        return self._whole([name])

    def put_part(self, body: bytes, sender: bytes) -> list[Manifest]:
        """Take a part. Gives every manifest that lacks nothing now."""
        name = part_name(body)
        if not self._put(name, sender, body):
            return []
        waiting = self._rows.execute("SELECT manifest FROM wanted WHERE part = ?", (name,)).fetchall()
        self._make_room()
        return self._whole([row[0] for row in waiting])

    def take(self, manifest: Manifest) -> bytes | None:
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
    def _weight(manifest: Manifest) -> int:
        return 3 * sum(map(len, manifest.parts))  # in the manifest, and in both columns of what it wants

    def _put(self, name: bytes, sender: bytes, body: bytes) -> bool:
        row = (name, sender, _ROW_BYTES + len(body), body)
        done = self._rows.execute("INSERT OR IGNORE INTO parts (name, sender, cost, body) VALUES (?, ?, ?, ?)", row)
        return done.rowcount == 1

    def _body(self, name: bytes) -> bytes:
        row = self._rows.execute("SELECT body FROM parts WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else b""

    def _whole(self, names: list[bytes]) -> list[Manifest]:
        missing = "SELECT 1 FROM wanted WHERE manifest = ? AND part NOT IN (SELECT name FROM parts) LIMIT 1"
        there = "SELECT body FROM manifests WHERE name = ?"
        found = [
            self._rows.execute(there, (name,)).fetchone()
            for name in names
            if not self._rows.execute(missing, (name,)).fetchone()
        ]
        return [Manifest.decode(row[0]) for row in found if row]

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
