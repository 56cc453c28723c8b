"""HTTP requests to a hub: pooled connections, bounded responses, and retries.

Every request may be repeated. Reads change nothing, and a repeated message has the same bytes: a hub admits it once and
then answers with the place it already has.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from veen.client.exchange import SMALL_BYTES, exchange, no_answer
from veen.client.read_access import ReadSigner, certified, trusting
from veen.core import Malformed, Receipt, Refused, Unavailable, strict_json, wire_json
from veen.core.cbor import DeferredFaults, Wire
from veen.core.envelopes import SUBMIT_RESPONSE_HEAD, SUBMIT_RESPONSE_TAIL, ErrorEnvelope, SubmitResponse
from veen.core.limits import MAX_MSG_BYTES, MAX_PAGE_BYTES
from veen.core.proof_of_work import HEADER, challenge_of, solve
from veen.core.receipt import read_usual

# A solver that needs this many times the expected number of tries is broken, not unlucky.
_MAX_TRIES_FACTOR = 64


@dataclass(frozen=True, slots=True)
class WorkRequired:
    """The proof of work that a hub requires: its id and the number of zero bits."""

    hub_id: bytes
    difficulty: int

    @classmethod
    def of(cls, refused: Refused, body: bytes) -> "WorkRequired | None":
        """The work that a rejection requires; None if it requires none. Raises if it is not for this request."""
        detail = refused.detail
        if refused.detail_enum != "PREFILTER_REJECT" or not isinstance(detail.get("difficulty"), int):
            return None
        required = cls(_bytes(detail.get("hub_id")), int(detail["difficulty"]))
        if challenge_of(required.hub_id, body) != _bytes(detail.get("challenge")):
            raise Malformed("proof of work", "the hub's challenge does not match this request")
        return required


async def _solved(required: WorkRequired, body: bytes) -> dict[str, str]:
    """The header with a proof of work for a request."""
    challenge, tries = challenge_of(required.hub_id, body), _MAX_TRIES_FACTOR << required.difficulty
    cookie = await asyncio.to_thread(lambda: solve(challenge, required.difficulty, most_tries=tries))
    return {HEADER: cookie.header()}


def _bytes(text: object) -> bytes:
    try:
        return bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return b""


W = TypeVar("W", bound=Wire)
T = TypeVar("T")
Outcome = Receipt | Refused

CBOR = "application/cbor"
JSON = "application/json"
OCTETS = "application/octet-stream"
_CBOR_HEADERS = {"content-type": CBOR}
_SUBMIT_HEAD = b"\xa2\x01\x01\x02"  # {1: 1, 2: msg}: the rest of a submit request is the encoded MSG
# The messages of a page are bounded. Their receipts and the encoding around them need at most as much again.
_MOST_PAGE = 2 * MAX_PAGE_BYTES + MAX_MSG_BYTES
_OUTCOME_BYTES = 8192  # a receipt, or an error with its message and details
_ARRAY_MAJOR = 4


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Timeouts, and how often and when to retry."""

    attempts: int = 8
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    longest_retry_after_s: float = 60.0  # a longer retry_after fails at once
    poll_s: float = 1.0  # interval for hubs without subscriptions
    connect_s: float = 5.0  # to connect, and again for the TLS handshake; both count towards answer_s
    answer_s: float = 30.0  # for one exchange, from connecting to the end of the response: see `exchange`
    most_pow_bits: int = 22  # requests that need more work fail

    def wait_s(self, attempt: int) -> float:
        """The delay before attempt `attempt` + 1: exponential, with half of it random, so that clients spread out."""
        full = min(self.first_wait_s * 2.0**attempt, self.longest_wait_s)
        return full * (0.5 + random.random() / 2)


class HubLink:
    """Connections to one hub."""

    def __init__(
        self,
        url: str,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        retry_policy: RetryPolicy | None = None,
        http2: bool = False,
        connections: int = 16,
    ) -> None:
        """`tls` makes a context. HTTP and WebSocket connections need different ones, because they negotiate ALPN."""
        self.url = _checked(url)
        self.tls = certified(self.url, tls or partial(trusting, self.url))
        self.reads: ReadSigner | None = None  # signs what the hub answers only to known readers
        self.retry_policy = retry_policy or RetryPolicy()
        self.on_pause: Callable[[Exception], None] = lambda error: None  # called with the error before each retry
        self._http2 = http2
        self._connections = connections
        self._client = self._connect()
        self._before: httpx.AsyncClient | None = None  # the client before the last `renew`
        self._work: WorkRequired | None = None  # the proof of work that the hub required last for a message

    def _connect(self) -> httpx.AsyncClient:
        # Shorter than a hub's idle timeout, so that few pooled connections are already closed.
        pool = httpx.Limits(
            max_connections=self._connections, max_keepalive_connections=self._connections, keepalive_expiry=30
        )
        return httpx.AsyncClient(
            base_url=self.url,
            verify=self.tls() if self.is_https else False,
            http2=self._http2,
            limits=pool,
            headers={"accept-encoding": "identity", "user-agent": "veen"},
            trust_env=False,
        )

    @property
    def is_https(self) -> bool:
        return self.url.startswith("https://")

    async def close(self) -> None:
        for client in (self._client, self._before):
            if client is not None:
                await client.aclose()

    async def renew(self) -> None:
        """Use new connections from now on. Requests in progress finish on the old ones."""
        oldest, self._before, self._client = self._before, self._client, self._connect()
        if oldest is not None:
            await oldest.aclose()

    # Requests.

    async def ask(self, path: str, request: Wire, answer: type[W], most: int = SMALL_BYTES) -> W:
        """POST a request and decode the response. Raises `Refused`, `Unavailable` or `Malformed`."""
        return answer.decode(await self._post(path, request.encode(), most))

    async def page(self, request: Wire) -> bytes:
        """One encoded page of a stream."""
        return await self._post("/v1/stream", request.encode(), _MOST_PAGE)

    async def get_json(self, path: str, *, once: bool = False) -> strict_json.Json:
        """`once` makes one attempt, for callers that retry themselves."""
        body = await (self._read("GET", path, b"", SMALL_BYTES) if once else self.get(path, SMALL_BYTES))
        return strict_json.decode(body, path)

    async def get(self, path: str, most: int) -> bytes:
        return await self._retry(lambda: self._read("GET", path, b"", most))

    async def put(
        self, path: str, make: Callable[[], AsyncIterator[bytes]], size: int, headers: dict[str, str] | None = None
    ) -> None:
        """PUT a streamed body. `make` starts the body again for each attempt."""
        sent = {"content-type": OCTETS, "content-length": str(size), **(headers or {})}
        await self._retry(lambda: self._request("PUT", path, make(), most=SMALL_BYTES, headers=sent))

    # Submitting. One attempt each: the sender decides what to do after a lost response.

    async def submit(self, encoded: bytes) -> Outcome:
        """Submit one encoded MSG. Returns its receipt or rejection. Raises `Unavailable` if the result is unknown."""
        try:
            body = await self._send_with_work("/v1/submit", _SUBMIT_HEAD + encoded, SMALL_BYTES, ahead=True)
        except Refused as refused:
            return refused
        usual = read_usual(body, len(SUBMIT_RESPONSE_HEAD)) if body.startswith(SUBMIT_RESPONSE_HEAD) else None
        if usual and body[usual[1] :] == SUBMIT_RESPONSE_TAIL:
            return usual[0]
        return SubmitResponse.decode(body).receipt

    async def submit_batch(self, encoded: Sequence[bytes]) -> list[Outcome]:
        """Submit several MSGs. Returns their outcomes in order. Raises `Refused` if the hub accepts no batches."""
        most = SMALL_BYTES + _OUTCOME_BYTES * len(encoded)
        body = await self._send_with_work("/tooling/submit-batch", b"".join(encoded), most, ahead=False)
        outcomes = _outcomes(body)
        if len(outcomes) != len(encoded):
            raise Malformed("batch answer", f"expected {len(encoded)} outcomes, got {len(outcomes)}")
        return outcomes

    # Implementation.

    async def _send_with_work(self, path: str, body: bytes, most: int, *, ahead: bool) -> bytes:
        """One attempt, with a proof of work if the hub requires one within `most_pow_bits`.

        With `ahead`, it already has the work that the hub required last.
        """
        cookie = await _solved(self._work, body) if ahead and self._work else {}
        try:
            return await self._request("POST", path, body, most=most, headers=_CBOR_HEADERS | cookie)
        except Refused as refused:
            required = WorkRequired.of(refused, body)
            if required is None or required.difficulty > self.retry_policy.most_pow_bits:
                raise
        if ahead:
            self._work = required
        cookie = await _solved(required, body)
        return await self._request("POST", path, body, most=most, headers=_CBOR_HEADERS | cookie)

    async def _post(self, path: str, body: bytes, most: int) -> bytes:
        return await self._retry(lambda: self._read("POST", path, body, most))

    async def _read(self, method: str, path: str, body: bytes, most: int) -> bytes:
        """One attempt, signed if the hub requires that; more if the hub refuses the signature and there is another."""
        kind = _CBOR_HEADERS if method == "POST" else {}
        while True:
            headers = kind | (self.reads.headers(method, path, body) if self.reads else {})
            try:
                return await self._request(method, path, body if method == "POST" else None, most=most, headers=headers)
            except Refused as refused:
                if self.reads is None or not self.reads.again(refused):
                    raise

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry while the hub is unavailable."""
        for number in range(self.retry_policy.attempts - 1):
            try:
                return await attempt()
            except Unavailable as error:
                await asyncio.sleep(self.pause_s(error, number))
        return await attempt()

    def pause_s(self, error: Exception, attempt: int) -> float:
        """The delay before the next attempt: the hub's `retry_after`, if it is not too long, or our own."""
        retry_after = getattr(error, "retry_after", None)
        if retry_after is not None and retry_after > self.retry_policy.longest_retry_after_s:
            raise error
        self.on_pause(error)
        return self.retry_policy.wait_s(attempt) if retry_after is None else float(retry_after)

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        most: int,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        sent = headers or (_CBOR_HEADERS if body is not None else None)
        try:
            # A task of its own: httpx waits several times, and each time would resume every caller of this method.
            answer, content = await asyncio.create_task(
                exchange(
                    self._client,
                    method,
                    path,
                    limit_s=self.retry_policy.answer_s,
                    connect_s=self.retry_policy.connect_s,
                    most=most,
                    content=body,
                    headers=sent,
                )
            )
        except httpx.TransportError as error:
            raise no_answer(self.url, f"{self.url} did not answer {path}", error) from None
        if answer.is_success:
            return content
        raise _refusal(answer, content, path)


def _checked(url: str) -> str:
    try:
        where = urlsplit(url)
        whole = where.scheme in ("http", "https") and where.hostname and (where.port is None or where.port > 0)
    except ValueError:
        whole = False
    if not whole or where.query or where.fragment:
        raise Malformed("hub address", f"{url!r} is not http://HOST or https://HOST, with an optional port")
    return url.rstrip("/")


class TryLater(Unavailable):
    """The hub cannot answer now. `retry_after` is set if it says when to try again."""

    def __init__(self, message: str, retry_after: int | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _refusal(answer: httpx.Response, content: bytes, path: str) -> Refused | Unavailable | Malformed:
    """The error that a response carries."""
    try:
        if answer.headers.get("content-type", "").startswith(JSON):
            refused = wire_json.decode(ErrorEnvelope, content).refused()
        else:
            refused = ErrorEnvelope.decode(content).refused()
    except Malformed:
        if answer.is_server_error or answer.status_code in (408, 429):
            return TryLater(f"{path} answered {answer.status_code}", None)
        return Malformed("answer", f"{path} answered {answer.status_code} without an error envelope")
    return as_try_later(refused) or refused


def as_try_later(refused: Refused) -> TryLater | None:
    """A rejection that only means: try again later. None for any other."""
    return TryLater(str(refused), refused.retry_after) if refused.code == "E.UNAVAILABLE" else None


def _outcomes(body: bytes) -> list[Outcome]:
    """Decode a CBOR sequence of receipts and error envelopes."""
    found: list[Outcome] = []
    pos = 0
    while pos < len(body):
        late = DeferredFaults()
        if body[pos] >> 5 == _ARRAY_MAJOR:
            receipt, pos = Receipt.read(body, pos, late)
            found.append(receipt)
        else:
            envelope, pos = ErrorEnvelope.read(body, pos, late)
            found.append(envelope.refused())
        late.raise_first()
    return found
