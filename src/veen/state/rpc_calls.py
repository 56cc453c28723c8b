"""Remote calls over a stream. Requests and replies are entries, so both can be proven later.

async with Server.of(client, "calls", {"add": lambda args: sum(args)}) as server:
    await server.serve()

async with Caller.of(client, "calls") as caller:
    assert await caller.call("add", [1, 2]) == 3

There may be several servers: each may execute a call, and the first reply is the answer. A caller that may send a
request twice passes an idempotency key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
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
from veen.state.state_view import StateView
from veen.state.stream_stores import StreamStore
from veen.state.watch import Wake

CallView: TypeAlias = StateView[Call, Call]
Method: TypeAlias = Callable[[cbor.Value], "cbor.Value | Awaitable[cbor.Value]"]
FAILED, REPLY_TO = "RPC.FAILED", "RPC.REPLY_TO"
TIMEOUT_S = 30.0


class NoReply(Unavailable):
    """No reply arrived in time. The call may or may not have been executed."""

    def __init__(self, call_id: bytes, timeout_s: float) -> None:
        super().__init__(f"no reply to call {call_id.hex()[:16]}… within {timeout_s:g} s")
        self.call_id = call_id


class Caller(StreamStore[Call, Call]):
    """Sends requests and waits for the replies."""

    OVERLAY = RPC

    async def call(
        self, method: str, args: cbor.Value = None, *, timeout_s: float = TIMEOUT_S, idem: int | None = None
    ) -> cbor.Value:
        """Call a method and return its result. Raises `RpcFailure` with the server's error or `NoReply` on timeout.

        Calls of this client with the same method and `idem` are one call, even across a crash.
        """
        request = CallRequest(method, cbor.encode(args), max(int(timeout_s * 1000), 1), idem=idem)
        answered = await self.ask(request, timeout_s)
        reply = answered.reply
        if reply.error is not None:
            raise RpcFailure(reply.error.code, reply.error.detail)
        return cbor.decode(reply.result or b"\xf6", "result")

    async def ask(self, request: CallRequest, timeout_s: float) -> Answered:
        """Send a request, unless one with the same idempotency key is open, and wait for the logged reply."""
        async with Wake(self.view) as wake:
            call_id = await self._call_id(request)
            deadline = asyncio.get_running_loop().time() + timeout_s
            while True:
                wake.clear()
                async with self.view.reading() as reading:
                    found = rpc.answer(reading.states, call_id)
                if found is not None:
                    return found
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    raise NoReply(call_id, timeout_s)
                await wake.wait(left)

    async def _call_id(self, request: CallRequest) -> bytes:
        if request.idem is not None:
            client_id = self.sender.client.dir.writers.current().client_id
            async with self.view.reading() as reading:
                known = reading.state(rpc.idem_part(request.method, client_id, request.idem)).first_call
                # Servers ignore a timed-out call, so send it again. The idempotency key keeps it one call.
                timed_out = known and reading.state(rpc.call_part(known)).timed_out(1000 * self.view.source.now())
            if known is not None and not timed_out:
                return known
        return (await self.sender.send_unchecked(request)).msg_id


class Server(StreamStore[Call, Call]):
    """Answers calls with functions on plain values. Functions run in a thread, so they may block."""

    OVERLAY = RPC

    def __init__(self, view: CallView, methods: Mapping[str, Method]) -> None:
        super().__init__(view)
        self._methods = dict(methods)

    @classmethod
    def of(  # type: ignore[override] # a server also needs its methods
        cls, client: Client, stream: str | bytes, methods: Mapping[str, Method], *, cached: bool = True
    ) -> Self:
        return cls(StateView.of(client, stream, RPC, cached=cached), methods)

    async def serve(self, on_reply: Callable[[PendingReply, Reply], None] | None = None) -> None:
        """Answer calls until cancelled. `on_reply` is called after each reply."""
        async with Wake(self.view) as wake:
            while True:
                wake.clear()
                if not await self.serve_waiting(on_reply):
                    await wake.wait(None)

    async def serve_waiting(self, on_reply: Callable[[PendingReply, Reply], None] | None = None) -> int:
        """Answer the calls that are open now and return their number."""
        async with self.view.reading() as reading:
            open_calls = [part for part, _ in reading.live()]
            pending = list(rpc.pending_replies(reading.states, open_calls, 1000 * self.view.source.now()))
        for one in pending:
            reply = one.known or await self._execute(one.asked.request)
            await self.sender.send_unchecked(reply, parent_id=one.call_id)
            if on_reply is not None:
                on_reply(one, reply)
        return len(pending)

    async def _execute(self, request: CallRequest) -> Reply:
        if request.reply_to not in (None, self.view.stream_id):
            return Reply(False, error=RpcError(REPLY_TO, "this server replies only to the stream of the request"))
        method = self._methods.get(request.method)
        if method is None:
            return Reply(False, error=RpcError(UNKNOWN_METHOD, request.method))
        try:
            found = await asyncio.to_thread(method, cbor.decode(request.args, "args"))
            return rpc.success(await found if isawaitable(found) else found)
        except RpcFailure as failure:
            return Reply(False, error=failure.error)
        except Exception as error:  # noqa: BLE001 - any failure becomes an error reply, and the server continues
            return Reply(False, error=RpcError(FAILED, type(error).__name__))
