"""`veen rpc`: call methods over a stream, and answer calls with commands or Python functions."""

import asyncio
import importlib
import json
import re
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command, output, read_state, render_state, sanitize, send_event
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable
from veen.cli.kit.state_options import MAX_SECONDS, ReadOptions, SendOptions, read_command, send_command
from veen.client.client import Client
from veen.core import Refused, cbor
from veen.overlays.rpc import RPC, Call, PendingReply, Reply, RpcFailure
from veen.state import Caller, NoReply, Server
from veen.state.rpc_calls import FAILED, Method
from veen.state.state_view import StateAt

CallReading: TypeAlias = StateAt[Call, Call]


_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MAX_DETAIL_CHARS = 500


def parse(text: str, timeout_s: float | None = None) -> tuple[str, Method]:
    """Parse METHOD=COMMAND or METHOD=package.module:function. A command is killed after `timeout_s`."""
    name, _, what = text.partition("=")
    if not name or not what.strip():
        raise Misuse(f"{text!r} is not METHOD=COMMAND", "give the method name, =, and a command or module:function")
    return name, _function(what) if _FUNCTION.fullmatch(what) else _command(what, timeout_s)


def value_of(text: str) -> cbor.Value:
    """Parse JSON into a value that a call can carry. Raises `ValueError` for fractions and other unsupported values."""
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
        raise Misuse(f"{what} is not a function", "name a function that takes the arguments and returns the result")
    method: Method = found
    return method


def _command(what: str, timeout_s: float | None) -> Method:
    try:
        words = shlex.split(what)
    except ValueError as error:
        raise Misuse(f"{what!r} is not a command: {error}".lower(), "quote it as for a shell") from None

    async def run(args: cbor.Value) -> cbor.Value:
        status, out, err = await _run_command(words, json.dumps(_to_json(args)).encode(), timeout_s)
        if status:
            lines = err.decode(errors="replace").strip().splitlines()
            raise RpcFailure(FAILED, lines[-1][:_MAX_DETAIL_CHARS] if lines else f"status {status}")
        try:
            return value_of(out.decode())
        except ValueError:
            raise RpcFailure(FAILED, "its output is not JSON without fractions") from None

    return run


async def _run_command(words: Sequence[str], given: bytes, timeout_s: float | None) -> tuple[int, bytes, bytes]:
    """Run a command and return its status and output. It is killed if the call ends first, for whatever reason."""
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


def _to_json(value: cbor.Value) -> object:
    """Convert a value to JSON: bytes become hex."""

    if isinstance(value, bytes):
        return value.hex()
    found = render_state.plain_json(value)
    return json.loads(json.dumps(found, default=render_state.json_value))


app = group(
    "rpc",
    """Call methods over a stream, and answer calls.

    A request and its reply are entries of the log, so both can be proved later. Arguments and results are JSON without
    fractions.
    """,
)


@send_command(
    app, "call", "veen rpc call add '[1, 2]' --stream calls", "veen rpc call pay '[4]' --idem 77 --timeout 60"
)
def call(
    options: SendOptions,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="the method to call")],
    args: Annotated[str, typer.Argument(metavar="JSON", help="its arguments")] = "null",
    idem: Annotated[
        int | None,
        typer.Option("--idem", metavar="N", min=0, help="calls with the same number are one call", show_default="none"),
    ] = None,
    timeout: Annotated[
        float, durations.option("--timeout", least=0.001, most=MAX_SECONDS, help="how long to wait for the answer")
    ] = 30.0,
) -> None:
    """Call a method, wait for the answer, and show it.

    The exit status is 5 if the server answers with an error, and 6 if there is no answer in time. With --idem the
    command can be repeated after a crash and is still the same call.
    """

    given = _value(args)
    if options.blind:
        raise Misuse("this command needs to read the stream for the answer", "leave out --blind")

    async def work(client: Client, name: str) -> cbor.Value:
        async with Caller.of(client, name, cached=not options.no_cache) as caller:
            return await caller.call(method, given, timeout_s=timeout, idem=idem)

    try:
        found = send_event.run_at_hub(options, RPC, work)
    except RpcFailure as failure:
        code, detail = (sanitize.printable(one or "") for one in (failure.error.code, failure.error.detail))
        raise hinted(
            Refused(code, detail or "the server gave no detail"), "this error is the server's answer, from the log"
        ) from None
    except NoReply as error:
        again = "repeating the command makes another call" if idem is None else "repeating the command is the same call"
        raise hinted(error, "the call is in the log and may still be answered: veen rpc list shows it", again) from None
    if options.as_json:
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
    options: SendOptions,
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD=COMMAND", help="a method and its command, or its Python function as module:name"
        ),
    ],
    waiting: Annotated[bool, typer.Option("--waiting", help="answer the pending calls, then exit")] = False,
    timeout: Annotated[
        float | None,
        durations.option(
            "--timeout",
            least=0.001,
            most=1_000_000,
            help="how long a command may run before it is killed",
            show_default="no limit",
        ),
    ] = None,
) -> None:
    """Answer calls as they arrive, one after the other, until ctrl-c or SIGTERM.

    A command reads the arguments as JSON from standard input and writes the result as JSON. If it fails, the answer is
    an error with the last line of its standard error. A call may be executed more than once: if the server stops before
    it answers, or if several servers run.
    """

    table: dict[str, Method] = dict(parse(one, timeout) for one in methods)
    if options.blind:
        raise Misuse("this command needs to read the stream for calls", "leave out --blind")

    async def work(client: Client, name: str) -> int:
        async with Server.of(client, name, table, cached=not options.no_cache) as server:
            if waiting:
                return await server.serve_waiting(_printer(options.as_json))
            output.remark(f"answering calls on {name}: {', '.join(table)}")
            await _run_until_sigterm(server.serve(_printer(options.as_json)))
            return 0

    answered = send_event.run_at_hub(options, RPC, work)
    if waiting and not options.as_json:
        output.remark(f"answered {answered}")


async def _run_until_sigterm(serving: Coroutine[Any, Any, None]) -> None:
    """Serve until SIGTERM, which also kills a running command. Its call stays pending for the next server."""
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


def _printer(as_json: bool) -> Callable[[PendingReply, Reply], None]:
    def tell(owed: PendingReply, reply: Reply) -> None:
        word = "answered" if reply.error is None else f"failed: {reply.error.code}"
        fields: dict[str, Any] = {"call": owed.call_id.hex(), "method": owed.asked.request.method, "became": word}
        line = json.dumps(fields) if as_json else "\t".join(printable(one) for one in fields.values())
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    return tell


@read_command(app, "list", "veen rpc list --stream calls", "veen rpc list --waiting --json")
def list_(
    options: ReadOptions,
    waiting: Annotated[bool, typer.Option("--waiting", help="only calls without an answer")] = False,
) -> None:
    """List calls and their answers, in log order."""

    def look(reading: CallReading) -> StateAnswer:
        listed = reading.live() if waiting else reading.states.items()
        found = [(part, call) for part, call in listed if call.asked is not None]
        rows, data = [], []
        for part, one in found:
            assert one.asked is not None
            plain = RPC.plain(part, one)
            status = _status(one, reading.now)
            result = plain.get("result") if one.answered and one.answered.reply.ok else plain.get("error")
            cells = (one.asked.request.method, render_state.plain_cell(plain.get("args")), status)
            rows.append((one.asked.stream_seq, sanitize.short(part[1:]), *cells, render_state.plain_cell(result)))
            data.append({**{name: render_state.plain_json(value) for name, value in plain.items()}, "status": status})
        columns, parts = ("entry", "call", "method", "args", "status", "answer"), tuple(part for part, _ in found)
        return read_state.StateAnswer(columns=columns, rows=rows, data={"calls": data}, parts=parts)

    read_state.show_state(options, RPC, look)


def _status(one: Call, now: int) -> str:
    if one.answered is not None:
        return "answered" if one.answered.reply.ok else "failed"
    return "timed out" if one.timed_out(1000 * now) else "waiting"


def _value(text: str) -> cbor.Value:
    try:
        return value_of(text)
    except ValueError as error:
        raise Misuse(f"the arguments are not JSON without fractions: {error}", "give JSON without fractions") from None


faults_command.add(app, "veen rpc", RPC)
