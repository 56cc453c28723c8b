"""Terminals and pipes that have ASCII and nothing else: our signs are written another way, and data is kept."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plumbing.cli import ascii_fallback
from tests.cli.runner import Veen
from tests.cli.test_edges import on_a_terminal, run
from tests.cli.town import town
from veen.cli.top import frame

BODY = "… 扉が開いた"
ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}


def test_every_sign_has_ascii_of_its_own_and_all_else_stays() -> None:
    assert ascii_fallback.to_ascii("4f…a1 – §7 5 µs ✓ • ┏━┓│ ▁▄█") == "4f...a1 - s.7 5 us ok * +-+| ###"
    assert ascii_fallback.to_ascii("é 扉 ~") == "é 扉 ~"


@pytest.mark.parametrize(
    ("encoding", "written", "bytes_"),
    [
        ("ascii", "a…é扉", b"a...??"),
        ("latin-1", "a…é扉", b"a...\xe9?"),
        ("utf-8", "a…é扉", "a…é扉".encode()),
        ("utf-8", "a\ud800", b"a?"),
        ("ascii", "a\ud800…", b"a?..."),
    ],
)
def test_a_stream_gets_what_it_can_carry(encoding: str, written: str, bytes_: bytes) -> None:
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, encoding)
    ascii_fallback.prepare(stream)
    stream.write(written)
    stream.flush()
    assert out.getvalue() == bytes_


@pytest.mark.parametrize(
    "arguments",
    [["id", "group", "add", "--help"], ["wallet", "balance", "--help"], ["send", "--lines", "file"]],
    ids=" ".join,
)
@pytest.mark.parametrize("env", [ASCII, {"LC_ALL": "C"}], ids=["ascii", "C"])
def test_help_and_errors_are_ascii_where_nothing_else_is_had(
    env: dict[str, str], arguments: list[str], veen: Veen
) -> None:
    ran = run(veen, *arguments, **env)
    assert (ran.stdout + ran.stderr).isascii()
    assert "?" not in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    wide = veen(*arguments)
    assert ran.returncode == wide.status
    # Lines may break elsewhere, since what stands for a sign may be wider.
    assert (ran.stdout + ran.stderr).split() == ascii_fallback.to_ascii(wide.out + wide.err).split()


def test_what_others_wrote_is_kept(veen: Veen, tmp_path: Path) -> None:
    with town(veen, tmp_path) as place:
        place.send(BODY)
        arguments = [str(one) for one in ("stream", *place.of("reader"), "--pin", place.hub_id)]
        on_terminal = on_a_terminal(veen, *arguments, LC_ALL="C")
        in_a_pipe = place.apart(*arguments, env={"LC_ALL": "C"})
        as_json = place.apart(*arguments, "--json", env=ASCII)
    assert "... 扉が開いた" in on_terminal  # a sign of ours, even where it is none of ours
    assert f"\t{BODY}\t".encode() in in_a_pipe.stdout  # a result is the same in any locale
    assert as_json.stdout.isascii()
    assert json.loads(as_json.stdout)["text"] == BODY


def test_the_demo_is_told_in_ascii(veen: Veen) -> None:
    code = """
import sys
from plumbing.cli import ascii_fallback
from veen.cli.demo.stage import DemoStage
ascii_fallback.prepare(sys.stdout)
stage = DemoStage(as_json=False)
with stage.scene("one", "it holds"):
    stage.said("4f\\u2026a1")
"""
    for env in (ASCII, {"LC_ALL": "C"}):
        told = {**veen.shell_env(os.environ), **env}
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=told)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.isascii()
        assert "   ok it holds " in ran.stdout
        assert max(map(len, ran.stdout.splitlines())) == 100


def test_bars_can_be_drawn_in_ascii() -> None:
    assert frame.bars((0, 1, 2, 3, 6), 6, 2, " .:|") == ["     |", "  .:||"]
