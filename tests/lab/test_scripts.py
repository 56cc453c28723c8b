"""Hostile parties, damaged files and planted bugs: each seed of a script keeps its promise, and each bug is found."""

import os
import subprocess
import sys

import pytest

ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}
BUGS = 13
# Plants every bug without running a seed: a plant checks the parameters of the method that it replaces.
PLANT_ALL = """
from lab.world import install
install()
from lab import planted
for bug in planted.BUGS:
    with bug.planted():
        print(bug.name)
"""


def lab(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "lab", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("family", ["hostile", "corruption"])
def test_no_seed_of_a_script_breaks_a_promise(family: str) -> None:
    status, shown = lab("--seeds", "0:28", "--processes", "2", family)
    assert status == 0, shown


@pytest.mark.parametrize("family", ["hostile", "corruption"])
def test_a_seed_of_a_script_gives_the_same_trace_twice(family: str) -> None:
    first, second = lab(family, "--replay", "3"), lab(family, "--replay", "3")
    assert first == second
    assert "hub starts" in first[1]


def test_every_planted_bug_fits_the_methods_that_it_replaces() -> None:
    command = [sys.executable, "-c", PLANT_ALL]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == BUGS


def test_the_known_seeds_find_the_planted_bugs_of_the_scripts() -> None:
    status, shown = lab("--processes", "2", "planted", "--known")
    assert status == 0, shown
    assert len(shown.splitlines()) == BUGS


@pytest.mark.slow
def test_every_planted_bug_is_found_within_a_thousand_seeds() -> None:
    status, shown = lab("--processes", "2", "planted")
    assert status == 0, shown


@pytest.mark.slow
@pytest.mark.parametrize("family", ["hostile", "corruption"])
def test_no_seed_of_many_breaks_a_promise(family: str) -> None:
    status, shown = lab("--seeds", "28:400", "--processes", "2", family)
    assert status == 0, shown
