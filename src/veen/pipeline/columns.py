"""The columns of an entry, and the conversion of rows to Arrow batches."""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]


class ColumnType(Enum):
    """The type of a column; the value is the Spark SQL type name."""

    BYTES = "binary"
    NUMBER = "bigint"
    TEXT = "string"
    TRUTH = "boolean"
    TEXTS = "array<string>"


KINDS: dict[str, ColumnType] = {
    "source": ColumnType.TEXT,  # the directory or hub that the entry was read from
    "hub_id": ColumnType.BYTES,
    "label": ColumnType.BYTES,
    "stream_seq": ColumnType.NUMBER,
    "hub_ts": ColumnType.NUMBER,
    "client_id": ColumnType.BYTES,
    "client_seq": ColumnType.NUMBER,
    "prev_ack": ColumnType.NUMBER,
    "auth_ref": ColumnType.BYTES,
    "ct_hash": ColumnType.BYTES,
    "leaf_hash": ColumnType.BYTES,
    "mmr_root": ColumnType.BYTES,
    "entry_hash": ColumnType.BYTES,
    "msg": ColumnType.BYTES,
    "receipt": ColumnType.BYTES,
    "ok": ColumnType.TRUTH,
    "faults": ColumnType.TEXTS,  # names of the failed checks
}
VERDICT_COLUMNS = ("ok", "faults")
ENTRY_COLUMNS = tuple(name for name in KINDS if name not in VERDICT_COLUMNS)


def schema_text(names: Sequence[str]) -> str:
    """The columns as a Spark schema in DDL form."""
    return ", ".join(f"{name} {KINDS[name].value}" for name in names)


def arrow_schema(names: Sequence[str]) -> "pa.Schema":
    """The columns as an Arrow schema, identical to the one that Spark derives from `schema_text`."""
    import pyarrow as pa

    types = {
        ColumnType.BYTES: pa.binary(),
        ColumnType.NUMBER: pa.int64(),
        ColumnType.TEXT: pa.string(),
        ColumnType.TRUTH: pa.bool_(),
        ColumnType.TEXTS: pa.list_(pa.field("element", pa.string())),
    }
    return pa.schema([pa.field(name, types[KINDS[name]]) for name in names])


def batch(rows: Sequence[Row], schema: "pa.Schema") -> "pa.RecordBatch":
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
