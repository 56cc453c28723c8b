"""ASCII terminals and pipes: symbols of ours are replaced, and data is kept."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plumbing.cli import ascii_fallback
from tests.cli.hub_fixture import hub_fixture
from tests.cli.runner import Veen
from tests.cli.test_edges import on_a_terminal, run
from veen.cli import top

BODY = "… 扉が開いた"
ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}


def test_every_symbol_is_replaced_and_other_characters_stay() -> None:
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
def test_a_stream_gets_what_it_can_encode(encoding: str, written: str, bytes_: bytes) -> None:
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
def test_help_and_errors_are_ascii_in_an_ascii_environment(
    env: dict[str, str], arguments: list[str], veen: Veen
) -> None:
    ran = run(veen, *arguments, **env)
    assert (ran.stdout + ran.stderr).isascii()
    assert "?" not in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    wide = veen(*arguments)
    assert ran.returncode == wide.status
    # Lines may break elsewhere, because a replacement may be wider than its symbol.
    assert (ran.stdout + ran.stderr).split() == ascii_fallback.to_ascii(wide.out + wide.err).split()


def test_the_content_of_entries_is_kept(veen: Veen, tmp_path: Path) -> None:
    with hub_fixture(veen, tmp_path) as place:
        place.send(BODY)
        arguments = [str(one) for one in ("stream", *place.of("reader"), "--pin", place.hub_id)]
        on_terminal = on_a_terminal(veen, *arguments, LC_ALL="C")
        in_a_pipe = place.apart(*arguments, env={"LC_ALL": "C"})
        as_json = place.apart(*arguments, "--json", env=ASCII)
    assert "... 扉が開いた" in on_terminal  # symbols are replaced in content too
    assert f"\t{BODY}\t".encode() in in_a_pipe.stdout  # a result is the same in any locale
    assert as_json.stdout.isascii()
    assert json.loads(as_json.stdout)["text"] == BODY


def test_the_demo_can_be_shown_in_ascii(veen: Veen) -> None:
    code = """
import sys
from plumbing.cli import ascii_fallback
from veen.cli.demo import DemoStage
ascii_fallback.prepare(sys.stdout)
stage = DemoStage(as_json=False)
with stage.scene("one", "it holds"):
    stage.said("4f\\u2026a1")
"""
    for env in (ASCII, {"LC_ALL": "C"}):
        merged = {**veen.shell_env(os.environ), **env}
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=merged)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.isascii()
        assert "   ok it holds " in ran.stdout
        assert max(map(len, ran.stdout.splitlines())) == 100


def test_bars_can_be_drawn_in_ascii() -> None:
    assert top.bars((0, 1, 2, 3, 6), 6, 2, " .:|") == ["     |", "  .:||"]
