"""A report as one page that needs nothing else: no script, no font, no file beside it."""

from collections import Counter
from html import escape
from typing import Any

from veen.pipeline.audit import plots
from veen.pipeline.audit.report import JsonObject
from veen.storage.findings import brief

_MOST_LABELS, _MOST_ROWS = 30, 200
_FEW_PIECES = 20  # whose rates one line tells
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
    """The whole page. `auditor` is the key that signs the report, if one does."""
    made: dict[str, Any] = report
    sound = made["verdict"] == "sound"
    head = (
        f"<h1>Audit: <span class={'good' if sound else 'bad'}>{escape(made['verdict'])}</span></h1>"
        f"<p>{made['entries']:,} entries of {len(made['directories'])} data "
        f"{'directory' if len(made['directories']) == 1 else 'directories'}, on {escape(made['ran_on'])}, "
        f"in {made['took_ms'] / 1000:,.1f} s. Every entry hash, client and hub signature, root, summary, peak snapshot "
        f"and checkpoint was verified again.</p>"
        f"<p>Made {plots.date(made['made_at'])} UTC by VEEN {escape(made['version'])}, {_signed(auditor)}.</p>"
    )
    body = "".join(_directory(one) for one in made["directories"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>VEEN audit</title>'
        f"<style>{_STYLE}</style></head><body>{head}{_equivocations(made['equivocations'])}{body}</body></html>\n"
    )


def _signed(auditor: bytes | None) -> str:
    """That there is a statement: whether it holds, a page cannot tell."""
    if auditor is None:
        return "not signed"
    told = "<code>statement.cbor</code> has the signature, and <code>veen audit verify</code> checks it"
    return f"for the auditor <code>{auditor.hex()}</code>: {told}"


def _directory(one: dict[str, Any]) -> str:
    labels = sorted(one["labels"], key=lambda row: (-row["failed"], -row["entries"], row["label"]))
    faults = Counter(_kind(finding["what"]) for finding in one["findings"])
    rows = [
        ("hub", f"<code>{escape(one['hub_id'] or 'unknown: its papers are damaged')}</code>"),
        ("entries", f"{one['entries']:,}, and {one['journal_entries']:,} that only the journal has"),
        ("failed", f"{one['failed']:,}; {one['unchecked']:,} could not be checked"),
        ("chunks and checkpoints", f"{one['chunks']:,} and {one['checkpoints']:,}"),
    ]
    if 0 < len(one["rate"]) < _FEW_PIECES:
        rows.append(("verification rate", f"{min(one['rate']):,} to {max(one['rate']):,} entries a second on one core"))
    facts = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)
    shown = [(f"{row['label'][:16]}…", row["entries"], row["failed"]) for row in labels[:_MOST_LABELS]]
    return (
        f"<h2>{escape(one['source'])}</h2><table>{facts}</table>"
        f"<h2>Entries over time</h2>{plots.over_time([(at, n) for at, n in one['over_time']], 'entries over time')}"
        f"<h2>Entries of each label</h2>{plots.ranked(shown, 'entries of each label')}"
        f"{_more(len(labels), _MOST_LABELS)}"
        f"{_rates(one['rate'])}<h2>Faults</h2>"
        f"{plots.ranked([(kind, n, n) for kind, n in faults.most_common()], 'faults by kind') if faults else ''}"
        f"{_findings(one['findings'])}"
    )


def _rates(rate: list[int]) -> str:
    if len(rate) < _FEW_PIECES:
        return ""
    return (
        f"<h2>Verification rate</h2>{plots.spread(rate, 'entries a second on one core, piece by piece')}"
        "<p class=dim>entries a second on one core, and how many pieces of the log went at that rate</p>"
    )


def _kind(what: str) -> str:
    """The check that failed, where an entry failed one."""
    head, colon, _ = what.partition(": ")
    return head if colon and " " not in head else "artifact"


def _findings(found: list[dict[str, Any]]) -> str:
    if not found:
        return "<p class=good>none</p>"
    rows = "".join(
        f"<tr><td class=word>{escape(one['severity'])}</td>{_where(one['artifact'])}"
        f"<td class=word>{'' if one['stream_seq'] is None else one['stream_seq']}</td>"
        f"<td>{escape(brief(one['what']))}</td></tr>"
        for one in found[:_MOST_ROWS]
    )
    names = "<tr><th>severity</th><th>where</th><th>entry</th><th>what</th></tr>"
    return f"<table>{names}{rows}</table>{_more(len(found), _MOST_ROWS)}"


def _where(artifact: str) -> str:
    return f'<td title="{escape(artifact)}"><code>{escape(brief(artifact))}</code></td>'


def _equivocations(found: list[dict[str, Any]]) -> str:
    if not found:
        return ""
    rows = "".join(
        f"<tr><td><code>{one['label']}</code></td><td>{one['stream_seq']}</td>"
        f"<td>{'<br>'.join(map(escape, one['sources']))}</td></tr>"
        for one in found
    )
    names = "<tr><th>label</th><th>entry</th><th>the two copies</th></tr>"
    told = "The hub signed two different roots for one place. Both receipts are in the report, and prove it to anyone."
    return f"<h2 class=bad>Two histories</h2><p>{told}</p><table>{names}{rows}</table>"


def _more(count: int, shown: int) -> str:
    return f"<p class=dim>and {count - shown:,} more, in the report</p>" if count > shown else ""
