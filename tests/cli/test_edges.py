"""Process behaviour: start-up, ctrl-c, broken pipes, closed files, shell completion and terminals."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.runner import Veen
from tests.hub.client import running

COMMAND = [sys.executable, "-m", "veen.cli"]


def run(veen: Veen, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `veen` in its own process."""
    merged = {**veen.shell_env(os.environ), **env}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=merged, stdin=subprocess.DEVNULL)


def test_the_module_can_be_run_as_the_command(veen: Veen) -> None:
    ran = run(veen, "version", "--json")
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["wire"] == 1
    assert ran.stderr == ""


def test_a_command_works_with_closed_standard_files(veen: Veen, tmp_path: Path) -> None:
    """In particular it writes no message into a file that was opened as descriptor 1 or 2."""

    def closed(*arguments: object) -> int:
        command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *COMMAND, *map(str, arguments)]
        return subprocess.run(command, env=veen.shell_env(os.environ)).returncode

    again = ("hub", "init", "--data-dir", tmp_path / "hub", "--no-root")
    assert closed(*again) == 0
    assert closed(*again) == veen(*again).status != 0
    assert closed("version", "--json") == 0
    assert veen.done("fsck", tmp_path / "hub").facts()["verdict"] == "clean"


def test_the_version_is_shown_by_option_and_command(veen: Veen) -> None:
    from veen import __version__

    assert veen.done("--version").out == f"{__version__}\n"
    assert veen.done("version").facts()["veen"] == __version__


@pytest.mark.parametrize(
    "arguments", [["--help"], ["hub", "--help"], ["hub", "start", "--help"], ["context", "--help"]]
)
def test_help_does_not_import_heavy_libraries(arguments: list[str], veen: Veen) -> None:
    heavy = ("veen.core", "veen.hub", "veen.storage", "httpx", "rich", "uvloop", "lmdb", "prometheus_client")
    code = f"""
import sys
import time
from veen.cli.app import main
try:
    main({arguments!r})
except SystemExit as ended:
    assert ended.code == 0
    sys.stderr.write(" ".join(sorted(set({heavy!r}) & set(sys.modules))))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=veen.shell_env(os.environ))
    assert ran.returncode == 0
    assert "usage: veen" in ran.stdout
    assert ran.stderr == ""


def test_ctrl_c_prints_one_line_and_exits_with_130(veen: Veen, data_dir: Path) -> None:
    # The first line shows that `veen top` has started; then it waits for the next interval.
    veen.apart("hub", "start", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--workers", "0")
    try:
        command = [*COMMAND, "top", "--data-dir", str(data_dir), "--json", "--interval", "0.05"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=veen.shell_env(os.environ)
        ) as top:
            assert top.stdout is not None
            assert top.stderr is not None
            assert json.loads(top.stdout.readline())["ready"] is True
            top.send_signal(signal.SIGINT)
            assert top.stderr.read() == "veen: interrupted\n"
            assert top.wait() == 130
    finally:
        veen.done("hub", "stop", "--data-dir", data_dir)


def test_a_closed_pipe_is_not_an_error(veen: Veen) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as gone:
        for arguments in (["explain"], ["--help"], ["explain", "--json"]):
            ran = subprocess.run(
                [*COMMAND, *arguments], stdout=gone, stderr=subprocess.PIPE, env=veen.shell_env(os.environ)
            )
            assert ran.returncode == 141
            assert ran.stderr == b""


def test_an_error_prints_no_traceback(veen: Veen, tmp_path: Path) -> None:
    ran = run(veen, "fsck", str(tmp_path / "none"))
    assert ran.returncode == 6
    assert ran.stdout == ""
    assert [line[:13] for line in ran.stderr.splitlines()] == ["veen: error: ", "veen: hint: v"]


def complete(veen: Veen, words: str) -> list[str]:
    """The completions that bash offers after these words."""
    at = str(len(words.split(" ")) - 1)
    ran = run(veen, _VEEN_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=at)
    return ran.stdout.split()


def test_a_shell_completes_commands_options_contexts_and_codes(veen: Veen) -> None:
    veen.done("context", "add", "garden", "--hub", "http://127.0.0.1:1")
    assert {"hub", "fsck", "top", "context", "explain", "version"} <= set(complete(veen, "veen "))
    assert complete(veen, "veen hub sta") == ["start", "status"]
    assert complete(veen, "veen hub start --adm") == ["--admission"]
    assert set(complete(veen, "veen hub start --admission ")) == {"open", "capability"}
    assert complete(veen, "veen context use g") == ["garden"]
    assert complete(veen, "veen explain E.CAP/CAP_M") == ["E.CAP/CAP_MISSING"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_completion_script_for_the_usual_shells(shell: str, veen: Veen) -> None:
    ran = run(veen, _VEEN_COMPLETE=f"source_{shell}")
    assert ran.returncode == 0
    assert "_VEEN_COMPLETE" in ran.stdout


def on_a_terminal(veen: Veen, *arguments: str, **env: str) -> str:
    """The output of a command on a terminal."""
    ours, theirs = pty.openpty()
    merged = {**veen.shell_env(os.environ), "TERM": "xterm-256color", **env}
    if "NO_COLOR" not in env:
        merged.pop("NO_COLOR", None)
    with subprocess.Popen([*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=merged) as process:
        os.close(theirs)
        seen = b""
        try:
            while more := os.read(ours, 1 << 16):
                seen += more
        except OSError:  # Linux reports a closed terminal this way
            pass
        process.wait()
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def test_a_terminal_gets_tables_and_colour_and_a_pipe_neither(veen: Veen) -> None:
    seen = on_a_terminal(veen, "explain")
    assert "\x1b[" in seen
    assert re.search(r"code +http +when +what to do", re.sub(r"\x1b\[[\d;]*m", "", seen))
    piped = run(veen, "explain").stdout
    assert "\x1b" not in piped
    assert piped.splitlines()[0].split("\t")[0] == "E.SIZE/SIZE_PREFILTER"


def test_errors_are_coloured_on_a_terminal_only(veen: Veen) -> None:
    assert on_a_terminal(veen, "hbu").startswith("veen: \x1b[1;31merror:\x1b[0m veen has no command 'hbu'\n")
    assert on_a_terminal(veen, "hbu", NO_COLOR="1").startswith("veen: error: veen has no command 'hbu'\n")
    assert run(veen, "hbu").stderr.startswith("veen: error: veen has no command 'hbu'\n")


def test_no_color_switches_colour_off(veen: Veen) -> None:
    assert not re.search(r"\x1b\[\d*m", on_a_terminal(veen, "hub", "--help", NO_COLOR="1"))
    assert "\x1b[3" not in on_a_terminal(veen, "explain", NO_COLOR="1")
    assert "\x1b[3" in on_a_terminal(veen, "explain")


def test_json_is_indented_on_a_terminal(veen: Veen) -> None:
    assert len(on_a_terminal(veen, "version", "--json").splitlines()) > 5
    assert len(run(veen, "version", "--json").stdout.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_does_not_cause_an_error(encoding: str, veen: Veen) -> None:
    for arguments in (["--help"], ["hub", "start", "--help"], ["explain"], ["hbu"]):
        ran = run(veen, *arguments, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert ran.returncode in (0, 2)
        assert "Traceback" not in ran.stderr


def test_a_fork_counts_entries_and_not_bytes(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    with running(data_dir, time.time) as hub:
        hub.writer("doors").send_many(3)
    seen = on_a_terminal(
        veen, "hub", "fork", "--data-dir", str(data_dir), "--into", str(tmp_path / "fork"), "--no-root"
    )
    assert " entries" in seen
    assert "bytes" not in seen
