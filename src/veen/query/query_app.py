"""Whose requests are heard at all, before it is asked who they are: not those of a page of another site.

A token does not come along by itself, but a certificate does, and a browser has one in store. So no answer says that
another origin may read it, no query is taken in a form that a page may post unasked, and what comes from a page
elsewhere, or by a name that is not this service's, is refused.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

from plumbing.http import Request, Respond, Response, Upload, WebSocketHandler
from plumbing.http.peer_address import authority_of, is_asked_here, is_loopback
from veen.core import VeenError, canonical_json
from veen.core.canonical_json import Plain
from veen.query import query_openapi
from veen.query.descriptor import parse
from veen.query.policy import PolicyBook, QueryPrincipal
from veen.query.query_errors import STATUS, QueryCode, QueryFault
from veen.query.query_limits import DEFAULT_LIMIT, MAX_LIMIT
from veen.query.query_service import QueryService, ResultPage
from veen.query.query_store import QueryJob, QueryStatus

_ELSEWHERE = frozenset({b"cross-site", b"same-site"})


class OriginCheck:
    """`names` are those that it is asked by beside its own address, as a proxy passes them on."""

    def __init__(self, host: str, names: Sequence[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names)
        # One that listens to the network is known by whatever name its operator gave it, unless that was said.
        self._closed = is_loopback(host) or bool(names)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless the request is for this service, and from no page elsewhere."""
        host, origin = _text(headers, b"host") or "", _text(headers, b"origin")
        if self._closed:
            heard = is_asked_here(host, origin, self._names)
        else:
            heard = origin is None or "" != authority_of(origin) == host.lower()
        if not heard or (origin is None and headers.get(b"sec-fetch-site") in _ELSEWHERE):
            raise QueryFault(
                QueryCode.FORBIDDEN_HOST, "this service is asked by its own address, and by no page of another"
            )


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


class QueryApp:
    """What stands behind the HTTP front."""

    def __init__(self, service: QueryService, book: PolicyBook, gate: OriginCheck, report: Report) -> None:
        self._service = service
        self._gate = gate
        self._book = book
        self._report = report
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/api/query/submit"): self._submit,
            ("GET", "/api/query/status/"): self._status,
            ("GET", "/api/query/result/"): self._result,
            ("GET", "/api/query/descriptor/"): self._descriptor,
            ("GET", "/api/query/evidence/"): self._evidence,
            ("GET", "/api/openapi.json"): self._openapi,
        }

    # What the front asks.

    def body_limit(self, method: str, path: str) -> int | None:
        return MAX_BODY_BYTES if method == "POST" else None

    def too_large(self, head: Request) -> Response:
        return _error(QueryCode.TOO_LARGE, f"a body of more than {MAX_BODY_BYTES} bytes")

    def refused(self, status: int, reason: str, head: Request) -> Response:
        message = reason or HTTPStatus(status).phrase.lower()
        return _error(_CODE_OF.get(status, QueryCode.BAD_REQUEST), message, status)

    def upload(self, head: Request) -> Upload | Response | None:
        return None

    def shortcut(self, head: Request) -> Callable[[bytes, Respond], None] | None:
        return None

    def websocket(self, head: Request) -> WebSocketHandler | Response:
        return _error(QueryCode.NOT_FOUND, "there are no WebSockets here")

    def handle(self, request: Request, respond: Respond) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(request, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Request, respond: Respond) -> None:
        try:
            answer = await self._dispatch(request)
        except QueryFault as fault:
            answer = _error(QueryCode(fault.code), fault.message, retry_after=fault.retry_after)
        except (VeenError, OSError) as error:
            self._report("answer", error)
            answer = _error(QueryCode.INTERNAL_ERROR, "what the service keeps cannot be had; its log says why")
        except Exception as error:  # noqa: BLE001  whatever it is, someone waits for an answer
            self._report("answer", error)
            answer = _error(QueryCode.INTERNAL_ERROR, "the service failed to answer; its log says why")
        respond(answer)

    async def _dispatch(self, request: Request) -> Response:
        self._gate.check(request.headers)
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
            answer = _error(QueryCode.METHOD_NOT_ALLOWED, f"{request.method} is not for this path")
            answer.headers = ((b"allow", ", ".join(methods).encode()),)
            return answer
        raise QueryFault(QueryCode.NOT_FOUND, "there is no such path")

    def _principal(self, request: Request) -> QueryPrincipal:
        """Who asks. A token that is given must hold, whatever the certificate says."""
        given = request.headers.get(b"authorization")
        found = None
        if given is not None:
            scheme, _, token = given.partition(b" ")
            if scheme.lower() == b"bearer":
                found = self._book.by_token(token.strip().decode("latin-1"))
        elif request.certificate is not None:
            found = self._book.by_certificate(request.certificate)
        if found is None:
            raise QueryFault(QueryCode.UNAUTHORIZED, "there is no such token or certificate here")
        return found

    # What is asked.

    async def _submit(self, principal: QueryPrincipal, request: Request, _: str) -> Response:
        form = request.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if form != JSON:
            raise QueryFault(QueryCode.UNSUPPORTED_MEDIA_TYPE, "a query is sent as application/json")
        job = await self._service.submit(principal, parse(request.body), request.is_lost)
        wait_s = _wait(request.headers)
        if wait_s:
            job = await self._service.ended(job, wait_s)
            if job.status is QueryStatus.FAILED:
                raise QueryFault(QueryCode(job.error_code or QueryCode.EXECUTION_FAILED), job.message or "it failed")
            if job.status is QueryStatus.COMPLETED and self._service.digest(job).row_count <= DEFAULT_LIMIT:
                digest, page = await asyncio.to_thread(self._service.page, job, 0, DEFAULT_LIMIT)
                if not page.has_more:
                    told = {"result_digest": digest.plain(), "record_event": _recorded(job)}
                    return _json(200, told, page, paged=False)
        return _json(202, {"query_id": job.query_id, "result_id": job.result_id, "status": "pending"})

    async def _status(self, principal: QueryPrincipal, _: Request, result_id: str) -> Response:
        job = self._service.seen(principal, result_id)
        told: dict[str, Plain] = {"query_id": job.query_id, "result_id": job.result_id, "status": str(job.status)}
        return _json(200, {**told, "error_code": job.error_code, "message": job.message})

    async def _result(self, principal: QueryPrincipal, request: Request, result_id: str) -> Response:
        wanted = _parameters(request.query)
        job = self._service.seen(principal, result_id)
        digest, page = await asyncio.to_thread(self._service.page, job, wanted["offset"], wanted["limit"])
        return _json(200, {"result_digest": digest.plain(), "record_event": _recorded(job)}, page)

    async def _descriptor(self, principal: QueryPrincipal, _: Request, query_id: str) -> Response:
        job = self._service.asked(principal, query_id)
        if job.request is None:
            raise QueryFault(QueryCode.RESULT_NOT_READY, f"{query_id} is being recorded")
        asked = canonical_json.decode(job.descriptor.encode(), "descriptor")
        return _json(200, {"descriptor": asked, "record_event": job.request.plain()})

    async def _evidence(self, principal: QueryPrincipal, _: Request, result_id: str) -> Response:
        job = self._service.seen(principal, result_id)
        digest = self._service.digest(job)
        summary = await asyncio.to_thread(self._service.evidence, job)
        return _json(200, {"result_digest": digest.plain(), "evidence_summary": summary})

    async def _openapi(self, *_: object) -> Response:
        return Response(200, query_openapi.text().encode(), JSON)


def _recorded(job: QueryJob) -> Plain:
    assert job.result is not None
    return job.result.plain()


def _json(status: int, told: dict[str, Plain], page: ResultPage | None = None, *, paged: bool = True) -> Response:
    body = canonical_json.encode(told)
    if page is not None:
        # Rows are written as they were hashed.
        rows = b'"rows":[' + b",".join(page.rows) + b"]"
        place: dict[str, Plain] = {
            "offset": page.offset,
            "limit": page.limit,
            "total": page.total,
            "has_more": page.has_more,
        }
        tail = b',"page":' + canonical_json.encode(place) if paged else b""
        body = body[:-1] + b"," + rows + tail + b"}"
    return Response(status, body, JSON)


def _error(code: QueryCode, message: str, status: int | None = None, retry_after: int | None = None) -> Response:
    text = message.encode("utf-8", "replace").decode()
    headers = [(b"www-authenticate", b"Bearer")] if code is QueryCode.UNAUTHORIZED else []
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    body = canonical_json.encode({"error_code": str(code), "message": text})
    return Response(status or STATUS[code], body, JSON, tuple(headers))


def _wait(headers: Mapping[bytes, bytes]) -> int:
    """How long whoever asks prefers to wait for the answer itself. RFC 7240, §4.3."""
    found = _WAIT.search(headers.get(b"prefer", b"").lower())
    return 0 if found is None else min(int(found[1]), MAX_WAIT_S)


def _parameters(query: str) -> dict[str, int]:
    made = {"offset": 0, "limit": DEFAULT_LIMIT}
    least, most = {"offset": 0, "limit": 1}, {"offset": canonical_json.MAX_EXACT, "limit": MAX_LIMIT}
    given = parse_qsl(query, keep_blank_values=True)
    for name, text in given:
        if name not in made:
            raise QueryFault(QueryCode.INVALID_PARAMETER, f"there is no parameter {name[:40]!r}")
        if not _NUMBER.fullmatch(text) or not least[name] <= int(text) <= most[name]:
            raise QueryFault(QueryCode.INVALID_PARAMETER, f"{name} is not a number from {least[name]} to {most[name]}")
        made[name] = int(text)
    if len({name for name, _ in given}) != len(given):
        raise QueryFault(QueryCode.INVALID_PARAMETER, "a parameter is given twice")
    return made
