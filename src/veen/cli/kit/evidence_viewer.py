"""A page that shows the content of one evidence file, without any verdict.

The sender of a page can make it say anything, so this page checks nothing and says where to get the verifier. It has
no script: nothing in an evidence file can become code, and every text is escaped.
"""

import base64
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import escape

from veen.cli.kit import message_content, sanitize
from veen.client import message_attachments
from veen.client.evidence import EvidenceReport, ShownEntry
from veen.client.message_attachments import Attachment
from veen.client.sender import DEFAULT_SCHEMA
from veen.core import Limits, Malformed, Opened, Unverified

MAX_SHOWN = 200
MAX_TEXT = 20_000

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #1b1f24; --quiet: #57606a; --line: #d0d7de;
  --warn: #7d4e00; --warn-back: #fff8c5; --accent: #0a58ca; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --card: #161b22; --text: #e6edf3; --quiet: #9aa4af;
  --line: #30363d; --warn: #e3b341; --warn-back: #32270a; --accent: #6cb0ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; }
h2 { font-size: 1.1rem; margin: 0 0 .5rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .75rem; padding: 1rem;
  margin: 0 0 1rem; }
section.unchecked { border: 2px solid var(--warn); background: var(--warn-back); }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) minmax(0, 1fr); gap: .25rem 1rem; margin: 0; }
dt { color: var(--quiet); }
dd { margin: 0; white-space: pre-wrap; unicode-bidi: isolate; }
small { color: var(--quiet); }
a { color: var(--accent); }
@media (max-width: 30rem) { dl { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: .5rem; } }
"""
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'"
)
_HEAD = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>VEEN evidence viewer</title>
<style>{STYLE}</style>
</head>
<body>
<h1>What an evidence file says</h1>
<section class="unchecked">
<h2>Nothing on this page is verified</h2>
<p>The sender of a page can make it say anything. This page only shows the content. To check it:</p>
<ol>
<li>Get the verifier, <code>verify.html</code>, from a release of VEEN, not from the sender of this page. Compare its
SHA-256 with the one in the release notes. With VEEN installed, <code>veen evidence verifier --out verify.html</code>
writes the same file.</li>
<li>Save the evidence file: """


def page(found: EvidenceReport, data: bytes, name: str) -> bytes:
    """The page for an evidence file named `name` with the bytes `data`."""
    href = f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"
    parts = [_HEAD, f'<a download="{_shown(name)}" href="{href}">{_shown(name)}</a>.</li>']
    parts.append("<li>Open the verifier, drop the file on it, and enter the hub id. Get the hub id from a contract, a ")
    parts.append("website or the operator, not from the sender.</li>\n</ol>\n</section>\n")
    for entry in found.entries[:MAX_SHOWN]:
        parts.append(_section(f"Entry {entry.receipt.stream_seq}", _entry(entry)))
    if len(found.entries) > MAX_SHOWN:
        parts.append(f"<p>The file has {len(found.entries) - MAX_SHOWN} more entries.</p>\n")
    parts.append(_section("Statements of the hub", _statements(found)))
    parts.append(_section("The file", _about(found, data)))
    return "".join([*parts, "</body>\n</html>\n"]).encode()


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    shown = "".join(f"<dt>{_shown(name)}</dt><dd>{_shown(value)}</dd>\n" for name, value in rows)
    return f"<section>\n<h2>{escape(title)}</h2>\n<dl>\n{shown}</dl>\n</section>\n"


def _shown(text: str) -> str:
    """Text as markup that shows it, bounded and without characters that change how the rest is displayed."""
    more = f" … ({len(text) - MAX_TEXT} more characters)" if len(text) > MAX_TEXT else ""
    lines = [sanitize.printable(line) for line in text[:MAX_TEXT].split("\n")]
    return escape("\n".join(lines) + more)


def _entry(entry: ShownEntry) -> Iterator[tuple[str, str]]:
    yield "Time", f"{sanitize.when(entry.receipt.hub_ts)} UTC by the clock of the hub"
    yield "Written by", _who(entry)
    yield "Label", entry.receipt.label.hex()
    if entry.opened is None:
        yield "Content", "sealed: it is not in the file"
        return
    schema, body, attached = unwrapped(entry.opened)
    yield from _content(schema, body)
    for part in attached:
        yield "Attachment", f"{part.name}, {sanitize.size(part.size)}"


def _who(entry: ShownEntry) -> str:
    key = f"the holder of client_id {entry.client_id.hex()}"
    return f"{key}; a card in the file assigns it to the identity {entry.writer.hex()}" if entry.writer else key


def _content(schema: bytes, body: bytes) -> Iterator[tuple[str, str]]:
    event = message_content.event_of(schema, body)
    if event is not None and event.fault is None:
        yield "Schema", event.name
        for name, value in event.fields.items():
            yield name, message_content.word(value)
        return
    if event is not None:
        yield "Schema", f"{event.name}, but the body does not fit it: {event.fault}"
    elif schema != DEFAULT_SCHEMA:
        yield "Schema", f"unknown, {schema.hex()}"
    text = sanitize.text_of(body)
    yield "Content", f"in hex: {body.hex()}" if text is None else text


def _statements(found: EvidenceReport) -> Iterator[tuple[str, str]]:
    for one in found.receipts[:MAX_SHOWN]:
        yield f"Receipt of entry {one.stream_seq}", f"root {one.mmr_root.hex()}"
    for point in found.checkpoints[:MAX_SHOWN]:
        yield f"Checkpoint up to entry {point.upto_seq}", f"root {point.mmr_root.hex()}"


def _about(found: EvidenceReport, data: bytes) -> Iterator[tuple[str, str]]:
    if found.claim:
        yield "Claim of the sender", found.claim
    yield "Hub id in the file", found.hub_id.hex()
    yield "Size", sanitize.size(len(data))
    yield "SHA-256", sha256(data).hexdigest()


def unwrapped(opened: Opened) -> tuple[bytes, bytes, tuple[Attachment, ...]]:
    """The schema, the body and the attachments of a message."""
    try:
        return message_attachments.unwrap(opened, Limits())
    except (Malformed, Unverified):  # the entry is proved although its attachment list is broken
        return opened.header.schema, opened.body, ()
