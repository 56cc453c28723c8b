"""The result of a command: one mapping, printed as JSON, as facts or as a table."""

import json

import pytest
import typer

from veen.cli.kit.result import Column, Moment, Result, cell, fields_of, fixed, inside, listed

ROWS = [{"id": b"\xab" * 32, "name": "one", "tags": ("a", "b"), "_note": "first"}]
COLUMNS: tuple[Column, ...] = ("id", ("called", "name"), ("tags", listed("tags")), ("note", "_note"))


def test_a_mapping_is_shown_as_facts_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result({"id": b"\xab", "at": Moment(7), "none": None, "yes": True, "map": {1: b"\x01"}})
    result.show(False)
    assert capsys.readouterr().out == 'id\tab\nat\t7\nnone\t\nyes\tyes\nmap\t{"1": "01"}\n'
    result.show(True)
    assert json.loads(capsys.readouterr().out) == {"id": "ab", "at": 7, "none": None, "yes": True, "map": {"1": "01"}}


def test_rows_are_shown_as_a_table_and_text_only_values_are_not_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result({"count": 1, "rows": ROWS, "_more": "text"}, rows="rows", columns=COLUMNS)
    result.show(False)
    assert capsys.readouterr().out == f"{'ab' * 32}\tone\ta, b\tfirst\n"
    result.show(True)
    assert json.loads(capsys.readouterr().out) == {
        "count": 1,
        "rows": [{"id": "ab" * 32, "name": "one", "tags": ["a", "b"]}],
    }


def test_a_list_is_a_table_without_facts(capsys: pytest.CaptureFixture[str]) -> None:
    Result(ROWS, columns=("name", ("note", "_note"))).show(False)
    assert capsys.readouterr().out == "one\tfirst\n"
    Result(ROWS, columns=("name",)).show(True)
    assert json.loads(capsys.readouterr().out) == [{"id": "ab" * 32, "name": "one", "tags": ["a", "b"]}]


def test_untrusted_text_is_escaped_in_text_only(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result({"name": "a\x1b[2Jb", "list": ["\x07"]})
    result.show(False)
    assert capsys.readouterr().out == 'name\ta\\x1b[2Jb\nlist\t["\\u0007"]\n'
    result.show(True)
    assert json.loads(capsys.readouterr().out) == {"name": "a\x1b[2Jb", "list": ["\x07"]}


def test_text_replaces_facts_and_a_status_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        Result({"value": 1}, text="plain", remarks=("noted",), status=13).show(False)
    assert ended.value.exit_code == 13
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("plain\n", "veen: noted\n")


def test_columns_can_look_inside_an_object_and_keep_their_values() -> None:
    data = {"inner": {"a": 1, "b": [2]}}
    (first, second) = inside("inner", ("a", ("c", "b")))
    assert [one[0] for one in (first, second)] == ["a", "c"]
    shown = Result(data, facts=fixed((first, second), data))
    assert shown.facts is not None
    assert [cell(one[1](None)) for one in shown.facts if not isinstance(one[1], str)] == [1, "[2]"]


def test_fields_are_taken_from_a_record() -> None:
    assert fields_of(Moment(5), "real", "imag") == {"real": 5, "imag": 0}
    assert Moment.of(None) is None
