"""`veen rpc`: call methods over a stream, and answer calls with commands or Python functions."""

import asyncio
import importlib
import json
import re
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.kit import output
from veen.cli.kit.common_options import MAX_SECONDS
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Result, jsonable
from veen.cli.kit.sanitize import printable
from veen.cli.kit.state_session import (
    Answer,
    ReadSession,
    SendSession,
    add_faults,
    plain_cell,
    read_command,
    send_command,
)
from veen.core import Refused, cbor
from veen.overlays.rpc import RPC, Call, PendingReply, Reply, RpcFailure
from veen.state import Caller, NoReply, Server
from veen.state.stream_stores import FAILED, Method

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
        status, out, err = await _run_command(words, json.dumps(jsonable(args)).encode(), timeout_s)
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
async def call(
    session: SendSession,
    method: Annotated[str, argument("METHOD", "the method to call")],
    args: Annotated[str, argument("JSON", "its arguments")] = "null",
    idem: Annotated[
        int | None, option("--idem N", "calls with the same number are one call", default="none", min=0)
    ] = None,
    timeout: Annotated[
        float, durations.option("--timeout", least=0.001, most=MAX_SECONDS, help="how long to wait for the answer")
    ] = 30.0,
) -> Result:
    """Call a method, wait for the answer, and show it.

    The exit status is 5 if the server answers with an error, and 6 if there is no answer in time. With --idem the
    command can be repeated after a crash and is still the same call.
    """
    given = _value(args)
    session.reject_blind("the stream for the answer")
    client, name = await session.at_hub(RPC)
    try:
        async with Caller.of(client, name, cached=session.cached) as caller:
            found = await caller.call(method, given, timeout_s=timeout, idem=idem)
    except RpcFailure as failure:
        code, detail = (printable(one or "") for one in (failure.error.code, failure.error.detail))
        raise hinted(
            Refused(code, detail or "the server gave no detail"), "this error is the server's answer, from the log"
        ) from None
    except NoReply as error:
        again = "repeating the command makes another call" if idem is None else "repeating the command is the same call"
        raise hinted(error, "the call is in the log and may still be answered: veen rpc list shows it", again) from None
    return Result({"method": method, "result": found}, text=json.dumps(jsonable(found)))


@send_command(
    app,
    "serve",
    "veen rpc serve add=./add.py --stream calls",
    "veen rpc serve 'sum=jq add' --stream calls --json",
    "veen rpc serve add=my_package.methods:add --waiting --stream calls",
)
async def serve(
    session: SendSession,
    methods: Annotated[
        list[str],
        argument("METHOD=COMMAND", "a method and its command, or its Python function as module:name"),
    ],
    waiting: Annotated[bool, option("--waiting", "answer the pending calls, then exit")] = False,
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
    session.reject_blind("the stream for calls")
    as_json = session.options.as_json
    client, name = await session.at_hub(RPC)
    async with Server.of(client, name, table, cached=session.cached) as server:
        if not waiting:
            output.remark(f"answering calls on {name}: {', '.join(table)}")
            await _run_until_sigterm(server.serve(_printer(as_json)))
            return
        answered = await server.serve_waiting(_printer(as_json))
    if not as_json:
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
async def list_(
    session: ReadSession,
    waiting: Annotated[bool, option("--waiting", "only calls without an answer")] = False,
) -> Answer:
    """List calls and their answers, in log order."""
    state = await session.open(RPC)
    listed = state.live() if waiting else state.states.items()
    found = [(part, call, call.asked.stream_seq) for part, call in listed if call.asked is not None]
    data = [{**RPC.plain(part, one), "status": _status(one, state.now), "_entry": entry} for part, one, entry in found]
    columns = (
        ("entry", "_entry"),
        "call",
        "method",
        ("args", lambda row: plain_cell(row.get("args"))),
        "status",
        ("answer", lambda row: plain_cell(row.get("result" if row["status"] == "answered" else "error"))),
    )
    return Answer({"calls": data}, rows="calls", columns=columns, parts=tuple(part for part, _, _ in found))


def _status(one: Call, now: int) -> str:
    if one.answered is not None:
        return "answered" if one.answered.reply.ok else "failed"
    return "timed out" if one.timed_out(1000 * now) else "waiting"


def _value(text: str) -> cbor.Value:
    try:
        return value_of(text)
    except ValueError as error:
        raise Misuse(f"the arguments are not JSON without fractions: {error}", "give JSON without fractions") from None


add_faults(app, "veen rpc", lambda session: session.open(RPC), example=" --stream NAME")
