"""Stage rows: a worker writes files next to the tables, before a commit adds them."""

from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from veen.client.local_files import Disk
from veen.pipeline.decoding import DecodedEntry, DecodedRows, Decoder, LabelStream
from veen.pipeline.tables import commit as commits
from veen.pipeline.tables import layout
from veen.pipeline.tables.commit import CommitSpan, FileRef
from veen.pipeline.tables.layout import Table

_PLAIN_FILE = 0o644
_FIRST_DAY = "1970-01-01"  # for entries without a trustworthy time
_UNDATED = {"hub_sig", "form", "frame", "order"}


@dataclass(slots=True)
class Staged:
    """The result of a worker: spans of entries and their files in the staging folder."""

    spans: list[CommitSpan]
    files: list[FileRef]

    def encode(self) -> bytes:
        return commits.encode({"spans": [asdict(one) for one in self.spans], "files": [asdict(f) for f in self.files]})

    @classmethod
    def decode(cls, data: bytes) -> "Staged":
        found = commits.decode(data)
        return cls([commits.span_of(one) for one in found["spans"]], [commits.file_of(one) for one in found["files"]])


def staged_name(file: FileRef) -> str:
    """The file name in the staging folder, unique within the commit."""
    return f"{file.table}-{file.path.rpartition('/')[2]}"


class Stager:
    """Takes entries in order and splits them into files by label, day and number of rows."""

    def __init__(self, folder: Path, hub_id: bytes, streams: dict[bytes, LabelStream], decoder: Decoder) -> None:
        self._folder = folder
        self._hub_id = hub_id
        self._streams = streams
        self._decoder = decoder
        self._rows = DecodedRows()
        self._label, self._first, self._last, self._day = b"", 0, 0, _FIRST_DAY
        self._root: bytes | None = None
        self._made = Staged([], [])

    def add(self, found: DecodedEntry) -> None:
        day = self._day_of(found)
        follows = (found.label, found.stream_seq) == (self._label, self._last + 1)
        if not follows or day != self._day or len(self._rows) >= layout.FILE_ROWS:
            self._cut()
            self._label, self._first, self._day = found.label, found.stream_seq, day
        self._last = found.stream_seq
        self._root = found.receipt.mmr_root if found.receipt and not found.faults else None
        self._decoder.add(found, self._rows)

    def finish(self) -> Staged:
        self._cut()
        return self._made

    def _day_of(self, found: DecodedEntry) -> str:
        """The day by `hub_ts`; without a trustworthy receipt, the day of the entry before it."""
        doubtful = any(check in _UNDATED for check, _ in found.faults)
        if found.receipt is None or doubtful or found.receipt.hub_ts > layout.LAST_SEC:
            return self._day if found.label == self._label else _FIRST_DAY
        return layout.day_of(found.receipt.hub_ts)

    def _cut(self) -> None:
        rows, self._rows = self._rows, DecodedRows()
        if not len(rows):
            return
        stream = self._streams.get(self._label) or LabelStream(self._label, self._label.hex())
        place = (self._hub_id, self._label, stream.name, stream.epoch, self._first, self._last)
        span = CommitSpan(*place, self._root)
        self._made.spans.append(span)
        self._made.files += stage_rows(self._folder, span, self._day, rows)


def stage_rows(folder: Path, span: CommitSpan, day: str, rows: DecodedRows) -> list[FileRef]:
    """Stage the rows of one span and one day, one file per table that has rows."""
    rows.events.sort(key=layout.event_order)
    made, disk = [], Disk()
    for table, found in (
        (Table.ENTRIES, rows.entries),
        (Table.EVENTS, rows.events),
        (Table.QUARANTINE, rows.quarantine),
    ):
        if found:
            data = layout.parquet(table, layout.arrow(table, found))
            file = file_ref(table, span.stream, day, (span.label, span.first, span.last), data, bounds(table, found))
            disk.write_file(folder / staged_name(file), data, _PLAIN_FILE)
            made.append(file)
    return made


def bounds(table: Table, rows: Any) -> dict[str, Any]:
    """File statistics that let a lookup skip a file without opening it."""
    if table is not Table.EVENTS:
        return {"rows": len(rows)}
    named = [row.subject_id for row in rows if row.subject_id is not None]
    times = [row.hub_ts for row in rows]
    return {
        "rows": len(rows),
        "least": min(named, default=None),
        "most": max(named, default=None),
        "ts_min": min(times),
        "ts_max": max(times),
    }


def file_ref(
    table: Table, stream: str, day: str, run: tuple[bytes, int, int], data: bytes, known: dict[str, Any]
) -> FileRef:
    """A `FileRef` for these bytes."""
    label, first, last = run
    path = f"{layout.folder_of(table, stream, day)}/{layout.file_name(label, first, last)}"
    digest = sha256(data).digest()
    return FileRef(table, path, stream, day, label, first, last, size=len(data), sha256=digest, **known)
