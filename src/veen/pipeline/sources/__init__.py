"""Sources of entries: a data directory, local or remote, or a running hub."""

from veen.pipeline.sources.chunk import Chunk, ChunkSource
from veen.pipeline.sources.directory_chunks import DirectoryChunks
from veen.pipeline.sources.hub_chunks import HubChunks

__all__ = ["Chunk", "ChunkSource", "DirectoryChunks", "HubChunks", "open_source"]


def open_source(url: str) -> DirectoryChunks | HubChunks:
    """Open a hub by its http address; anything else is a data directory."""
    return HubChunks(url) if url.startswith(("http://", "https://")) else DirectoryChunks(url)
