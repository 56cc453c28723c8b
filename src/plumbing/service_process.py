"""A program as a service: its stop signals, pid 1 of a container, and its messages to systemd. sd_notify(3).

Without NOTIFY_SOCKET nothing is sent. The socket and the watchdog interval are those of the environment, so child
processes inherit them; the units have `NotifyAccess=main`, and only the program itself calls `ready`.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

_SOCKET, _WATCHDOG, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_SEND_TIMEOUT_S = 1.0  # a full queue of systemd must not stop the loop for longer
_KILLED_STATUS = 128  # the status of a shell for a process that a signal ended, less the signal


def leave_pid_1() -> None:
    """Return in a child of this process, which is pid 1 and only ends when the child does. No thread may run yet.

    The kernel drops every signal to pid 1 that has no handler, so SIGTERM would not stop a program that is still
    starting. And orphans become children of pid 1, which must reap them. So pid 1 does only this: it sends its signals
    to the program, reaps, and exits with the status of the program.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    program = os.fork()
    if not program:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_serve_as_pid_1(program))


def _serve_as_pid_1(program: int) -> int:
    while True:
        arrived = signal.sigwaitinfo(signal.valid_signals())
        if arrived.si_signo == signal.SIGCHLD:
            status = _reap(program)
            if status is not None:
                return status if status >= 0 else _KILLED_STATUS - status
        elif arrived.si_code <= 0:  # from a process; the terminal has sent its own to the program as well
            os.kill(program, arrived.si_signo)


def _reap(program: int) -> int | None:
    """Reap all that have ended. Returns the exit code of the program if it is among them."""
    status = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == program:
                status = os.waitstatus_to_exitcode(ended[1])
    return status


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Report at SIGTERM or SIGINT that the program stops, and stop it."""

    def arrived() -> None:
        _notify("STOPPING=1")
        stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived)


def ready(status: str) -> None:
    """Report that the program serves, and from now on, if systemd wants to know, that its loop runs."""
    _notify(f"READY=1\nSTATUS={status}")
    interval_us = os.environ.get(_WATCHDOG, "")
    if os.environ.get(_WATCHDOG_PID, str(os.getpid())) == str(os.getpid()) and interval_us.isdecimal():
        _ping(asyncio.get_running_loop(), int(interval_us) / 2e6)


def _ping(loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
    _notify("WATCHDOG=1")
    loop.call_later(interval_s, _ping, loop, interval_s)


def _notify(state: str) -> None:
    name = os.environ.get(_SOCKET)
    if name:
        # systemd may be gone, which is no reason to end.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(_SEND_TIMEOUT_S)
            sender.sendto(state.encode(), f"\0{name[1:]}" if name.startswith("@") else name)
