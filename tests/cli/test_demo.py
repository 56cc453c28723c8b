"""`veen demo` shows its claims, leaves nothing behind, and fails if a claim does not hold."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.runner import Veen
from tests.cli.test_edges import COMMAND
from veen.cli import demo as story
from veen.cli.demo import DemoStage
from veen.cli.hub import hub_process

SCENES = 7


def start(veen: Veen, tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start the demo in its own process, with its own temporary folder."""
    (tmp_path / "tmp").mkdir()
    env = {**veen.shell_env(os.environ), "TMPDIR": str(tmp_path / "tmp"), "VEEN_CLIENT": "/nowhere", "VEEN_HUB": "x:1"}
    command = [*COMMAND, "demo", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_every_claim_is_shown_and_nothing_is_left_behind(veen: Veen, tmp_path: Path) -> None:
    # The contexts of the user are neither used nor changed.
    veen.done("context", "add", "mine", "--hub", "http://127.0.0.1:1", "--cap", "/nowhere")
    before = veen.done("context", "list").out
    with start(veen, tmp_path) as demo:
        out, err = demo.communicate()
    assert demo.returncode == 0, err
    assert err == ""
    assert "\x1b" not in out
    assert max(map(len, out.splitlines()[1:])) <= 100  # the first has the folder's name
    claims = re.findall(r"^   ✓ (.*?) +\d+\.\d\d s$", out.partition("\nshown\n")[2], re.MULTILINE)
    assert len(claims) == SCENES
    for claim in claims:
        assert out.count(claim) == 2
    for shown in (
        "reader sees 1: door 4 opened",
        "operator sees 1: (sealed)",
        "E.FORBIDDEN",
        "damaged: entry ",
        "clean: 1003 entries",
        "key 1 of the hub",
        "key 2 of the hub",
        "does not verify",
    ):
        assert shown in out
    total = float(out.splitlines()[-1].split()[-2])
    assert total > 0
    assert list((tmp_path / "tmp").iterdir()) == []
    assert veen.done("context", "list").out == before


def test_the_folder_can_be_kept_and_the_result_is_json(veen: Veen, tmp_path: Path) -> None:
    with start(veen, tmp_path, "--keep", "--json") as demo:
        out, err = demo.communicate()
    assert demo.returncode == 0, err
    result = json.loads(out)
    assert len(result["shown"]) == SCENES
    assert result["shown"][0]["title"] == "keys"
    folder = Path(result["folder"])
    assert folder.parent == tmp_path / "tmp"
    assert not hub_process.is_locked(folder / "hub")
    assert veen.done("fsck", folder / "hub").facts()["verdict"] == "clean"
    assert veen("fsck", folder / "copy").status == 8


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_ends_the_demo_stops_its_hub_too(
    number: signal.Signals, status: int, veen: Veen, tmp_path: Path
) -> None:
    with start(veen, tmp_path) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("4  "):
                break
        (folder,) = (tmp_path / "tmp").iterdir()
        assert hub_process.is_locked(folder / "hub")
        demo.send_signal(number)
        demo.communicate()
    assert demo.returncode == status
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not _has_process(str(folder))


def _has_process(folder: str) -> bool:
    """Whether the working directory of any process is in the folder."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "cwd").startswith(folder):
                return True
        except OSError:
            continue
    return False


def test_the_demo_fails_if_a_claim_does_not_hold(veen: Veen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(story, "_flip_a_bit", lambda path, part=b"": None)
    before = set(tmp_path.iterdir())
    ran = veen("demo")
    assert ran.status == 6
    assert "veen evidence verify door.evidence" in ran.error
    assert "exited with 0, not 4" in ran.error
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("text", "lines"), [("short", 1), ("words " * 30, 3)])
def test_times_are_aligned_at_the_right_edge(text: str, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    stage = DemoStage(as_json=False)
    with stage.scene("title", text.strip()):
        stage.typed("me", "veen send " + "--option value " * 12)
        stage.said("x " * 90)
    shown = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in shown)
    assert len(shown[-1]) == 100
    assert sum("words" in line or "short" in line for line in shown) == lines
    assert [line.endswith(" \\") for line in shown if "--option" in line] == [True, True, False]
