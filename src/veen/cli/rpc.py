"""What answers a call: a command that reads and writes JSON, or a Python function."""

import asyncio
import importlib
import json
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command
from veen.cli.kit.state_options import MAX_SECONDS, ReadOptions, SendOptions, read_command, send_command
from veen.core import cbor
from veen.overlays.rpc import RpcFailure
from veen.state.rpc_calls import FAILED, Method

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from veen.cli.kit.read_state import StateAnswer
    from veen.client.client import Client
    from veen.core import cbor
    from veen.overlays.rpc import Call, PendingReply, Reply, Rpc
    from veen.state.rpc_calls import Method
    from veen.state.state_at import StateAt

    CallReading: TypeAlias = StateAt[Call, Call]


_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LONGEST_DETAIL = 500


def parse(text: str, timeout_s: float | None = None) -> tuple[str, Method]:
    """METHOD=COMMAND, or METHOD=package.module:function. A command may run for `timeout_s`."""
    name, _, what = text.partition("=")
    if not name or not what.strip():
        raise Misuse(f"{text!r} is not METHOD=COMMAND", "give the name of the method, =, and what answers it")
    return name, _function(what) if _FUNCTION.fullmatch(what) else _command(what, timeout_s)


def value_of(text: str) -> cbor.Value:
    """JSON as a value that a call can carry. Raises `ValueError` over fractions and the like."""
    found: Any = json.loads(text)
    cbor.encode(found)
    value: cbor.Value = found
    return value


def _function(what: str) -> Method:
    module, _, name = what.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Misuse(f"{what} cannot be loaded: {error}", "check the name, and that the package is installed") from None
    if not callable(found):
        raise Misuse(f"{what} is no function", "name one that takes the arguments and returns the result")
    method: Method = found
    return method


def _command(what: str, timeout_s: float | None) -> Method:
    try:
        words = shlex.split(what)
    except ValueError as error:
        raise Misuse(f"{what!r} is no command: {error}".lower(), "quote it as for a shell") from None

    async def run(args: cbor.Value) -> cbor.Value:
        status, out, err = await _ran(words, json.dumps(_shown(args)).encode(), timeout_s)
        if status:
            told = err.decode(errors="replace").strip().splitlines()
            raise RpcFailure(FAILED, told[-1][:_LONGEST_DETAIL] if told else f"status {status}")
        try:
            return value_of(out.decode())
        except ValueError:
            raise RpcFailure(FAILED, "what it wrote is no JSON that a call can carry") from None

    return run


async def _ran(words: Sequence[str], given: bytes, timeout_s: float | None) -> tuple[int, bytes, bytes]:
    """A command's status and what it wrote. It does not outlive the call, however that ends."""
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise RpcFailure(FAILED, error.strerror) from None
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await child.communicate(given)
    except TimeoutError:
        raise RpcFailure(FAILED, f"it did not end within {timeout_s:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode or 0, out, err


def _shown(value: cbor.Value) -> object:
    """A value as JSON has it: bytes as hex."""
    from veen.cli.kit import render_state

    if isinstance(value, bytes):
        return value.hex()
    found = render_state.plain_json(value)
    return json.loads(json.dumps(found, default=render_state.json_value))


app = group(
    "rpc",
    """Call methods over a stream, and answer calls.

    A request and its reply are entries of the log, so it can be shown later who asked for what and what was answered.
    Arguments and results are JSON without fractions.
    """,
)


def _overlay() -> "Rpc":
    from veen.overlays.rpc import RPC

    return RPC


@send_command(
    app, "call", "veen rpc call add '[1, 2]' --stream calls", "veen rpc call pay '[4]' --idem 77 --timeout 60"
)
def call(
    asked: SendOptions,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="what to call")],
    args: Annotated[str, typer.Argument(metavar="JSON", help="its arguments")] = "null",
    idem: Annotated[
        int | None,
        typer.Option("--idem", metavar="N", min=0, help="calls with the same number are one call", show_default="none"),
    ] = None,
    timeout: Annotated[
        float, durations.option("--timeout", least=0.001, most=MAX_SECONDS, help="for how long to wait")
    ] = 30.0,
) -> None:
    """Call a method, wait for the answer, and show it.

    The exit status is 5 where the server answers with an error, and 6 where nobody answers in time. With --idem the
    same command can be run again after a crash, and is still one call.
    """
    from veen.cli.kit import output, render_state, sanitize, send_event
    from veen.cli.kit.exit_status import hinted
    from veen.core import Refused
    from veen.overlays.rpc import RpcFailure
    from veen.state import Caller, NoReply

    given = _value(args)
    if asked.blind:
        raise Misuse("an answer cannot be had without reading the stream", "leave out --blind")

    async def work(client: "Client", name: str) -> "cbor.Value":
        async with Caller.of(client, name, cached=not asked.no_cache) as caller:
            return await caller.call(method, given, timeout_s=timeout, idem=idem)

    try:
        found = send_event.run_at_hub(asked, _overlay(), work)
    except RpcFailure as failure:
        code, detail = (sanitize.printable(one or "") for one in (failure.error.code, failure.error.detail))
        raise hinted(
            Refused(code, detail or "no more was said"), "that is the server's answer, and it is in the log"
        ) from None
    except NoReply as silence:
        again = "the same command is another call" if idem is None else "the same command asks again, and is one call"
        raise hinted(silence, "it is in the log, and may still be answered: veen rpc list shows it", again) from None
    if asked.as_json:
        output.document({"method": method, "result": render_state.plain_json(found)})
    else:
        sys.stdout.write(json.dumps(render_state.plain_json(found), default=render_state.json_value) + "\n")


@send_command(
    app,
    "serve",
    "veen rpc serve add=./add.py --stream calls",
    "veen rpc serve 'sum=jq add' --stream calls --json",
    "veen rpc serve add=my_package.methods:add --waiting --stream calls",
)
def serve(
    asked: SendOptions,
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD=COMMAND", help="a command for each, or a Python function, as module:name"),
    ],
    waiting: Annotated[bool, typer.Option("--waiting", help="answer the calls that wait now, and end")] = False,
    timeout: Annotated[
        float | None,
        durations.option(
            "--timeout",
            least=0.001,
            most=1_000_000,
            help="for how long a command may run before it is ended",
            show_default="until it ends by itself",
        ),
    ] = None,
) -> None:
    """Answer calls as they come, one after the other, until ctrl-c or SIGTERM.

    A command gets the arguments as JSON on standard input and writes the result as JSON. One that fails answers with an
    error whose detail is the last line it wrote to standard error. A call may be carried out more than once, where a
    server is stopped between the two, or there are several.
    """
    from veen.cli.kit import output, send_event
    from veen.state import Server

    table: dict[str, Method] = dict(parse(one, timeout) for one in methods)
    if asked.blind:
        raise Misuse("calls cannot be answered without reading the stream", "leave out --blind")

    async def work(client: "Client", name: str) -> int:
        async with Server.of(client, name, table, cached=not asked.no_cache) as server:
            if waiting:
                return await server.serve_waiting(_told(asked.as_json))
            output.remark(f"answering calls on {name}: {', '.join(table)}")
            await _until_ended(server.serve(_told(asked.as_json)))
            return 0

    answered = send_event.run_at_hub(asked, _overlay(), work)
    if waiting and not asked.as_json:
        output.remark(f"answered {answered}")


async def _until_ended(serving: "Coroutine[Any, Any, None]") -> None:
    """Serve until SIGTERM. A command that runs then is ended too, and its call waits for the next server."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(serving), asyncio.ensure_future(ended.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _told(as_json: bool) -> "Callable[[PendingReply, Reply], None]":
    from veen.cli.kit.sanitize import printable

    def tell(owed: "PendingReply", reply: "Reply") -> None:
        word = "answered" if reply.error is None else f"failed: {reply.error.code}"
        told: dict[str, Any] = {"call": owed.call_id.hex(), "method": owed.asked.request.method, "became": word}
        line = json.dumps(told) if as_json else "\t".join(printable(one) for one in told.values())
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    return tell


@read_command(app, "list", "veen rpc list --stream calls", "veen rpc list --waiting --json")
def list_(
    asked: ReadOptions,
    waiting: Annotated[bool, typer.Option("--waiting", help="only calls that nobody has answered yet")] = False,
) -> None:
    """List calls and their answers, in the order in which they were asked."""
    from veen.cli.kit import read_state, render_state, sanitize

    def look(reading: "CallReading") -> "StateAnswer":
        listed = reading.live() if waiting else reading.states.items()
        found = [(part, call) for part, call in listed if call.asked is not None]
        rows, data = [], []
        for part, one in found:
            assert one.asked is not None
            plain = _overlay().plain(part, one)
            status = _status(one, reading.now)
            result = plain.get("result") if one.answered and one.answered.reply.ok else plain.get("error")
            cells = (one.asked.request.method, render_state.plain_cell(plain.get("args")), status)
            rows.append((one.asked.stream_seq, sanitize.short(part[1:]), *cells, render_state.plain_cell(result)))
            data.append({**{name: render_state.plain_json(value) for name, value in plain.items()}, "status": status})
        columns, parts = ("entry", "call", "method", "args", "status", "answer"), tuple(part for part, _ in found)
        return read_state.StateAnswer(columns=columns, rows=rows, data={"calls": data}, parts=parts)

    read_state.show_state(asked, _overlay(), look)


def _status(one: "Call", now: int) -> str:
    if one.answered is not None:
        return "answered" if one.answered.reply.ok else "failed"
    return "timed out" if one.timed_out(1000 * now) else "waiting"


def _value(text: str) -> "cbor.Value":

    try:
        return value_of(text)
    except ValueError as error:
        why = f"the arguments are no JSON that a call can carry: {error}"
        raise Misuse(why, "give JSON without fractions") from None


faults_command.add(app, "veen rpc", _overlay)
