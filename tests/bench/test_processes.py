"""CPU, memory and children of processes are read correctly."""

import os
import subprocess
import sys
import time

import pytest

from veen.bench import hub_process
from veen.core import Unavailable

WAITS = "import sys; sys.stdin.read()"


def test_cpu_time_is_that_of_the_process_asked_about() -> None:
    before = time.process_time()
    asked = hub_process.cpu_seconds(os.getpid())
    assert before <= asked <= time.process_time()


def test_cpu_time_of_a_process_that_is_gone_is_unavailable() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(Unavailable):
        hub_process.cpu_seconds(ended.pid)


def test_exactly_the_descendants_are_found() -> None:
    """Uses its own process, because this one may have children of other tests."""
    leaf = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAITS!r}])"
    middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {leaf!r}])"
    with subprocess.Popen([sys.executable, "-c", middle], stdin=subprocess.PIPE) as child:
        while len(found := hub_process.children(child.pid)) < 2:
            assert child.poll() is None, "the child exited before its own child started"
        assert found[1:] == hub_process.children(found[0])
        assert {child.pid, *found} <= set(hub_process.children(os.getpid()))
        child.communicate()
    assert not {child.pid, *found} & set(hub_process.children(os.getpid()))


def test_resident_memory_is_anonymous_and_files() -> None:
    before = hub_process.memory(os.getpid())
    held = b"x" * (1 << 25)
    after = hub_process.memory(os.getpid())
    assert after.anonymous - before.anonymous > len(held) // 2
    assert after.resident >= after.anonymous + after.files
    assert (before + after).resident == before.resident + after.resident


def test_a_busy_machine_is_detected() -> None:
    before, start = hub_process.busy_seconds(), time.process_time()
    while time.process_time() - start < 0.1:
        pass
    assert hub_process.busy_seconds() - before >= 0.05
