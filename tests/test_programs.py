"""A program whose libraries are not installed says which, and how to get them."""

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["{name}"] = None
sys.argv[1:] = ["--help"]
from terminalface.programs import veil
veil()
"""


def run(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(name=name)], capture_output=True, text=True, check=False
    )


def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it() -> None:
    ran = run("blake3")
    assert ran.returncode == 6
    assert ran.stdout == ""
    assert ran.stderr.splitlines() == [
        "veil: error: blake3 is not installed",
        "veil: hint: pip install 'veen[veil]' brings all that it needs",
    ]


def test_with_its_libraries_it_is_the_program() -> None:
    ran = run("no_such_library")
    assert ran.returncode == 0
    assert ran.stdout.startswith("veil: ")


def test_a_fault_of_our_own_is_not_told_as_a_missing_library() -> None:
    ran = run("veil.cli.app")
    assert ran.returncode == 1
    assert "Traceback" in ran.stderr
