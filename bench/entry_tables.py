"""Tables of entries that are already opened, to measure work on tables without cryptography."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import groupby, islice

from veen.core import Mmr
from veen.overlays import FoldEntry
from veen.pipeline.decoding import DecodedRows, Decoder, Keys
from veen.pipeline.decoding.decoder import EntryRow, EventRow
from veen.pipeline.tables import CommitSpan, Tables
from veen.pipeline.tables.layout import FILE_ROWS, day_of
from veen.pipeline.tables.staged_files import Staged, stage_rows
from veen.pipeline.tables.table_load import publish

HUB_ID = sha256(b"a hub").digest()
_NO_SIG = bytes(64)


class Filler:
    """Fills tables with entries, in order, as a pipeline run over their log would."""

    def __init__(self, tables: Tables, stream: str) -> None:
        self.tables = tables
        self.stream = stream
        self.trees: dict[bytes, Mmr] = {}
        self._decoder = Decoder({}, Keys())

    def add(self, entries: Iterable[FoldEntry], per_file: int = FILE_ROWS) -> None:
        """Append the entries in one commit."""
        with self.tables.writing() as view, self.tables.staging() as folder:
            made = Staged([], [])
            for (label, day), group in groupby(entries, key=lambda entry: (entry.label, day_of(entry.hub_ts))):
                while some := list(islice(group, per_file)):
                    rows, root = self._rows(some)
                    first, last = some[0], some[-1]
                    span = CommitSpan(HUB_ID, label, self.stream, first.epoch, first.stream_seq, last.stream_seq, root)
                    made.spans.append(span)
                    made.files += stage_rows(folder, span, day, rows)
            publish(self.tables, view, folder, [made])

    def _rows(self, entries: Sequence[FoldEntry]) -> tuple[DecodedRows, bytes]:
        rows, root = DecodedRows(), b""
        for entry in entries:
            tree = self.trees.setdefault(entry.label, Mmr())
            tree.append(entry.msg_id)
            root = tree.root()
            place = (entry.label, entry.epoch, entry.stream_seq, entry.hub_ts, entry.client_id)
            rows.entries.append(EntryRow(*place, 1, 0, entry.auth_ref, entry.msg_id, entry.msg_id, root, _NO_SIG))
            row = self._decoder.read(entry, root)
            if isinstance(row, EventRow):
                rows.events.append(row)
            else:
                rows.quarantine.append(row)
        return rows, root
