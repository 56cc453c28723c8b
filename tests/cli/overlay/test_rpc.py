"""`veen rpc`: calls are answered by commands and by functions, and every way to fail is told apart."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isawaitable
from pathlib import Path

import pytest

from plumbing.cli.command import Misuse
from tests.cli.overlay.people import KEEPER, People, people
from tests.cli.runner import Veen
from tests.cli.test_edges import COMMAND
from tests.cli.town import STREAM
from veen.cli import rpc
from veen.core import cbor
from veen.overlays.rpc import RpcFailure
from veen.state.rpc_calls import Method

ADD = f"{sys.executable} -c 'import json, sys; print(sum(json.load(sys.stdin)))'"


def doubled(args: cbor.Value) -> cbor.Value:
    assert isinstance(args, int)
    return 2 * args


def called(method: Method) -> cbor.Value:
    async def call() -> cbor.Value:
        found = method(None)
        return await found if isawaitable(found) else found

    return asyncio.run(call())


@contextmanager
def running(on_the_line: People, who: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command of `veen rpc` in a process of its own, until the block ends."""
    asked = [
        *map(str, ("--client", on_the_line.town.root / who, "--hub", on_the_line.town.url)),
        *map(str, ("--stream", STREAM, "--pin", on_the_line.data_dir, "--json")),
    ]
    env = {**on_the_line.town.veen.shell_env(os.environ), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [*COMMAND, "rpc", *words, *asked], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture
def on_the_line(veen: Veen, tmp_path: Path) -> Iterator[People]:
    with people(veen, tmp_path) as made:
        yield made


def test_a_call_that_nobody_answers_is_told_and_stays_one_call(on_the_line: People) -> None:
    for _ in range(2):
        ran = on_the_line.tries("rpc", "call", "add", "[1, 2]", "--timeout", 0.01, "--idem", 7)
        assert ran.status == 6
        assert "nobody answered" in ran.error
        assert "asks again, and is one call" in ran.err
    # Where a second of the hub's clock has gone by, the first has timed out, and was asked again.
    for line in on_the_line.does("rpc", "list", "--waiting").out.splitlines():
        _, _, method, args, status, _ = line.split("\t")
        assert (method, args) == ("add", "[1, 2]")
        assert status in ("waiting", "timed out")
    kept = on_the_line.does("fold", "--overlay", "rpc", "--json").json()["parts"]
    assert len([part for part in kept if "first_call" in part["state"]]) == 1
    ran = on_the_line.tries("rpc", "call", "add", "[1, 2]", "--timeout", 0.01)
    assert "the same command is another call" in ran.err
    assert "nothing was decided" not in ran.err


def test_waiting_calls_are_answered_by_commands_and_functions(on_the_line: People) -> None:
    with running(
        on_the_line, "reader", "serve", f"add={ADD}", "double=tests.cli.overlay.test_rpc:doubled", "no=false"
    ) as server:
        assert on_the_line.does("rpc", "call", "add", "[1, 2]").out == "3\n"
        assert on_the_line.does("rpc", "call", "double", "21", "--json").json() == {"method": "double", "result": 42}
        for method, args, said in [
            ("add", '["x"]', "RPC.FAILED: TypeError"),
            ("double", '"x"', "RPC.FAILED: AssertionError"),
            ("no", "null", "RPC.FAILED: status 1"),
            ("nothing", "null", "RPC.UNKNOWN_METHOD: nothing"),
        ]:
            ran = on_the_line.tries("rpc", "call", method, args)
            assert ran.status == 5
            assert said in ran.error
            assert "the server's answer" in ran.err
        assert server.stdout is not None
        told = [json.loads(server.stdout.readline()) for _ in range(6)]
        assert [one["method"] for one in told] == ["add", "double", "add", "double", "no", "nothing"]
    calls = on_the_line.reads(on_the_line.data_dir, "rpc", "list", "--json").json()["calls"]
    assert [call["status"] for call in calls] == ["answered", "answered", "failed", "failed", "failed", "failed"]
    assert on_the_line.does("rpc", "faults").out == ""
    assert (on_the_line.town.root / KEEPER).exists()


def test_a_server_that_is_ended_ends_its_command_and_leaves_the_call_to_the_next(on_the_line: People) -> None:
    pid_file = on_the_line.town.root / "pid"
    os.mkfifo(pid_file)
    slow = f"slow=sh -c 'echo $$ > {pid_file}; exec sleep 600'"
    with (
        running(on_the_line, "reader", "serve", slow) as server,
        running(on_the_line, KEEPER, "call", "slow", "null", "--timeout", "600"),
    ):
        pid = int(pid_file.read_text())  # waits for the command to begin
        server.terminate()
        assert server.wait() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert on_the_line.does("rpc", "list").out.split("\t")[4] == "waiting"


@pytest.mark.parametrize(
    "text", ["add", "=x", "add= ", "add=no_such_module_here:f", "add=json:no_such", "add=json:__doc__"]
)
def test_a_method_that_cannot_be_used_is_refused_before_anything_is_served(text: str) -> None:
    with pytest.raises(Misuse):
        rpc.parse(text)


def test_a_command_that_is_not_there_answers_with_an_error() -> None:
    _, method = rpc.parse("m=/no/such/command")
    with pytest.raises(RpcFailure, match="No such file"):
        called(method)


def test_a_command_that_does_not_end_is_ended_and_the_call_fails() -> None:
    _, method = rpc.parse("m=sleep 600", 0.05)
    with pytest.raises(RpcFailure, match=r"did not end within 0\.05 s"):
        called(method)


def test_a_command_that_no_shell_would_read_is_refused_before_anything_is_served() -> None:
    with pytest.raises(Misuse, match="no command"):
        rpc.parse("m=echo 'half")


def test_what_is_no_json_is_no_answer() -> None:
    for command in ("echo {", "echo 1.5"):
        _, method = rpc.parse(f"m={command}")
        with pytest.raises(RpcFailure, match="no JSON"):
            called(method)


@pytest.mark.parametrize("args", ["{", "1.5", "[1, 2.5]"])
def test_arguments_that_no_call_carries_are_refused(on_the_line: People, args: str) -> None:
    ran = on_the_line.tries("rpc", "call", "add", args)
    assert ran.status == 2
    assert "no JSON that a call can carry" in ran.error


@pytest.mark.parametrize("timeout", ["inf", "nan", "1e300", "0"])
def test_a_time_that_nobody_can_wait_for_is_refused(on_the_line: People, timeout: str) -> None:
    assert on_the_line.tries("rpc", "call", "add", "[1, 2]", "--timeout", timeout).status == 2
    assert on_the_line.does("rpc", "list").out == ""
