"""A commit: the spans of entries added to the tables and their files. One JSON file per commit."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from veen.core import Malformed
from veen.pipeline.tables.layout import Table

VERSION = 1


@dataclass(frozen=True, slots=True)
class CommitSpan:
    """Consecutive entries of one label. `mmr_root` is the signed root of the last entry, None if it is unverified."""

    hub_id: bytes
    label: bytes
    stream: str
    epoch: int
    first: int
    last: int
    mmr_root: bytes | None

    def joined(self, later: "CommitSpan") -> "CommitSpan":
        """This span extended by the one after it."""
        if (later.label, later.hub_id, later.first) != (self.label, self.hub_id, self.last + 1):
            raise Malformed("tables", f"entry {later.first} does not follow entry {self.last}")
        return replace(self, stream=later.stream, last=later.last, mmr_root=later.mmr_root)


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file of a table: its path, the entries it covers, and its hash."""

    table: Table
    path: str  # relative to the folder of the tables
    stream: str
    day: str  # empty for state
    label: bytes
    first: int
    last: int
    rows: int
    size: int
    sha256: bytes
    least: str | None = None  # smallest and largest subject; events only
    most: str | None = None
    ts_min: int | None = None
    ts_max: int | None = None
    overlay: str | None = None  # state only
    state_hash: bytes | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """A change. A `base` commit lists all files, so earlier commits need not be read."""

    number: int
    kind: str
    spans: tuple[CommitSpan, ...] = ()
    adds: tuple[FileRef, ...] = ()
    removes: tuple[str, ...] = ()
    base: bool = False

    def encode(self) -> bytes:
        return encode({"version": VERSION, **asdict(self)})

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = decode(data)
        try:
            return cls(
                found["number"],
                found["kind"],
                tuple(span_of(one) for one in found["spans"]),
                tuple(file_of(one) for one in found["adds"]),
                tuple(found["removes"]),
                found["base"],
            )
        except (KeyError, TypeError, ValueError):
            raise Malformed("commit", "it is not a commit of this version") from None


@dataclass(slots=True)
class TablesView:
    """The content of the tables after some commits."""

    number: int = 0
    base: int = 0  # number of the last base commit
    spans: dict[bytes, CommitSpan] = field(default_factory=dict)  # by label, from its first entry
    files: dict[str, FileRef] = field(default_factory=dict)  # by path

    def take(self, commit: Commit) -> None:
        if commit.base:
            self.base, self.spans, self.files = commit.number, {}, {}
        for span in commit.spans:
            known = self.spans.get(span.label)
            self.spans[span.label] = span if known is None else known.joined(span)
        for path in commit.removes:
            self.files.pop(path, None)
        self.files.update((one.path, one) for one in commit.adds)
        self.number = commit.number

    def upto(self, label: bytes) -> int:
        return self.spans[label].last if label in self.spans else 0

    def of(self, table: Table, streams: Iterable[str] | None = None) -> list[FileRef]:
        """The files of a table, by path."""
        wanted = None if streams is None else set(streams)
        found = (one for one in self.files.values() if one.table is table)
        return sorted((one for one in found if wanted is None or one.stream in wanted), key=lambda one: one.path)


def encode(value: object) -> bytes:
    """Canonical JSON, with bytes as hex."""
    return json.dumps(value, default=_hex, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed("commit", "it is not JSON") from None
    if not isinstance(found, dict):
        raise Malformed("commit", "it is not an object")
    return found


def span_of(found: dict[str, Any]) -> CommitSpan:
    root = found["mmr_root"]
    label, hub_id = bytes.fromhex(found["label"]), bytes.fromhex(found["hub_id"])
    return CommitSpan(
        **{**found, "label": label, "hub_id": hub_id, "mmr_root": None if root is None else bytes.fromhex(root)}
    )


def file_of(found: dict[str, Any]) -> FileRef:
    hashed = found["state_hash"]
    made = {
        "table": Table(found["table"]),
        "label": bytes.fromhex(found["label"]),
        "sha256": bytes.fromhex(found["sha256"]),
        "state_hash": None if hashed is None else bytes.fromhex(hashed),
    }
    return FileRef(**{**found, **made})


def _hex(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")
