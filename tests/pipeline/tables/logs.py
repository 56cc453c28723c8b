"""Logs with readable events, and their tables."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.sealed_log import SealedLog
from veen.core import Limits, PayloadHdr, canonical_json, naming
from veen.overlays import Event
from veen.overlays.kv import Write
from veen.overlays.record import RecordEvent
from veen.pipeline import select
from veen.pipeline.decoding import Keys
from veen.pipeline.selection import Selection
from veen.pipeline.tables import Loaded, Table, Tables, load

SMALL = Limits(max_msg_bytes=4096, max_chunk_bytes=8192, max_checkpoint_interval=7)
DOORS, OTHERS = "doors", "record/app/http"


def writes(count: int, start: int = 0) -> Iterator[tuple[str, Event]]:
    for number in range(start, start + count):
        yield DOORS, Write(b"key %d" % (number % 5), 0, b"value %d" % number)


def recorded(number: int, **payload: Any) -> RecordEvent:
    content = canonical_json.encode(payload or {"status": 200 + number % 3, "path": f"/{number}"}).decode()
    kind = ("login", "logout", "view")[number % 3]
    return RecordEvent(f"user:{number % 4}", kind, 1_700_000_000_000 + number, "gateway", content)


@dataclass(slots=True)
class Place:
    """A log, the keys of its reader, and the tables."""

    log: SealedLog
    folder: Path
    keys: Keys

    @property
    def tables(self) -> Tables:
        return Tables(self.folder / "tables")

    @property
    def selection(self) -> Selection:
        return select(self.log.folders.root)

    def load(self, **given: Any) -> Loaded:
        return load(self.tables, self.selection, self.keys, **given)


def begun(
    folder: Path, *, per_sec: int = 10, limits: Limits = SMALL, streams: tuple[str, ...] = (DOORS, OTHERS)
) -> Place:
    log = SealedLog(folder / "hub", streams, limits=limits, per_sec=per_sec)
    return Place(log, folder, Keys(tuple(str(log.key_file(name, folder)) for name in streams)))


def filled(folder: Path, count: int = 20, **given: Any) -> Place:
    """A log with events of two kinds, and two entries without a readable event."""
    made = begun(folder, **given)
    made.log.say(writes(count))
    made.log.say((OTHERS, recorded(number)) for number in range(count))
    made.log.put(
        [(DOORS, PayloadHdr(naming.schema_id("nobody.reads.v1")), b"x"), (DOORS, PayloadHdr(Write.SCHEMA), b"\xff")]
    )
    return made


def contents(root: Path, table: Table) -> list[dict[str, Any]]:
    """A table as read by pyarrow alone, in log order."""
    import pyarrow.dataset as ds

    if not (root / table).exists():
        return []
    found = ds.dataset(root / table, partitioning="hive", format="parquet").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["label"], row["stream_seq"]))


def everything(root: Path) -> dict[str, list[dict[str, Any]]]:
    return {str(table): contents(root, table) for table in (Table.ENTRIES, Table.EVENTS, Table.QUARANTINE)}
