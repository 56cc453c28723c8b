"""The layout of the tables on disk: columns, and names of folders and files.

    entries/stream=NAME/day=YYYY-MM-DD/LABEL-FIRST-LAST.parquet     the same for events and quarantine
    state/stream=NAME/overlay=CLASS/LABEL-UPTO.parquet
        _veen/                                                          commits, staged files and other internal data

Spark and pyarrow both skip names that begin with an underscore when they read a folder.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from plumbing.cli import install_hint
from veen.core import Unavailable, naming
from veen.pipeline.decoding import decoder
from veen.pipeline.decoding.decoder import EntryRow, EventRow, QuarantineRow

if TYPE_CHECKING:
    import pyarrow as pa

OWN = "_veen"
LAST_SEC = decoder.LAST_SEC
FILE_ROWS = 50_000
_MAX_NAME_BYTES = 200
# Characters that Spark and pyarrow both restore from %XX; all others are kept as they are.
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^|<>\x7f") | {chr(code) for code in range(0x20)}


def need_pyarrow() -> None:
    """Raise `Unavailable` if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401 # check that it is installed
    except ImportError:
        missing = Unavailable("tables need pyarrow, which is not installed")
        missing.add_note(install_hint("spark"))
        raise missing from None


class Table(StrEnum):
    ENTRIES = "entries"
    EVENTS = "events"
    QUARANTINE = "quarantine"
    STATE = "state"


LOGGED = (Table.ENTRIES, Table.EVENTS, Table.QUARANTINE)  # grow with the log

_TEXTS = {"overlay", "subject_id", "event_type", "origin", "event", "kind", "reason", "plain"}
_NUMBERS = {"epoch", "stream_seq", "hub_ts", "event_time", "upto_seq"}
_LARGE = {"client_seq", "prev_ack"}  # may use all 64 bits
STATE_COLUMNS = ("label", "epoch", "upto_seq", "mmr_root", "overlay", "part", "state", "plain")
COLUMNS: dict[Table, tuple[str, ...]] = {
    Table.ENTRIES: EntryRow._fields,
    Table.EVENTS: EventRow._fields,
    Table.QUARANTINE: QuarantineRow._fields,
    Table.STATE: STATE_COLUMNS,
}
_REPEATED = ("label", "client_id", "auth_ref", "overlay", "schema", "subject_id", "event_type", "origin", "kind")
_SORTED_BY = {"label", "stream_seq", "hub_ts", "subject_id", "event_type", "event_time", "part"}
_GROUP_ROWS, _MANY_ROWS = {Table.EVENTS: 4_096}, 65_536  # a lookup reads one or two row groups


@cache
def schema(table: Table) -> "pa.Schema":
    import pyarrow as pa

    def kind(name: str) -> Any:
        if name in _TEXTS:
            return pa.string()
        return pa.int64() if name in _NUMBERS else pa.uint64() if name in _LARGE else pa.binary()

    return pa.schema([pa.field(name, kind(name)) for name in COLUMNS[table]])


def arrow(table: Table, rows: Sequence[tuple[Any, ...]]) -> "pa.Table":
    """Rows as an Arrow table."""
    import pyarrow as pa

    made = schema(table)
    columns = list(zip(*rows, strict=True)) or [()] * len(made)
    arrays = [pa.array(values, type=one.type) for values, one in zip(columns, made, strict=True)]
    return pa.Table.from_arrays(arrays, schema=made)


def parquet(table: Table, rows: "pa.Table") -> bytes:
    """A Parquet file; equal rows give equal bytes. Metadata in the schema of `rows` is written too."""
    return parquet_of(table, (rows,), rows.schema)


def parquet_of(table: Table, parts: "Iterable[pa.Table]", named: "pa.Schema | None" = None) -> bytes:
    """A Parquet file from rows in several parts. How they are cut does not change the bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink, names, group_rows = pa.BufferOutputStream(), COLUMNS[table], _GROUP_ROWS.get(table, _MANY_ROWS)
    columns = named or schema(table)
    writer = pq.ParquetWriter(
        sink,
        columns,
        compression="zstd",
        use_dictionary=[name for name in names if name in _REPEATED],
        write_statistics=[name for name in names if name in _SORTED_BY],
    )
    rest = columns.empty_table()
    for part in parts:
        rest = pa.concat_tables([rest, part.cast(columns)])
        whole = len(rest) // group_rows * group_rows
        if whole:
            writer.write_table(rest.slice(0, whole), row_group_size=group_rows)
            rest = rest.slice(whole).combine_chunks()
    if len(rest):
        writer.write_table(rest, row_group_size=group_rows)
    writer.close()
    return bytes(sink.getvalue())


def event_order(row: EventRow) -> tuple[bool, str, str, int, int]:
    """The sort key of a file of events: events that are queried together are stored together."""
    return row.subject_id is None, row.subject_id or "", row.event_type, row.hub_ts, row.stream_seq


def sort_events(rows: "pa.Table") -> "pa.Table":
    """Sort an Arrow table by `event_order`."""
    keys = [(name, "ascending") for name in ("subject_id", "event_type", "hub_ts", "stream_seq")]
    return rows.sort_by(keys)


def day_of(hub_ts: int) -> str:
    return f"{datetime.fromtimestamp(hub_ts, UTC):%Y-%m-%d}"


def folder_of(table: Table, stream: str, day: str) -> str:
    return f"{table}/stream={escaped(stream)}/day={day}"


def file_name(label: bytes, first: int, last: int) -> str:
    return f"{label.hex()}-{first:012}-{last:012}.parquet"


def escaped(name: str) -> str:
    """The folder name of a stream. If the name is too long, its stream id is used instead."""
    made = "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in name)
    return made if len(made.encode()) <= _MAX_NAME_BYTES else naming.stream_id(name).hex()
