"""The outcome of auditing one piece: plain values, enough to chain it with the pieces next to it."""

import json
from dataclasses import dataclass, field
from typing import Any, Self

from veen.core import mmr
from veen.pipeline.read_plan import Piece
from veen.storage.artifacts import BoundCheckpoint
from veen.storage.fsck_report import Finding, Severity

MINUTE_SEC = 60
Place = tuple[str, bytes, int, int]


@dataclass(frozen=True, slots=True)
class ClientRun:
    """The first and the last message of one client within a piece."""

    stream_seq: int  # of the first message
    first_seq: int
    first_ack: int
    last_seq: int
    last_ack: int


@dataclass(frozen=True, slots=True)
class PieceOutcome:
    """The outcome of one audited piece."""

    source: str
    label: bytes
    start_seq: int  # of the chunk
    first: int
    last: int
    entries: int = 0  # verified, with or without failures
    failed: int = 0
    anchored: bool = True  # the tree before the chunk was known
    sound: bool = True  # the tree at the end is the label's, as far as the entries show
    doubtful_from: int = 0  # first damaged message; client sequences need not continue across it
    peaks_before: tuple[bytes, ...] = ()  # of the tree before the chunk
    peaks: tuple[bytes, ...] = ()
    chunk_bytes: int = 0
    first_bytes: int = 0  # of the piece's first entry
    hub_ts: tuple[int, int] | None = None
    clients: dict[bytes, ClientRun] = field(default_factory=dict)
    minutes: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0  # of CPU time
    bound: BoundCheckpoint | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def place(self) -> Place:
        return self.source, self.label, self.start_seq, self.first

    @property
    def root(self) -> bytes:
        return mmr.root_of(self.peaks)

    def encode(self) -> str:
        """Encode as JSON, for transport from an executor."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in (*_PLAIN, "hub_ts", "minutes")}
        plain["label"] = self.label.hex()
        plain["peaks_before"] = [peak.hex() for peak in self.peaks_before]
        plain["peaks"] = [peak.hex() for peak in self.peaks]
        runs = {client.hex(): run for client, run in self.clients.items()}
        plain["clients"] = {
            client: [run.stream_seq, run.first_seq, run.first_ack, run.last_seq, run.last_ack]
            for client, run in runs.items()
        }
        plain["bound"] = self.bound.encode().hex() if self.bound else None
        plain["findings"] = [
            [one.severity, one.artifact, one.what, one.label.hex() if one.label else None, one.stream_seq]
            for one in self.findings
        ]
        return json.dumps(plain)

    @classmethod
    def decode(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(
            **{name: found[name] for name in _PLAIN},
            label=bytes.fromhex(found["label"]),
            peaks_before=tuple(map(bytes.fromhex, found["peaks_before"])),
            peaks=tuple(map(bytes.fromhex, found["peaks"])),
            hub_ts=None if found["hub_ts"] is None else (found["hub_ts"][0], found["hub_ts"][1]),
            clients={bytes.fromhex(client): ClientRun(*run) for client, run in found["clients"].items()},
            minutes={int(minute): count for minute, count in found["minutes"].items()},
            bound=BoundCheckpoint.decode(bytes.fromhex(found["bound"])) if found["bound"] else None,
            findings=tuple(
                Finding(Severity(severity), artifact, what, bytes.fromhex(label) if label else None, seq)
                for severity, artifact, what, label, seq in found["findings"]
            ),
        )


_PLAIN = (
    "source",
    "start_seq",
    "first",
    "last",
    "entries",
    "failed",
    "anchored",
    "sound",
    "doubtful_from",
    "chunk_bytes",
    "first_bytes",
    "seconds",
)


def place_of(piece: Piece) -> Place:
    return piece.source, piece.chunk.label, piece.chunk.start_seq, piece.first
