"""An audit as a report: plain JSON, so that it can be read by anyone, signed, and shown as a page."""

from collections import Counter
from collections.abc import Iterable

from veen import __version__
from veen.core import Malformed, jsontext
from veen.core.hashing import h
from veen.core.jsontext import Json
from veen.pipeline.audit.auditing import Audit, Directory
from veen.pipeline.audit.chain import Link
from veen.pipeline.audit.outcome import MINUTE_SEC
from veen.storage.findings import MAX_FINDINGS, Finding, Severity

KIND = "veen.audit.v1"
_MOST_SPANS = 500
JsonObject = dict[str, Json]


def report_of(audit: Audit, now: int, where: str) -> JsonObject:
    """Everything that was found. `where` says on what it ran."""
    directories = [_directory(one) for one in audit.directories]
    entries = sum(_count(one) for one in audit.directories)
    return {
        "kind": KIND,
        "version": __version__,
        "made_at": now,
        "ran_on": where,
        "took_ms": round(audit.seconds * 1000),
        "entries": entries,
        "verdict": verdict(audit),
        "directories": list(directories),
        "equivocations": [
            {
                "hub_id": one.hub_id.hex(),
                "label": one.label.hex(),
                "stream_seq": one.stream_seq,
                "sources": list(one.sources),
                "receipts": [receipt.hex() for receipt in one.receipts],
            }
            for one in audit.equivocations
        ],
    }


def verdict(audit: Audit) -> str:
    """The worst of it: `equivocated`, `damaged`, `repairable` or `sound`."""
    if audit.equivocations:
        return "equivocated"
    found = {finding.severity for one in audit.directories for finding in one.findings}
    return next((str(worst) for worst in (Severity.DAMAGED, Severity.REPAIRABLE) if worst in found), "sound")


def encode(made: JsonObject) -> bytes:
    """The one form in which it is written and signed."""
    return jsontext.encode(made)


def decode(data: bytes) -> JsonObject:
    """A report from a file. Raises `Malformed` where it is not one."""
    found = jsontext.decode(data, "audit report")
    if not isinstance(found, dict) or found.get("kind") != KIND or encode(found) != data:
        raise Malformed("audit report", f"it is not a {KIND} in its one form")
    return found


def digest(encoded: bytes) -> bytes:
    return h(encoded)


def _directory(one: Directory) -> JsonObject:
    counts = Counter(str(finding.severity) for finding in one.findings)
    links = [link for found in one.labels.values() for link in found]
    return {
        "source": one.source.url,
        "hub_id": one.papers.identity.hub_id.hex() if one.papers else None,
        "live": one.live,
        "entries": _count(one),
        "journal_entries": one.journal_entries,
        "failed": sum(link.outcome.failed for link in links),
        "unchecked": sum(link.piece.entries - link.outcome.entries for link in links),
        "chunks": len(one.chunks),
        "checkpoints": sum(1 for link in links if link.outcome.bound),
        "over_time": _over_time(links),
        "rate": _rate(links),
        "labels": [_label(label, found) for label, found in one.labels.items()],
        "counts": {str(severity): counts[str(severity)] for severity in Severity},
        "findings": [_finding(finding) for finding in one.findings[:MAX_FINDINGS]],
    }


def _label(label: bytes, found: list[Link]) -> JsonObject:
    last = found[-1].outcome
    times = [link.outcome.hub_ts for link in found if link.outcome.hub_ts]
    return {
        "label": label.hex(),
        "entries": sum(link.outcome.entries for link in found),
        "failed": sum(link.outcome.failed for link in found),
        "upto_seq": found[-1].piece.last,
        "mmr_root": last.root.hex() if all(link.outcome.sound for link in found) else None,
        "hub_ts": [min(low for low, _ in times), max(high for _, high in times)] if times else None,
    }


def _finding(one: Finding) -> JsonObject:
    return {
        "severity": str(one.severity),
        "artifact": one.artifact,
        "label": one.label.hex() if one.label else None,
        "stream_seq": one.stream_seq,
        "what": one.what,
    }


def _count(one: Directory) -> int:
    return sum(link.outcome.entries for found in one.labels.values() for link in found)


def _over_time(links: Iterable[Link]) -> list[Json]:
    """When entries were accepted: `[hub_ts, entries]` of each span, of which there are not too many."""
    minutes: Counter[int] = Counter()
    for link in links:
        minutes.update(link.outcome.minutes)
    if not minutes:
        return []
    low, high = min(minutes), max(minutes)
    step = MINUTE_SEC * max(1, -(-(high - low + MINUTE_SEC) // (MINUTE_SEC * _MOST_SPANS)))
    spans: Counter[int] = Counter()
    for minute, count in minutes.items():
        spans[low + (minute - low) // step * step] += count
    return [[at, count] for at, count in sorted(spans.items())]


def _rate(links: Iterable[Link]) -> list[Json]:
    """Entries a second of each piece, on the core that had it."""
    return [round(link.outcome.entries / link.outcome.seconds) for link in links if link.outcome.seconds > 0]
