"""The report of an audit: plain JSON that can be read and signed, and its HTML page.

The page has SVG plots, needs no libraries, and suits light and dark displays.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Annotated, Any

from veen import __version__
from veen.core import Malformed, SigningKey, Unverified, naming, signing, strict_json
from veen.core.cbor import Bstr, Text, Uint, VersionField, Wire, int_map
from veen.core.hashing import h, ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.core.strict_json import Json
from veen.pipeline.audit.audit_run import Audit, Directory
from veen.pipeline.audit.piece_audit import MINUTE_SEC, ChainLink
from veen.storage.fsck_report import MAX_FINDINGS, Finding, Severity, brief

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


WIDTH, HEIGHT = 860, 220
_LEFT, _BOTTOM, _TOP, _RIGHT = 64, 28, 12, 8  # margins
_MAX_BARS = 240
_MAX_BAR_WIDTH = 40.0  # of one bar


def over_time(points: Sequence[tuple[int, int]], title: str) -> str:
    """Bars over time: seconds since 1970 and counts."""
    if not points:
        return _empty(title)
    low, high = points[0][0], points[-1][0]
    span = min((later - at for (at, _), (later, _) in pairwise(points)), default=1)
    step = span * max(1, -(-(high - low + span) // (span * _MAX_BARS)))
    bars: dict[int, int] = {}
    for at, count in points:
        bars[(at - low) // step] = bars.get((at - low) // step, 0) + count
    slots = (high - low) // step + 1
    labels = [(0.0, date(low)), (1.0, date(high))] if high > low else [(0.5, date(low))]
    return _bars(title, [bars.get(slot, 0) for slot in range(slots)], labels)


def spread(values: Sequence[int], title: str) -> str:
    """A histogram."""
    if not values:
        return _empty(title)
    low, high = min(values), max(values)
    count = min(40, max(1, high - low + 1))
    bins = [0] * count
    for value in values:
        bins[min(count - 1, (value - low) * count // max(1, high - low))] += 1
    return _bars(title, bins, [(0.0, f"{low:,}"), (1.0, f"{high:,}")])


def ranked(rows: Sequence[tuple[str, int, int]], title: str) -> str:
    """Horizontal bars: name, total, and how many of those failed."""
    if not rows:
        return _empty(title)
    most, row_height = max(total for _, total, _ in rows) or 1, 22
    height = row_height * len(rows) + 8
    parts = []
    for number, (name, total, failed) in enumerate(rows):
        y, room = 4 + number * row_height, WIDTH - 320
        parts.append(f'<text x="150" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="bar" x="160" y="{y + 3}" width="{room * total / most:.1f}" height="15"/>')
        if failed:
            parts.append(f'<rect class="bad" x="160" y="{y + 3}" width="{room * failed / most:.1f}" height="15"/>')
        caption = f"{total:,}" + (f", {failed:,} failed" if 0 < failed < total else "")
        parts.append(f'<text x="{166 + room * total / most:.1f}" y="{y + 15}">{caption}</text>')
    return _svg(title, height, parts)


def _bars(title: str, values: Sequence[int], labels: Sequence[tuple[float, str]]) -> str:
    most = max(values) or 1
    room, tall = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    wide = room / len(values)
    thick = min(_MAX_BAR_WIDTH, max(0.5, wide * 0.9))
    floor = HEIGHT - _BOTTOM
    parts = [
        f'<line x1="{_LEFT}" y1="{floor}" x2="{WIDTH - _RIGHT}" y2="{floor}"/>',
        f'<text x="{_LEFT - 8}" y="{_TOP + 10}" text-anchor="end">{most:,}</text>',
        f'<text x="{_LEFT - 8}" y="{floor}" text-anchor="end">0</text>',
    ]
    for slot, value in enumerate(values):
        if value:
            height, x = tall * value / most, _LEFT + (slot + 0.5) * wide - thick / 2
            shape = f'x="{x:.2f}" y="{floor - height:.2f}" width="{thick:.2f}" height="{height:.2f}"'
            parts.append(f'<rect class="bar" {shape}><title>{value:,}</title></rect>')
    for at, text in labels:
        anchor = {0.0: "start", 1.0: "end"}.get(at, "middle")
        parts.append(f'<text x="{_LEFT + at * room:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{escape(text)}</text>')
    return _svg(title, HEIGHT, parts)


def _empty(title: str) -> str:
    return _svg(title, 40, ['<text x="8" y="24">nothing to show</text>'])


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    shown = escape(title)
    body = "".join(parts)
    return f'<svg role="img" aria-label="{shown}" viewBox="0 0 {WIDTH} {height}"><title>{shown}</title>{body}</svg>'


def date(seconds: int) -> str:
    """The UTC time, to the minute."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return str(seconds)


_MAX_LABELS, _MAX_ROWS = 30, 200
_FEW_PIECES = 20  # below this, one line shows the rates
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #667085; --line: #d5dae2; --bar: #3b6ea8; --bad: #c0392b;
  --good: #2e7d4f; --paper: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #98a2b3; --line: #3a4252; --bar: #7aa7dc;
  --bad: #ef7b6c; --good: #6cc093; --paper: #14181f } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 900px;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100%; font-size: 13px } th { text-align: left; color: var(--dim) }
td, th { border-bottom: 1px solid var(--line); padding: 4px 12px 4px 0; vertical-align: top }
td[title] { min-width: 15rem } th, .word { white-space: nowrap }
code { font-size: 12px; overflow-wrap: anywhere } svg { width: 100%; height: auto }
svg text { font: 12px system-ui, sans-serif; fill: var(--dim) }
svg line { stroke: var(--line) } .bar { fill: var(--bar) } .bad { fill: var(--bad); color: var(--bad) }
.good { color: var(--good) } .dim { color: var(--dim) }
"""


def page_of(report: JsonObject, auditor: bytes | None = None) -> str:
    """The HTML page of a report. `auditor` is the key that signed the report, if any."""
    made: dict[str, Any] = report
    sound = made["verdict"] == "sound"
    head = (
        f"<h1>Audit: <span class={'good' if sound else 'bad'}>{escape(made['verdict'])}</span></h1>"
        f"<p>{made['entries']:,} entries of {len(made['directories'])} data "
        f"{'directory' if len(made['directories']) == 1 else 'directories'}, on {escape(made['ran_on'])}, "
        f"in {made['took_ms'] / 1000:,.1f} s. Every entry hash, client and hub signature, root, summary, peak snapshot "
        f"and checkpoint was verified again.</p>"
        f"<p>Made {date(made['made_at'])} UTC by VEEN {escape(made['version'])}, {_signed(auditor)}.</p>"
    )
    body = "".join(_directory_html(one) for one in made["directories"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>VEEN audit</title>'
        f"<style>{_STYLE}</style></head><body>{head}{_equivocations(made['equivocations'])}{body}</body></html>\n"
    )


def _signed(auditor: bytes | None) -> str:
    """The line about the statement. Whether the signature is valid, only `veen audit verify` can say."""
    if auditor is None:
        return "not signed"
    caption = "<code>statement.cbor</code> has the signature; check it with <code>veen audit verify</code>"
    return f"for the auditor <code>{auditor.hex()}</code>: {caption}"


def _directory_html(one: dict[str, Any]) -> str:
    labels = sorted(one["labels"], key=lambda row: (-row["failed"], -row["entries"], row["label"]))
    faults = Counter(_kind(finding["what"]) for finding in one["findings"])
    rows = [
        ("hub", f"<code>{escape(one['hub_id'] or 'unknown: its metadata is damaged')}</code>"),
        ("entries", f"{one['entries']:,}, and {one['journal_entries']:,} that only the journal has"),
        ("failed", f"{one['failed']:,}; {one['unchecked']:,} could not be checked"),
        ("chunks and checkpoints", f"{one['chunks']:,} and {one['checkpoints']:,}"),
    ]
    coverage = Counter(label["coverage"] for label in labels if "coverage" in label)
    if coverage:
        rows.append(("labels by coverage", ", ".join(f"{count:,} {escape(of)}" for of, count in coverage.items())))
    stated = [(row["hub_ts"], "changed its key", row) for row in one["handovers"]]
    stated += [(row["recovered_at"], "recovered, or began again,", row) for row in one["recoveries"]]
    for at, what, row in sorted(stated, key=lambda each: each[0]):
        key = f"<code>{row['new_key_id'][:16]}…</code>"
        rows.append(("stated by the hub", f"{date(at)} UTC: it {what} with {row['labels']:,} labels, under key {key}"))
    if 0 < len(one["rate"]) < _FEW_PIECES:
        rows.append(("verification rate", f"{min(one['rate']):,} to {max(one['rate']):,} entries a second on one core"))
    facts = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)
    shown = [(f"{row['label'][:16]}…", row["entries"], row["failed"]) for row in labels[:_MAX_LABELS]]
    return (
        f"<h2>{escape(one['source'])}</h2><table>{facts}</table>"
        f"<h2>Entries over time</h2>{over_time([(at, n) for at, n in one['over_time']], 'entries over time')}"
        f"<h2>Entries of each label</h2>{ranked(shown, 'entries of each label')}"
        f"{_more(len(labels), _MAX_LABELS)}"
        f"{_rates(one['rate'])}<h2>Faults</h2>"
        f"{ranked([(kind, n, n) for kind, n in faults.most_common()], 'faults by kind') if faults else ''}"
        f"{_findings(one['findings'])}"
    )


def _rates(rate: list[int]) -> str:
    if len(rate) < _FEW_PIECES:
        return ""
    return (
        f"<h2>Verification rate</h2>{spread(rate, 'entries a second on one core, piece by piece')}"
        "<p class=dim>entries per second on one core, and the number of pieces at that rate</p>"
    )


def _kind(what: str) -> str:
    """The name of the failed check of an entry, else `artifact`."""
    head, colon, _ = what.partition(": ")
    return head if colon and " " not in head else "artifact"


def _findings(found: list[dict[str, Any]]) -> str:
    if not found:
        return "<p class=good>none</p>"
    rows = "".join(
        f"<tr><td class=word>{escape(one['severity'])}</td>{_where(one['artifact'])}"
        f"<td class=word>{'' if one['stream_seq'] is None else one['stream_seq']}</td>"
        f"<td>{escape(brief(one['what']))}</td></tr>"
        for one in found[:_MAX_ROWS]
    )
    names = "<tr><th>severity</th><th>where</th><th>entry</th><th>what</th></tr>"
    return f"<table>{names}{rows}</table>{_more(len(found), _MAX_ROWS)}"


def _where(artifact: str) -> str:
    return f'<td title="{escape(artifact)}"><code>{escape(brief(artifact))}</code></td>'


def _equivocations(found: list[dict[str, Any]]) -> str:
    if not found:
        return ""
    rows = "".join(
        f"<tr><td><code>{one['label']}</code></td><td>{one['stream_seq']}</td>"
        f"<td>{'<br>'.join(map(escape, one['sources']))}</td><td>{escape(one.get('retired', ''))}</td></tr>"
        for one in found
    )
    names = "<tr><th>label</th><th>entry</th><th>the two copies</th><th>verdict</th></tr>"
    caption = "Two different roots are signed for one place. Both receipts are in the report as proof."
    if any("dated_by" in one for one in found):
        caption += " The report also has the statements that show that receipts of retired keys existed in time."
    return f"<h2 class=bad>Equivocation</h2><p>{caption}</p><table>{names}{rows}</table>"


def _more(count: int, shown: int) -> str:
    return f"<p class=dim>and {count - shown:,} more, in the report</p>" if count > shown else ""
