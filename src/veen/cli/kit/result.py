"""The result of a command, stated once: as the JSON that it prints. Text is a view of the same values.

    Result(
        {"realm_id": realm_id, "handles": [fields_of(one, "handle", "target_id", "ts") for one in found]},
        rows="handles",
        columns=("handle", ("assigned to", "target_id"), ("since", "ts")),
    )

prints a table of three columns, or with --json the whole object. Without `rows`, text shows each value on a line.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeAlias

import typer

from plumbing.cli import result_output
from plumbing.cli.result_output import Formatted, Marked, Value
from veen.cli.kit import output
from veen.cli.kit.sanitize import printable, short

# A column of a table, or a line of facts: a key of the data, or a title with a key or a function of the data.
Column: TypeAlias = str | tuple[str, str | Callable[[Any], object]]


class Moment(int):
    """A time in seconds since 1970: a number in a pipe and in JSON, a date on a terminal."""

    @classmethod
    def of(cls, seconds: int | None) -> "Moment | None":
        return None if seconds is None else cls(seconds)


@dataclass(frozen=True, slots=True)
class Result:
    """The data of a result, an object or a list of objects, and how text shows it."""

    data: Mapping[str, Any] | Sequence[Mapping[str, Any]]  # keys that start with _ are for text only
    _: KW_ONLY
    rows: str | None = None  # the key of a list in `data`, shown as a table with `columns`
    columns: Sequence[Column] = ()
    facts: Sequence[Column] | None = None  # lines above the table; by default every value if there is no table
    text: str | None = None  # instead of facts and table, for scripts that use one value as it is
    remarks: tuple[str, ...] = ()  # for standard error
    status: int = 0  # the exit status

    def show(self, as_json: bool) -> None:
        """Print the result and its remarks. Ends the command if the result has a status of its own."""
        self.print(as_json)
        for remark in self.remarks:
            output.remark(remark)
        if self.status:
            raise typer.Exit(self.status)

    def print(self, as_json: bool) -> None:
        if as_json:
            output.document(jsonable(self._public()))
        elif self.text is not None:
            sys.stdout.write(self.text + "\n")
        else:
            self._show_text()

    def _public(self) -> Any:
        """The data for JSON: without the keys of the object and of its rows that are for text only."""
        if not isinstance(self.data, Mapping):
            return [_without_private(row) for row in self.data]
        data = _without_private(self.data)
        return {**data, self.rows: [_without_private(row) for row in data[self.rows]]} if self.rows in data else data

    def _show_text(self) -> None:
        data = self.data
        if not isinstance(data, Mapping):
            rows: Sequence[Any] | None = data
        else:
            rows = None if self.rows is None else data[self.rows]
            facts = self.facts if self.facts is not None else tuple(data) if rows is None else ()
            if facts:
                output.facts({_title(one): cell(_value(one, data)) for one in facts}, False)
        if rows is not None:
            table = [[cell(_value(one, row), in_table=True) for one in self.columns] for row in rows]
            output.table([_title(one) for one in self.columns], table, False)


def cell(value: object, *, in_table: bool = False) -> Value:
    """A value as text: ids are short in a table on a terminal, untrusted text is escaped, lists and maps are JSON."""
    match value:
        case Moment():
            return result_output.moment(value)
        case None | bool() | int() | float() | Marked() | Formatted():
            return value
        case bytes():
            return short(value) if in_table else value
        case str():
            return printable(value)
    return printable(json.dumps(jsonable(value), ensure_ascii=False))


def jsonable(value: Any) -> Any:
    """A value for JSON: bytes as hex, maps with text keys."""
    match value:
        case bytes():
            return value.hex()
        case Marked() | Formatted():
            return value.text
        case Mapping():
            return {str(key): jsonable(one) for key, one in value.items()}
        case tuple() | list():
            return [jsonable(one) for one in value]
    return value


def fields_of(record: object, *names: str) -> dict[str, Any]:
    """Fields of a record, for the data of a result."""
    return {name: getattr(record, name) for name in names}


def listed(name: str) -> Callable[[Mapping[str, Any]], str | None]:
    """A column that shows the list under a key as its items with commas between them."""
    return lambda data: ", ".join(map(str, data[name])) or None


def inside(key: str, columns: Iterable[Column]) -> list[Column]:
    """Columns of the object under a key."""

    def of(column: Column) -> Callable[[Any], object]:
        return lambda data: _value(column, data[key])

    return [(_title(one), of(one)) for one in columns]


def fixed(columns: Sequence[Column], data: Mapping[str, Any]) -> list[Column]:
    """Columns with the values that they have in `data`, whatever they are shown with."""

    def constant(value: object) -> Callable[[Any], object]:
        return lambda _: value

    return [(_title(one), constant(_value(one, data))) for one in columns]


def _without_private(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def _title(column: Column) -> str:
    return column if isinstance(column, str) else column[0]


def _value(column: Column, data: Mapping[str, Any]) -> object:
    key = column if isinstance(column, str) else column[1]
    return data[key] if isinstance(key, str) else key(data)
