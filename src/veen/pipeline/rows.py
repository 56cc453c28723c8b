"""Read pieces of chunks as Arrow batches. No Spark here, so a task can be called and tested directly."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from veen.client.tree_follower import PrunedEntries
from veen.core import Malformed, Msg, Receipt, Unverified
from veen.pipeline import chunk_verifier
from veen.pipeline.chunk_verifier import VerifiedEntry
from veen.pipeline.jobs import freeze_loaded_objects
from veen.pipeline.read_plan import Piece, Task, pinned
from veen.pipeline.selection import COLUMN_TYPES, Selection, Verify
from veen.pipeline.sources import ChunkSource, DirectoryChunks, open_source
from veen.storage import frame
from veen.storage.metadata import HubMetadata

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 5_000
BATCH_BYTES = 1 << 24
BLOCK_ENTRIES = 32  # read before their columns are taken; more would keep more decoded entries in memory
MAX_BIGINT = (1 << 63) - 1
_MSG_COLUMNS = {"client_id", "client_seq", "prev_ack", "auth_ref", "ct_hash"}
_RECEIPT_COLUMNS = {"hub_ts", "leaf_hash", "mmr_root"}


def schema_text(names: Sequence[str]) -> str:
    """The columns as a Spark schema in DDL form."""
    return ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in names)


def arrow_schema(names: Sequence[str]) -> "pa.Schema":
    """The columns as an Arrow schema, identical to the one that Spark derives from `schema_text`."""
    import pyarrow as pa

    types = {
        "binary": pa.binary(),
        "bigint": pa.int64(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "array<string>": pa.list_(pa.field("element", pa.string())),
    }
    return pa.schema([pa.field(name, types[COLUMN_TYPES[name]]) for name in names])


def batches(task: Task, selection: Selection) -> "Iterator[pa.RecordBatch]":
    """The entries of a task as Arrow batches of bounded size."""
    import pyarrow as pa

    freeze_loaded_objects()
    schema = arrow_schema(selection.shown())
    made: list[list[Any]] = [[] for _ in schema]
    size = 0

    def batch() -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.array(*one) for one in zip(made, schema.types, strict=True)], schema=schema
        )

    for piece, found in entries(task, selection):
        for values, more in zip(made, columns(schema.names, piece, found), strict=True):
            values += more
        size += sum(one.size for one in found)
        if len(made[0]) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch()
            made, size = [[] for _ in schema], 0
    if made[0]:
        yield batch()


def columns(names: Sequence[str], piece: Piece, found: Sequence[VerifiedEntry]) -> list[Sequence[Any]]:
    """The values of these columns for some entries of a piece."""
    return [_COLUMNS[name](piece, found) for name in names]


def entries(task: Task, selection: Selection) -> Iterator[tuple[Piece, list[VerifiedEntry]]]:
    """The entries of a task, some of one piece at a time, verified as selected."""
    known: dict[tuple[str, bytes], tuple[ChunkSource, HubMetadata]] = {}
    for piece in task:
        # Read again for each task: a worker lives long, and the hub may have a new key by then.
        at = (piece.source, piece.hub_id)
        if at not in known:
            known[at] = _opened(*at)
        source, metadata = known[at]
        if piece.failure is not None:
            found = iter((VerifiedEntry(piece.first, 0, failures=(piece.failure,)),))
        else:
            found = _not_pruned(source, metadata, piece, selection)
        if selection.timed:
            found = (one for one in found if _in_time(one, selection))
        while some := list(islice(found, BLOCK_ENTRIES)):
            yield piece, some


def _opened(url: str, hub_id: bytes) -> tuple[ChunkSource, HubMetadata]:
    """Open a source and check that it still belongs to the hub that was planned for."""
    source = open_source(url)
    return source, pinned(source.metadata(), hub_id)


def _in_time(one: VerifiedEntry, selection: Selection) -> bool:
    """Whether the entry is in the selected time range. An unreadable entry counts as inside."""
    if one.receipt is None:
        return True
    after = selection.ts_min is None or one.receipt.hub_ts >= selection.ts_min
    return after and (selection.ts_max is None or one.receipt.hub_ts <= selection.ts_max)


def _needed(selection: Selection) -> tuple[bool, bool]:
    """Whether messages and whether receipts must be decoded."""
    names = set(selection.shown())
    return bool(_MSG_COLUMNS & names), selection.timed or bool(_RECEIPT_COLUMNS & names)


def unverified_entries(
    source: ChunkSource, piece: Piece, needed: tuple[bool, bool] = (False, False)
) -> Iterator[VerifiedEntry]:
    """Entries without verification. Messages and receipts are decoded only if they are needed."""
    needs_msg, needs_receipt = needed
    seq, pos = piece.chunk.start_seq, 0
    try:
        for data, at in source.blocks(piece.chunk):
            pos = at
            while pos < len(data) and seq <= piece.last:
                if seq < piece.first:
                    pos, seq = pos + frame.length_at(data, pos), seq + 1
                    continue
                entry, end = frame.read_unhashed(data, pos)
                if entry.stream_seq != seq:
                    raise Malformed("entry", f"its header says entry {entry.stream_seq}")
                message = Msg.decode(entry.msg) if needs_msg else None
                receipt = Receipt.decode(entry.receipt) if needs_receipt else None
                yield VerifiedEntry(seq, end - pos, entry, message, receipt)
                pos, seq = end, seq + 1
    except (Malformed, Unverified) as error:
        raise type(error)(_place(piece, seq), error.reason) from None
    if seq <= piece.last:
        raise Malformed(_place(piece, seq), f"the chunk ends with entry {seq - 1}")


def _not_pruned(
    source: ChunkSource, metadata: HubMetadata, piece: Piece, selection: Selection
) -> Iterator[VerifiedEntry]:
    """The entries of a piece without those that a hub proves to have pruned."""
    while piece.first <= piece.last:
        try:
            if selection.verify is Verify.NONE:
                yield from unverified_entries(source, piece, _needed(selection))
            else:
                yield from _verified(source, metadata, piece, selection)
            return
        except PrunedEntries as pruned:
            piece = piece.after(pruned.tombstone.segment.end_seq)


def _verified(
    source: ChunkSource, metadata: HubMetadata, piece: Piece, selection: Selection
) -> Iterator[VerifiedEntry]:
    full = selection.verify is Verify.FULL
    verifier = chunk_verifier.start(source, metadata, piece)
    for one in chunk_verifier.verified(source, verifier, piece):
        if full and one.failures:
            failure = one.failures[0]
            raise Unverified(_place(piece, one.stream_seq), f"{failure.check}: {failure}")
        yield one
    if full and piece.closes_chunk and isinstance(source, DirectoryChunks):
        damaged, _ = chunk_verifier.check_artifacts(source, metadata, piece.chunk, verifier)
        if damaged:
            raise Unverified(f"{piece.source}/{damaged[0].artifact}", damaged[0].what)


def _place(piece: Piece, seq: int) -> str:
    name = f"/log/{piece.chunk.name}" if piece.chunk.name else f", label {piece.chunk.label.hex()}"
    return f"{piece.source}{name}, entry {seq}"


def _bigint(value: int) -> int | None:
    return value if value <= MAX_BIGINT else None


Column = Callable[[Piece, Sequence[VerifiedEntry]], Sequence[Any]]
_COLUMNS: dict[str, Column] = {
    "source": lambda piece, found: [piece.source] * len(found),
    "hub_id": lambda piece, found: [piece.hub_id] * len(found),
    "label": lambda piece, found: [piece.chunk.label] * len(found),
    "stream_seq": lambda _, found: [one.stream_seq for one in found],
    "hub_ts": lambda _, found: [_bigint(one.receipt.hub_ts) if one.receipt else None for one in found],
    "client_id": lambda _, found: [one.message.client_id if one.message else None for one in found],
    "client_seq": lambda _, found: [_bigint(one.message.client_seq) if one.message else None for one in found],
    "prev_ack": lambda _, found: [_bigint(one.message.prev_ack) if one.message else None for one in found],
    "auth_ref": lambda _, found: [one.message.auth_ref if one.message else None for one in found],
    "ct_hash": lambda _, found: [one.message.ct_hash if one.message else None for one in found],
    "leaf_hash": lambda _, found: [one.receipt.leaf_hash if one.receipt else None for one in found],
    "mmr_root": lambda _, found: [one.receipt.mmr_root if one.receipt else None for one in found],
    "entry_hash": lambda _, found: [one.entry.entry_hash if one.entry else None for one in found],
    "msg": lambda _, found: [one.entry.msg if one.entry else None for one in found],
    "receipt": lambda _, found: [one.entry.receipt if one.entry else None for one in found],
    "ok": lambda _, found: [not one.failures for one in found],
    "faults": lambda _, found: [list(dict.fromkeys(failure.check.value for failure in one.failures)) for one in found],
}
