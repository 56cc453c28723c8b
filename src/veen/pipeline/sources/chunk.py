"""A run of entries of one label that is read as one: a chunk of a log, or as much of a hub's stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from veen.storage.frame import Data
from veen.storage.metadata import HubMetadata


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """What is known of a chunk without reading it: enough for another machine to read it."""

    label: bytes
    start_seq: int
    end_seq: int  # of an open one, its last whole entry when it was planned
    name: str  # of its file; of a hub's, empty
    size: int  # bytes of it that count
    closed: bool = True

    @property
    def entries(self) -> int:
        return self.end_seq - self.start_seq + 1


class ChunkSource(Protocol):
    """Where entries come from: a data directory near or far, or a hub."""

    url: str

    def hub_metadata(self) -> HubMetadata:
        """Whose log it is, and under which rules. Raises where they do not hold together."""

    def chunks(self, labels: frozenset[bytes] | None = None) -> list[Chunk]:
        """What there is of these labels, or of all, by label and start."""

    def blocks(self, chunk: Chunk) -> Iterator[tuple[Data, int]]:
        """The chunk's entries in blocks of whole entries, each with where in it they begin."""

    def first_frame(self, chunk: Chunk) -> Data:
        """Bytes that begin with the chunk's first entry, without the rest of it where that can be had."""

    def peaks(self, label: bytes, size: int) -> tuple[bytes, ...]:
        """The peaks of a tree at the end of a chunk. Nothing vouches for them but the next receipt's root."""
