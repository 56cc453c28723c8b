"""Runs the commands in README and docs as a reader would type them, and compares their output with the page.

The `console` blocks of a page are one session. `$ ` starts a command; it continues after a line that ends in a
backslash, and with lines that start with `> `. The lines below it are its output on a terminal. A command without
output lines may print anything, but must succeed.

    $ veen hub init --data-dir hub --no-root
    hub_id      5f1c8a04…
    …

Varying output is abbreviated: hex digits before `…` match any hex digits, `…` within a line matches anything, and alone
on a line any lines. A date and time match any. Runs of spaces count as one.

A command may fail only if the next one is `echo $?`, so the page shows its status.
"""

import json
import os
import pty
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import veen
from veen.cli.hub import hub_process

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"127\.0\.0\.1:(374\d\d)")
DEFAULT_PORT = 37411
ASK_STATUS = "echo $?"
ANYTHING = re.compile(r"[0-9a-f]{4,}…|…|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
MARK = "\x1e"
STOP_S = 60.0
LINES = r"(?:[^\n]*\n)*?"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page and its expected output."""

    line: int
    text: str
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command."""

    status: int
    printed: str


def blocks(page: str) -> Iterator[tuple[str, int, list[str]]]:
    """The code blocks of a page: language, line number of the first line within, lines."""
    for found in BLOCK.finditer(page):
        yield found[1], page.count("\n", 0, found.start(2)) + 1, found[2].splitlines()


def commands(page: str) -> list[Command]:
    """The commands of a page in order. A console block that does not start with one raises `ValueError`."""
    found: list[Command] = []
    for language, first, lines in blocks(page):
        if language != "console":
            continue
        if not lines or not lines[0].startswith("$ "):
            raise ValueError(f"line {first}: a console block must start with a command")
        for line, text in enumerate(lines, first):
            if text.startswith("$ "):
                found.append(Command(line, text[2:], ()))
                continue
            last = found.pop()
            if not last.shown and (text.startswith("> ") or last.text.endswith("\\")):
                found.append(Command(last.line, f"{last.text}\n{text.removeprefix('> ')}", ()))
            else:
                found.append(Command(last.line, last.text, (*last.shown, text)))
    return found


def is_as_shown(shown: tuple[str, ...], printed: str) -> bool:
    """Whether the output matches the page."""
    lines = [line for line in map(_squeezed, shown) if line]
    pattern = "".join(LINES if line == "…" else f"{_pattern(line)}\n" for line in lines)
    actual = "".join(f"{line}\n" for line in map(_squeezed, printed.splitlines()) if line)
    return re.fullmatch(pattern, actual) is not None


def faults(page: str, found: list[Command], outcomes: list[Outcome]) -> Iterator[str]:
    """The differences between page and output, each with its place."""
    for index, command in enumerate(found):
        place = f"{page}:{command.line}: $ {command.text}\n"
        if index >= len(outcomes):
            yield f"{place}was not reached"
            return
        outcome = outcomes[index]
        if outcome.status and not _may_fail(found, index):
            yield f"{place}exited with {outcome.status}; it printed:\n{outcome.printed}"
            return
        if command.shown and not is_as_shown(command.shown, outcome.printed):
            shown = "\n".join(command.shown)
            yield f"{place}the page shows:\n{shown}\nit printed:\n{outcome.printed}"


def run(found: list[Command], folder: Path) -> list[Outcome]:
    """Run a page's commands in one shell. Hubs and nodes that are left running are stopped in any case."""
    home, here, tools, runtime = (folder / name for name in ("home", "here", "bin", "run"))
    for path in (home, here, tools, runtime):
        path.mkdir()
    for name in ("veen", "veil"):
        shim = tools / name
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name}.cli "$@"\n')
        shim.chmod(0o755)
    ports = _free_ports(found)
    script = folder / "session.sh"
    script.write_text("".join(_steps(found, ports)), "utf-8")
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(veen.__file__).parents[1]),
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "COLUMNS": "120",
        "LINES": "40",
    }
    try:
        printed = _run_on_terminal(script, here, env)
    finally:
        _stop_hubs(runtime)
        _kill_nodes(here)
    for page_port, port in ports.items():
        printed = printed.replace(f"127.0.0.1:{port}", f"127.0.0.1:{page_port}")
    parts = printed.split(MARK)
    return [Outcome(int(status), printed) for printed, status in zip(parts[:-1:2], parts[1::2], strict=True)]


def _may_fail(found: list[Command], index: int) -> bool:
    return index + 1 < len(found) and found[index + 1].text == ASK_STATUS


def _steps(found: list[Command], ports: dict[int, int]) -> Iterator[str]:
    """The session as a script that prints the status after each command and leaves `$?` unchanged."""
    for index, command in enumerate(found):
        text = ADDRESS.sub(lambda address: f"127.0.0.1:{ports[int(address[1])]}", command.text)
        if "veen hub start" in text and "--listen" not in text and "--config" not in text:
            text = text.replace("veen hub start", f"veen hub start --listen 127.0.0.1:{ports[DEFAULT_PORT]}")
        yield f"{text}\n"
        yield f"__status=$?; printf '{MARK}%d{MARK}' $__status\n"
        yield "(exit $__status)\n" if _may_fail(found, index) else "[ $__status = 0 ] || exit 0\n"


def _free_ports(found: list[Command]) -> dict[int, int]:
    """A free port for each port on the page, so pages can run in parallel and next to a real hub."""
    named = {DEFAULT_PORT, *(int(port) for command in found for port in ADDRESS.findall(command.text))}
    holders = {port: socket.create_server(("127.0.0.1", 0)) for port in sorted(named)}
    try:
        return {port: holder.getsockname()[1] for port, holder in holders.items()}
    finally:
        for holder in holders.values():
            holder.close()


def _run_on_terminal(script: Path, here: Path, env: dict[str, str]) -> str:
    """The output of the session on a terminal."""
    ours, theirs = pty.openpty()
    try:
        shell = subprocess.Popen(
            ["bash", "--norc", str(script)], cwd=here, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
        )
    finally:
        os.close(theirs)
    ended = os.pidfd_open(shell.pid)
    got = b""
    try:
        # A background hub may keep the terminal open, so stop when the shell has exited and nothing is left to read.
        while ours in (ready := select.select([ours, ended], [], [])[0]) or not ready:
            with suppress(OSError):
                got += (piece := os.read(ours, 1 << 16))
                if piece:
                    continue
            break
    finally:
        shell.kill()
        shell.wait()
        os.close(ended)
        os.close(ours)
    return got.decode().replace("\r\n", "\n")


def _stop_hubs(runtime: Path) -> None:
    for record in runtime.glob("veen/hub-*.json"):
        hub = hub_process.HubProcess(**json.loads(record.read_bytes()))
        if not hub_process.stop(hub, STOP_S):
            os.kill(hub.pid, 9)


def _kill_nodes(here: Path) -> None:
    """Kill the VEIL nodes that a page left running, found by their folders."""
    for record in here.rglob("api.json"):
        with suppress(ProcessLookupError):
            os.kill(json.loads(record.read_bytes())["pid"], 9)


def _squeezed(line: str) -> str:
    return " ".join(line.split())


def _pattern(line: str) -> str:
    """A line of the page as a regular expression."""
    pattern, at = "", 0
    for varies in ANYTHING.finditer(line):
        pattern += re.escape(line[at : varies.start()]) + _any_like(varies[0])
        at = varies.end()
    return pattern + re.escape(line[at:])


def _any_like(shown: str) -> str:
    if shown == "…":
        return r"[^\n]*"
    return r"[0-9a-f]+…?" if shown.endswith("…") else r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
