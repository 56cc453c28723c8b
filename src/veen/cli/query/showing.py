"""Results in the forms that people want them in. What is shown has come to its digest first."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from terminalface.command import Misuse
from terminalface.extras import install_hint
from veen.cli import output
from veen.client.durable import check_local
from veen.core import Unverified

if TYPE_CHECKING:
    from veen.core.canonjson import Plain
    from veen.query.remote import Whole

FORMATS = ("table", "json", "csv", "parquet", "plot")
_ENDINGS = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".svg": "plot"}
_SHOWN_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Wish:
    """In which form, where to, and what a plot counts over."""

    form: str | None = None
    out: Path | None = None
    over: str | None = None

    def chosen(self) -> str:
        """The format, by its word or by the ending of the file. Refuses one that there is not."""
        if self.out is not None:
            check_local(self.out)
        if self.form is not None and self.form not in FORMATS:
            raise Misuse(f"there is no format {self.form!r}", f"there are {', '.join(FORMATS)}")
        if self.form is not None or self.out is None:
            return self.form or "table"
        if self.out.suffix.lower() not in _ENDINGS:
            raise Misuse(f"{self.out.name} ends like no format", f"end it with {', '.join(_ENDINGS)}; or give --format")
        return _ENDINGS[self.out.suffix.lower()]


def named(value: "Plain") -> list[str]:
    """The columns of what was asked, in the order in which they were."""
    from veen.query.checking import descriptor_of

    query = descriptor_of(value).query()
    return [*query.shown, *query.group_by, *query.metrics]


def show(found: "Whole", names: list[str], as_json: bool, wish: Wish) -> None:
    """Write a result down, or show it."""
    from veen.query import digest as digests

    texts = [digests.row_text(row) for row in found.rows]
    if (len(texts), digests.rows_hash(texts)) != (found.digest.row_count, found.digest.rows_hash):
        raise Unverified("result", "the rows are not those of the digest")
    out, over, chosen = wish.out, wish.over, wish.chosen()
    if out is not None:
        from veen.client.durable import DISK

        DISK.write_file(out, _written(found, names, chosen, over))
        output.facts({"rows": len(found.rows), "rows_hash": found.digest.rows_hash, "file": str(out)}, as_json)
    elif as_json or chosen == "json":
        output.document(_document(found))
    elif chosen == "parquet":
        raise Misuse("Parquet goes into a file", "give --out FILE.parquet")
    elif chosen == "plot":
        from veen.cli.query import plotting

        plotting.bars(plotting.counted(found.rows, over))
    elif chosen == "csv":
        sys.stdout.write(_csv(found.rows, names))
    else:
        _table(found, names)


def _document(found: "Whole") -> dict[str, Any]:
    return {
        "result_digest": found.digest.plain(),
        "record_event": found.recorded.plain(),
        "rows": found.rows,
    }


def _written(found: "Whole", names: list[str], form: str, over: str | None) -> bytes:
    match form:
        case "json":
            return json.dumps(_document(found), ensure_ascii=False).encode() + b"\n"
        case "csv" | "table":
            return _csv(found.rows, names).encode()
        case "parquet":
            return _parquet(found, names)
    from veen.cli.query import plotting

    return plotting.svg(plotting.counted(found.rows, over)).encode()


def cell(value: Any) -> str | int | float | bool | None:
    """A value in one field; what has parts is JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _table(found: "Whole", names: list[str]) -> None:
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


def _parquet(found: "Whole", names: list[str]) -> bytes:
    """Columns of one type each; where values are of several, they are texts. The digest goes along."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        from veen.cli.failures import hinted
        from veen.core import Unavailable

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
