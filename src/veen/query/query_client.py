"""A client of the query service. It does not verify answers: see `answer_verify`."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from veen.client.exchange import BlockingExchange, TimedOut, reason_of
from veen.core import Malformed, Unavailable, canonical_json
from veen.core.canonical_json import Plain
from veen.query.digest import ResultDigest
from veen.query.execution import DEFAULT_LIMIT, DEFAULTS, MAX_LIMIT
from veen.query.query_errors import QueryCode, QueryFault
from veen.query.query_store import RecordedPlace

_TIMEOUT_S = 60.0  # for one whole exchange; a page gets more while it makes progress
_MAX_BYTES = 2 * DEFAULTS.max_bytes  # a service may allow larger pages than the default
_OK, _ACCEPTED = 200, 202


@dataclass(frozen=True, slots=True)
class AcceptedQuery:
    """A query that was recorded and will be executed."""

    query_id: str
    result_id: str
    status: str


@dataclass(frozen=True, slots=True)
class FullResult:
    """A result with all its rows."""

    digest: ResultDigest
    rows: list[dict[str, Plain]]
    recorded: RecordedPlace


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """The address of a service, a token or client certificate, and the CA of its certificate."""

    url: str
    token: str | None = None
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"cannot use the certificate or key: {error}") from None
        return context


class QueryClient:
    """Sends requests to one service. A context manager."""

    def __init__(self, access: ServiceAccess, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        headers = {"accept-encoding": "identity"}
        if access.token is not None:
            headers["authorization"] = f"Bearer {access.token}"
        verify = access.tls() if access.url.startswith("https:") else True
        self._url = access.url.rstrip("/")
        self._http = BlockingExchange(httpx.AsyncClient(headers=headers, verify=verify))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(self, query: Plain, wait_s: int = 0) -> AcceptedQuery | FullResult:
        """Submit a query. With `wait_s`, returns the result itself if it is ready in time and small."""
        headers = {"content-type": "application/json"} | ({"prefer": f"wait={wait_s}"} if wait_s else {})
        found = self._ask("POST", "/api/query/submit", content=canonical_json.encode(query), headers=headers)
        if "result_digest" in found:
            return FullResult(
                ResultDigest.of(found["result_digest"]), found["rows"], RecordedPlace(**found["record_event"])
            )
        return AcceptedQuery(found["query_id"], found["result_id"], found["status"])

    def status(self, result_id: str) -> dict[str, Any]:
        return self._ask("GET", f"/api/query/status/{result_id}")

    def page(self, result_id: str, offset: int = 0, limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
        return self._ask("GET", f"/api/query/result/{result_id}", params={"offset": offset, "limit": limit})

    def result(self, result_id: str) -> FullResult:
        """All rows, page by page."""
        rows: list[dict[str, Plain]] = []
        while True:
            found = self.page(result_id, len(rows), MAX_LIMIT)
            rows += found["rows"]
            if not found["page"]["has_more"]:
                return FullResult(ResultDigest.of(found["result_digest"]), rows, RecordedPlace(**found["record_event"]))
            if not found["rows"]:
                raise Malformed("result", "the service announced more rows but sent none")

    def descriptor(self, query_id: str) -> tuple[Plain, RecordedPlace]:
        found = self._ask("GET", f"/api/query/descriptor/{query_id}")
        return found["descriptor"], RecordedPlace(**found["record_event"])

    def evidence(self, result_id: str) -> dict[str, Plain]:
        found: dict[str, Plain] = self._ask("GET", f"/api/query/evidence/{result_id}")["evidence_summary"]
        return found

    def _ask(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        try:
            answer, body = self._http(method, self._url + path, limit_s=self._timeout_s, most=_MAX_BYTES, **given)
        except TimedOut as late:
            late.add_note("the service is overloaded, or the network is slow: try again later")
            raise
        except httpx.HTTPError as error:
            reason = reason_of(error)
            missing = Unavailable(f"the query service at {self._url} does not answer: {reason[:1].lower()}{reason[1:]}")
            missing.add_note("check the address and that veen query serve is running there")
            raise missing from None
        found: Any = canonical_json.parse(body, "answer")
        if not isinstance(found, dict):
            raise Malformed("answer", "it is not an object")
        if answer.status_code not in (_OK, _ACCEPTED):
            known = found.get("error_code") in QueryCode.__members__.values()
            code = QueryCode(found["error_code"]) if known else QueryCode.INTERNAL_ERROR
            retry_after = answer.headers.get("retry-after", "")
            again = int(retry_after) if retry_after.isdigit() else None
            raise QueryFault(code, str(found.get("message")), retry_after=again)
        return found
