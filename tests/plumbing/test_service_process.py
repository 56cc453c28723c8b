"""A program as pid 1 of a container, and what it tells systemd."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.namespaces import inside_pid, new_pid_namespace

AS_PID_1 = """
import os, signal, sys, time
from plumbing.service_process import leave_pid_1
leave_pid_1()
"""


@contextmanager
def pid_1(program: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A program that starts as pid 1, and the number of that process here. It must print a line first."""
    with new_pid_namespace([sys.executable, "-c", AS_PID_1 + program]) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "started\n"
        yield started, inside_pid(started)


def test_a_signal_stops_a_program_that_has_no_handler_yet() -> None:
    with pid_1("print('started', flush=True); signal.pause()") as (started, first):
        os.kill(first, signal.SIGTERM)
        assert started.wait() == 128 + signal.SIGTERM


def test_the_program_gets_the_signals_of_pid_1_and_gives_it_its_status() -> None:
    handles = "signal.signal(signal.SIGHUP, lambda *_: sys.exit(7)); print('started', flush=True); signal.pause()"
    with pid_1(handles) as (started, first):
        os.kill(first, signal.SIGHUP)
        assert started.wait() == 7


def test_pid_1_reaps_the_children_of_others() -> None:
    leaves_an_orphan = """
if os.fork() == 0:
    orphan = os.fork()
    if orphan:
        print(orphan, flush=True)
        os._exit(0)
    while os.getppid() != 1:
        os.sched_yield()
    os._exit(0)
print('started', flush=True)
os.wait()
orphan = int(sys.stdin.readline())
for _ in range(6000):
    try:
        os.kill(orphan, 0)
    except ProcessLookupError:
        sys.exit(0)
    time.sleep(0.01)
sys.exit('the orphan is still there')
"""
    command = [sys.executable, "-c", AS_PID_1 + leaves_an_orphan]
    with new_pid_namespace(command) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        lines = {started.stdout.readline(), started.stdout.readline()} - {"started\n"}
        started.stdin.write(lines.pop())
        started.stdin.close()
        assert started.wait() == 0


class Systemd:
    """The socket of a service manager."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name.replace("@", "\0"))
        self.environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000"}

    def next(self, program: "subprocess.Popen[bytes]") -> str:
        """The next message. The test fails if the program ends without one."""
        ended = os.pidfd_open(program.pid)
        try:
            readable, _, _ = select.select([self.socket.fileno(), ended], [], [])
        finally:
            os.close(ended)
        assert self.socket.fileno() in readable, f"the program ended with {program.wait()}"
        return self.socket.recv(4096).decode()

    def after_pings(self, program: "subprocess.Popen[bytes]") -> str:
        """The next message that is no sign of life."""
        while (found := self.next(program)) == "WATCHDOG=1":
            pass
        return found


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(str(tmp_path / "notify"))
    with made.socket:
        yield made


SERVES = """
import asyncio
from plumbing import service_process

async def serve():
    stopped = asyncio.Event()
    service_process.stop_on_signals(stopped.set)
    service_process.ready("serving nothing")
    await stopped.wait()

asyncio.run(serve())
"""


@contextmanager
def serving(environment: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", SERVES], env={**os.environ, **environment}) as program:
        try:
            yield program
        except BaseException:
            program.kill()  # else the test would wait for its end
            raise


def test_systemd_learns_that_a_program_serves_lives_and_stops(systemd: Systemd) -> None:
    with serving(systemd.environment) as program:
        assert systemd.next(program) == "READY=1\nSTATUS=serving nothing"
        assert [systemd.next(program), systemd.next(program), systemd.next(program)] == ["WATCHDOG=1"] * 3
        program.send_signal(signal.SIGTERM)
        assert systemd.after_pings(program) == "STOPPING=1"
    assert program.returncode == 0


def test_a_socket_without_a_file_is_used_too() -> None:
    systemd = Systemd(f"@veen-test-{os.getpid()}-{time.monotonic_ns()}")
    with systemd.socket, serving(systemd.environment) as program:
        assert systemd.next(program).startswith("READY=1\n")
        program.send_signal(signal.SIGINT)
        assert systemd.after_pings(program) == "STOPPING=1"


def test_the_watchdog_of_another_process_gets_no_sign_of_life(systemd: Systemd) -> None:
    with serving({**systemd.environment, "WATCHDOG_PID": "1"}) as program:
        assert systemd.next(program).startswith("READY=1\n")
        program.send_signal(signal.SIGTERM)
        assert systemd.next(program) == "STOPPING=1"


def test_a_program_runs_on_if_systemd_is_gone(systemd: Systemd) -> None:
    with serving(systemd.environment) as program:
        assert systemd.next(program).startswith("READY=1\n")
        systemd.socket.close()
        program.send_signal(signal.SIGTERM)
    assert program.returncode == 0
