"""Calls over a stream: requests and replies are entries, so who asked what and what was answered can be shown later.

async with Server.of(client, "calls", {"add": lambda args: sum(args)}) as server:
    await server.serve()

async with Caller.of(client, "calls") as caller:
    assert await caller.call("add", [1, 2]) == 3

Servers may be several: each may carry a call out, and the first reply is the answer. A caller who may ask twice gives
an idempotency key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from types import TracebackType
from typing import Self, TypeAlias

from veen.client.client import Client
from veen.core import Unavailable, cbor
from veen.overlays import rpc
from veen.overlays.rpc import (
    RPC,
    UNKNOWN_METHOD,
    Answered,
    Call,
    CallRequest,
    PendingReply,
    Reply,
    RpcError,
    RpcFailure,
)
from veen.state.event_sender import EventSender
from veen.state.state_view import StateView
from veen.state.watch import Wake

CallView: TypeAlias = StateView[Call, Call]
Method: TypeAlias = Callable[[cbor.Value], "cbor.Value | Awaitable[cbor.Value]"]
FAILED, REPLY_TO = "RPC.FAILED", "RPC.REPLY_TO"
TIMEOUT_S = 30.0


class NoReply(Unavailable):
    """Nobody answered in time. Whether it was carried out, nobody can tell."""

    def __init__(self, call_id: bytes, timeout_s: float) -> None:
        super().__init__(f"nobody answered call {call_id.hex()[:16]}… within {timeout_s:g} s")
        self.call_id = call_id


class _Party:
    """One side of calls on one stream. An async context manager."""

    def __init__(self, view: CallView) -> None:
        self.view = view
        self._sender = EventSender(view)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.view.close()


class Caller(_Party):
    """Asks, and waits for the answer."""

    @classmethod
    def of(cls, client: Client, stream: str | bytes, *, cached: bool = True) -> Self:
        return cls(StateView.of(client, stream, RPC, cached=cached))

    async def call(
        self, method: str, args: cbor.Value = None, *, timeout_s: float = TIMEOUT_S, idem: int | None = None
    ) -> cbor.Value:
        """The result. Raises `RpcFailure` with the server's error, `NoReply` where none came in time.

        Calls with the same `idem`, by this client and to this method, are one call, also after a crash in between.
        """
        request = CallRequest(method, cbor.encode(args), max(int(timeout_s * 1000), 1), idem=idem)
        answered = await self.ask(request, timeout_s)
        reply = answered.reply
        if reply.error is not None:
            raise RpcFailure(reply.error.code, reply.error.detail)
        return cbor.decode(reply.result or b"\xf6", "result")

    async def ask(self, request: CallRequest, timeout_s: float) -> Answered:
        """Send a request, unless the same was sent before, and wait for its reply in its place."""
        async with Wake(self.view) as wake:
            call_id = await self._call_id(request)
            ends = asyncio.get_running_loop().time() + timeout_s
            while True:
                wake.clear()
                async with self.view.reading() as reading:
                    found = rpc.answer(reading.states, call_id)
                if found is not None:
                    return found
                left = ends - asyncio.get_running_loop().time()
                if left <= 0:
                    raise NoReply(call_id, timeout_s)
                await wake.wait(left)

    async def _call_id(self, request: CallRequest) -> bytes:
        if request.idem is not None:
            client_id = self._sender.client.dir.writers.current().client_id
            async with self.view.reading() as reading:
                known = reading.state(rpc.idem_part(request.method, client_id, request.idem)).first_call
                # Nobody need answer it any more once its time is over: then it is asked again, and still one call.
                over = known and reading.state(rpc.call_part(known)).timed_out(1000 * self.view.source.now())
            if known is not None and not over:
                return known
        return (await self._sender.send_unchecked(request)).msg_id


class Server(_Party):
    """Answers calls with functions, which take and give plain values. One that blocks is run in a thread."""

    def __init__(self, view: CallView, methods: Mapping[str, Method]) -> None:
        super().__init__(view)
        self._methods = dict(methods)

    @classmethod
    def of(cls, client: Client, stream: str | bytes, methods: Mapping[str, Method], *, cached: bool = True) -> Self:
        return cls(StateView.of(client, stream, RPC, cached=cached), methods)

    async def serve(self, told: Callable[[PendingReply, Reply], None] | None = None) -> None:
        """Answer calls as they come, for ever. `told` hears of each that was answered."""
        async with Wake(self.view) as wake:
            while True:
                wake.clear()
                if not await self.serve_waiting(told):
                    await wake.wait(None)

    async def serve_waiting(self, told: Callable[[PendingReply, Reply], None] | None = None) -> int:
        """Answer the calls that wait now; how many there were."""
        async with self.view.reading() as reading:
            waiting = [part for part, _ in reading.live()]
            owing = list(rpc.pending_replies(reading.states, waiting, 1000 * self.view.source.now()))
        for one in owing:
            reply = one.known or await self._carry_out(one.asked.request)
            await self._sender.send_unchecked(reply, parent_id=one.call_id)
            if told is not None:
                told(one, reply)
        return len(owing)

    async def _carry_out(self, request: CallRequest) -> Reply:
        if request.reply_to not in (None, self.view.stream_id):
            return Reply(False, error=RpcError(REPLY_TO, "replies go to the stream of the request"))
        method = self._methods.get(request.method)
        if method is None:
            return Reply(False, error=RpcError(UNKNOWN_METHOD, request.method))
        try:
            found = await asyncio.to_thread(method, cbor.decode(request.args, "args"))
            return rpc.success(await found if isawaitable(found) else found)
        except RpcFailure as failure:
            return Reply(False, error=failure.error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the caller hears of it and others are served
            return Reply(False, error=RpcError(FAILED, type(error).__name__))
