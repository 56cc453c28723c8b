"""Verified tables: what logs hold as Parquet that anyone can read, each bound to the log it stands for."""

from veen.pipeline.tables.commit import Commit, CommitSpan, FileRef, TablesView
from veen.pipeline.tables.layout import Table
from veen.pipeline.tables.loading import Loaded, load
from veen.pipeline.tables.store import Tables

__all__ = ["Commit", "CommitSpan", "FileRef", "Loaded", "Table", "Tables", "TablesView", "load"]
