"""The tasks of an audit as a Spark data source: one partition per task, whose rows are outcomes."""

import base64
import json
import zlib
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from veen.pipeline.audit.audit_task import audit_task
from veen.pipeline.read_plan import Piece, Task
from veen.pipeline.sources import Chunk

FORMAT, TASKS, OUTCOME = "veen-audit", "tasks", "outcome"


def encode_tasks(tasks: Sequence[Task]) -> str:
    """Encode tasks as a data source option. They contain places and public keys, no secrets."""
    rows = [[_row(piece) for piece in task] for task in tasks]
    return base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()


def decode_tasks(text: str) -> list[Task]:
    rows = json.loads(zlib.decompress(base64.b64decode(text)))
    return [tuple(_piece(row) for row in task) for task in rows]


def _row(piece: Piece) -> list[object]:
    chunk = piece.chunk
    of_chunk = [chunk.label.hex(), chunk.start_seq, chunk.end_seq, chunk.name, chunk.size, chunk.closed]
    peaks = None if piece.peaks is None else [peak.hex() for peak in piece.peaks]
    return [piece.source, piece.hub_id.hex(), of_chunk, piece.first, piece.last, peaks]


def _piece(row: list[Any]) -> Piece:
    source, hub_id, of_chunk, first, last, peaks = row
    chunk = Chunk(bytes.fromhex(of_chunk[0]), *of_chunk[1:])
    return Piece(
        source, bytes.fromhex(hub_id), chunk, first, last, None if peaks is None else tuple(map(bytes.fromhex, peaks))
    )


class AuditSource(DataSource):
    """An internal data source; `on_spark` registers it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._tasks = options[TASKS]

    def schema(self) -> str:
        return f"{OUTCOME} string"

    def reader(self, schema: StructType) -> "AuditReader":
        return AuditReader(self._tasks)


class AuditReader(DataSourceReader):
    """One partition per task."""

    def __init__(self, tasks: str) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in decode_tasks(self._tasks)] or [InputPartition(())]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        for outcome in audit_task(partition.value):
            yield (outcome.encode(),)
