"""`veen explain` knows every code of hubs, states and query services."""

import re
from pathlib import Path

import pytest

from tests.cli.runner import Veen
from veen.cli import explain
from veen.core.admission import ADMISSION, API_STATUS, STATUS
from veen.overlays import rpc, wallet_ledger
from veen.query import query_errors
from veen.state import stream_stores

OF_HUBS = [*(f"{row.code}/{row.detail_enum}" for row in ADMISSION), *API_STATUS]
EVERY = [*OF_HUBS, *explain.STATE, *query_errors.QueryCode]
HTTP: dict[str, int] = {**STATUS, **{str(code): code.status for code in query_errors.QueryCode}}


def test_the_list_is_complete_and_in_the_order_of_the_checks(veen: Veen) -> None:
    rows = [line.split("\t") for line in veen.done("explain").out.splitlines()]
    assert [row[0] for row in rows] == EVERY
    assert {row[0].split("/")[0] for row in rows[: len(OF_HUBS)]} == set(STATUS)
    assert all(len(row) == 4 for row in rows)
    assert [row[0] for row in rows if not all(row)] == list(explain.STATE)  # these have no HTTP status


@pytest.mark.parametrize("name", EVERY)
def test_every_code_is_explained_by_the_name_that_errors_print(name: str, veen: Veen) -> None:
    code, _, detail = name.partition("/")
    found = veen.done("explain", name, "--json").json()
    assert (found["code"], found["detail_enum"]) == (code, detail or None)
    assert found["http_status"] == HTTP.get(code)
    assert found["when"]
    assert found["what_to_do"]
    shown = veen.done("explain", name).facts()
    assert shown["code"] == name
    assert shown["what to do"] == found["what_to_do"]


@pytest.mark.parametrize("text", ["CAP_TTL", "cap_ttl", "E.TIME/CAP_TTL", "e.time/cap_ttl", "E.TIME/CAP_TTL:"])
def test_a_code_is_found_in_any_spelling(text: str, veen: Veen) -> None:
    assert veen.done("explain", text).facts()["code"] == "E.TIME/CAP_TTL"


def test_a_code_with_several_causes_lists_them(veen: Veen) -> None:
    names = [one["detail_enum"] for one in veen.done("explain", "E.SEQ", "--json").json()]
    assert names == ["PREV_ACK", "DUPLICATE", "CLIENT_SEQ"]
    assert len(veen.done("explain", "cap").out.splitlines()) == 2


@pytest.mark.parametrize("text", ["", "E", "E.", "TTL", "E.TIME/", "E.TIME/AUTH_REF", "418"])
def test_an_unknown_code_is_a_usage_error(text: str, veen: Veen) -> None:
    ran = veen("explain", text)
    assert ran.status == 2
    assert ran.error == f"there is no error code {text!r}"


def test_every_code_is_found_once_by_its_own_name() -> None:
    assert [[one.name for one in explain.find(name)] for name in EVERY] == [[name] for name in EVERY]


def test_every_code_in_the_source_is_explained() -> None:
    known = {one.code for one in explain.codes()}
    sources = [path.read_text() for path in (Path(__file__).parents[2] / "src" / "veen").rglob("*.py")]
    written = {code for text in sources for code in re.findall(r'\bRefused\(\s*"([^"]+)"', text)}
    assert len(written) > 5
    assert written <= known
    assert {*wallet_ledger.WalletCode, rpc.UNKNOWN_METHOD, stream_stores.FAILED, stream_stores.REPLY_TO} <= known
    assert set(explain.QUERY) == set(query_errors.QueryCode)


def test_an_epoch_refusal_names_the_unregistered_stream_and_the_remedy(veen: Veen) -> None:
    found = veen.done("explain", "EPOCH").facts()
    assert "registered stream" in found["when"]
    assert "veen hub stream add" in found["what to do"]
