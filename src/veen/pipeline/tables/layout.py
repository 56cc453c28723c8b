"""What the tables look like on disk: their columns, and how folders and files are named.

    entries/stream=NAME/day=YYYY-MM-DD/LABEL-FIRST-LAST.parquet     the same for events and quarantine
    state/stream=NAME/overlay=CLASS/LABEL-UPTO.parquet
    _veen/                                                          commits, and what is not theirs yet

Names that begin with an underscore are passed by, by Spark and by pyarrow alike, when they read a folder.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from plumbing.cli.extras import install_hint
from veen.core import Unavailable, naming
from veen.pipeline.decoding import decoder
from veen.pipeline.decoding.decoder import EntryRow, EventRow, QuarantineRow

if TYPE_CHECKING:
    import pyarrow as pa

OWN = "_veen"
LAST_SEC = decoder.LAST_SEC
FILE_ROWS = 50_000
_LONGEST_NAME = 200
# What Spark and pyarrow both take for what it is once it is written as %XX; all else stands for itself.
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^|<>\x7f") | {chr(code) for code in range(0x20)}


def need_pyarrow() -> None:
    """Raise where tables cannot be read or written for want of it."""
    try:
        import pyarrow.parquet  # noqa: F401 # whether it is there
    except ImportError:
        missing = Unavailable("tables need pyarrow, and it is not installed")
        missing.add_note(install_hint("spark"))
        raise missing from None


class Table(StrEnum):
    """The tables."""

    ENTRIES = "entries"
    EVENTS = "events"
    QUARANTINE = "quarantine"
    STATE = "state"


LOGGED = (Table.ENTRIES, Table.EVENTS, Table.QUARANTINE)  # those that grow with the log

_TEXTS = {"overlay", "subject_id", "event_type", "origin", "event", "kind", "reason", "plain"}
_NUMBERS = {"epoch", "stream_seq", "hub_ts", "event_time", "upto_seq"}
_LARGE = {"client_seq", "prev_ack"}  # anything that 64 bits hold
STATE_COLUMNS = ("label", "epoch", "upto_seq", "mmr_root", "overlay", "part", "state", "plain")
COLUMNS: dict[Table, tuple[str, ...]] = {
    Table.ENTRIES: EntryRow._fields,
    Table.EVENTS: EventRow._fields,
    Table.QUARANTINE: QuarantineRow._fields,
    Table.STATE: STATE_COLUMNS,
}
_REPEATED = ("label", "client_id", "auth_ref", "overlay", "schema", "subject_id", "event_type", "origin", "kind")
_SORTED_BY = {"label", "stream_seq", "hub_ts", "subject_id", "event_type", "event_time", "part"}
_GROUP_ROWS, _MANY_ROWS = {Table.EVENTS: 4_096}, 65_536  # a look-up reads one or two of these


@cache
def schema(table: Table) -> "pa.Schema":
    import pyarrow as pa

    def kind(name: str) -> Any:
        if name in _TEXTS:
            return pa.string()
        return pa.int64() if name in _NUMBERS else pa.uint64() if name in _LARGE else pa.binary()

    return pa.schema([pa.field(name, kind(name)) for name in COLUMNS[table]])


def arrow(table: Table, rows: Sequence[tuple[Any, ...]]) -> "pa.Table":
    """Rows as Arrow."""
    import pyarrow as pa

    made = schema(table)
    columns = list(zip(*rows, strict=True)) or [()] * len(made)
    arrays = [pa.array(values, type=one.type) for values, one in zip(columns, made, strict=True)]
    return pa.Table.from_arrays(arrays, schema=made)


def parquet(table: Table, rows: "pa.Table") -> bytes:
    """A Parquet file: the same rows give the same bytes. What their schema says beside its columns goes along."""
    return parquet_of(table, (rows,), rows.schema)


def parquet_of(table: Table, parts: "Iterable[pa.Table]", named: "pa.Schema | None" = None) -> bytes:
    """The same of rows that come in parts, however they are cut."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink, names, most = pa.BufferOutputStream(), COLUMNS[table], _GROUP_ROWS.get(table, _MANY_ROWS)
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
        whole = len(rest) // most * most
        if whole:
            writer.write_table(rest.slice(0, whole), row_group_size=most)
            rest = rest.slice(whole).combine_chunks()
    if len(rest):
        writer.write_table(rest, row_group_size=most)
    writer.close()
    return bytes(sink.getvalue())


def event_order(row: EventRow) -> tuple[bool, str, str, int, int]:
    """How a file of events is sorted: what is asked for together lies together."""
    return row.subject_id is None, row.subject_id or "", row.event_type, row.hub_ts, row.stream_seq


def sort_events(rows: "pa.Table") -> "pa.Table":
    """The same order, for rows that are Arrow already."""
    keys = [(name, "ascending") for name in ("subject_id", "event_type", "hub_ts", "stream_seq")]
    return rows.sort_by(keys)


def day_of(hub_ts: int) -> str:
    return f"{datetime.fromtimestamp(hub_ts, UTC):%Y-%m-%d}"


def folder_of(table: Table, stream: str, day: str) -> str:
    return f"{table}/stream={escaped(stream)}/day={day}"


def file_name(label: bytes, first: int, last: int) -> str:
    return f"{label.hex()}-{first:012}-{last:012}.parquet"


def escaped(name: str) -> str:
    """A stream's name as a folder's; one that is too long goes by its id, which names the stream as well."""
    made = "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in name)
    return made if len(made.encode()) <= _LONGEST_NAME else naming.stream_id(name).hex()
