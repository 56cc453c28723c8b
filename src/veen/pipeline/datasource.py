"""`spark.read.format("veen")` and `spark.readStream.format("veen")`: Spark's side of the reader.

Filters are not pushed down: Spark 4.3 keeps what was pushed for one scan of a DataFrame and uses it for the next. What
prunes is told by options, before the DataFrame is made.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from veen.pipeline import planning, reading
from veen.pipeline.columns import schema_text
from veen.pipeline.planning import Task
from veen.pipeline.selection import Selection, check_columns, selection

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "veen"


class TaskPartition(InputPartition):
    """One task's pieces."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)

    @property
    def task(self) -> Task:
        found: Task = self.value
        return found


class VeenSource(DataSource):
    """A data directory, several, or a hub, as a DataFrame of entries."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._selection = selection(dict(options))

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return schema_text(self._selection.shown())

    def reader(self, schema: StructType) -> "VeenReader":
        return VeenReader(_of(self._selection, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # as Spark calls it
        from veen.pipeline.streaming import VeenStreamReader

        return VeenStreamReader(_of(self._selection, schema))


def _of(selected: Selection, schema: StructType) -> Selection:
    """With the columns of a schema that the user may have given instead of ours."""
    names = tuple(schema.fieldNames())
    check_columns(names, selected.verify)
    return replace(selected, columns=names)


class VeenReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, selected: Selection) -> None:
        self._selection = selected

    def partitions(self) -> Sequence[TaskPartition]:
        # Spark plans one partition of its own where there is none, and reads it with None.
        return [TaskPartition(task) for task in planning.plan(self._selection)] or [TaskPartition(())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        yield from reading.batches(partition.value, self._selection)
