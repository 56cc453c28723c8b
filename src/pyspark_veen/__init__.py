"""Makes Spark find the format `veen`: Spark imports modules named `pyspark_*` and uses their `DefaultSource`."""

from veen.pipeline.datasource import VeenSource as DefaultSource

__all__ = ["DefaultSource"]
