"""Query results as evidence: one file that proves offline what a service answered, without the service or a token.

The file contains the rows, the evidence summary, and evidence of what the hub signed: the recorded query, the recorded
digest, and the receipts of the events that the service verified.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from veen.client import evidence
from veen.client.evidence import (
    MAX_EVIDENCE_BYTES,
    NOTHING,
    RESULT_KIND,
    Evidence,
    EvidenceReport,
    Knowledge,
    ShownEntry,
)
from veen.core import Malformed, Unverified, canonical_json, naming
from veen.core.canonical_json import Plain
from veen.core.cbor import Constant, ListOf, Nested, Text, VersionField, Wire, int_map
from veen.core.hashing import h
from veen.overlays.record import RecordEvent
from veen.query.audit_events import ANSWERED, REQUESTS, RESULTS, SUBMITTED
from veen.query.descriptor import result_id_of
from veen.query.digest import VERSION

MAX_PARTS = 64


@int_map("query result", Constant(RESULT_KIND, name="kind"), VersionField())
class ResultEvidence(Wire):
    """The file. `rows` is the array of rows and `summary` the evidence summary, both as canonical JSON.

    The first two `exhibits` of the first part are the recorded query and the recorded digest.
    """

    rows: Annotated[str, Text(MAX_EVIDENCE_BYTES)]
    summary: Annotated[str, Text(MAX_EVIDENCE_BYTES)]
    parts: Annotated[tuple[Evidence, ...], ListOf(Nested(Evidence, name="evidence"), most=MAX_PARTS, least=1)]


@dataclass(frozen=True, slots=True)
class ResultReport:
    """The verified content of a file."""

    evidence: EvidenceReport
    query: Mapping[str, Plain]
    digest: Mapping[str, Plain]
    rows: Sequence[Mapping[str, Plain]]
    request: ShownEntry
    answer: ShownEntry
    asked_by: str  # the subject of the query, as the service recorded it
    receipts: int  # events whose receipts are in the file
    elsewhere: int  # events of other hubs, whose receipts this hub does not have

    @property
    def streams(self) -> list[str]:
        return sorted({str(one["stream"]) for one in _objects(self.digest, "basis", "the digest")})

    @property
    def columns(self) -> list[str]:
        """The columns of the rows: first those that the query names, in its order."""
        aggregate = self.query.get("aggregate")
        groups = (aggregate.get("group_by"), aggregate.get("metrics")) if isinstance(aggregate, dict) else ()
        named = [name for one in (self.query.get("projection"), *groups) if isinstance(one, list) for name in one]
        present = dict.fromkeys(name for row in self.rows for name in row)
        first = (name for name in named if isinstance(name, str) and name in present)
        return list(dict.fromkeys((*first, *present)))

    def to_json(self) -> dict[str, object]:
        shown = self.evidence.to_json()
        assert isinstance(shown, dict)
        return {**shown, "query_result": self.summary()}

    def summary(self) -> dict[str, object]:
        return {
            "query": dict(self.query),
            "digest": dict(self.digest),
            "rows": [dict(row) for row in self.rows],
            "asked_by": self.asked_by,
            "request": _place_of(self.request),
            "result": _place_of(self.answer),
            "receipts": self.receipts,
            "receipts_elsewhere": self.elsewhere,
        }


def verify(
    data: bytes, pin: bytes | None = None, readers: Collection[bytes] = (), knowledge: Knowledge = NOTHING
) -> ResultReport:
    """Verify a file as `evidence.verify` does, and what connects the rows with what the hub signed.

    Raises `Malformed` or `Unverified`. It proves what the service answered, and that the hub has the events it names; a
    service that computed wrong rows is found by `veen query replay`, which needs the events.
    """
    if len(data) > MAX_EVIDENCE_BYTES:
        raise Malformed("query result", f"{len(data)} bytes, above {MAX_EVIDENCE_BYTES}")
    shown = ResultEvidence.decode(data)
    rows, summary = _rows(shown.rows), canonical_json.decode(shown.summary.encode(), "summary")
    reports = [evidence.verify_decoded(part, pin, readers, knowledge) for part in shown.parts]
    _check_parts(shown.parts)
    whole = _Whole(shown.parts)
    entries = iter(reports[0].entries)
    request, query_text = whole.event(next(entries, None), REQUESTS, SUBMITTED)
    answer, digest_text = whole.event(next(entries, None), RESULTS, ANSWERED)
    query, digest = (_object(canonical_json.decode(text.encode(), "payload")) for text in (query_text, digest_text))
    hashes = {
        "query_id": _text(query, "query_id", "the query"),
        "result_id": result_id_of(query_text),
        "rows_hash": h(shown.rows.encode()).hex(),
        "evidence_hash": h(shown.summary.encode()).hex(),
        "hub_id": reports[0].hub_id.hex(),
        "request_receipt_id": _place_of(request),
    }
    for name, expected in hashes.items():
        if digest.get(name, expected if name == "request_receipt_id" else None) != expected:
            raise Unverified("query result", f"{name} of the digest is not that of the file")
    if (_number(digest, "version"), _number(digest, "row_count")) != (VERSION, len(rows)):
        raise Unverified("query result", "the digest has another version or row_count")
    if canonical_json.encode(query.get("evidence")) != canonical_json.encode(digest.get("evidence_policy")):
        raise Unverified("query result", "the digest has another evidence policy than the query")
    verified = _verified(query, digest, _object(summary), rows)
    own = [one for one in verified if one["hub_id"] == hashes["hub_id"]]
    whole.check_receipts(digest, own)
    subject = RecordEvent.decode(request.opened.body if request.opened else b"").subject_id
    counts = len(own), len(verified) - len(own)
    return ResultReport(_merged(reports, knowledge), query, digest, rows, request, answer, subject, *counts)


class _Whole:
    """The labels and receipts of all parts together."""

    def __init__(self, parts: tuple[Evidence, ...]) -> None:
        self._routing_key = parts[0].identity.routing_key
        self._epochs = {(one.label_curr, one.epoch) for part in parts for one in part.checkpoints}
        self._receipts = {_receipt_id(one.label, one.stream_seq): one for part in parts for one in part.receipts}

    def is_of(self, label: bytes, stream: str) -> bool:
        """Whether a label is the stream's in the epoch that a signed checkpoint states."""
        stream_id = naming.stream_id(stream)
        return any(
            label == known and naming.label(self._routing_key, stream_id, epoch) == label
            for known, epoch in self._epochs
        )

    def event(self, entry: ShownEntry | None, stream: str, event_type: str) -> tuple[ShownEntry, str]:
        """The entry and payload of a recorder event. Raises `Unverified` unless it is one of this type and stream."""
        if entry is not None and entry.opened is not None and entry.opened.header.schema == RecordEvent.SCHEMA:
            try:
                event = RecordEvent.decode(entry.opened.body)
            except Malformed:
                event = None
            if event and event.event_type == event_type and self.is_of(entry.receipt.label, stream):
                return entry, event.content
        raise Unverified("query result", f"the file does not show the event {event_type} on {stream}")

    def check_receipts(self, digest: Mapping[str, Plain], verified: Sequence[Mapping[str, str]]) -> None:
        """Raise `Unverified` unless the hub signed each receipt, of a stream and a place within the digest's basis."""
        basis = {
            _text(one, "label", "the basis"): (_text(one, "stream", "the basis"), _number(one, "seq"))
            for one in _objects(digest, "basis", "the digest")
        }
        for one in verified:
            place = one["receipt_id"]
            receipt = self._receipts.get(place)
            if receipt is None or receipt.mmr_root.hex() != one["mmr_root"]:
                raise Unverified("query result", f"the hub's receipt {place[:80]} is not in the file")
            stream, seq = basis.get(receipt.label.hex(), ("", 0))
            if receipt.stream_seq > seq or not self.is_of(receipt.label, stream):
                raise Unverified("query result", f"receipt {place} is not of a stream that was queried")


def _check_parts(parts: tuple[Evidence, ...]) -> None:
    """Raise `Unverified` unless all parts are of one hub and agree about each place."""
    first = parts[0]
    found: dict[tuple[bytes, int], tuple[bytes, bytes]] = {}
    for part in parts:
        if part.identity != first.identity or part.profile != first.profile:
            raise Unverified("query result", "the parts are of different hubs, or of different times of one")
        for one in part.receipts:
            signed = one.leaf_hash, one.mmr_root
            if part is not first and found.get((one.label, one.stream_seq), signed) != signed:
                raise Unverified("query result", f"two parts differ at entry {one.stream_seq}")
            found.setdefault((one.label, one.stream_seq), signed)


def _verified(
    query: Mapping[str, Plain], digest: Mapping[str, Plain], summary: Mapping[str, Plain], rows: Sequence[object]
) -> list[dict[str, str]]:
    """The events that the service verified. Raises `Unverified` if they do not belong to this query and these rows."""
    mode = _text(_object(query.get("evidence")), "mode", "the query")
    if summary.get("mode") != mode:
        raise Unverified("query result", "the evidence has another mode than the query")
    if mode == "none":
        return []
    if any(summary.get(name) != digest[name] for name in ("query_id", "result_id")):
        raise Unverified("query result", "the evidence belongs to another query")
    names = ("receipt_id", "mmr_root", "hub_id")
    listed = _objects(summary, "verified", "the evidence")
    found = [{name: _text(one, name, "the evidence") for name in names} for one in listed]
    if mode == "full" and "aggregate" not in query:
        shown = [row["receipt_id"] for row in rows if isinstance(row, dict) and "receipt_id" in row]
        if len(found) != len(rows) or (shown and shown != [one["receipt_id"] for one in found]):
            raise Unverified("query result", "the evidence does not belong to these rows")
    return found


def _merged(reports: Sequence[EvidenceReport], knowledge: Knowledge) -> EvidenceReport:
    """The reports on all parts as one."""
    cosigners = [set(one.cosigners) for one in reports]
    policy = knowledge.policy
    return replace(
        reports[0],
        receipts=_all(one.receipts for one in reports),
        checkpoints=_all(one.checkpoints for one in reports),
        ties=_all(one.ties for one in reports),
        entries=_all(one.entries for one in reports),
        contradictions=_distinct(one.contradictions for one in reports),
        lost=_all(one.lost for one in reports),
        retired=_distinct(one.retired for one in reports),
        conflicts=_distinct(one.conflicts for one in reports),
        coverage=_all(one.coverage for one in reports),
        cosigners=tuple(name for name in policy.witnesses if all(name in one for one in cosigners)) if policy else (),
    )


_T = TypeVar("_T")


def _all(lists: Iterator[tuple[_T, ...]]) -> tuple[_T, ...]:
    return tuple(one for listed in lists for one in listed)


def _distinct(lists: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_all(lists)))


def events_of(summary: Mapping[str, Plain], hub_id: bytes) -> dict[str, list[int]]:
    """The places of the events of this hub in a summary that was verified, by label."""
    found = dict[str, list[int]]()
    for one in _objects(summary, "verified", "the evidence") if "verified" in summary else ():
        label, _, seq = _text(one, "receipt_id", "the evidence").partition(":")
        if one.get("hub_id") == hub_id.hex():
            found.setdefault(label, []).append(int(seq))
    return {label: sorted(set(seqs)) for label, seqs in found.items()}


def _place_of(entry: ShownEntry) -> str:
    return _receipt_id(entry.receipt.label, entry.receipt.stream_seq)


def _receipt_id(label: bytes, stream_seq: int) -> str:
    return f"{label.hex()}:{stream_seq}"


def _rows(text: str) -> list[dict[str, Plain]]:
    found = canonical_json.decode(text.encode(), "rows")
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise Malformed("query result", "the rows are not an array of objects")
    return [row for row in found if isinstance(row, dict)]


def _object(value: Plain) -> dict[str, Plain]:
    if not isinstance(value, dict):
        raise Unverified("query result", "a JSON text in the file is not an object")
    return value


def _objects(value: Mapping[str, Plain], name: str, what: str) -> list[dict[str, Plain]]:
    found = value.get(name)
    if not isinstance(found, list):
        raise Unverified("query result", f"{what} has no list {name}")
    return [_object(one) for one in found]


def _text(value: Mapping[str, Plain], name: str, what: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise Unverified("query result", f"{what} has no text {name}")
    return found


def _number(value: Mapping[str, Plain], name: str) -> int:
    found = value.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise Unverified("query result", f"{name} of the digest is not an integer")
    return found
