"""Many seeds in worker processes, and what came out of them."""

import gc
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import current_process, get_context
from pathlib import Path

from lab.coverage import EXPECTED, shortfall
from lab.disk import Coverage
from lab.scenario import Outcome, play, scratch_folder
from lab.world import TAIL

_SEEDS_PER_JOB = 4
_MAX_SHOWN = 10  # violations
SEEDS_FOR_COVERAGE = 1000  # with fewer, some cells may be missing by chance


def seed_range(text: str) -> range:
    """`A:B`, without B."""
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def replay(seed: int, *, everything: bool, explore: bool) -> int:
    """Run one seed and print what happened: the notes, or with `everything` also each call of the disks."""
    with scratch_folder() as scratch:
        found = play(seed, scratch, keep_trace=True, keep_all=everything, explore=explore)
    for number, line in enumerate(found.trace, 1):
        print(f"{number:5}  {line}")
    print(
        f"seed {seed}: {found.steps} steps, {found.simulated_s:.1f} s; trace {found.fingerprint}, files {found.files}"
    )
    for violation in found.violations:
        print(f"violation: {violation}")
    return bool(found.violations)


def run_seeds(seeds: range, processes: int, *, explore: bool) -> int:
    """Run seeds and print a summary. Returns 1 if a promise was broken, or the coverage falls short."""
    start = time.monotonic()
    done, simulated_s, messages = 0, 0.0, 0
    coverage = Coverage()
    failed: list[Outcome] = []
    shows_progress = sys.stderr.isatty()
    for found in _outcomes(seeds, processes, explore=explore):
        done += 1
        simulated_s += found.simulated_s
        messages += found.messages
        coverage.merge(found.coverage)
        if found.violations:
            failed.append(found)
            if len(failed) <= _MAX_SHOWN:
                _report(found, explore=explore)
        if shows_progress:
            print(f"\r\x1b[K{done} of {len(seeds)} seeds, {len(failed)} failed", end="", file=sys.stderr, flush=True)
    if shows_progress:
        print(file=sys.stderr)
    minutes = (time.monotonic() - start) / 60
    missing = coverage.missing(EXPECTED)
    lines = shortfall(coverage)
    for line in coverage.table():
        print(line)
    print(
        f"{done} seeds, {len(failed)} with violations; {done / minutes:.0f} seeds a minute; "
        f"{simulated_s / 3600:.1f} simulated hours; {messages} messages"
    )
    points = len(coverage.crash_points)
    print(
        f"{points} distinct crash points, {points / minutes:.0f} a minute; "
        f"{len(EXPECTED) - len(missing)} of {len(EXPECTED)} expected cells"
    )
    if len(seeds) < SEEDS_FOR_COVERAGE or explore:
        return bool(failed)
    print(*lines, sep="\n")
    return bool(failed or lines)


def _report(found: Outcome, *, explore: bool) -> None:
    show_failure(
        found.seed, found.violations[0], f"replay {found.seed}{' --crash-points' if explore else ''}", found.trace
    )


def show_failure(seed: int, violation: str, command: str, trace: list[str]) -> None:
    """A broken promise, how to see it again, and what happened last."""
    print(f"\nseed {seed}: {violation}")
    print(f"  replay it: python -m lab {command}")
    print(f"  its last {len(trace[-TAIL:])} notes:")
    print(*trace[-TAIL:], sep="\n", flush=True)


def _outcomes(seeds: range, processes: int, *, explore: bool) -> Iterator[Outcome]:
    """In processes of their own: nothing else runs while a world does."""
    with scratch_folder() as scratch:
        gc.collect()
        gc.freeze()  # the modules: collecting between two seeds is fast then
        with get_context("fork").Pool(processes, _begin, (scratch,)) as pool:
            yield from pool.imap_unordered(partial(_play, explore=explore), seeds, _SEEDS_PER_JOB)


_scratch: Path


def _begin(scratch: Path) -> None:
    global _scratch
    _scratch = scratch / current_process().name
    _scratch.mkdir()


def _play(seed: int, *, explore: bool) -> Outcome:
    return play(seed, _scratch, explore=explore)
