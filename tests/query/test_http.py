"""The HTTP interface: every response, every error_code, and the visibility of results. 001, query-api-spec §7."""

import asyncio
import json
import ssl
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbing.http import tls_context
from tests.http.certificates import client_context, write_certificate
from tests.query.query_fixture import COUNT, LOGIN, PATIENCE_S, SECRET, WEB, QuerySetup, asking, event
from veen.core import canonical_json
from veen.query import digest as digests
from veen.query.audit_events import ANSWERED, REQUESTS, RESULTS, SUBMITTED, events, requests
from veen.query.execution import MAX_LIMIT
from veen.query.policy import QueryPrincipal
from veen.query.query_app import MAX_BODY_BYTES
from veen.query.query_errors import QueryCode


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Status and error_code of an error response, after checking its form."""
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert set(found) == {"error_code", "message"}
    assert found["message"]
    assert QueryCode(found["error_code"]).status == answer.status_code
    return answer.status_code, found["error_code"]


# Answers


def test_a_query_without_wait_is_accepted(shared: QuerySetup) -> None:
    answer = shared.submit(asking(), wait=False)
    assert answer.status_code == 202
    found = answer.json()
    assert set(found) == {"query_id", "result_id", "status"}
    assert found["status"] == "pending"
    assert found["query_id"].startswith("q-")
    assert found["result_id"].startswith("r-")


def test_a_small_query_with_wait_is_answered_at_once(shared: QuerySetup) -> None:
    answer = shared.submit(asking())
    assert answer.status_code == 200
    assert set(answer.json()) == {"result_digest", "rows", "record_event"}


def test_status_becomes_completed_and_stays(shared: QuerySetup) -> None:
    digest = shared.answer()["result_digest"]
    path = f"/api/query/status/{digest['result_id']}"
    wanted = {
        "query_id": digest["query_id"],
        "result_id": digest["result_id"],
        "status": "completed",
        "error_code": None,
        "message": None,
    }
    assert shared.get(path).json() == shared.get(path).json() == wanted


def test_pages_are_parts_of_one_ordered_result_under_one_hash(shared: QuerySetup) -> None:
    whole = shared.answer()
    path, rows = f"/api/query/result/{whole['result_digest']['result_id']}", []
    for offset in range(0, COUNT + 5, 5):
        found = shared.get(path, params={"offset": offset, "limit": 5}).json()
        assert found["result_digest"] == whole["result_digest"]
        more = offset + 5 < COUNT
        assert found["page"] == {"offset": offset, "limit": 5, "total": COUNT, "has_more": more}
        rows += found["rows"]
    assert rows == whole["rows"]
    assert digests.rows_hash([canonical_json.encode(row) for row in rows]) == whole["result_digest"]["rows_hash"]
    assert shared.get(path).json()["page"]["limit"] == 1000
    beyond = shared.get(path, params={"offset": 2**53 - 1}).json()
    assert (beyond["rows"], beyond["page"]["has_more"]) == ([], False)


def test_the_hashes_match_the_specification(shared: QuerySetup) -> None:
    found = shared.answer(evidence={"mode": "spot", "sample_rate": 0.5}, query_id="q-hashes")
    digest = found["result_digest"]
    text = json.dumps(found["rows"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert digest["rows_hash"] == sha256(text.encode()).hexdigest()
    summary = shared.get(f"/api/query/evidence/{digest['result_id']}").json()["evidence_summary"]
    assert (summary["query_id"], summary["result_id"]) == ("q-hashes", digest["result_id"])
    assert (summary["mode"], summary["sample_rate"]) == ("spot", 0.5)
    assert 0 < len(summary["verified"]) < COUNT
    assert all(set(one) == {"receipt_id", "mmr_root", "hub_id"} for one in summary["verified"])
    text = json.dumps(summary, sort_keys=True, separators=(",", ":"))
    assert digest["evidence_hash"] == sha256(text.encode()).hexdigest()


def test_without_evidence_the_summary_says_so_and_nothing_else(shared: QuerySetup) -> None:
    digest = shared.answer()["result_digest"]
    assert digest["evidence_hash"] == sha256(b'{"mode":"none"}').hexdigest()


def test_a_descriptor_can_be_looked_up_where_it_was_recorded(shared: QuerySetup) -> None:
    shared.answer(query_id="q-looked-up", meta={"reason": "audit"}, filter={"time": {"from": "2020-01-01T00:00:00Z"}})
    found = shared.get("/api/query/descriptor/q-looked-up").json()
    assert found["descriptor"] == {
        "query_id": "q-looked-up",
        "version": 1,
        "scope": [WEB],
        "filter": {
            "subject_id": None,
            "event_type": None,
            "time": {"from": "2020-01-01T00:00:00.000Z", "to": None},
        },
        "projection": ["subject_id", "payload.n"],
        "evidence": {"mode": "none"},
        "meta": {"reason": "audit"},
    }
    record = found["record_event"]
    assert (record["stream"], record["hub_id"]) == (REQUESTS, shared.hub_id.hex())
    assert record["receipt_id"].endswith(f":{record['seq']}")


def test_groups_have_their_keys_and_a_value_for_each_metric(shared: QuerySetup) -> None:
    asked = {"group_by": ["payload.http.status"], "metrics": ["count", "min(event_time)", "max(event_time)"]}
    for mode in ("none", "full"):
        rows = shared.answer(aggregate=asked, evidence={"mode": mode})["rows"]
        assert [(row["payload.http.status"], row["count"]) for row in rows] == [(200, 4), (201, 4), (202, 4)]
        assert rows[0]["min(event_time)"] == "2023-11-14T22:13:20.000Z"
    assert shared.answer(aggregate={"metrics": ["count"]})["rows"] == [{"count": COUNT}]


FILTERS: list[tuple[dict[str, Any], int]] = [
    ({}, COUNT + 5),
    ({"subject_id": None, "event_type": None, "time": None}, COUNT + 5),
    ({"subject_id": "user:1"}, 4),
    ({"event_type": ["login"]}, 5),
    ({"event_type": []}, 0),
    ({"event_type": ["login", "http.request"], "subject_id": "user:0"}, 5),
    ({"time": {"to": "2020-01-01T00:00:00Z"}}, 0),
    ({"time": {"from": "2020-01-01T00:00:00Z", "to": "2999-01-01T00:00:00Z"}}, COUNT + 5),
    ({"subject_id": "nobody"}, 0),
]


@pytest.mark.parametrize(("kept", "count"), FILTERS, ids=lambda one: json.dumps(one))
@pytest.mark.parametrize("mode", ["none", "full"])
def test_a_filter_selects_matching_events(shared: QuerySetup, kept: dict[str, Any], count: int, mode: str) -> None:
    found = shared.answer(scope=[LOGIN, WEB], filter=kept, evidence={"mode": mode})
    assert len(found["rows"]) == found["result_digest"]["row_count"] == count


def test_queries_and_digests_are_recorder_events(own: QuerySetup) -> None:
    with own.serving():
        digest = own.answer("auditor", query_id="q-recorded")["result_digest"]

    async def read(client: Any) -> Any:
        return await events(client, REQUESTS, SUBMITTED), await events(client, RESULTS, ANSWERED)

    ((asked, place),), ((told, _),) = own.does(read)
    assert (asked.subject_id, asked.event_type) == ("audit office", "query.submitted")
    assert asked.value()["query_id"] == "q-recorded"
    assert digest["request_receipt_id"] == place.receipt_id
    assert (told.event_type, told.value()) == ("query.result", digest)
    assert told.subject_id.startswith("client:")


# Errors


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nothing", b'{"a":1,"a":2}', b"\xff", b"[" * 100, b'{"a":NaN}'],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_invalid_json_is_rejected(shared: QuerySetup, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = shared.ask("POST", "/api/query/submit", content=body, headers=headers)
    assert refusal(answer) == (400, "invalid_json")


WRONG: list[tuple[str, Any]] = [
    ("no object", []),
    ("no scope", {name: value for name, value in asking().items() if name != "scope"}),
    ("no filter", {name: value for name, value in asking().items() if name != "filter"}),
    ("no projection", {name: value for name, value in asking().items() if name != "projection"}),
    ("no evidence", {name: value for name, value in asking().items() if name != "evidence"}),
    ("an unknown top-level field", asking(limit=3)),
    ("an empty scope", asking(scope=[])),
    ("a scope of numbers", asking(scope=[1])),
    ("an unknown stream", asking(scope=["nowhere"])),
    ("an unknown filter", asking(filter={"colour": "red"})),
    ("a time of another form", asking(filter={"time": {"from": "yesterday"}})),
    ("a time that is none", asking(filter={"time": {"from": "2025-02-30T00:00:00Z"}})),
    ("a time with another zone", asking(filter={"time": {"to": "2025-01-01T00:00:00+01:00"}})),
    ("a time that ends first", asking(filter={"time": {"from": "2025-01-02T00:00:00Z", "to": "2025-01-01T00:00:00Z"}})),
    ("an empty projection", asking(projection=[])),
    ("an unknown field", asking(projection=["colour"])),
    ("a field twice", asking(projection=["origin", "origin"])),
    ("an unknown metric", asking(aggregate={"metrics": ["median(event_time)"]})),
    ("no metric", asking(aggregate={"metrics": []})),
    ("groups of an unknown field", asking(aggregate={"group_by": ["colour"], "metrics": ["count"]})),
    ("an unknown mode", asking(evidence={"mode": "some"})),
    ("spot without a rate", asking(evidence={"mode": "spot"})),
    ("a rate of nothing", asking(evidence={"mode": "spot", "sample_rate": 0})),
    ("a rate above one", asking(evidence={"mode": "spot", "sample_rate": 1.5})),
    ("a rate for full", asking(evidence={"mode": "full", "sample_rate": 0.5})),
    ("a rate for none", asking(evidence={"mode": "none", "sample_rate": 0.5})),
    ("an id that is too long", asking(query_id="q" * 65)),
    ("an id with a slash", asking(query_id="a/b")),
    ("an id that is no text", asking(query_id=7)),
    ("a version that is no number", asking(version="1")),
    ("a meta that is no object", asking(meta="because")),
]


@pytest.mark.parametrize("query", [query for _, query in WRONG], ids=[name for name, _ in WRONG])
def test_an_invalid_descriptor_is_rejected(shared: QuerySetup, query: Any) -> None:
    assert refusal(shared.submit(query)) == (400, "invalid_query_descriptor")


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_is_rejected(shared: QuerySetup, version: int) -> None:
    assert refusal(shared.submit(asking(version=version))) == (400, "unsupported_version")


PATHS = [
    ("POST", "/api/query/submit"),
    ("GET", "/api/query/status/r-1"),
    ("GET", "/api/query/result/r-1"),
    ("GET", "/api/query/descriptor/q-1"),
    ("GET", "/api/query/evidence/r-1"),
    ("GET", "/api/openapi.json"),
    ("GET", "/"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("who", [None, "veenq_made-up", "x"])
def test_without_a_valid_token_every_path_is_unauthorized(
    shared: QuerySetup, method: str, path: str, who: str | None
) -> None:
    answer = shared.ask(method, path, who, headers={"content-type": "application/json"})
    assert refusal(answer) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("stream", [SECRET, "record/security/login", "elsewhere", "record/ap"])
def test_a_stream_outside_the_scope_is_forbidden_whether_it_exists_or_not(shared: QuerySetup, stream: str) -> None:
    assert refusal(shared.submit(asking(scope=[WEB, stream]), "bob")) == (403, "forbidden_scope")


def test_an_unknown_id_is_not_found(shared: QuerySetup) -> None:
    for path in ("status/r-none", "result/r-none", "descriptor/q-none", "evidence/r-none", "result/%00"):
        assert refusal(shared.get(f"/api/query/{path}")) == (404, "query_not_found")


def test_results_of_others_are_not_found_unless_the_policy_allows(shared: QuerySetup) -> None:
    digest = shared.answer()["result_digest"]
    paths = [f"/api/query/{what}/{digest['result_id']}" for what in ("status", "result", "evidence")]
    for path in (*paths, f"/api/query/descriptor/{digest['query_id']}"):
        assert refusal(shared.get(path, "bob")) == (404, "query_not_found")
        assert shared.get(path, "auditor").status_code == 200


def test_a_query_id_can_be_used_once(shared: QuerySetup) -> None:
    shared.answer(query_id="q-once")
    assert refusal(shared.submit(asking(query_id="q-once"))) == (409, "duplicate_query_id")
    assert refusal(shared.submit(asking(query_id="q-once", projection=["origin"]), "bob")) == (
        409,
        "duplicate_query_id",
    )


def test_one_of_many_queries_with_the_same_id_is_accepted(shared: QuerySetup) -> None:
    async def rush() -> list[int]:
        headers = {"authorization": f"Bearer {shared.tokens['alice']}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{shared.port}", timeout=PATIENCE_S) as http:
            body = asking(query_id="q-rush")
            asked = [http.post("/api/query/submit", json=body, headers=headers) for _ in range(8)]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert sorted(asyncio.run(rush())) == [202] + [409] * 7


def test_an_id_in_the_log_stays_used_if_the_service_lost_its_folder(own: QuerySetup) -> None:
    with own.serving():
        own.answer(query_id="q-logged")
    for path in (own.folder / "jobs").iterdir():
        path.unlink()
    with own.serving():
        assert refusal(own.submit(asking(query_id="q-logged"))) == (409, "duplicate_query_id")


@pytest.mark.parametrize(
    "given", ["offset=-1", "limit=0", f"limit={MAX_LIMIT + 1}", "limit=ten", "page=2", "limit=1&limit=2", "offset="]
)
def test_an_invalid_page_is_rejected(shared: QuerySetup, given: str) -> None:
    result_id = shared.answer()["result_digest"]["result_id"]
    assert refusal(shared.get(f"/api/query/result/{result_id}?{given}")) == (400, "invalid_parameter")


def test_other_paths_methods_and_content_types_are_rejected(shared: QuerySetup) -> None:
    assert refusal(shared.get("/api/query/nothing")) == (404, "not_found")
    assert refusal(shared.get("/api/query/status/a/b")) == (404, "not_found")
    answer = shared.get("/api/query/submit")
    assert refusal(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    headers = {"content-type": "text/plain"}
    answer = shared.ask("POST", "/api/query/submit", content=b"{}", headers=headers)
    assert refusal(answer) == (415, "unsupported_media_type")
    answer = shared.ask("POST", "/api/query/submit", content=b" " * (MAX_BODY_BYTES + 1))
    assert refusal(answer) == (413, "too_large")
    answer = shared.get("/", headers={"x-long": "x" * 20_000})
    assert (answer.status_code, answer.json()["error_code"]) == (431, "bad_request")


def test_an_unfinished_result_is_not_ready(own: QuerySetup) -> None:
    with own.serving(workers=0):
        accepted = own.submit(asking(query_id="q-later"), wait=False).json()
        for what in ("result", "evidence"):
            assert refusal(own.get(f"/api/query/{what}/{accepted['result_id']}")) == (425, "result_not_ready")
        assert own.get(f"/api/query/status/{accepted['result_id']}").json()["status"] == "pending"
        assert own.get("/api/query/descriptor/q-later").json()["descriptor"]["query_id"] == "q-later"
        assert own.ask("POST", "/api/query/submit", json=asking(), headers={"prefer": "wait=1"}).status_code == 202


def test_a_query_that_cannot_be_recorded_is_not_accepted(own: QuerySetup) -> None:
    with own.serving():
        own.hub.stop()
        assert refusal(own.submit(asking(query_id="q-unrecorded"))) == (503, "unavailable")
        own.hub.start()
        (job,) = (own.folder / "jobs").iterdir()
        assert json.loads(job.read_text())["status"] == "failed"
        assert own.failures


def falsified(own: QuerySetup, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change rows of the table of events, with everything else as it was."""
    (path,) = (own.tables / "events").glob("stream=record%2Fapp%2Fweb/*/*.parquet")
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def _payload(rows: list[dict[str, Any]]) -> None:
    rows[3]["event"] = rows[3]["event"].replace('"n":', '"n":9')


def _subject(rows: list[dict[str, Any]]) -> None:
    rows[0]["subject_id"] = rows[-1]["subject_id"]


def _root(rows: list[dict[str, Any]]) -> None:
    rows[5]["mmr_root"] = bytes(32)


def _added(rows: list[dict[str, Any]]) -> None:
    rows.append({**rows[0], "stream_seq": 1_000})


def _writer(rows: list[dict[str, Any]]) -> None:
    rows[0]["client_id"] = bytes(32)


@pytest.mark.parametrize("change", [_payload, _subject, _root, _added, _writer])
def test_a_changed_table_makes_the_query_fail(own: QuerySetup, change: Callable[[list[dict[str, Any]]], None]) -> None:
    falsified(own, change)
    with own.serving():
        full = asking(evidence={"mode": "full"}, projection=["*"], query_id="q-full")
        assert refusal(own.submit(full)) == (500, "execution_failed")
        grouped = asking(evidence={"mode": "full"}, aggregate={"group_by": ["subject_id"], "metrics": ["count"]})
        if change in (_subject, _root, _added):
            assert refusal(own.submit(grouped)) == (500, "execution_failed")
        assert own.submit(asking(projection=["*"])).status_code == 200  # no evidence requested
        result_id = next(path.stem for path in (own.folder / "jobs").iterdir() if "q-full" in path.read_text())
        found = own.get(f"/api/query/status/{result_id}").json()
        assert (found["status"], found["error_code"]) == ("failed", "execution_failed")
        assert "evidence" in found["message"]
        assert refusal(own.get(f"/api/query/result/{result_id}")) == (500, "execution_failed")

    async def read(client: Any) -> Any:
        return await requests(client, REQUESTS), await events(client, RESULTS, ANSWERED)

    asked, told = own.does(read)
    assert "q-full" in {one.descriptor.query_id for one in asked}
    assert "q-full" not in {one.value()["query_id"] for one, _ in told}  # a failed query has no digest


def test_an_event_that_matches_the_query_only_in_the_tables_makes_it_fail(own: QuerySetup) -> None:
    falsified(own, _subject)
    with own.serving():
        query = asking(filter={"subject_id": "user:3"}, projection=["payload.n"], evidence={"mode": "full"})
        answer = own.submit(query)
        assert refusal(answer) == (500, "execution_failed")
        assert "does not match the query" in answer.json()["message"]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"no table")], ids=["gone", "damaged"])
def test_a_failed_query_names_no_file_of_the_service(own: QuerySetup, spoil: Callable[[Path], object]) -> None:
    with own.serving():
        paths = list(own.tables.rglob("*.parquet"))
        for path in paths:
            spoil(path)
        answer = own.submit(asking(projection=["*"], evidence={"mode": "full"}, query_id="q-spoilt"))
        assert answer.status_code == 500
        result_id = next(path.stem for path in (own.folder / "jobs").iterdir() if "q-spoilt" in path.read_text())
        for said in (answer.text, own.get(f"/api/query/status/{result_id}").text):
            assert str(own.folder.parent) not in said
            assert str(own.tables) not in said
            assert not any(path.name in said for path in paths)


def test_rows_changed_on_disk_are_not_served(own: QuerySetup) -> None:
    with own.serving():
        result_id = own.answer()["result_digest"]["result_id"]
    path = own.folder / "rows" / f"{result_id}.rows"
    path.write_bytes(path.read_bytes().replace(b"user:1", b"user:2", 1))
    with own.serving():
        assert refusal(own.get(f"/api/query/result/{result_id}")) == (500, "internal_error")
        assert own.get(f"/api/query/status/{result_id}").json()["status"] == "completed"


def test_every_error_code_of_the_specification_has_its_status() -> None:
    said = {
        "invalid_json": 400,
        "invalid_query_descriptor": 400,
        "unauthorized": 401,
        "forbidden_scope": 403,
        "query_not_found": 404,
        "duplicate_query_id": 409,
        "execution_failed": 500,
        "internal_error": 500,
        "unsupported_version": 400,
    }
    assert {str(code): code.status for code in QueryCode if str(code) in said} == said
    assert QueryCode.RESULT_NOT_READY.status in (425, 404, 409)


# Principals


def test_a_revoked_or_expired_token_is_rejected(own: QuerySetup) -> None:
    with own.serving():
        assert own.get("/api/openapi.json", "bob").status_code == 200
        own.book.revoke("bob", "test")
        assert refusal(own.get("/api/openapi.json", "bob")) == (401, "unauthorized")
        own.tokens["bob"] = own.book.issue("bob", "short", ttl_s=0)
        assert refusal(own.get("/api/openapi.json", "bob")) == (401, "unauthorized")


def test_tokens_are_not_on_disk(own: QuerySetup) -> None:
    path = own.folder / "principals.json"
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    for token in own.tokens.values():
        assert token not in text
        assert token.removeprefix("veenq_") not in text
        assert sha256(token.encode()).hexdigest() in text


def test_an_unsafe_principals_file_locks_everyone_out(own: QuerySetup) -> None:
    with own.serving():
        path = own.folder / "principals.json"
        path.chmod(0o644)
        path.write_text(path.read_text() + " ")
        assert refusal(own.get("/api/openapi.json")) == (500, "internal_error")
        path.chmod(0o600)
        path.write_text("{}")
        assert refusal(own.get("/api/openapi.json")) == (500, "internal_error")


@pytest.mark.parametrize("http2", [False, True])
def test_a_certificate_authenticates_a_principal(own: QuerySetup, tmp_path: Path, http2: bool) -> None:
    certs = {}
    for name in ("server", "carol", "stranger"):
        (tmp_path / name).mkdir()
        certs[name] = write_certificate(tmp_path / name)
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(certs["carol"][0].read_bytes())
    own.tls = tls_context(*certs["server"], trusted)
    der = ssl.PEM_cert_to_DER_cert(certs["carol"][0].read_text())
    own.book.put(QueryPrincipal("carol", "ca" * 32, ("record/app/*",), certificates=(sha256(der).hexdigest(),)))
    with own.serving():

        def ask(who: str | None, **given: Any) -> httpx.Response:
            context = client_context(certs["server"][0])
            if who is not None:
                context.load_cert_chain(*certs[who])
            with httpx.Client(verify=context, timeout=PATIENCE_S, http2=http2) as http:
                return http.post(f"https://localhost:{own.port}/api/query/submit", json=asking(), **given)

        accepted = ask("carol")
        assert (accepted.status_code, accepted.http_version) == (202, "HTTP/2" if http2 else "HTTP/1.1")
        assert refusal(ask(None)) == (401, "unauthorized")
        assert refusal(ask("carol", headers={"authorization": "Bearer wrong"})) == (401, "unauthorized")
        assert ask(None, headers={"authorization": f"Bearer {own.tokens['bob']}"}).status_code == 202
        with pytest.raises(httpx.TransportError):
            ask("stranger")
    job = next(iter((own.folder / "jobs").iterdir())).read_text()
    assert json.loads(job)["principal"] in ("carol", "bob")


def test_an_unknown_certificate_is_rejected(own: QuerySetup, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    own.tls = tls_context(cert, key, cert)
    with own.serving():
        context = client_context(cert)
        context.load_cert_chain(cert, key)
        with httpx.Client(verify=context, timeout=PATIENCE_S) as http:
            assert refusal(http.get(f"https://localhost:{own.port}/api/openapi.json")) == (401, "unauthorized")


def test_a_service_that_loads_tables_sees_new_events(own: QuerySetup) -> None:
    own.source = own.hub_url
    own.record(WEB, [event(100)])
    with own.serving():
        assert own.answer()["result_digest"]["row_count"] == COUNT + 1
