"""One seed is one run: its trace and the files it leaves are the same in every process and after any other seed."""

import os
import subprocess
import sys

import pytest

ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}
# Runs seeds in the given order within one process, and prints what identifies each run.
SEVERAL = """
import sys
from lab.world import install
install()
from lab.scenario import play, scratch_folder
with scratch_folder() as folder:
    for seed in map(int, sys.argv[1:]):
        found = play(seed, folder)
        print(seed, found.fingerprint, found.files)
"""


def lab(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def test_a_seed_gives_the_same_trace_and_the_same_files_twice() -> None:
    first, second = lab("-m", "lab", "replay", "1"), lab("-m", "lab", "replay", "1")
    assert first == second
    assert "has finished" in first
    assert first != lab("-m", "lab", "replay", "2")


def test_a_seed_does_not_depend_on_the_seeds_before_it() -> None:
    seeds = [str(seed) for seed in range(8)]
    forwards, backwards = lab("-c", SEVERAL, *seeds), lab("-c", SEVERAL, *reversed(seeds))
    assert forwards.splitlines() == list(reversed(backwards.splitlines()))


@pytest.mark.parametrize("arguments", [("replay", "x"), ("--seeds", "3")])
def test_a_wrong_seed_is_reported(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-m", "lab", *arguments], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "invalid" in done.stderr
