"""A call over a stream, as a command makes it: the request is sent, and its reply waited for."""

import asyncio
from contextlib import aclosing

from veen.cli.failures import hinted
from veen.client.client import Client
from veen.core import Unavailable
from veen.overlays import Applied, At
from veen.overlays.rpc import RPC, Call, Reply, Request, call_part
from veen.state.view import View
from veen.state.watching import watch


async def call(client: Client, stream: str | bytes, request: Request, timeout_s: float) -> tuple[Reply, int]:
    """The reply to a request, and its `hub_ts`. Raises `Unavailable` where none comes in time."""
    answers = stream if request.reply_to is None else request.reply_to
    async with View.of(client, answers, RPC) as view:
        await view.sync()
        with view.kept() as timeline:
            before = timeline.upto() or At(client.epoch(), 0)  # the reply comes after this, since the request does
        sent = await client.send(stream, request.encode(), schema=request.SCHEMA)
        try:
            async with asyncio.timeout(timeout_s):
                return await _reply(view, before, call_part(sent.msg_id))
        except TimeoutError:
            pass
    raise hinted(
        Unavailable(f"nobody answered within {timeout_s:g} seconds"),
        f"the request is entry {sent.stream_seq}; see that whoever serves that stream runs, or give it more --timeout",
    )


async def _reply(view: View[Call, Call], after: At, part: bytes) -> tuple[Reply, int]:
    async with aclosing(watch(view, after=after)) as coming:
        async for seen in coming:
            for outcome in seen.outcomes:
                event = outcome.step.event if isinstance(outcome, Applied) else None
                if isinstance(outcome, Applied) and outcome.step.part == part and isinstance(event, Reply):
                    return event, seen.entry.hub_ts
    raise AssertionError("a watch has no end")
