"""Seeds of the scripted scenarios, and the table of planted bugs."""

import gc
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import current_process, get_context
from pathlib import Path

from lab import corruption, hostile, planted, stage
from lab.disk import Coverage
from lab.runs import show_failure
from lab.scenario import scratch_folder
from lab.stage import Played, Script

FAMILIES: dict[str, dict[str, Script]] = {"hostile": hostile.SCRIPTS, "corruption": corruption.SCRIPTS}
_MAX_SHOWN = 10
_SEEDS_PER_JOB = 4
_MORE_SEEDS = 100


def replay(family: str, seed: int) -> int:
    """Run one seed and print what happened."""
    with scratch_folder() as scratch:
        found = stage.play(seed, scratch, FAMILIES[family], keep_trace=True)
    for number, line in enumerate(found.trace, 1):
        print(f"{number:5}  {line}")
    print(f"seed {seed}: {found.script}, {found.simulated_s:.1f} s; trace {found.fingerprint}")
    for violation in found.violations:
        print(f"violation: {violation}")
    return bool(found.violations)


def run(family: str, seeds: range, processes: int) -> int:
    """Run seeds of a family and print a summary. Returns 1 if a promise was broken."""
    start = time.monotonic()
    failed: list[Played] = []
    coverage = Coverage()
    simulated_s = messages = 0.0
    for found in _played(family, seeds, processes):
        coverage.merge(found.coverage)
        simulated_s += found.simulated_s
        messages += found.messages
        if found.violations:
            failed.append(found)
            if len(failed) <= _MAX_SHOWN:
                command = f"{family} --replay {found.seed}"
                show_failure(found.seed, found.violations[0], command, found.trace)
    minutes = (time.monotonic() - start) / 60
    stored = {cell: times for cell, times in coverage.cells.items() if cell[1] == "stored"}
    if stored:
        print(*(line for line in coverage.table() if " stored " in line), sep="\n")
    print(
        f"{family}: {len(seeds)} seeds, {len(failed)} with violations; {len(seeds) / minutes:.0f} seeds a minute; "
        f"{simulated_s / 3600:.1f} simulated hours; {messages:.0f} messages; {sum(stored.values())} damaged files"
    )
    return bool(failed)


def _played(family: str, seeds: range, processes: int) -> Iterator[Played]:
    with scratch_folder() as scratch:
        gc.collect()
        gc.freeze()
        with get_context("fork").Pool(processes, _begin, (scratch,)) as pool:
            yield from pool.imap_unordered(partial(_play, family), seeds, _SEEDS_PER_JOB)


_scratch: Path


def _begin(scratch: Path) -> None:
    global _scratch
    _scratch = scratch / current_process().name
    _scratch.mkdir()


def _play(family: str, seed: int) -> Played:
    return stage.play(seed, _scratch, FAMILIES[family])


def find_planted(seeds: range, processes: int, *, known: bool) -> int:
    """Print for every planted bug the first seed that finds it, or with `known` whether its known seed still does."""
    missed = 0
    with scratch_folder() as scratch:
        gc.collect()
        gc.freeze()
        with get_context("fork").Pool(processes, _begin, (scratch,)) as pool:
            jobs = [(number, _near(bug) if known else seeds) for number, bug in enumerate(planted.BUGS)]
            for number, found in pool.imap(_find, jobs):
                missed += found is None
                seed, text = found or ("none", f"not found in {len(seeds)} seeds")
                print(
                    f"{planted.BUGS[number].name:42} {planted.BUGS[number].scenario:10} {seed:>5}  {text}", flush=True
                )
    return bool(missed)


def _near(bug: planted.PlantedBug) -> range:
    """The known seed. Seeds of the mixed scenario change with everything that is added to it: try some more."""
    return range(bug.seed, bug.seed + (_MORE_SEEDS if bug.scenario == "mixed" else 1))


def _find(job: tuple[int, range]) -> tuple[int, tuple[int, str] | None]:
    number, seeds = job
    return number, planted.first_seed(planted.BUGS[number], seeds, _scratch)
