"""The HTTP interface of the query service. Cross-origin requests are rejected before authentication.

A browser does not attach a token by itself, but it does attach a client certificate. Therefore no response allows other
origins to read it, no query is accepted in a content type that a page may post without a preflight, and requests from
pages of other origins or for unknown host names are rejected.

`openapi` describes the interface. The service serves the description, and docs/query-openapi.json is a copy.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

from plumbing.background import Tasks
from plumbing.http import App, Request, Respond, Response, WebSocketHandler
from plumbing.http.peer_address import authority_of, is_local_request, is_loopback
from veen.core import VeenError, canonical_json
from veen.core.canonical_json import Plain
from veen.core.limits import SERVER_VERSION
from veen.pipeline.engine.event_query import MODES
from veen.query.descriptor import ID_PATTERN, MAX_LISTED, VERSION, parse
from veen.query.execution import DEFAULT_LIMIT, MAX_LIMIT
from veen.query.policy import PolicyBook, QueryPrincipal
from veen.query.query_errors import QueryCode, QueryFault
from veen.query.query_service import QueryService, ResultPage
from veen.query.query_store import QueryJob, QueryStatus

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


def openapi_text() -> str:
    return json.dumps(openapi(), indent=2) + "\n"


def openapi() -> dict[str, Any]:
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


_CROSS_ORIGIN = frozenset({b"cross-site", b"same-site"})


class OriginCheck:
    """Rejects requests of other origins. `names` are host names accepted besides its own address, as from a proxy."""

    def __init__(self, host: str, names: Sequence[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names)
        # A service on a network address may have any host name, unless the operator listed the names.
        self._closed = is_loopback(host) or bool(names)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `QueryFault` unless the request is for this service and not from a page of another origin."""
        host, origin = _text(headers, b"host") or "", _text(headers, b"origin")
        if self._closed:
            allowed = is_local_request(host, origin, self._names)
        else:
            allowed = origin is None or "" != authority_of(origin) == host.lower()
        if not allowed or (origin is None and headers.get(b"sec-fetch-site") in _CROSS_ORIGIN):
            message = "the Host or Origin header names another service"
            raise QueryFault(QueryCode.FORBIDDEN_HOST, message)


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    found = headers.get(name)
    return None if found is None else found.decode("latin-1")


JSON = b"application/json"
MAX_BODY_BYTES = 1 << 17
MAX_WAIT_S = 30
_NUMBER = re.compile(r"\d{1,16}", re.ASCII)
_WAIT = re.compile(rb"(?:^|,)\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?:$|[,;])")
_CODE_OF: dict[int, QueryCode] = {
    401: QueryCode.UNAUTHORIZED,
    404: QueryCode.NOT_FOUND,
    405: QueryCode.METHOD_NOT_ALLOWED,
    413: QueryCode.TOO_LARGE,
    500: QueryCode.INTERNAL_ERROR,
    503: QueryCode.UNAVAILABLE,
}

Report = Callable[[str, BaseException], None]
Handler = Callable[[QueryPrincipal, Request, str], Awaitable[Response]]


class QueryApp(App):
    """The application behind the HTTP server."""

    def __init__(self, service: QueryService, book: PolicyBook, origin_check: OriginCheck, report: Report) -> None:
        self._service = service
        self._origin_check = origin_check
        self._book = book
        self._report = report
        self._tasks = Tasks()
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/api/query/submit"): self._submit,
            ("GET", "/api/query/status/"): self._status,
            ("GET", "/api/query/result/"): self._result,
            ("GET", "/api/query/descriptor/"): self._descriptor,
            ("GET", "/api/query/evidence/"): self._evidence,
            ("GET", "/api/openapi.json"): self._openapi,
        }

    # Called by the HTTP server

    def body_limit(self, method: str, path: str) -> int | None:
        return MAX_BODY_BYTES if method == "POST" else None

    def too_large(self, head: Request) -> Response:
        return _error(QueryCode.TOO_LARGE, f"the body has more than {MAX_BODY_BYTES} bytes")

    def refused(self, status: int, reason: str, head: Request) -> Response:
        message = reason or HTTPStatus(status).phrase.lower()
        return _error(_CODE_OF.get(status, QueryCode.BAD_REQUEST), message, status)

    def websocket(self, head: Request) -> WebSocketHandler | Response:
        return _error(QueryCode.NOT_FOUND, "this service has no WebSockets")

    def handle(self, request: Request, respond: Respond) -> None:
        self._tasks.start(self._answer(request, respond))

    async def _answer(self, request: Request, respond: Respond) -> None:
        try:
            answer = await self._dispatch(request)
        except QueryFault as fault:
            answer = _error(QueryCode(fault.code), fault.message, retry_after=fault.retry_after)
        except (VeenError, OSError) as error:
            self._report("answer", error)
            answer = _error(QueryCode.INTERNAL_ERROR, "the stored data of the service cannot be read; see its log")
        except Exception as error:  # noqa: BLE001 # the client waits for a response
            self._report("answer", error)
            answer = _error(QueryCode.INTERNAL_ERROR, "the service failed to answer; see its log")
        respond(answer)

    async def _dispatch(self, request: Request) -> Response:
        self._origin_check.check(request.headers)
        principal = self._principal(request)
        methods = []
        for (method, path), handler in self._routes.items():
            name = request.path.removeprefix(path) if path.endswith("/") else ""
            found = request.path.startswith(path) and "/" not in name if path.endswith("/") else request.path == path
            if not found:
                continue
            if request.method == method or (request.method, method) == ("HEAD", "GET"):
                return await handler(principal, request, unquote(name))
            methods.append(method)
        if methods:
            answer = _error(QueryCode.METHOD_NOT_ALLOWED, f"{request.method} is not allowed for this path")
            answer.headers = ((b"allow", ", ".join(methods).encode()),)
            return answer
        raise QueryFault(QueryCode.NOT_FOUND, "unknown path")

    def _principal(self, request: Request) -> QueryPrincipal:
        """Authenticate the request. A token, if given, must be valid, even with a valid certificate."""
        given = request.headers.get(b"authorization")
        found = None
        if given is not None:
            scheme, _, token = given.partition(b" ")
            if scheme.lower() == b"bearer":
                found = self._book.by_token(token.strip().decode("latin-1"))
        elif request.certificate is not None:
            found = self._book.by_certificate(request.certificate)
        if found is None:
            raise QueryFault(QueryCode.UNAUTHORIZED, "unknown or missing token or certificate")
        return found

    # Requests

    async def _submit(self, principal: QueryPrincipal, request: Request, _: str) -> Response:
        form = request.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if form != JSON:
            raise QueryFault(QueryCode.UNSUPPORTED_MEDIA_TYPE, "the content type of a query must be application/json")
        job = await self._service.submit(principal, parse(request.body), request.is_lost)
        wait_s = _wait(request.headers)
        if wait_s:
            job = await self._service.ended(job, wait_s)
            if job.status is QueryStatus.FAILED:
                raise QueryFault(
                    QueryCode(job.error_code or QueryCode.EXECUTION_FAILED), job.message or "the query failed"
                )
            if job.status is QueryStatus.COMPLETED and self._service.digest(job).row_count <= DEFAULT_LIMIT:
                digest, page = await asyncio.to_thread(self._service.page, job, 0, DEFAULT_LIMIT)
                if not page.has_more:
                    content = {"result_digest": digest.plain(), "record_event": _recorded(job)}
                    return _json(200, content, page, paged=False)
        return _json(202, {"query_id": job.query_id, "result_id": job.result_id, "status": "pending"})

    async def _status(self, principal: QueryPrincipal, _: Request, result_id: str) -> Response:
        job = self._service.job_of_result(principal, result_id)
        content: dict[str, Plain] = {"query_id": job.query_id, "result_id": job.result_id, "status": str(job.status)}
        return _json(200, {**content, "error_code": job.error_code, "message": job.message})

    async def _result(self, principal: QueryPrincipal, request: Request, result_id: str) -> Response:
        wanted = _parameters(request.query)
        job = self._service.job_of_result(principal, result_id)
        digest, page = await asyncio.to_thread(self._service.page, job, wanted["offset"], wanted["limit"])
        return _json(200, {"result_digest": digest.plain(), "record_event": _recorded(job)}, page)

    async def _descriptor(self, principal: QueryPrincipal, _: Request, query_id: str) -> Response:
        job = self._service.job_of_query(principal, query_id)
        if job.request is None:
            raise QueryFault(QueryCode.RESULT_NOT_READY, f"{query_id} is being recorded")
        asked = canonical_json.decode(job.descriptor.encode(), "descriptor")
        return _json(200, {"descriptor": asked, "record_event": asdict(job.request)})

    async def _evidence(self, principal: QueryPrincipal, _: Request, result_id: str) -> Response:
        job = self._service.job_of_result(principal, result_id)
        digest = self._service.digest(job)
        summary = await asyncio.to_thread(self._service.evidence, job)
        return _json(200, {"result_digest": digest.plain(), "evidence_summary": summary})

    async def _openapi(self, *_: object) -> Response:
        return Response(200, openapi_text().encode(), JSON)


def _recorded(job: QueryJob) -> Plain:
    assert job.result is not None
    return asdict(job.result)


def _json(status: int, content: dict[str, Plain], page: ResultPage | None = None, *, paged: bool = True) -> Response:
    body = canonical_json.encode(content)
    if page is not None:
        # The rows are sent as they were hashed.
        rows = b'"rows":[' + b",".join(page.rows) + b"]"
        place: Plain = {"offset": page.offset, "limit": page.limit, "total": page.total, "has_more": page.has_more}
        tail = b',"page":' + canonical_json.encode(place) if paged else b""
        body = body[:-1] + b"," + rows + tail + b"}"
    return Response(status, body, JSON)


def _error(code: QueryCode, message: str, status: int | None = None, retry_after: int | None = None) -> Response:
    text = message.encode("utf-8", "replace").decode()
    headers = [(b"www-authenticate", b"Bearer")] if code is QueryCode.UNAUTHORIZED else []
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    body = canonical_json.encode({"error_code": str(code), "message": text})
    return Response(status or code.status, body, JSON, tuple(headers))


def _wait(headers: Mapping[bytes, bytes]) -> int:
    """How long the client prefers to wait for the result. RFC 7240, §4.3."""
    found = _WAIT.search(headers.get(b"prefer", b"").lower())
    return 0 if found is None else min(int(found[1]), MAX_WAIT_S)


def _parameters(query: str) -> dict[str, int]:
    made = {"offset": 0, "limit": DEFAULT_LIMIT}
    least, most = {"offset": 0, "limit": 1}, {"offset": canonical_json.MAX_EXACT, "limit": MAX_LIMIT}
    given = parse_qsl(query, keep_blank_values=True)
    for name, text in given:
        if name not in made:
            raise QueryFault(QueryCode.INVALID_PARAMETER, f"unknown parameter {name[:40]!r}")
        if not _NUMBER.fullmatch(text) or not least[name] <= int(text) <= most[name]:
            raise QueryFault(QueryCode.INVALID_PARAMETER, f"{name} must be a number from {least[name]} to {most[name]}")
        made[name] = int(text)
    if len({name for name, _ in given}) != len(given):
        raise QueryFault(QueryCode.INVALID_PARAMETER, "a parameter is given twice")
    return made
