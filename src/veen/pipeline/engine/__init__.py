"""Questions to the table of events: the same answer from a file or two here as from all of them on Spark."""

from veen.pipeline.engine.engine import Answer, Basis, Engine, Place
from veen.pipeline.engine.query import Evidence, Metric, Query
from veen.pipeline.engine.watch import UNWATCHED, Watch

__all__ = ["Answer", "Basis", "Engine", "Evidence", "Metric", "Place", "Query", "UNWATCHED", "Watch"]
