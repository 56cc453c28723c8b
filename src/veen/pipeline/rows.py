"""Read pieces of chunks as rows. No Spark here, so a task can be called and tested directly."""

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from veen.core import Malformed, Msg, Receipt, Unverified
from veen.pipeline import chunk_verifier, columns
from veen.pipeline.chunk_verifier import VerifiedEntry
from veen.pipeline.columns import Row
from veen.pipeline.read_plan import Piece, Task, pinned
from veen.pipeline.selection import Selection, Verify
from veen.pipeline.sources import DirectoryChunks, HubChunks, open_source
from veen.storage import frame
from veen.storage.metadata import HubMetadata

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 5_000
BATCH_BYTES = 1 << 24
_MAX_BIGINT = (1 << 63) - 1  # the largest bigint
_MSG_COLUMNS = {"client_id", "client_seq", "prev_ack", "auth_ref", "ct_hash"}
_RECEIPT_COLUMNS = {"hub_ts", "leaf_hash", "mmr_root"}


def batches(task: Task, selection: Selection) -> "Iterator[pa.RecordBatch]":
    """The rows of a task as Arrow batches of bounded size."""
    freeze_loaded_objects()
    names = selection.shown()
    schema = columns.arrow_schema(names)
    rows: list[Row] = []
    size = 0
    for row, weight in _rows(task, selection, names):
        rows.append(row)
        size += weight
        if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield columns.batch(rows, schema)
            rows, size = [], 0
    if rows:
        yield columns.batch(rows, schema)


def freeze_loaded_objects() -> None:
    """Exclude everything loaded so far from garbage collection.

    Spark collects after every task, and each collection would visit these objects.
    """
    if not gc.get_freeze_count():
        gc.freeze()


def rows(task: Task, selection: Selection) -> Iterator[Row]:
    """The rows of a task, one by one."""
    for row, _ in _rows(task, selection, selection.shown()):
        yield row


def _rows(task: Task, selection: Selection, names: Sequence[str]) -> Iterator[tuple[Row, int]]:
    make = _row_builder(names)
    known: dict[tuple[str, bytes], tuple[DirectoryChunks | HubChunks, HubMetadata]] = {}
    for piece in task:
        # Read again for each task: a worker lives long, and the hub may have a new key by then.
        at = (piece.source, piece.hub_id)
        if at not in known:
            known[at] = _opened(*at)
        source, metadata = known[at]
        if piece.failure is not None:
            found = iter((VerifiedEntry(piece.first, 0, failures=(piece.failure,)),))
        elif selection.verify is Verify.NONE:
            found = _unverified(source, piece, _needed(selection, names))
        else:
            found = _verified(source, metadata, piece, selection)
        for one in found:
            if _in_time(one, selection):
                yield make(piece, one), one.size


def _opened(url: str, hub_id: bytes) -> tuple[DirectoryChunks | HubChunks, HubMetadata]:
    """Open a source and check that it still belongs to the hub that was planned for."""
    source = open_source(url)
    return source, pinned(source.metadata(), hub_id)


def _in_time(one: VerifiedEntry, selection: Selection) -> bool:
    """Whether the entry is in the selected time range. An unreadable entry counts as inside."""
    if one.receipt is None or (selection.ts_min is None and selection.ts_max is None):
        return True
    after = selection.ts_min is None or one.receipt.hub_ts >= selection.ts_min
    return after and (selection.ts_max is None or one.receipt.hub_ts <= selection.ts_max)


def _needed(selection: Selection, names: Sequence[str]) -> tuple[bool, bool]:
    """Whether messages and whether receipts must be decoded."""
    timed = selection.ts_min is not None or selection.ts_max is not None
    return bool(_MSG_COLUMNS & set(names)), timed or bool(_RECEIPT_COLUMNS & set(names))


def _unverified(
    source: DirectoryChunks | HubChunks, piece: Piece, needed: tuple[bool, bool]
) -> Iterator[VerifiedEntry]:
    """Entries without verification. Only the parts that are needed are decoded."""
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
    except Malformed as error:
        raise Malformed(_place(piece, seq), error.reason) from None
    if seq <= piece.last:
        raise Malformed(_place(piece, seq), f"the chunk ends with entry {seq - 1}")


def _verified(
    source: DirectoryChunks | HubChunks, metadata: HubMetadata, piece: Piece, selection: Selection
) -> Iterator[VerifiedEntry]:
    full = selection.verify is Verify.FULL
    verifier = chunk_verifier.start(source, metadata, piece)
    for one in chunk_verifier.verified(source, verifier, piece):
        if full and one.failures:
            failure = one.failures[0]
            raise Unverified(_place(piece, one.stream_seq), f"{failure.check}: {failure}")
        yield one
    if full and piece.last == piece.chunk.end_seq and piece.chunk.closed and isinstance(source, DirectoryChunks):
        flaws, _ = chunk_verifier.check_artifacts(source, metadata, piece.chunk, verifier)
        if flaws:
            raise Unverified(f"{piece.source}/log/{flaws[0].name}", flaws[0].what)


def _place(piece: Piece, seq: int) -> str:
    name = f"/log/{piece.chunk.name}" if piece.chunk.name else f", label {piece.chunk.label.hex()}"
    return f"{piece.source}{name}, entry {seq}"


def _row_builder(names: Sequence[str]) -> Callable[[Piece, VerifiedEntry], Row]:
    """A function that builds a row of these columns."""
    makers = [_COLUMNS[name] for name in names]
    return lambda piece, one: tuple(make(piece, one) for make in makers)


def _number(value: int) -> int | None:
    return value if value <= _MAX_BIGINT else None


def _of_entry(field: str) -> Callable[[Piece, VerifiedEntry], Any]:
    return lambda _, one: getattr(one.entry, field) if one.entry else None


def _of_msg(field: str) -> Callable[[Piece, VerifiedEntry], Any]:
    return lambda _, one: getattr(one.message, field) if one.message else None


def _of_receipt(field: str) -> Callable[[Piece, VerifiedEntry], Any]:
    return lambda _, one: getattr(one.receipt, field) if one.receipt else None


_COLUMNS: dict[str, Callable[[Piece, VerifiedEntry], Any]] = {
    "source": lambda piece, _: piece.source,
    "hub_id": lambda piece, _: piece.hub_id,
    "label": lambda piece, _: piece.chunk.label,
    "stream_seq": lambda _, one: one.stream_seq,
    "hub_ts": lambda _, one: _number(one.receipt.hub_ts) if one.receipt else None,
    "client_id": _of_msg("client_id"),
    "client_seq": lambda _, one: _number(one.message.client_seq) if one.message else None,
    "prev_ack": lambda _, one: _number(one.message.prev_ack) if one.message else None,
    "auth_ref": _of_msg("auth_ref"),
    "ct_hash": _of_msg("ct_hash"),
    "leaf_hash": _of_receipt("leaf_hash"),
    "mmr_root": _of_receipt("mmr_root"),
    "entry_hash": _of_entry("entry_hash"),
    "msg": _of_entry("msg"),
    "receipt": _of_entry("receipt"),
    "ok": lambda _, one: not one.failures,
    "faults": lambda _, one: list(dict.fromkeys(failure.check.value for failure in one.failures)),
}
