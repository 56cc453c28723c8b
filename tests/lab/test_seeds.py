"""Two hundred seeds of the simulation. `make lab` runs more."""

import os
import subprocess
import sys

import pytest

ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}
SEEDS, PART = 200, 25


def lab(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lab", "--processes", "1", *arguments], env=ENVIRONMENT, capture_output=True, text=True
    )


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_no_seed_breaks_a_promise(first: int) -> None:
    done = lab("--seeds", f"{first}:{first + PART}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PART} seeds, 0 with violations" in done.stdout


# Seeds behind the first ones that broke a promise.
@pytest.mark.parametrize("seed", [253, 260, 566, 6159])
def test_a_promise_that_was_broken_once_holds(seed: int) -> None:
    done = lab("--seeds", f"{seed}:{seed + 1}")
    assert "1 seeds, 0 with violations" in done.stdout, done.stdout + done.stderr


# Plants a bug, and runs a seed that finds it, or what its arguments say.
WITH_A_BUG = """
import sys
from lab.__main__ import main
from lab import planted
bug = next(one for one in planted.BUGS if one.name == "mark not written")
with bug.planted():
    sys.exit(main(sys.argv[1:] or ["--processes", "1", "--seeds", f"{bug.seed}:{bug.seed + 1}"]))
"""
# Runs a seed as if one were enough for the whole coverage.
ONE_FOR_ALL = """
import sys
from lab.__main__ import main
from lab import runs
runs.SEEDS_FOR_COVERAGE = 1
sys.exit(main(["--processes", "1", "--seeds", "0:1"]))
"""


def script(text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", text, *arguments], env=ENVIRONMENT, capture_output=True, text=True)


def test_a_failing_seed_shows_its_last_notes_and_a_command_that_repeats_it() -> None:
    failed = script(WITH_A_BUG)
    assert failed.returncode == 1, failed.stderr
    violation = next(line for line in failed.stdout.splitlines() if line.startswith("seed ")).partition(": ")[2]
    command = next(line for line in failed.stdout.splitlines() if "replay it: " in line)
    notes = failed.stdout.partition(" notes:\n")[2]
    assert f"VIOLATION: {violation}" in notes
    assert "last 40 notes" in failed.stdout or "starts" in notes
    again = script(WITH_A_BUG, *command.partition("python -m lab ")[2].split())
    assert again.returncode == 1
    assert f"violation: {violation}" in again.stdout


def test_a_run_fails_if_a_cell_never_occurred() -> None:
    done = script(ONE_FOR_ALL)
    assert "1 seeds, 0 with violations" in done.stdout
    assert "never occurred: backup, link, EIO" in done.stdout
    assert done.returncode == 1


def test_a_hub_starts_after_a_power_cut_at_many_calls() -> None:
    done = lab("--crash-points", "--seeds", "0:2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "distinct crash points" in done.stdout
