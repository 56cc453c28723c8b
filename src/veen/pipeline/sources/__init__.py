"""Where entries come from: a data directory on this machine or elsewhere, or a running hub."""

from veen.pipeline.sources.chunk import Chunk, Source
from veen.pipeline.sources.directory import DirectorySource
from veen.pipeline.sources.hub import HubSource

__all__ = ["Chunk", "DirectorySource", "HubSource", "Source", "open_source"]


def open_source(url: str) -> DirectorySource | HubSource:
    """A hub by its http address; anything else is a data directory."""
    return HubSource(url) if url.startswith(("http://", "https://")) else DirectorySource(url)
