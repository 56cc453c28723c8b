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


def test_a_hub_starts_after_a_power_cut_at_many_calls() -> None:
    done = lab("--crash-points", "--seeds", "0:2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "distinct crash points" in done.stdout
