"""`veen discover query --ask` and `veen discover serve`: client and server of queries over RPC0."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from veen.cli.discovery import connection_stream
from veen.cli.discovery.directory_view import (
    COLUMNS,
    DirectoryOptions,
    KindName,
    Publishers,
    overlay_of,
    row_of,
    stream_of,
)
from veen.cli.kit import open_session, output, read_state, render_state, send_event
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.state_options import MAX_SECONDS, SendOptions, options_command
from veen.client.client import Client
from veen.core import Refused, Unavailable, naming
from veen.overlays.discovery import DirectoryRecord, join
from veen.overlays.discovery_query import DirectoryQuery, QueryResult, pending_queries, request, result_of
from veen.overlays.event import plain_wire
from veen.overlays.rpc import RPC, Call, PendingReply, call_part
from veen.state.state_view import StateView
from veen.state.watch import watch

AskOption: TypeAlias = Annotated[
    str | None, typer.Option("--ask", metavar="STREAM", help="send the query to the server of this stream")
]
Timeout: TypeAlias = Annotated[
    float, durations.option("--timeout", least=0.001, most=MAX_SECONDS, help="how long to wait for an answer")
]
DirectoryStreams: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--directory",
        metavar="NAME",
        help="a directory to answer from, in order of preference",
        show_default="the three well-known ones",
    ),
]
Once: TypeAlias = Annotated[bool, typer.Option("--once", help="answer the pending queries, then exit")]


def answer_of(kind: KindName, result: QueryResult, now: int, parts: tuple[bytes, ...] = ()) -> StateAnswer:
    """Return the result of a query as an answer."""

    rows = [row_of(one) for one in result.results]
    data = {
        "results": [render_state.plain_json(plain_wire(one)) for one in result.results],
        "more": result.more,
        "now": now,
    }
    remarks = ("there are more results: continue with --offset",) if result.more else ()
    return read_state.StateAnswer(columns=COLUMNS[kind], rows=rows, data=data, parts=parts, remarks=remarks)


def ask(options: DirectoryOptions, kind: KindName, made: DirectoryQuery, stream: str, timeout: float) -> None:
    """Send the query to a server and show its answer."""

    call = options.call()
    url = call.url()

    async def work(client: Client) -> tuple[QueryResult, int]:
        made_request = request(made, timeout_ms=int(timeout * 1000))
        reply, at = await connection_stream.call_over_stream(client, stream, made_request, timeout)
        return result_of(reply), at

    with open_session.open_client_dir(options.client, options.passphrase_file) as folder:
        read_state.need_reader_key(folder, stream)
        result, answered_at = call.run_with(folder, url, work)
    if result.error is not None or not result.ok:
        code, detail = (result.error.code, result.error.detail) if result.error else ("DISC.FAILED", None)
        raise hinted(
            Refused(code, detail or "the server could not answer"), "this error comes from the server, not from the hub"
        )
    found = answer_of(kind, result, answered_at)
    if options.as_json:
        output.document({**found.data, "stream": stream})
        return
    output.table(found.columns, found.rows, False)
    for remark in found.remarks:
        output.remark(remark)


def add(app: typer.Typer) -> None:
    options_command(
        SendOptions,
        app,
        "serve",
        "veen discover serve --stream disc.requests",
        "veen discover serve --stream disc.requests --directory my.directory --once",
    )(serve)


def serve(
    options: SendOptions, directory: DirectoryStreams = None, publisher: Publishers = None, once: Once = False
) -> None:
    """Answer queries on a stream from locally folded directories, until ctrl-c.

    Ignores calls of other methods. Sends each answer to the stream that the query names, else to the same stream. The
    answers are for the hub's current time.
    """

    streams = directory or [stream_of(kind) for kind in KindName]

    async def work(client: Client, name: str) -> int:
        return await _Server(client, name, streams, publisher, once).run()

    answered = send_event.run_at_hub(options, RPC, work)
    output.facts({"answered": answered}, options.as_json)


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
        from veen.overlays.discovery_query import reply

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
