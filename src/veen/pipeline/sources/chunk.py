"""The unit of reading: consecutive entries of one label, from a chunk file or from a hub."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from veen.storage.frame import Data
from veen.storage.metadata import HubMetadata


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """Everything known about a chunk without reading it; enough for another machine to read it."""

    label: bytes
    start_seq: int
    end_seq: int  # for an open chunk, its last whole entry at planning time
    name: str  # of the file; empty for a hub
    size: int  # in bytes, without a partial entry at the end
    closed: bool = True

    @property
    def entries(self) -> int:
        return self.end_seq - self.start_seq + 1


class ChunkSource(Protocol):
    """A data directory, local or remote, or a hub."""

    url: str

    def metadata(self) -> HubMetadata:
        """The hub metadata. Raises if it is inconsistent."""

    def chunks(self, labels: frozenset[bytes] | None = None) -> list[Chunk]:
        """The chunks of these labels, or of all, ordered by label and start."""

    def blocks(self, chunk: Chunk) -> Iterator[tuple[Data, int]]:
        """Blocks of whole entries, each with the offset of its first entry."""

    def first_frame(self, chunk: Chunk) -> Data:
        """Bytes that begin with the chunk's first entry, if possible without the rest of the chunk."""

    def peaks(self, label: bytes, size: int) -> tuple[bytes, ...]:
        """The peaks of the tree at the end of a chunk. They are unverified until the next receipt's root matches."""
