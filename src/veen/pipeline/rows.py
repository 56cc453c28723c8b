"""Pieces of chunks as rows. No Spark here: what a task does can be called, and tested, as it is."""

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
_MOST = (1 << 63) - 1  # what a bigint holds
_MSG_COLUMNS = {"client_id", "client_seq", "prev_ack", "auth_ref", "ct_hash"}
_RECEIPT_COLUMNS = {"hub_ts", "leaf_hash", "mmr_root"}


def batches(task: Task, selection: Selection) -> "Iterator[pa.RecordBatch]":
    """A task's rows as Arrow batches of bounded size."""
    settle()
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


def settle() -> None:
    """Take what is loaded by now out of garbage collection: Spark collects after every task, and that takes longer."""
    if not gc.get_freeze_count():
        gc.freeze()


def rows(task: Task, selection: Selection) -> Iterator[Row]:
    """A task's rows, one by one."""
    for row, _ in _rows(task, selection, selection.shown()):
        yield row


def _rows(task: Task, selection: Selection, names: Sequence[str]) -> Iterator[tuple[Row, int]]:
    make = _maker(names)
    known: dict[tuple[str, bytes], tuple[DirectoryChunks | HubChunks, HubMetadata]] = {}
    for piece in task:
        # Read anew for each task: a worker lives long, and a hub may have a new key by then.
        at = (piece.source, piece.hub_id)
        if at not in known:
            known[at] = _opened(*at)
        source, hub_metadata = known[at]
        if piece.failure is not None:
            found = iter((VerifiedEntry(piece.first, 0, failures=(piece.failure,)),))
        elif selection.verify is Verify.NONE:
            found = _unverified(source, piece, _needed(selection, names))
        else:
            found = _verified(source, hub_metadata, piece, selection)
        for one in found:
            if _in_time(one, selection):
                yield make(piece, one), one.size


def _opened(url: str, hub_id: bytes) -> tuple[DirectoryChunks | HubChunks, HubMetadata]:
    """A source and its papers, which must still be the hub's that was planned for."""
    source = open_source(url)
    return source, pinned(source.hub_metadata(), hub_id)


def _in_time(one: VerifiedEntry, selection: Selection) -> bool:
    """Whether it is of the time asked for. What cannot be read may be."""
    if one.receipt is None or (selection.ts_min is None and selection.ts_max is None):
        return True
    after = selection.ts_min is None or one.receipt.hub_ts >= selection.ts_min
    return after and (selection.ts_max is None or one.receipt.hub_ts <= selection.ts_max)


def _needed(selection: Selection, names: Sequence[str]) -> tuple[bool, bool]:
    """Whether messages, and whether receipts must be decoded."""
    timed = selection.ts_min is not None or selection.ts_max is not None
    return bool(_MSG_COLUMNS & set(names)), timed or bool(_RECEIPT_COLUMNS & set(names))


def _unverified(
    source: DirectoryChunks | HubChunks, piece: Piece, needed: tuple[bool, bool]
) -> Iterator[VerifiedEntry]:
    """Entries as they stand there. Only what is needed is decoded."""
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
                    raise Malformed("entry", f"it says it is {entry.stream_seq}")
                message = Msg.decode(entry.msg) if needs_msg else None
                receipt = Receipt.decode(entry.receipt) if needs_receipt else None
                yield VerifiedEntry(seq, end - pos, entry, message, receipt)
                pos, seq = end, seq + 1
    except Malformed as error:
        raise Malformed(_place(piece, seq), error.reason) from None
    if seq <= piece.last:
        raise Malformed(_place(piece, seq), f"the chunk ends with entry {seq - 1}")


def _verified(
    source: DirectoryChunks | HubChunks, hub_metadata: HubMetadata, piece: Piece, selection: Selection
) -> Iterator[VerifiedEntry]:
    full = selection.verify is Verify.FULL
    verifier = chunk_verifier.start(source, hub_metadata, piece)
    for one in chunk_verifier.judged(source, verifier, piece):
        if full and one.failures:
            failure = one.failures[0]
            raise Unverified(_place(piece, one.stream_seq), f"{failure.check}: {failure}")
        yield one
    if full and piece.last == piece.chunk.end_seq and piece.chunk.closed and isinstance(source, DirectoryChunks):
        flaws, _ = chunk_verifier.check_beside(source, hub_metadata, piece.chunk, verifier)
        if flaws:
            raise Unverified(f"{piece.source}/log/{flaws[0].name}", flaws[0].what)


def _place(piece: Piece, seq: int) -> str:
    name = f"/log/{piece.chunk.name}" if piece.chunk.name else f", label {piece.chunk.label.hex()}"
    return f"{piece.source}{name}, entry {seq}"


def _maker(names: Sequence[str]) -> Callable[[Piece, VerifiedEntry], Row]:
    """What makes a row of these columns."""
    makers = [_COLUMNS[name] for name in names]
    return lambda piece, one: tuple(make(piece, one) for make in makers)


def _number(value: int) -> int | None:
    return value if value <= _MOST else None


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
