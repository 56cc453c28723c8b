"""Query results as table, JSON, CSV or Parquet, and as a plot of counts over time."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rich.bar import Bar
from rich.table import Table

from plumbing.cli import install_hint
from plumbing.cli.command import Misuse
from veen.cli.kit import output
from veen.cli.kit.exit_status import hinted
from veen.client.local_files import DISK, check_local
from veen.core import Unavailable, Unverified
from veen.core.canonical_json import Plain
from veen.query import descriptor
from veen.query import digest as digests
from veen.query.answer_verify import descriptor_of
from veen.query.query_client import FullResult

_TIMES = ("hub_commit_time", "event_time")
_STEPS_S = (1, 5, 15, 60, 300, 900, 3_600, 10_800, 43_200, 86_400, 604_800, 2_592_000, 31_536_000)
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_MAX_BARS = 48
_MAX_BAR_WIDTH = 40.0
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 800, 320, 56, 44, 36, 12
_MAX_LABEL_WIDTH = 130
_MS = 1_000


@dataclass(frozen=True, slots=True)
class TimeCounts:
    """Number of rows in each time step."""

    field: str
    step_s: int
    start_s: int
    bars: tuple[int, ...]

    def name(self, at: int) -> str:
        text = descriptor.time_text((self.start_s + at * self.step_s) * _MS)
        return text[:10] if self.step_s >= 86_400 else text[:16].replace("T", " ") if self.step_s >= 60 else text[:19]


def count_by_time(rows: Sequence[dict[str, Any]], over: str | None) -> TimeCounts:
    """Count rows by a time field. A row with a `count` field counts for that many."""
    names = dict.fromkeys(name for row in rows for name in row)
    field = over or next((name for name in (*_TIMES, *names) if name in names and _has_times(rows, name)), None)
    if field is None or not _has_times(rows, field):
        raise Misuse("the rows have no time field to plot", "query hub_commit_time, and name it with --over")
    found = [(descriptor.parse_time(row[field]) // _MS, _weight(row)) for row in rows if row.get(field) is not None]
    first, last = min(at for at, _ in found), max(at for at, _ in found)
    step = next((one for one in _STEPS_S if (last // one - first // one) < _MAX_BARS), _STEPS_S[-1])
    start = first // step * step
    bars = [0] * (last // step - first // step + 1)
    for at, weight in found:
        bars[(at - start) // step] += weight
    return TimeCounts(field, step, start, tuple(bars))


def _weight(row: dict[str, Any]) -> int:
    given = row.get("count", 1)
    return given if isinstance(given, int) and not isinstance(given, bool) else 1


def _has_times(rows: Sequence[dict[str, Any]], name: str) -> bool:
    found = [row[name] for row in rows if row.get(name) is not None]
    try:
        return bool(found) and all(descriptor.parse_time(one) >= 0 for one in found)
    except (TypeError, ValueError):
        return False


def _length(seconds: int) -> str:
    """A time step in the largest unit that divides it."""
    unit, size = next((unit, size) for unit, size in _UNITS if seconds % size == 0)
    return f"{seconds // size} {unit}"


def bars(counts: TimeCounts) -> None:
    """Print one line with a bar for each time step."""
    most = max(counts.bars)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(counts.field, style="cyan", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("", ratio=1, min_width=20)
    for at, count in enumerate(counts.bars):
        table.add_row(counts.name(at), str(count), Bar(max(1, most), 0, count, color="green"))
    output.console().print(table)


def svg(counts: TimeCounts) -> str:
    """A self-contained SVG picture."""
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    most, each = max(1, *counts.bars), (_WIDTH - _LEFT - _RIGHT) / len(counts.bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f"<title>{escape(f'count by {counts.field}')}</title>",
        f'<text x="{_LEFT}" y="20">{escape(f"count by {counts.field} (UTC), {_length(counts.step_s)} a bar")}</text>',
        f'<line x1="{_LEFT}" y1="{_TOP + high}" x2="{_LEFT + wide}" y2="{_TOP + high}" stroke="black"/>',
        f'<text x="{_LEFT - 6}" y="{_TOP + 6}" text-anchor="end">{most}</text>',
        f'<text x="{_LEFT - 6}" y="{_TOP + high}" text-anchor="end">0</text>',
    ]
    thick = min(_MAX_BAR_WIDTH, max(1.0, each - 1))
    for at, count in enumerate(counts.bars):
        tall = high * count / most
        name = escape(f"{counts.name(at)}: {count}")
        lines.append(
            f'<rect x="{_LEFT + (at + 0.5) * each - thick / 2:.2f}" y="{_TOP + high - tall:.2f}" width="{thick:.2f}" '
            f'height="{tall:.2f}" fill="#2e7d32"><title>{name}</title></rect>'
        )
    shown = sorted({0, len(counts.bars) // 2, len(counts.bars) - 1})
    for at in shown:
        place = _LEFT + (at + 0.5) * each
        near = each < _MAX_LABEL_WIDTH  # a centred label would not fit into the picture
        anchor = "start" if near and at == 0 else "end" if near and at == shown[-1] else "middle"
        lines.append(
            f'<text x="{place:.2f}" y="{_TOP + high + 20}" text-anchor="{anchor}">{escape(counts.name(at))}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


FORMATS = ("table", "json", "csv", "parquet", "plot")
_ENDINGS = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".svg": "plot"}
_SHOWN_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Format, output file and time field of a plot."""

    form: str | None = None
    out: Path | None = None
    over: str | None = None

    def chosen(self) -> str:
        """The format from --format or the file's ending. Raises if it is unknown."""
        if self.out is not None:
            check_local(self.out)
        if self.form is not None and self.form not in FORMATS:
            raise Misuse(f"there is no format {self.form!r}", f"the formats are {', '.join(FORMATS)}")
        if self.form is not None or self.out is None:
            return self.form or "table"
        if self.out.suffix.lower() not in _ENDINGS:
            raise Misuse(f"{self.out.name} has no known ending", f"use {', '.join(_ENDINGS)}, or give --format")
        return _ENDINGS[self.out.suffix.lower()]


def column_names(value: Plain) -> list[str]:
    """The columns of a query, in the order of the descriptor."""
    query = descriptor_of(value).query()
    return [*query.shown, *query.group_by, *query.metrics]


def show(found: FullResult, names: list[str], as_json: bool, options: RenderOptions) -> None:
    """Verify the rows against the digest, then write the result to a file or print it."""
    texts = [digests.row_text(row) for row in found.rows]
    if (len(texts), digests.rows_hash(texts)) != (found.digest.row_count, found.digest.rows_hash):
        raise Unverified("result", "the rows do not match the digest")
    out, over, chosen = options.out, options.over, options.chosen()
    if out is not None:
        DISK.write_file(out, _encode(found, names, chosen, over))
        output.facts({"rows": len(found.rows), "rows_hash": found.digest.rows_hash, "file": str(out)}, as_json)
    elif as_json or chosen == "json":
        output.document(_document(found))
    elif chosen == "parquet":
        raise Misuse("--format parquet needs a file", "give --out FILE.parquet")
    elif chosen == "plot":
        bars(count_by_time(found.rows, over))
    elif chosen == "csv":
        sys.stdout.write(_csv(found.rows, names))
    else:
        _table(found, names)


def _document(found: FullResult) -> dict[str, Any]:
    return {
        "result_digest": found.digest.plain(),
        "record_event": asdict(found.recorded),
        "rows": found.rows,
    }


def _encode(found: FullResult, names: list[str], form: str, over: str | None) -> bytes:
    match form:
        case "json":
            return json.dumps(_document(found), ensure_ascii=False).encode() + b"\n"
        case "csv" | "table":
            return _csv(found.rows, names).encode()
        case "parquet":
            return _parquet(found, names)

    return svg(count_by_time(found.rows, over)).encode()


def cell(value: Any) -> str | int | float | bool | None:
    """A value for one cell. Objects and arrays become JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _table(found: FullResult, names: list[str]) -> None:
    rows = [tuple(cell(row.get(name)) for name in names) for row in found.rows[:_SHOWN_ROWS]]
    output.table(names, rows, False)
    if len(found.rows) > _SHOWN_ROWS:
        output.remark(f"{len(found.rows) - _SHOWN_ROWS} more rows; --out FILE has all of them")
    output.remark(f"{found.digest.row_count} rows, {found.digest.rows_hash[:16]}…, {found.digest.result_id}")


def _csv(rows: Sequence[dict[str, Any]], names: list[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[cell(row.get(name)) for name in names] for row in rows])
    return text.getvalue()


def _parquet(found: FullResult, names: list[str]) -> bytes:
    """A Parquet file with the digest in its metadata. A column with values of several types becomes JSON text."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise hinted(Unavailable("pyarrow is not installed"), install_hint("spark")) from None
    arrays = {}
    for name in names:
        values = [cell(row.get(name)) for row in found.rows]
        kinds = {type(one) for one in values if one is not None}
        arrays[name] = values if len(kinds) <= 1 else [None if one is None else json.dumps(one) for one in values]
    table = pa.table(arrays).replace_schema_metadata({"veen.result_digest": found.digest.text()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())
