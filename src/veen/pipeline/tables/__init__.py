"""Verified tables: the content of logs as Parquet files, each bound to the log it was made from."""

from veen.pipeline.tables.commit import Commit, CommitSpan, FileRef, TablesView
from veen.pipeline.tables.layout import Table
from veen.pipeline.tables.store import Tables
from veen.pipeline.tables.table_load import Loaded, load

__all__ = ["Commit", "CommitSpan", "FileRef", "Loaded", "Table", "Tables", "TablesView", "load"]
