"""Processes in namespaces of their own, as a container has them. A test is skipped where the machine allows none."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

_UNSHARE = ("unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")


@cache
def _refusal() -> str:
    try:
        done = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unshare is not installed"
    return done.stderr.strip() if done.returncode else ""


def need_namespaces() -> None:
    if refusal := _refusal():
        pytest.skip(f"namespaces are not possible here: {refusal}")


@contextmanager
def new_pid_namespace(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """A command that is pid 1 of new namespaces. The end of the block kills everything in them."""
    need_namespaces()
    pipe = subprocess.PIPE
    with subprocess.Popen([*_UNSHARE, *command], stdin=pipe, stdout=pipe, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def inside_pid(started: "subprocess.Popen[str]") -> int:
    """The number that pid 1 of the namespaces has here: it is the only child of `unshare`."""
    return int(Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text())
