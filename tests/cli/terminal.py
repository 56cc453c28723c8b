"""Runs commands on a pseudo-terminal and types answers."""

import os
import pty
from collections.abc import Sequence

from tests.cli.runner import Veen
from tests.cli.test_edges import COMMAND


def run_on_terminal(veen: Veen, arguments: Sequence[object], *answers: tuple[bytes, bytes]) -> tuple[int, str]:
    """Run a command on its own terminal. Each answer is typed once its question is on the screen."""
    child, screen = pty.fork()
    if child == 0:
        env = {**veen.shell_env(os.environ), "TERM": "xterm-256color"}
        env.pop("NO_COLOR", None)
        os.execve(COMMAND[0], [*COMMAND, *map(str, arguments)], env)
    seen = b""
    for question, typed in answers:
        while question not in seen:
            more = _read(screen)
            assert more, f"the command ended without the question {question!r}: {seen!r}"
            seen += more
        os.write(screen, typed)
    while more := _read(screen):
        seen += more
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(screen)
    return status, seen.decode().replace("\r\n", "\n")


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 1 << 16)
    except OSError:  # Linux reports a closed terminal this way
        return b""
