"""ResultDigest: what a result hashes to, and what was verified of it. 001, query-api-spec §5.2–5.4."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from veen.core import Malformed, canonical_json
from veen.core.canonical_json import MAX_EXACT, Plain
from veen.core.hashing import h
from veen.pipeline.engine import EvidencePolicy
from veen.query import descriptor as descriptors
from veen.query.descriptor import QueryDescriptor

VERSION = 1
Rows = Sequence[dict[str, Plain]]


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream had got when it was asked."""

    stream: str
    label: str
    seq: int

    def plain(self) -> dict[str, Plain]:
        return {"stream": self.stream, "label": self.label, "seq": self.seq}


@dataclass(frozen=True, slots=True)
class VerifiedEvent:
    """An event whose receipt was verified."""

    receipt_id: str
    mmr_root: str
    hub_id: str

    def plain(self) -> dict[str, Plain]:
        return {"receipt_id": self.receipt_id, "mmr_root": self.mmr_root, "hub_id": self.hub_id}


@dataclass(frozen=True, slots=True)
class ResultDigest:
    """What is recorded of a result. `basis` says which part of which log it is of: enough to ask again."""

    query_id: str
    result_id: str
    row_count: int
    evidence_policy: EvidencePolicy
    rows_hash: str
    evidence_hash: str
    executed_at: str
    hub_id: str
    basis: tuple[Position, ...]
    profile_id: str | None = None
    request_receipt_id: str | None = None
    version: int = field(default=VERSION)

    def plain(self) -> dict[str, Plain]:
        made: dict[str, Plain] = {
            "query_id": self.query_id,
            "result_id": self.result_id,
            "version": self.version,
            "row_count": self.row_count,
            "evidence_policy": descriptors.policy(self.evidence_policy),
            "rows_hash": self.rows_hash,
            "evidence_hash": self.evidence_hash,
            "executed_at": self.executed_at,
            "hub_id": self.hub_id,
            "basis": [one.plain() for one in self.basis],
        }
        if self.profile_id is not None:
            made["profile_id"] = self.profile_id
        if self.request_receipt_id is not None:
            made["request_receipt_id"] = self.request_receipt_id
        return made

    def text(self) -> str:
        return canonical_json.encode(self.plain()).decode()

    @classmethod
    def of(cls, value: Plain) -> Self:
        """From its JSON. Fields that are not known are passed over, as §10.3 asks. Raises `Malformed`."""
        found: Any = value
        try:
            if found["version"] != VERSION:
                raise Malformed("result digest", f"version {found['version']}, not {VERSION}")
            evidence = found["evidence_policy"]
            made = cls(
                **{name: found[name] for name in (*_TEXTS, "row_count")},
                **{name: found.get(name) for name in ("profile_id", "request_receipt_id")},
                evidence_policy=EvidencePolicy(evidence["mode"], evidence.get("sample_rate")),
                basis=tuple(Position(one["stream"], one["label"], one["seq"]) for one in found["basis"]),
            )
        except (AttributeError, KeyError, TypeError):
            raise Malformed("result digest", "it is not one of this version") from None
        if not all(isinstance(getattr(made, name), str) for name in _TEXTS) or not isinstance(made.row_count, int):
            raise Malformed("result digest", "it is not one of this version")
        return made

    @classmethod
    def decode(cls, text: str) -> Self:
        return cls.of(canonical_json.decode(text.encode(), "result digest"))

    def differences(self, other: "ResultDigest") -> tuple[str, ...]:
        """Where two zones do not agree, of the fields that §9.1 holds against each other."""
        return tuple(name for name in COMPARED if getattr(self, name) != getattr(other, name))


_TEXTS = ("query_id", "result_id", "rows_hash", "evidence_hash", "executed_at", "hub_id")
COMPARED = ("query_id", "row_count", "rows_hash", "evidence_hash", "evidence_policy")


def settled(value: object) -> Plain:
    """A value as rows have it: an integer that no double holds is given in digits, as a text."""
    if isinstance(value, bool) or value is None or isinstance(value, float | str):
        return value
    if isinstance(value, int):
        return value if -MAX_EXACT <= value <= MAX_EXACT else str(value)
    if isinstance(value, dict):
        return {str(name): settled(one) for name, one in value.items()}
    assert isinstance(value, list | tuple)
    return [settled(one) for one in value]


def row_text(row: dict[str, Plain]) -> bytes:
    return canonical_json.encode(row)


def rows_hash(texts: Iterable[bytes]) -> str:
    """Of rows in their order, each as `row_text` has it: the hash of the array."""
    return h(b"[" + b",".join(texts) + b"]").hex()


def evidence_summary(asked: QueryDescriptor, verified: Sequence[VerifiedEvent]) -> dict[str, Plain]:
    """What was verified, in the order of the rows; the same wherever the same events are asked about."""
    evidence = asked.evidence
    if evidence.mode == "none":
        return {"mode": "none"}
    made: dict[str, Plain] = {"query_id": asked.query_id, "result_id": asked.result_id}
    return {**made, **descriptors.policy(evidence), "verified": [one.plain() for one in verified]}


def evidence_hash(summary: dict[str, Plain]) -> str:
    return h(canonical_json.encode(summary)).hex()
