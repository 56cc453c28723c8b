"""The OpenAPI description of the HTTP interface. The service serves it, and docs/query-openapi.json is a copy."""

import json
from typing import Any

from veen.core.limits import SERVER_VERSION
from veen.pipeline.engine.event_query import MODES
from veen.query.descriptor import ID_PATTERN, MAX_LISTED, VERSION
from veen.query.query_errors import STATUS, QueryCode
from veen.query.query_limits import DEFAULT_LIMIT, MAX_LIMIT

_JSON = "application/json"
_TEXT = {"type": "string"}
_MAYBE_TEXT = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}
_HASH = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_ID = {"type": "string", "pattern": ID_PATTERN}
_WHEN = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
_TIME = {"type": ["string", "null"], "description": "YYYY-MM-DDTHH:MM:SSZ, with up to three decimal places"}
_ROW = {"type": "object"}
_LIMIT = {"default": DEFAULT_LIMIT, "minimum": 1, "maximum": MAX_LIMIT}


def text() -> str:
    return json.dumps(describe(), indent=2) + "\n"


def describe() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "VEEN query service", "version": SERVER_VERSION, "license": {"name": "Apache-2.0"}},
        "security": [{"token": []}, {"certificate": []}],
        "paths": {
            "/api/query/submit": {"post": _submit()},
            "/api/query/status/{result_id}": _get("status", "the status of a query", "result_id", "QueryStatus"),
            "/api/query/result/{result_id}": _get("result", "the rows", "result_id", "ResultPage", paged=True),
            "/api/query/descriptor/{query_id}": _get(
                "descriptor", "the recorded query", "query_id", "RecordedDescriptor"
            ),
            "/api/query/evidence/{result_id}": _get("evidence", "the verified events", "result_id", "ResultEvidence"),
            "/api/openapi.json": {
                "get": {
                    "operationId": "openapi",
                    "summary": "this description",
                    "responses": {"200": _answer("this description", {"type": "object"}), "default": _REFUSAL},
                }
            },
        },
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _object(optional: tuple[str, ...] = (), *, strict: bool = False, **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    made = {"type": "object", "properties": properties, "required": required}
    return {**made, "additionalProperties": False} if strict else made


def _list(of: Any, least: int = 0, most: int | None = MAX_LISTED) -> dict[str, Any]:
    made = {"type": "array", "items": of, "minItems": least}
    return made if most is None else {**made, "maxItems": most}


def _named(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _submit() -> dict[str, Any]:
    return {
        "operationId": "submit",
        "summary": "submit a query; with `Prefer: wait=SECONDS`, get the result itself if it is ready in time",
        "description": (
            "A query with more rows or bytes than the service allows, or that takes longer, fails with "
            "`result_too_large` or `query_timeout`. A client with too many unfinished queries gets `too_many_queries`. "
            "While the tables are being filled, every client gets `tables_not_ready`. These two are not recorded."
        ),
        "parameters": [
            {"in": "header", "name": "Prefer", "required": False, "schema": {"type": "string"}, "example": "wait=5"}
        ],
        "requestBody": {"required": True, "content": {_JSON: {"schema": _named("QueryRequest")}}},
        "responses": {
            "200": _answer("the answer", _named("Answer")),
            "202": _answer("the query is recorded and will be executed", _named("Accepted")),
            "default": _REFUSAL,
        },
    }


def _get(name: str, summary: str, of: str, gives: str, *, paged: bool = False) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [{"in": "path", "name": of, "required": True, "schema": _ID}]
    if paged:
        for given, schema in (("offset", {"default": 0, "minimum": 0, "maximum": 2**53 - 1}), ("limit", _LIMIT)):
            parameters.append(
                {"in": "query", "name": given, "required": False, "schema": {"type": "integer", **schema}}
            )
    responses = {"200": _answer(summary, _named(gives)), "default": _REFUSAL}
    return {"get": {"operationId": name, "summary": summary, "parameters": parameters, "responses": responses}}


def _answer(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {_JSON: {"schema": schema}}}


_REFUSAL = {
    **_answer("an error; each error_code has one status", _named("Error")),
    "headers": {"Retry-After": {"description": "seconds to wait before a retry, if one may succeed", "schema": _COUNT}},
}


def _schemas() -> dict[str, Any]:
    evidence = _object(
        ("sample_rate",), mode={"enum": list(MODES)}, sample_rate={"type": ["number", "null"]}, strict=True
    )
    fields = {
        "query_id": _ID,
        "version": {"const": VERSION},
        "scope": _list({"type": "string", "minLength": 1}, 1),
        "filter": _named("Filter"),
        "projection": _list({"type": "string", "minLength": 1}, 1),
        "aggregate": _named("Aggregate"),
        "evidence": _named("EvidencePolicy"),
        "meta": {"type": "object"},
    }
    digest = _named("ResultDigest")
    return {
        "QueryRequest": _object(("query_id", "version", "aggregate", "meta"), **fields, strict=True),
        "QueryDescriptor": _object(("aggregate", "meta"), **fields, strict=True),
        "Filter": _object(
            ("subject_id", "event_type", "time"),
            strict=True,
            subject_id=_MAYBE_TEXT,
            event_type={"anyOf": [_list({"type": "string", "minLength": 1}), {"type": "null"}]},
            time={"anyOf": [_object(("from", "to"), strict=True, **{"from": _TIME, "to": _TIME}), {"type": "null"}]},
        ),
        "Aggregate": _object(
            ("group_by",),
            strict=True,
            group_by={"anyOf": [_list({"type": "string", "minLength": 1}), {"type": "null"}]},
            metrics=_list({"type": "string", "minLength": 1}, 1),
        ),
        "EvidencePolicy": evidence,
        "Accepted": _object(query_id=_ID, result_id=_ID, status={"const": "pending"}),
        "Answer": _object(result_digest=digest, record_event=_named("RecordEvent"), rows=_list(_ROW, 0, None)),
        "QueryStatus": _object(
            query_id=_ID,
            result_id=_ID,
            status={"enum": ["pending", "running", "completed", "failed"]},
            error_code=_MAYBE_TEXT,
            message=_MAYBE_TEXT,
        ),
        "ResultPage": _object(
            result_digest=digest,
            record_event=_named("RecordEvent"),
            rows=_list(_ROW, 0, None),
            page=_object(
                offset=_COUNT,
                limit={**_COUNT, "description": "the requested number; fewer if the page reached its byte limit"},
                total=_COUNT,
                has_more={"type": "boolean"},
            ),
        ),
        "RecordedDescriptor": _object(descriptor=_named("QueryDescriptor"), record_event=_named("RecordEvent")),
        "ResultEvidence": _object(result_digest=digest, evidence_summary={"type": "object"}),
        "RecordEvent": _object(stream=_TEXT, seq=_COUNT, hub_id=_HASH, receipt_id=_TEXT),
        "ResultDigest": _digest(),
        "Error": _object(error_code={"enum": [str(code) for code in QueryCode]}, message=_TEXT),
    }


def _digest() -> dict[str, Any]:
    return _object(
        ("profile_id", "request_receipt_id"),
        query_id=_ID,
        result_id=_ID,
        version={"const": VERSION},
        row_count=_COUNT,
        evidence_policy=_named("EvidencePolicy"),
        rows_hash=_HASH,
        evidence_hash=_HASH,
        executed_at=_WHEN,
        hub_id=_HASH,
        basis=_list(_object(stream=_TEXT, label=_HASH, seq=_COUNT), 0, None),
        profile_id=_TEXT,
        request_receipt_id=_TEXT,
    )


assert STATUS.keys() == set(QueryCode), "every code needs a status"
