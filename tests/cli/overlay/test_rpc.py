"""`veen rpc`: calls answered by commands and by functions, and a distinct error for each failure."""

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
from tests.cli.hub_fixture import STREAM
from tests.cli.overlay.state_fixture import KEEPER, StateFixture, state_hub
from tests.cli.runner import Veen
from tests.cli.test_edges import COMMAND
from veen.cli import rpc
from veen.core import cbor
from veen.overlays.rpc import RpcFailure
from veen.state.stream_stores import Method

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
def running(rpc_hub: StateFixture, who: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of `veen rpc` in a subprocess until the block ends."""
    asked = [
        *map(str, ("--client", rpc_hub.town.root / who, "--hub", rpc_hub.town.url)),
        *map(str, ("--stream", STREAM, "--pin", rpc_hub.data_dir, "--json")),
    ]
    env = {**rpc_hub.town.veen.shell_env(os.environ), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [*COMMAND, "rpc", *words, *asked], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture
def rpc_hub(veen: Veen, tmp_path: Path) -> Iterator[StateFixture]:
    with state_hub(veen, tmp_path) as made:
        yield made


def test_an_unanswered_call_fails_and_stays_one_call_with_idem(rpc_hub: StateFixture) -> None:
    for _ in range(2):
        ran = rpc_hub.attempt("rpc", "call", "add", "[1, 2]", "--timeout", 0.01, "--idem", 7)
        assert ran.status == 6
        assert "no reply to call" in ran.error
        assert "repeating the command is the same call" in ran.err
    # If a second of hub time has passed, the first call has timed out and was sent again.
    for line in rpc_hub.run("rpc", "list", "--waiting").out.splitlines():
        _, _, method, args, status, _ = line.split("\t")
        assert (method, args) == ("add", "[1, 2]")
        assert status in ("waiting", "timed out")
    kept = rpc_hub.run("fold", "--overlay", "rpc", "--json").json()["parts"]
    assert len([part for part in kept if "first_call" in part["state"]]) == 1
    ran = rpc_hub.attempt("rpc", "call", "add", "[1, 2]", "--timeout", 0.01)
    assert "repeating the command makes another call" in ran.err
    assert "nothing was decided" not in ran.err


def test_waiting_calls_are_answered_by_commands_and_functions(rpc_hub: StateFixture) -> None:
    with running(
        rpc_hub, "reader", "serve", f"add={ADD}", "double=tests.cli.overlay.test_rpc:doubled", "no=false"
    ) as server:
        assert rpc_hub.run("rpc", "call", "add", "[1, 2]").out == "3\n"
        assert rpc_hub.run("rpc", "call", "double", "21", "--json").json() == {"method": "double", "result": 42}
        for method, args, message in [
            ("add", '["x"]', "RPC.FAILED: TypeError"),
            ("double", '"x"', "RPC.FAILED: AssertionError"),
            ("no", "null", "RPC.FAILED: status 1"),
            ("nothing", "null", "RPC.UNKNOWN_METHOD: nothing"),
        ]:
            ran = rpc_hub.attempt("rpc", "call", method, args)
            assert ran.status == 5
            assert message in ran.error
            assert "the server's answer" in ran.err
        assert server.stdout is not None
        told = [json.loads(server.stdout.readline()) for _ in range(6)]
        assert [one["method"] for one in told] == ["add", "double", "add", "double", "no", "nothing"]
    calls = rpc_hub.run_offline(rpc_hub.data_dir, "rpc", "list", "--json").json()["calls"]
    assert [call["status"] for call in calls] == ["answered", "answered", "failed", "failed", "failed", "failed"]
    assert rpc_hub.run("rpc", "faults").out == ""
    assert (rpc_hub.town.root / KEEPER).exists()


def test_sigterm_kills_the_command_and_leaves_the_call_pending(rpc_hub: StateFixture) -> None:
    pid_file = rpc_hub.town.root / "pid"
    os.mkfifo(pid_file)
    slow = f"slow=sh -c 'echo $$ > {pid_file}; exec sleep 600'"
    with (
        running(rpc_hub, "reader", "serve", slow) as server,
        running(rpc_hub, KEEPER, "call", "slow", "null", "--timeout", "600"),
    ):
        pid = int(pid_file.read_text())  # blocks until the command has started
        server.terminate()
        assert server.wait() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert rpc_hub.run("rpc", "list").out.split("\t")[4] == "waiting"


@pytest.mark.parametrize(
    "text", ["add", "=x", "add= ", "add=no_such_module_here:f", "add=json:no_such", "add=json:__doc__"]
)
def test_an_unusable_method_is_misuse(text: str) -> None:
    with pytest.raises(Misuse):
        rpc.parse(text)


def test_a_missing_command_answers_with_an_error() -> None:
    _, method = rpc.parse("m=/no/such/command")
    with pytest.raises(RpcFailure, match="No such file"):
        called(method)


def test_a_command_that_hangs_is_killed_and_the_call_fails() -> None:
    _, method = rpc.parse("m=sleep 600", 0.05)
    with pytest.raises(RpcFailure, match=r"did not end within 0\.05 s"):
        called(method)


def test_a_command_with_unbalanced_quotes_is_misuse() -> None:
    with pytest.raises(Misuse, match="is not a command"):
        rpc.parse("m=echo 'half")


def test_output_that_is_not_json_is_an_error() -> None:
    for command in ("echo {", "echo 1.5"):
        _, method = rpc.parse(f"m={command}")
        with pytest.raises(RpcFailure, match="not JSON without fractions"):
            called(method)


@pytest.mark.parametrize("args", ["{", "1.5", "[1, 2.5]"])
def test_arguments_that_are_not_json_without_fractions_are_misuse(rpc_hub: StateFixture, args: str) -> None:
    ran = rpc_hub.attempt("rpc", "call", "add", args)
    assert ran.status == 2
    assert "not JSON without fractions" in ran.error


@pytest.mark.parametrize("timeout", ["inf", "nan", "1e300", "0"])
def test_an_invalid_timeout_is_misuse(rpc_hub: StateFixture, timeout: str) -> None:
    assert rpc_hub.attempt("rpc", "call", "add", "[1, 2]", "--timeout", timeout).status == 2
    assert rpc_hub.run("rpc", "list").out == ""
