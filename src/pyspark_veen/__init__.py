"""What makes Spark find the format `veen` by itself: it looks for modules named so, and for this class in them."""

from veen.pipeline.datasource import VeenSource as DefaultSource

__all__ = ["DefaultSource"]
