"""ResultDigest: the hashes of a result and of its evidence. 001, query-api-spec §5.2–5.4."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
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
    """The last entry of a label that was queried."""

    stream: str
    label: str
    seq: int


@dataclass(frozen=True, slots=True)
class VerifiedEvent:
    """An event whose receipt was verified."""

    receipt_id: str
    mmr_root: str
    hub_id: str


@dataclass(frozen=True, slots=True)
class ResultDigest:
    """The recorded digest of a result. `basis` names the queried part of each log, so the query can be repeated."""

    query_id: str
    result_id: str
    version: int = field(default=VERSION, kw_only=True)
    row_count: int
    evidence_policy: EvidencePolicy
    rows_hash: str
    evidence_hash: str
    executed_at: str
    hub_id: str
    basis: tuple[Position, ...]
    profile_id: str | None = None
    request_receipt_id: str | None = None

    def plain(self) -> dict[str, Plain]:
        made = {name: value for name, value in asdict(self).items() if value is not None}
        return {**made, "evidence_policy": descriptors.policy(self.evidence_policy), "basis": list(made["basis"])}

    def text(self) -> str:
        return canonical_json.encode(self.plain()).decode()

    @classmethod
    def of(cls, value: Plain) -> Self:
        """From JSON. Unknown fields are ignored, as §10.3 requires. Raises `Malformed`."""
        found: Any = value
        try:
            if found["version"] != VERSION:
                raise Malformed("result digest", f"version is {found['version']}, expected {VERSION}")
            evidence = found["evidence_policy"]
            made = cls(
                **{name: found[name] for name in (*_TEXTS, "row_count")},
                **{name: found.get(name) for name in ("profile_id", "request_receipt_id")},
                evidence_policy=EvidencePolicy(evidence["mode"], evidence.get("sample_rate")),
                basis=tuple(Position(one["stream"], one["label"], one["seq"]) for one in found["basis"]),
            )
        except (AttributeError, KeyError, TypeError):
            raise Malformed("result digest", "it is not a result digest of this version") from None
        if not all(isinstance(getattr(made, name), str) for name in _TEXTS) or not isinstance(made.row_count, int):
            raise Malformed("result digest", "it is not a result digest of this version")
        return made

    @classmethod
    def decode(cls, text: str) -> Self:
        return cls.of(canonical_json.decode(text.encode(), "result digest"))

    def differences(self, other: "ResultDigest") -> tuple[str, ...]:
        """The fields that differ, among those that §9.1 compares between zones."""
        return tuple(name for name in COMPARED if getattr(self, name) != getattr(other, name))


_TEXTS = ("query_id", "result_id", "rows_hash", "evidence_hash", "executed_at", "hub_id")
COMPARED = ("query_id", "row_count", "rows_hash", "evidence_hash", "evidence_policy")


def exact_json(value: object) -> Plain:
    """A value as in rows: an integer that a double cannot represent becomes a string of digits."""
    if isinstance(value, bool) or value is None or isinstance(value, float | str):
        return value
    if isinstance(value, int):
        return value if -MAX_EXACT <= value <= MAX_EXACT else str(value)
    if isinstance(value, dict):
        return {str(name): exact_json(one) for name, one in value.items()}
    assert isinstance(value, list | tuple)
    return [exact_json(one) for one in value]


def row_text(row: dict[str, Plain]) -> bytes:
    return canonical_json.encode(row)


def rows_hash(texts: Iterable[bytes]) -> str:
    """The hash of the JSON array of these rows, each as `row_text` returns it."""
    return h(b"[" + b",".join(texts) + b"]").hex()


def evidence_summary(descriptor: QueryDescriptor, verified: Sequence[VerifiedEvent]) -> dict[str, Plain]:
    """The verified events in row order. Equal for equal events, wherever the query runs."""
    evidence = descriptor.evidence
    if evidence.mode == "none":
        return {"mode": "none"}
    made: dict[str, Plain] = {"query_id": descriptor.query_id, "result_id": descriptor.result_id}
    return {**made, **descriptors.policy(evidence), "verified": [asdict(one) for one in verified]}


def evidence_hash(summary: dict[str, Plain]) -> str:
    return h(canonical_json.encode(summary)).hex()
