"""The way to a hub: HTTP with pooled connections, bounded answers, and retries only where they are safe.

Everything a client asks may be asked again: reads change nothing, and a message that is sent twice is the same bytes,
which a hub takes once and answers with the place it has.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from veen.client.exchange import SMALL_BYTES, exchange, reason_of
from veen.core import Malformed, Receipt, Refused, Unavailable, strict_json, wire_json
from veen.core.cbor import DeferredFaults, Wire
from veen.core.envelopes import ErrorEnvelope, SubmitResponse
from veen.core.limits import MAX_MSG_BYTES, MAX_PAGE_BYTES
from veen.core.proof_of_work import HEADER, challenge_of, solve

# Beyond this many times the usual number of tries something is wrong: nobody is that unlucky.
_UNLUCKY = 64

Send = Callable[[dict[str, str]], Awaitable[bytes]]  # with these headers


@dataclass(frozen=True, slots=True)
class WorkRequired:
    """Which hub wants how many zero bits."""

    hub_id: bytes
    difficulty: int

    @classmethod
    def of(cls, refused: Refused, body: bytes) -> "WorkRequired | None":
        """What a refusal asks for; None where it asks for no work. Only this very request is ever worked for."""
        said = refused.detail
        if refused.detail_enum != "PREFILTER_REJECT" or not isinstance(said.get("difficulty"), int):
            return None
        asked = cls(_bytes(said.get("hub_id")), int(said["difficulty"]))
        if challenge_of(asked.hub_id, body) != _bytes(said.get("challenge")):
            raise Malformed("proof of work", "the hub's challenge is not that of this request")
        return asked


class Workbench:
    """What one hub asked for last."""

    def __init__(self, most_bits: int) -> None:
        self._most_bits = most_bits
        self._asked: WorkRequired | None = None

    async def send(self, body: bytes, send: Send, *, ahead: bool) -> bytes:
        """Send a request, with work where the hub wants it and it is not too much. Raises what `send` raises.

        With `ahead`, what the hub asked for last is done before it asks again.
        """
        headers: dict[str, str] = {}
        if ahead and self._asked:
            headers = await self._worked(self._asked, body)
        try:
            return await send(headers)
        except Refused as refused:
            asked = WorkRequired.of(refused, body)
            if asked is None or asked.difficulty > self._most_bits:
                raise
        if ahead:
            self._asked = asked
        return await send(await self._worked(asked, body))

    async def _worked(self, asked: WorkRequired, body: bytes) -> dict[str, str]:
        challenge, tries = challenge_of(asked.hub_id, body), _UNLUCKY << asked.difficulty
        cookie = await asyncio.to_thread(lambda: solve(challenge, asked.difficulty, most_tries=tries))
        return {HEADER: cookie.header()}


def _bytes(said: object) -> bytes:
    try:
        return bytes.fromhex(said) if isinstance(said, str) else b""
    except ValueError:
        return b""


W = TypeVar("W", bound=Wire)
T = TypeVar("T")
Outcome = Receipt | Refused

CBOR = "application/cbor"
JSON = "application/json"
OCTETS = "application/octet-stream"
_SUBMIT_HEAD = b"\xa2\x01\x01\x02"  # {1: 1, 2: msg}: the rest of a submit request is the encoded MSG
# A page's messages are bounded; its receipts and the frame around them fit in as much again.
_MOST_PAGE = 2 * MAX_PAGE_BYTES + MAX_MSG_BYTES
_OUTCOME_BYTES = 8192  # a receipt, or an error with its message and details
_ARRAY_MAJOR = 4


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a hub, and how often to ask again."""

    attempts: int = 8
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    longest_retry_after_s: float = 60.0  # a hub that asks for more is not waited for
    poll_s: float = 1.0  # between two looks at a hub that offers no subscriptions
    connect_s: float = 5.0  # to connect, and as long again for the TLS handshake; both count towards answer_s
    answer_s: float = 30.0  # for one whole exchange, from connecting to the end of the answer: see `exchange`
    most_pow_bits: int = 22  # a hub that asks for more work than this is not sent to

    def wait_s(self, attempt: int) -> float:
        """Before attempt `attempt` + 1: doubling, with half of it left to chance, so that clients spread."""
        full = min(self.first_wait_s * 2.0**attempt, self.longest_wait_s)
        return full * (0.5 + random.random() / 2)


class HubLink:
    """Connections to one hub."""

    def __init__(
        self,
        url: str,
        *,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        patience: Patience | None = None,
        http2: bool = False,
        connections: int = 16,
    ) -> None:
        """`tls` makes a context; each kind of connection has its own, since what is agreed on differs."""
        self.url = _checked(url)
        self.tls = tls
        self.patience = patience or Patience()
        self.on_pause: Callable[[Exception], None] = lambda error: None  # hears why, before it is tried again
        self._http2 = http2
        self._connections = connections
        self._client = self._connect()
        self._before: httpx.AsyncClient | None = None  # before the last renewal
        self._bench = Workbench(self.patience.most_pow_bits)

    def _connect(self) -> httpx.AsyncClient:
        # Kept for less time than a hub keeps an idle connection, so that few are found closed.
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
        """Use no connection again: the next request makes a fresh one. What is under way is left to finish."""
        oldest, self._before, self._client = self._before, self._client, self._connect()
        if oldest is not None:
            await oldest.aclose()

    # Asking.

    async def ask(self, path: str, request: Wire, answer: type[W], most: int = SMALL_BYTES) -> W:
        """POST a request and decode the answer. Raises `Refused`, `Unavailable` or `Malformed`."""
        return answer.decode(await self._post(path, request.encode(), most))

    async def page(self, request: Wire) -> bytes:
        """One page of a stream, as it came."""
        return await self._post("/v1/stream", request.encode(), _MOST_PAGE)

    async def get_json(self, path: str, *, once: bool = False) -> strict_json.Json:
        """`once` is for callers that have a patience of their own."""
        asked = self._request("GET", path, most=SMALL_BYTES) if once else self.get(path, SMALL_BYTES)
        body = await asked
        return strict_json.decode(body, path)

    async def get(self, path: str, most: int) -> bytes:
        return await self._again(lambda: self._request("GET", path, most=most))

    async def put(
        self, path: str, make: Callable[[], AsyncIterator[bytes]], size: int, headers: dict[str, str] | None = None
    ) -> None:
        """PUT a body that is read as it goes out; `make` begins it anew for each attempt."""
        sent = {"content-type": OCTETS, "content-length": str(size), **(headers or {})}
        await self._again(lambda: self._request("PUT", path, make(), most=SMALL_BYTES, headers=sent))

    # Sending. One attempt each: what follows a lost answer is the sender's to know.

    async def submit(self, encoded: bytes) -> Outcome:
        """The receipt of one encoded MSG, or why not. Raises `Unavailable` where nobody knows."""
        try:
            body = await self._worked("/v1/submit", _SUBMIT_HEAD + encoded, SMALL_BYTES, ahead=True)
        except Refused as refused:
            return refused
        return SubmitResponse.decode(body).receipt

    async def submit_batch(self, encoded: Sequence[bytes]) -> list[Outcome]:
        """An outcome for each MSG, in order. Raises `Refused` where the hub takes no batches."""
        most = SMALL_BYTES + _OUTCOME_BYTES * len(encoded)
        body = await self._worked("/tooling/submit-batch", b"".join(encoded), most, ahead=False)
        outcomes = _outcomes(body)
        if len(outcomes) != len(encoded):
            raise Malformed("batch answer", f"{len(outcomes)} outcomes for {len(encoded)} messages")
        return outcomes

    # Below.

    async def _worked(self, path: str, body: bytes, most: int, *, ahead: bool) -> bytes:
        """One attempt, with a proof of work where the hub asks for one."""

        def send(headers: dict[str, str]) -> Awaitable[bytes]:
            return self._request("POST", path, body, most=most, headers={"content-type": CBOR, **headers})

        return await self._bench.send(body, send, ahead=ahead)

    async def _post(self, path: str, body: bytes, most: int) -> bytes:
        return await self._again(lambda: self._request("POST", path, body, most=most))

    async def _again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Until it is answered, as often as patience allows."""
        for number in range(self.patience.attempts - 1):
            try:
                return await attempt()
            except Unavailable as error:
                await asyncio.sleep(self.pause_s(error, number))
        return await attempt()

    def pause_s(self, error: Exception, attempt: int) -> float:
        """How long to wait before the next attempt: as long as the hub says, if it says and that is bearable."""
        said = getattr(error, "retry_after", None)
        if said is not None and said > self.patience.longest_retry_after_s:
            raise error
        self.on_pause(error)
        return self.patience.wait_s(attempt) if said is None else float(said)

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        most: int,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        sent = headers or ({"content-type": CBOR} if body is not None else None)
        try:
            answer, content = await exchange(
                self._client,
                method,
                path,
                limit_s=self.patience.answer_s,
                connect_s=self.patience.connect_s,
                most=most,
                content=body,
                headers=sent,
            )
        except httpx.TransportError as error:
            raise Unavailable(f"{self.url} did not answer {path}: {reason_of(error)}") from None
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
        raise Malformed("hub address", f"{url!r} is not http:// or https://, a host and maybe a port")
    return url.rstrip("/")


class TryLater(Unavailable):
    """The hub answered that it cannot now, and maybe when it can."""

    def __init__(self, message: str, retry_after: int | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _refusal(answer: httpx.Response, content: bytes, path: str) -> Refused | Unavailable | Malformed:
    """The error an answer carries, as what to raise."""
    try:
        if answer.headers.get("content-type", "").startswith(JSON):
            refused = wire_json.decode(ErrorEnvelope, content).refused()
        else:
            refused = ErrorEnvelope.decode(content).refused()
    except Malformed:
        if answer.is_server_error or answer.status_code in (408, 429):
            return TryLater(f"{path} answered {answer.status_code}", None)
        return Malformed("answer", f"{path} answered {answer.status_code} without saying why")
    return as_try_later(refused) or refused


def as_try_later(refused: Refused) -> TryLater | None:
    """The refusal that is none: the hub cannot now."""
    return TryLater(str(refused), refused.retry_after) if refused.code == "E.UNAVAILABLE" else None


def _outcomes(body: bytes) -> list[Outcome]:
    """A CBOR sequence of receipts and error envelopes."""
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
