"""Where things are in a data directory, and what they are called. Spec §4.8.3, §8.4."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_WIDTH = 20
_CHUNK = re.compile(r"chunk-([0-9a-f]{64})-(\d{20})-(\d{20}|open)\.log(\.zst)?")


@dataclass(frozen=True, slots=True)
class Folders:
    """The names under one data directory."""

    root: Path
    index_name: str = "index"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def index(self) -> Path:
        return self.root / self.index_name

    @property
    def nodes(self) -> Path:
        return self.index / "nodes"

    @property
    def attachments(self) -> Path:
        return self.root / "attachments"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def evidence(self) -> Path:
        return self.root / "evidence"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def identity(self) -> Path:
        return self.root / "hub-identity.json"

    @property
    def rotation(self) -> Path:
        """An identity on its way to replace the one before it."""
        return self.root / "hub-identity.next"

    @property
    def identity_sig(self) -> Path:
        return self.root / "hub-identity.sig"

    @property
    def key_map(self) -> Path:
        return self.root / "hub-key-map.json"

    @property
    def limits(self) -> Path:
        return self.root / "limits.json"

    @property
    def profile(self) -> Path:
        return self.root / "profile.json"

    def open_chunk(self, label: bytes, start_seq: int) -> Path:
        return self.log / f"chunk-{label.hex()}-{start_seq:0{_WIDTH}d}-open.log"

    def summary(self, label: bytes, start_seq: int, end_seq: int) -> Path:
        return self.log / f"chunk-{label.hex()}-{start_seq:0{_WIDTH}d}-{end_seq:0{_WIDTH}d}.summary"

    def peaks(self, label: bytes, upto_seq: int) -> Path:
        return self.log / f"peaks-{label.hex()}-{upto_seq:0{_WIDTH}d}.cbor"

    def checkpoint(self, label: bytes, upto_seq: int) -> Path:
        return self.log / f"checkpoint-{label.hex()}-{upto_seq:0{_WIDTH}d}.cbor"

    def checkpoint_index(self, label: bytes) -> Path:
        return self.log / f"checkpoint-index-{label.hex()}.cbor"

    def node_file(self, label: bytes) -> Path:
        return self.nodes / f"{label.hex()}.mmr"

    def attachment(self, coid: bytes) -> Path:
        return self.attachments / coid.hex()[:2] / coid.hex()


@dataclass(frozen=True, slots=True, order=True)
class ChunkName:
    """What a chunk's file name says."""

    label: bytes
    start_seq: int
    end_seq: int | None  # None while it is open

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """None where the name is not a chunk's."""
        found = _CHUNK.fullmatch(name)
        if not found:
            return None
        label, start, end, _ = found.groups()
        return cls(bytes.fromhex(label), int(start), None if end == "open" else int(end))

    def file_name(self) -> str:
        end = "open" if self.end_seq is None else f"{self.end_seq:0{_WIDTH}d}"
        return f"chunk-{self.label.hex()}-{self.start_seq:0{_WIDTH}d}-{end}.log"
