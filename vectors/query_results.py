"""query-results.json: the evidence of query results, and what each file proves."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from vectors.evidence_files import (
    ALICE,
    BORN,
    MADE,
    NEW,
    OLD,
    OTHER_READER,
    READER,
    STRANGER,
    TURNED,
    YOUNG,
    Case,
    Log,
    card_of,
    record,
)
from vectors.form import Doc, signing_key
from veen.client import evidence
from veen.client.evidence import Evidence, Knowledge
from veen.core import PayloadHdr, canonical_json, naming
from veen.core.canonical_json import Plain
from veen.core.proof import Head
from veen.overlays.record import RecordEvent
from veen.query import descriptor as descriptors
from veen.query import digest as digests
from veen.query.audit_events import ANSWERED, REQUESTS, RESULTS, SUBMITTED
from veen.query.digest import Position, ResultDigest, VerifiedEvent
from veen.query.result_evidence import ResultEvidence

WEB = "record/app/web"
RECORDED = PayloadHdr(RecordEvent.SCHEMA)
ASKED: dict[str, Any] = {
    "query_id": "q-1",
    "scope": [WEB],
    "filter": {},
    "projection": ["receipt_id", "subject_id", "payload.ok"],
    "evidence": {"mode": "full"},
}


def label_of(stream: str) -> bytes:
    return naming.label(YOUNG.routing_key, naming.stream_id(stream), 0)


def log_of(stream: str, *events: RecordEvent) -> Log:
    return Log(stream, tuple(one.encode() for one in events), RECORDED, label_of(stream))


def event(subject: str, ok: bool) -> RecordEvent:
    return RecordEvent(subject, "login", 1_700_000_000_000, "shop", canonical_json.encode({"ok": ok}).decode())


EVENTS = (event("alice", True), event("bob", False), event("alice", True))
EVENT_LOG = log_of(WEB, *EVENTS)
PLACES = [f"{EVENT_LOG.label.hex()}:{one.stream_seq}" for one in EVENT_LOG.receipts]
ROWS: list[dict[str, Plain]] = [
    {"receipt_id": place, "subject_id": one.subject_id, "payload.ok": one.value()["ok"]}  # type: ignore[call-overload, index]
    for place, one in zip(PLACES, EVENTS, strict=True)
]
OWN = [
    VerifiedEvent(place, one.mmr_root.hex(), YOUNG.hub_id.hex())
    for place, one in zip(PLACES, EVENT_LOG.receipts, strict=True)
]


def part(log: Log, seqs: Sequence[int], *, disclosed: bool) -> Evidence:
    top = log.checkpoint(len(log.receipts), OLD)
    shown = [log.disclosed(seq) for seq in seqs] if disclosed else []
    heads: tuple[Head, ...] = (*(log.receipts[seq - 1] for seq in seqs), top)
    ties = [log.tie(seq, len(log.receipts)) for seq in seqs]
    return evidence.make_evidence(record(YOUNG, OLD), "", heads, ties=ties, exhibits=shown, now=MADE)


def joined(*parts: Evidence) -> Evidence:
    return replace(
        parts[0],
        receipts=tuple(one for each in parts for one in each.receipts),
        checkpoints=tuple(one for each in parts for one in each.checkpoints),
        ties=tuple(one for each in parts for one in each.ties),
        exhibits=tuple(one for each in parts for one in each.exhibits),
    )


def made(
    asked: dict[str, Any] | None = None,
    rows: list[dict[str, Plain]] = ROWS,
    verified: Sequence[VerifiedEvent] = OWN,
    digest: dict[str, Plain] | None = None,
    *,
    streams: tuple[str, str] = (REQUESTS, RESULTS),
    types: tuple[str, str] = (SUBMITTED, ANSWERED),
) -> ResultEvidence:
    """The evidence of a result. `asked` and `digest` are changes of the query and of its digest."""
    query = descriptors.normalise(ASKED | (asked or {}), "")
    requests = log_of(streams[0], _recorded("user:alice", types[0], query.text()))
    summary = digests.evidence_summary(query, verified)
    stated = ResultDigest(
        query_id=query.query_id,
        result_id=query.result_id,
        row_count=len(rows),
        evidence_policy=query.evidence,
        rows_hash=digests.rows_hash(map(digests.row_text, rows)),
        evidence_hash=digests.evidence_hash(summary),
        executed_at="2023-11-14T22:13:20.000Z",
        hub_id=YOUNG.hub_id.hex(),
        basis=(Position(WEB, EVENT_LOG.label.hex(), len(EVENTS)),),
        request_receipt_id=f"{requests.label.hex()}:1",
    )
    text = canonical_json.encode({**stated.plain(), **(digest or {})}).decode()
    results = log_of(streams[1], _recorded("client:service", types[1], text))
    parts = (part(requests, [1], disclosed=True), part(results, [1], disclosed=True))
    held = joined(*parts, part(EVENT_LOG, range(1, len(EVENTS) + 1), disclosed=False))
    return ResultEvidence(_text(rows), canonical_json.encode(summary).decode(), (held,))


def _recorded(subject: str, event_type: str, content: str) -> RecordEvent:
    return RecordEvent(subject, event_type, 1_700_000_000_000, "veen.query", content, "query", 1)


def _text(rows: list[dict[str, Plain]]) -> str:
    return canonical_json.encode([*rows]).decode()


RESULT = made()
REPORTED = RESULT.parts[0]
POSITION: dict[str, Plain] = {"stream": WEB, "label": EVENT_LOG.label.hex(), "seq": len(EVENTS)}


def query_results() -> Doc:
    return {
        "about": "Evidence of query results, in the form of evidence.json.",
        "files": [case.doc() for case in cases()],
    }


def cases() -> Iterator[Case]:
    hub, file = YOUNG.hub_id, RESULT.encode()
    yield Case("a query result", file, hub)
    yield Case("a query result, no hub is named", file, None)
    yield Case("a query result, another hub is named", file, TURNED.hub_id[::-1])
    yield Case("a query result, the reader is named", file, hub, READER.public_key)
    yield Case("a query result, another reader is named", file, hub, OTHER_READER.public_key)
    for name, writer in (("the service", ALICE), ("another service", STRANGER)):
        card = card_of(signing_key("identity of the service"), writer)
        yield Case(f"a query result, {name} is named", file, hub, knowledge=Knowledge(writers=(card,)))
    shown = joined(REPORTED, replace(part(EVENT_LOG, [2], disclosed=True), receipts=(), checkpoints=(), ties=()))
    yield Case("a query result with the content of an event", replace(RESULT, parts=(shown,)).encode(), hub)
    for name, one in {**_queries(), **_stated(), **_texts(), **_parts()}.items():
        yield Case(f"a query result, {name}", one.encode(), hub)


def _queries() -> dict[str, ResultEvidence]:
    elsewhere = [*OWN[:2], VerifiedEvent(PLACES[2], "00" * 32, "ab" * 32)]
    counted: list[dict[str, Plain]] = [{"subject_id": "alice", "count": 2}, {"subject_id": "bob", "count": 1}]
    groups = {"aggregate": {"group_by": ["subject_id"], "metrics": ["count"]}}
    return {
        "without evidence": made({"evidence": {"mode": "none"}}, verified=()),
        "with a sample": made({"evidence": {"mode": "spot", "sample_rate": 1}}, verified=OWN[:1]),
        "of groups": made(groups, counted),
        "of groups, with ids that are not those of the evidence": made(groups, [{"receipt_id": "x"}]),
        "without rows": made(None, [], ()),
        "with an event of another hub": made(verified=elsewhere),
        "with numbers at the bounds": made(
            {"evidence": {"mode": "none"}},
            [{"payload": {"a": 2**53 - 1, "\U0001f6aa": "\U0001f6aa", "__proto__": None}}],
            (),
        ),
        "evidence of other rows": made(verified=OWN[::-1]),
        "evidence of too few rows": made({"projection": ["subject_id"]}, verified=OWN[:2]),
        "a receipt with another root": made(verified=[replace(OWN[0], mmr_root="00" * 32), *OWN[1:]]),
        "the query on another stream": made(streams=(WEB, RESULTS)),
        "the digest on another stream": made(streams=(REQUESTS, REQUESTS)),
        "an event of another type": made(types=(ANSWERED, ANSWERED)),
    }


def _stated() -> dict[str, ResultEvidence]:
    """Digests that a dishonest service could record."""
    wrong: dict[str, dict[str, Plain]] = {
        "another version": {"version": 2},
        "a version that is true": {"version": True},
        "another row_count": {"row_count": 2},
        "a row_count that is no integer": {"row_count": "3"},
        "another query_id": {"query_id": "q-2"},
        "another result_id": {"result_id": "r-" + "0" * 32},
        "other rows": {"rows_hash": "00" * 32},
        "other evidence": {"evidence_hash": "00" * 32},
        "another hub": {"hub_id": "00" * 32},
        "another place of the query": {"request_receipt_id": "00:1"},
        "a place of the query that is null": {"request_receipt_id": None},
        "another policy": {"evidence_policy": {"mode": "none"}},
        "no basis": {"basis": None},
        "a basis of numbers": {"basis": [1]},
        "an empty basis": {"basis": []},
        "a basis that ends earlier": {"basis": [{**POSITION, "seq": 2}]},
        "a basis with another stream": {"basis": [{**POSITION, "stream": "record/app/other"}]},
        "a basis with the id of the stream": {"basis": [{**POSITION, "stream": naming.stream_id(WEB).hex().upper()}]},
        "a basis whose seq is a fraction": {"basis": [{**POSITION, "seq": 3.5}]},
    }
    return {f"the digest has {name}": made(digest=change) for name, change in wrong.items()}


def _texts() -> dict[str, ResultEvidence]:
    rows = RESULT.rows
    return {
        "a changed row": replace(RESULT, rows=rows.replace("bob", "eve")),
        "a row less": replace(RESULT, rows=_text(ROWS[:2])),
        "rows that are no JSON": replace(RESULT, rows=rows[:-1]),
        "rows with a space": replace(RESULT, rows=rows.replace(",", ", ")),
        "rows that are no array": replace(RESULT, rows='{"a":1}'),
        "rows that are no objects": replace(RESULT, rows="[1]"),
        "a name twice": replace(RESULT, rows='[{"a":1,"a":1}]'),
        "half of a surrogate pair": replace(RESULT, rows='[{"a":"\\ud800"}]'),
        "rows nested too deep": replace(RESULT, rows='[{"a":' + "[" * 63 + "]" * 63 + "}]"),
        "rows nested as deep as allowed": replace(RESULT, rows='[{"a":' + "[" * 62 + "]" * 62 + "}]"),
        "a number beyond doubles": replace(RESULT, rows='[{"a":1e999}]'),
        "negative zero": replace(RESULT, rows='[{"a":-0}]'),
        "another summary": replace(RESULT, summary=RESULT.summary.replace("q-1", "q-2")),
        "a summary that is no object": replace(RESULT, summary="[]"),
    }


def _parts() -> dict[str, ResultEvidence]:
    first = replace(REPORTED, receipts=REPORTED.receipts[:2], ties=REPORTED.ties[:2])
    events = part(EVENT_LOG, [1, 2, 3], disclosed=False)
    other = Log(WEB, (b"other", b"entries", b"here"), RECORDED, EVENT_LOG.label)
    turned = replace(events, identity=TURNED, signature=record(TURNED, NEW).signature)
    forged = replace(events, receipts=(replace(EVENT_LOG.receipts[0], hub_sig=bytes(64)), *events.receipts[1:]))
    sealed = replace(REPORTED.exhibits[0], opening=None)
    late = EVENT_LOG.sign(OLD, 3, BORN)
    return {
        "in two parts": replace(RESULT, parts=(first, events)),
        "without the receipts of the events": replace(RESULT, parts=(first,)),
        "with a receipt that nobody signed": replace(RESULT, parts=(first, forged)),
        "parts with different records of keys": replace(RESULT, parts=(first, turned)),
        "parts that differ at one entry": replace(RESULT, parts=(REPORTED, part(other, [1, 2, 3], disclosed=False))),
        "a query that is sealed": replace(
            RESULT, parts=(replace(REPORTED, exhibits=(sealed, *REPORTED.exhibits[1:])),)
        ),
        "query and digest in the other order": replace(
            RESULT, parts=(replace(REPORTED, exhibits=REPORTED.exhibits[::-1]),)
        ),
        "without a checkpoint": replace(RESULT, parts=(replace(REPORTED, checkpoints=(), ties=()),)),
        "of a hub that contradicts itself": replace(
            RESULT, parts=(replace(REPORTED, receipts=(*REPORTED.receipts, late)),)
        ),
    }
