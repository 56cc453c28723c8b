"""One HTTP request and its complete response, under one deadline.

httpx limits each read and each write separately. A peer that sends one byte a second stays within these limits and
never finishes, so this deadline covers connecting, TLS, the request, the response head and the response body.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import aclosing
from threading import Lock, Thread
from typing import Any, TypeVar

import httpx

from plumbing.cli.help_text import lowered
from veen.client.trust import UntrustedCertificate
from veen.core import Malformed, Unavailable

T = TypeVar("T")


class LoopThread:
    """Starts with the first `run`. Any thread may call `run`; the owner calls `close` when nothing runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_started(self) -> bool:
        return self._loop is not None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result. An interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop


SMALL_BYTES = 1 << 20  # a response of at most this size has a fixed deadline
MIN_BYTES_PER_S = 8 << 10  # hubs require the same of clients: `min_bytes_per_s` of their HTTP settings
_PIECE_BYTES = 1 << 16
_STAGES = {
    "connect_tcp": "the connection was not made",
    "start_tls": "the TLS handshake did not finish",
    "send_request_headers": "the request was not sent",
    "send_request_body": "the request body was not sent in full",
    "receive_response_headers": "the request was sent, but no complete response head arrived",
    "receive_response_body": "the response head arrived",
}


class TimedOut(Unavailable):
    """The response was not complete in time. The peer may have processed the request."""


async def exchange(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    limit_s: float,
    connect_s: float | None = None,
    most: int = SMALL_BYTES,
    content: bytes | AsyncIterator[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
) -> tuple[httpx.Response, bytes]:
    """Send a request. Returns the response and its body, not decompressed.

    The deadline starts when the request gets a connection of the client's pool, or starts to open one. Large transfers
    extend it while they make progress: each 8 KiB of a request body, or of a response that may exceed `SMALL_BYTES`,
    adds one second, up to `limit_s` from now.

    Raises `TimedOut`, `Malformed` for a response longer than `most` bytes, and httpx errors if the connection breaks.
    """
    deadline = _Deadline(limit_s)
    sent = dict(headers or {})
    if isinstance(content, bytes) and len(content) > _PIECE_BYTES:
        sent["content-length"] = str(len(content))
        content = deadline.extended_by(_once(content))
    elif content is not None and not isinstance(content, bytes):
        content = deadline.extended_by(content)
    request = client.build_request(
        method,
        url,
        content=content,
        headers=sent,
        params=params,
        extensions={
            "trace": deadline.trace,
            "timeout": {"connect": connect_s, "read": None, "write": None, "pool": None},
        },
    )
    try:
        async with deadline.timer:
            try:
                answer = await client.send(request, stream=True)
            except asyncio.CancelledError:
                await deadline.close_half_open()
                raise
            async with aclosing(answer):
                parts, deadline.received = list[bytes](), 0
                async for part in answer.aiter_raw():
                    deadline.received += len(part)
                    if deadline.received > most:
                        raise Malformed("answer", f"it has more than {most} bytes")
                    if most > SMALL_BYTES:
                        deadline.extend(len(part))
                    parts.append(part)
                return answer, b"".join(parts)
    except TimeoutError:
        raise deadline.passed(request, limit_s) from None
    except httpx.ConnectTimeout:
        raise deadline.passed(request, connect_s or limit_s) from None


def reason_of(error: BaseException) -> str:
    """The system's reason for a failed connection, which httpx hides behind a general error."""
    message = str(error) or type(error).__name__
    for found in _causes(error):
        if isinstance(found, OSError) and found.errno and not isinstance(found, ssl.SSLError):
            return found.strerror or message if isinstance(found, socket.gaierror) else os.strerror(found.errno)
    return message


def no_answer(url: str, what: str, error: Exception) -> Unavailable | UntrustedCertificate:
    """The error for a failed connection to a hub; `what` says that it does not answer."""
    for found in (error, *_causes(error)):
        if isinstance(found, ssl.SSLCertVerificationError):
            return UntrustedCertificate(url, f"not trusted: {found.verify_message.rstrip('.')}")
    return Unavailable(f"{what}: {lowered(reason_of(error)).rstrip('.')}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    found = error.__cause__ or error.__context__
    while found is not None:
        if isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        yield found
        found = found.__cause__ or found.__context__


class _Deadline:
    """The deadline of an exchange, and its progress."""

    def __init__(self, limit_s: float) -> None:
        self.timer = asyncio.timeout(None)
        self._limit_s = limit_s
        self._stage = "no connection was free"
        self.received: int | None = None  # bytes of the body; None before the head is complete
        self._half_open: Any = None  # the connection while its TLS handshake is not finished

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpcore at the start and end of each step."""
        if self.timer.when() is None:
            self.timer.reschedule(asyncio.get_running_loop().time() + self._limit_s)
        _, step, state = event.rsplit(".", 2)
        if state == "started":
            self._stage = _STAGES.get(step, self._stage)
        if step in ("connect_tcp", "start_tls") and state == "complete":
            self._half_open = info["return_value"] if step == "connect_tcp" else None

    async def close_half_open(self) -> None:
        """Close the connection, because httpcore does not do so if the TLS handshake is cancelled."""
        if self._half_open is not None and self._stage == _STAGES["start_tls"]:
            await self._half_open.aclose()

    async def extended_by(self, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same bytes, in pieces that each extend the deadline."""
        async for part in content:
            for at in range(0, len(part), _PIECE_BYTES):
                piece = part[at : at + _PIECE_BYTES]
                self.extend(len(piece))
                yield piece

    def passed(self, request: httpx.Request, limit_s: float) -> TimedOut:
        stage = self._stage
        if self.received is not None:
            stage = f"the response head and {self.received} bytes of the body arrived"
        where = request.url.copy_with(path="/", query=None)
        return TimedOut(
            f"{str(where).rstrip('/')} did not answer {request.method} {request.url.path} in full within "
            f"{limit_s:g} s: {stage}"
        )

    def extend(self, count: int) -> None:
        """Move the deadline, because `count` bytes were transferred."""
        ends = self.timer.when()
        if ends is not None and not self.timer.expired():
            latest = asyncio.get_running_loop().time() + self._limit_s
            self.timer.reschedule(min(ends + count / MIN_BYTES_PER_S, latest))


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


class BlockingExchange:
    """`exchange` for programs without an event loop. Any thread may call it; the owner closes it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self._loop = LoopThread("veen-exchange")

    def __call__(
        self,
        method: str,
        url: str,
        *,
        limit_s: float,
        connect_s: float | None = None,
        most: int = SMALL_BYTES,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> tuple[httpx.Response, bytes]:
        return self._loop.run(
            exchange(
                self.client,
                method,
                url,
                limit_s=limit_s,
                connect_s=connect_s,
                most=most,
                content=content,
                headers=headers,
                params=params,
            )
        )

    def close(self) -> None:
        if self._loop.is_started:
            self._loop.run(self.client.aclose())
            self._loop.close()
