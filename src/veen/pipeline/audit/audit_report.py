"""The report of an audit as plain JSON that can be read, signed and rendered as a page."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

from veen import __version__
from veen.core import Malformed, SigningKey, Unverified, naming, signing, strict_json
from veen.core.cbor import Bstr, Text, Uint, VersionField, Wire, int_map
from veen.core.hashing import h, ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.core.strict_json import Json
from veen.pipeline.audit.audit_run import Audit, Directory
from veen.pipeline.audit.piece_audit import MINUTE_SEC, ChainLink
from veen.storage.fsck_report import MAX_FINDINGS, Finding, Severity

KIND = "veen.audit.v1"
_MAX_SPANS = 500
JsonObject = dict[str, Json]


def report_of(audit: Audit, now: int, where: str) -> JsonObject:
    """Build the report of an audit. `where` describes what the audit ran on."""
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
                **({"retired": one.retired} if one.retired else {}),
                **({"dated_by": [statement.hex() for statement in one.dated_by]} if one.dated_by else {}),
            }
            for one in audit.equivocations
        ],
    }


def verdict(audit: Audit) -> str:
    """The worst result of the audit: `equivocated`, a contradiction under a retired key, `damaged`, `repairable` or
    `sound`."""
    if any(one.retired is None for one in audit.equivocations):
        return "equivocated"
    for one in audit.equivocations:
        return str(one.retired)
    found = {finding.severity for one in audit.directories for finding in one.findings}
    return next((str(worst) for worst in (Severity.DAMAGED, Severity.REPAIRABLE) if worst in found), "sound")


def encode(made: JsonObject) -> bytes:
    """The canonical encoding, which is also what an auditor signs."""
    return strict_json.encode(made)


def decode(data: bytes) -> JsonObject:
    """Decode a report. Raises `Malformed` if it is not one in canonical form."""
    found = strict_json.decode(data, "audit report")
    if not isinstance(found, dict) or found.get("kind") != KIND or encode(found) != data:
        raise Malformed("audit report", f"it is not a {KIND} in canonical form")
    return found


def digest(encoded: bytes) -> bytes:
    return h(encoded)


def _directory(one: Directory) -> JsonObject:
    counts = Counter(str(finding.severity) for finding in one.findings)
    links = [link for found in one.labels.values() for link in found]
    return {
        "source": one.source.url,
        "hub_id": one.metadata.identity.hub_id.hex() if one.metadata else None,
        "live": one.live,
        "entries": _count(one),
        "journal_entries": one.journal_entries,
        "failed": sum(link.outcome.failed for link in links),
        "unchecked": sum(link.piece.entries - link.outcome.entries for link in links),
        "chunks": len(one.chunks),
        "checkpoints": sum(1 for link in links if link.outcome.bound),
        "over_time": _over_time(links),
        "rate": _rate(links),
        "labels": [{**_label(label, found), **_coverage(one, label)} for label, found in one.labels.items()],
        "handovers": [
            {
                "hub_ts": made.hub_ts,
                "old_key_id": naming.key_id(made.old_pk).hex(),
                "new_key_id": naming.key_id(made.new_pk).hex(),
                "labels": made.labels,
            }
            for made in one.handovers
        ],
        "recoveries": [
            {
                "recovered_at": made.recovery.recovered_at,
                "old_key_id": made.recovery.old_key_id.hex(),
                "new_key_id": made.recovery.new_key_id.hex(),
                "labels": made.recovery.labels,
            }
            for made in one.recoveries
        ],
        "counts": {str(severity): counts[str(severity)] for severity in Severity},
        "findings": [_finding(finding) for finding in one.findings[:MAX_FINDINGS]],
    }


def _coverage(one: Directory, label: bytes) -> JsonObject:
    return {"coverage": str(one.coverage[label])} if label in one.coverage else {}


def _label(label: bytes, found: list[ChainLink]) -> JsonObject:
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


def _over_time(links: Iterable[ChainLink]) -> list[Json]:
    """Entries by time of acceptance: `[hub_ts, entries]` for each of at most `_MAX_SPANS` spans."""
    minutes: Counter[int] = Counter()
    for link in links:
        minutes.update(link.outcome.minutes)
    if not minutes:
        return []
    low, high = min(minutes), max(minutes)
    step = MINUTE_SEC * max(1, -(-(high - low + MINUTE_SEC) // (MINUTE_SEC * _MAX_SPANS)))
    spans: Counter[int] = Counter()
    for minute, count in minutes.items():
        spans[low + (minute - low) // step * step] += count
    return [[at, count] for at, count in sorted(spans.items())]


def _rate(links: Iterable[ChainLink]) -> list[Json]:
    """Entries per second and core, for each piece."""
    outcomes = [link.outcome for link in links if link.outcome.cpu_nsec > 0]
    return [round(one.entries * 1_000_000_000 / one.cpu_nsec) for one in outcomes]


_NO_SIG = bytes(SIGNATURE_BYTES)


@int_map("audit statement", VersionField())
class AuditStatement(Wire):
    """An auditor's signature over the digest, verdict and time of a report."""

    report_digest: Annotated[bytes, Bstr()]
    verdict: Annotated[str, Text(MAX_TEXT_BYTES)]
    made_at: Annotated[int, Uint()]
    auditor_pk: Annotated[bytes, Bstr()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def signing_digest(self) -> bytes:
        """The digest of every field except the signature."""
        return ht("veen/audit-statement", replace(self, sig=_NO_SIG).encode())

    def verify(self, encoded_report: bytes, auditor_pk: bytes | None = None) -> None:
        """Raise `Unverified` unless the auditor signed this report. Without `auditor_pk`, any signer is accepted."""
        if auditor_pk is not None and auditor_pk != self.auditor_pk:
            raise Unverified("audit statement", "it is signed with another key than the given auditor's")
        signing.verify(self.auditor_pk, self.signing_digest(), self.sig, "audit statement")
        if digest(encoded_report) != self.report_digest:
            raise Unverified("audit statement", "it belongs to another report")
        report = decode(encoded_report)
        if (report["verdict"], report["made_at"]) != (self.verdict, self.made_at):
            raise Unverified("audit statement", "its verdict or time differs from the report's")


def sign(key: SigningKey, encoded_report: bytes) -> AuditStatement:
    """Sign a report."""
    report = decode(encoded_report)
    verdict, made_at = str(report["verdict"]), int(str(report["made_at"]))
    unsigned = AuditStatement(digest(encoded_report), verdict, made_at, key.public_key, _NO_SIG)
    return replace(unsigned, sig=key.sign(unsigned.signing_digest()))
