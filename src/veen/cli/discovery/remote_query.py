"""Calls over streams, and queries of a directory over them: `veen discover query --ask` and `veen discover serve`."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Annotated, Any, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import option
from veen.cli.discovery.directory_view import (
    COLUMNS,
    DirectorySession,
    KindName,
    Publishers,
    overlay_of,
    stream_of,
)
from veen.cli.kit import output
from veen.cli.kit.common_options import MAX_SECONDS
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Result
from veen.cli.kit.state_session import Answer, SendSession, need_reader_key
from veen.client.client import Client
from veen.core import Refused, Unavailable, naming
from veen.overlays import Applied, At
from veen.overlays.discovery import DirectoryRecord, join, part_of
from veen.overlays.discovery_query import DirectoryQuery, QueryResult, pending_queries, reply, request, result_of
from veen.overlays.event import plain_wire
from veen.overlays.rpc import RPC, Call, CallRequest, PendingReply, Reply, call_part
from veen.state.state_view import StateView
from veen.state.watch import watch

AskOption: TypeAlias = Annotated[str | None, option("--ask STREAM", "send the query to the server of this stream")]
Timeout: TypeAlias = Annotated[
    float, durations.option("--timeout", least=0.001, most=MAX_SECONDS, help="how long to wait for an answer")
]


async def call_over_stream(
    client: Client, stream: str | bytes, request: CallRequest, timeout_s: float
) -> tuple[Reply, int]:
    """Send a request and return its reply and the reply's `hub_ts`. Raises `Unavailable` after `timeout_s`."""
    answers = stream if request.reply_to is None else request.reply_to
    async with StateView.of(client, answers, RPC) as view:
        await view.sync()
        with view.kept() as timeline:
            before = timeline.upto() or At(client.epoch(), 0)  # the request is sent after this place, so is the reply
        sent = await client.send(stream, request.encode(), schema=request.SCHEMA)
        try:
            async with asyncio.timeout(timeout_s):
                return await _reply(view, before, call_part(sent.msg_id))
        except TimeoutError:
            pass
    raise hinted(
        Unavailable(f"there was no reply within {timeout_s:g} seconds"),
        f"the request is entry {sent.stream_seq}; check that the server of the stream runs, or give a longer --timeout",
    )


async def _reply(view: StateView[Call, Call], after: At, part: bytes) -> tuple[Reply, int]:
    async with aclosing(watch(view, after=after)) as coming:
        async for seen in coming:
            for outcome in seen.outcomes:
                event = outcome.step.event if isinstance(outcome, Applied) else None
                if isinstance(outcome, Applied) and outcome.step.part == part and isinstance(event, Reply):
                    return event, seen.entry.hub_ts
    raise AssertionError("watch() never ends")


def answer_of(kind: KindName, result: QueryResult, now: int) -> dict[str, Any]:
    """The result of a query, as the arguments of a `Result`."""
    return {
        "data": {"results": [plain_wire(one) for one in result.results], "more": result.more, "now": now},
        "rows": "results",
        "columns": COLUMNS[kind],
        "remarks": ("there are more results: continue with --offset",) if result.more else (),
    }


def answer(kind: KindName, result: QueryResult, now: int) -> Answer:
    """The result of a query that was evaluated here."""
    return Answer(**answer_of(kind, result, now), parts=tuple(part_of(one.KIND, one.id) for one in result.results))


async def ask(session: DirectorySession, kind: KindName, made: DirectoryQuery, stream: str, timeout: float) -> Result:
    """Send the query to a server and return its answer."""
    need_reader_key(session.folder, stream)
    made_request = request(made, timeout_ms=int(timeout * 1000))
    answered, at = await call_over_stream(await session.client(), stream, made_request, timeout)
    result = result_of(answered)
    if result.error is not None or not result.ok:
        code, detail = (result.error.code, result.error.detail) if result.error else ("DISC.FAILED", None)
        raise hinted(
            Refused(code, detail or "the server could not answer"), "this error comes from the server, not from the hub"
        )
    found = answer_of(kind, result, at)
    return Result(**{**found, "data": {**found["data"], "stream": stream}})


async def serve(
    session: SendSession,
    directory: Annotated[
        list[str] | None,
        option(
            "--directory NAME",
            "a directory to answer from, in order of preference",
            default="the three well-known ones",
        ),
    ] = None,
    publisher: Publishers = None,
    once: Annotated[bool, option("--once", "answer the pending queries, then exit")] = False,
) -> Result:
    """Answer queries on a stream from locally folded directories, until ctrl-c.

    Ignores calls of other methods. Sends each answer to the stream that the query names, else to the same stream. The
    answers are for the hub's current time.
    """
    streams = directory or [stream_of(kind) for kind in KindName]
    client, name = await session.at_hub(RPC)
    return Result({"answered": await _Server(client, name, streams, publisher, once).run()})


class _Server:
    """Answers pending queries from views of the directories."""

    def __init__(self, client: Client, name: str, streams: list[str], publishers: list[str] | None, once: bool) -> None:
        self._client = client
        self._name = name
        self._streams = streams
        self._publishers = publishers
        self._once = once
        self._views: list[StateView[DirectoryRecord, DirectoryRecord]] = []
        # Calls that need no further answer. The reply may be on another stream, so the calls' stream need not show it.
        self._settled: set[bytes] = set()
        self._answered = 0

    async def run(self) -> int:
        overlay = overlay_of(self._publishers)
        async with AsyncExitStack() as stack:
            for stream in self._known_streams():
                self._views.append(await stack.enter_async_context(StateView.of(self._client, stream, overlay)))
            calls = await stack.enter_async_context(StateView.of(self._client, self._name, RPC))
            await self._answer(calls)
            if not self._once:
                await _each(watch(calls), lambda: self._answer(calls))
        return self._answered

    def _known_streams(self) -> list[str]:
        """Return the directories whose reader key the client has."""
        known = [one for one in self._streams if self._client.dir.stream_keys.secret(naming.stream_id(one)) is not None]
        if not known:
            raise hinted(
                Unavailable("the client directory has no reader key of any directory"),
                "veen stream-key import FILE adds one; --directory NAME names the directory to answer from",
            )
        return known

    async def _answer(self, view: StateView[Call, Call]) -> None:
        async with view.reading() as reading:
            now = max(view.source.now(), 0)
            states, live = reading.states, [part for part, _ in reading.live()]
            due = [one for one in pending_queries(states, now, live) if one.call_id not in self._settled]
        if due:
            directories = await self._states(now)
            for one in due:
                await self._reply(one, directories, now)

    async def _states(self, now: int) -> dict[bytes, DirectoryRecord]:
        folded = []
        for view in self._views:
            async with view.reading() as reading:
                folded.append(dict(reading.live()))
        return join(folded, now)

    async def _reply(self, owing: PendingReply, states: dict[bytes, DirectoryRecord], now: int) -> None:
        stream_id = owing.asked.request.reply_to or naming.stream_id(self._name)
        self._settled.add(owing.call_id)
        if self._client.dir.stream_keys.public(stream_id) is None:
            output.remark(f"cannot answer entry {owing.asked.stream_seq}: it names a reply stream whose key is missing")
            return
        if await self._is_answered(owing, stream_id):
            return
        made = owing.known or reply(owing.asked.request, states, now)
        await self._client.send(stream_id, made.encode(), schema=made.SCHEMA, parent_id=owing.call_id)
        self._answered += 1
        if not self._once:
            output.remark(f"answered entry {owing.asked.stream_seq}")

    async def _is_answered(self, owing: PendingReply, stream_id: bytes) -> bool:
        """Return whether the reply stream has the answer. Without its reader key this is not known: return False."""
        if owing.asked.request.reply_to is None or self._client.dir.stream_keys.secret(stream_id) is None:
            return False
        async with StateView.of(self._client, stream_id, RPC) as view, view.reading() as reading:
            return reading.state(call_part(owing.call_id)).answered is not None


async def _each(coming: AsyncGenerator[object, None], work: Callable[[], Awaitable[None]]) -> None:
    async with aclosing(coming) as entries:
        async for _ in entries:
            await work()
