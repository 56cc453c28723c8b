"""A program whose libraries are missing names them and how to install them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

WITHOUT = """
import sys
sys.modules["{name}"] = None
sys.argv[1:] = ["--help"]
from plumbing.cli.program import veil
veil()
"""


def run(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(name=name)], capture_output=True, text=True, check=False
    )


def test_a_missing_library_is_named_with_its_extra() -> None:
    ran = run("blake3")
    assert ran.returncode == 6
    assert ran.stdout == ""
    assert ran.stderr.splitlines() == [
        "veil: error: blake3 is not installed",
        "veil: hint: run pip install '.[veil]' in the clone that it was installed from",
    ]


def test_with_its_libraries_the_program_runs() -> None:
    ran = run("no_such_library")
    assert ran.returncode == 0
    assert ran.stdout.startswith("veil: ")


def test_a_bug_is_not_reported_as_a_missing_library() -> None:
    ran = run("veil.cli.app")
    assert ran.returncode == 1
    assert "Traceback" in ran.stderr


def test_every_install_hint_works_in_a_clone_and_names_an_existing_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in pages}
    assert [path for path, text in texts.items() if re.search(r"pip install '?veen", text)] == []
    named = {extra for text in texts.values() for extra in re.findall(r"install_hint\(\"(\w+)\"\)", text)}
    assert named == {"airgap", "anchor", "jre", "recorder", "spark", "veil"}
    assert named <= set(extras)
