"""Fault sweeps over a store: one operation, repeated with one fault at each of its calls.

The operation runs once without faults, to count its calls to the disk and its commits to LMDB. Then it runs again for
every call and every fault of that call, on a new copy of the store: it fails once (EIO, ENOSPC, failed sync),
the disk is full from then on, or the process dies before, during or after the call. Then the process is killed or the
machine loses power, the case opens the store again with the program's own code, and checks its promise.

    class Case(StoreCase):
        def prepare(self) -> None: ...   # the store before the operation
        def operate(self) -> None: ...   # the operation, which notes what was promised to its caller
        def check(self) -> None: ...     # open the store again: what was promised holds, and work goes on

    sweep(Case, tmp_path, Extent.SAMPLE)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from random import Random

from lab.disk import (
    DEATHS,
    ERRORS,
    Call,
    Coverage,
    Died,
    Fault,
    Plan,
    Platter,
    RemovalsSurvive,
    SeededSurvival,
    SimulatedDisk,
    Survival,
)
from lab.memory_lmdb import MemoryLmdb
from plumbing import durable, lmdb_env
from plumbing.durable import remove_all


class Extent(StrEnum):
    """How many of the points to try."""

    SAMPLE = "sample"  # every call once, and every kind of call with each of its faults
    ALL = "all"  # every call with each of its faults and each ending


class Ending(StrEnum):
    """What follows a fault, before the store is opened again."""

    KILL = "kill"
    NOTHING_SURVIVES = "power cut, only synced data survives"
    REMOVALS_SURVIVE = "power cut, removals survive"
    SOME_SURVIVES = "power cut, a random part survives"

    def end(self, disk: SimulatedDisk, seed: int) -> None:
        if self is Ending.KILL:
            disk.kill()
            return
        survivals: dict[Ending, Survival] = {
            Ending.NOTHING_SURVIVES: Survival(),
            Ending.REMOVALS_SURVIVE: RemovalsSurvive(),
            Ending.SOME_SURVIVES: SeededSurvival(Random(seed)),
        }
        disk.cut_power(survivals[self])


FULL = "full disk"  # this call and all later ones fail with ENOSPC
_MAX_SHOWN = 30
_MAX_LATER = 6  # calls between an error and the death of the process
SEEDS = 3  # power cuts with a random part, per call and fault


@dataclass(frozen=True, slots=True)
class Point:
    """One fault at one call, and what follows it."""

    call: Call
    fault: Fault | str
    ending: Ending
    seed: int = 0

    @property
    def dies_later(self) -> int:
        """How many calls after an error the process dies; 0 if it goes on to the end of the operation."""
        is_random = self.ending is Ending.SOME_SURVIVES and self.fault not in DEATHS
        return 1 + Random(self.seed).randrange(_MAX_LATER) if is_random else 0

    def plan(self) -> Plan:
        def fault_of(call: Call) -> Fault | None:
            if call.number < self.call.number:
                return None
            if self.dies_later and call.number > self.call.number + self.dies_later:
                return Fault.DIE_BEFORE
            if self.fault == FULL:
                return Fault.ENOSPC if Fault.ENOSPC in ERRORS[call.name] else None
            return Fault(self.fault) if call.number == self.call.number else None

        return fault_of

    def __str__(self) -> str:
        call, later = self.call, f", {self.dies_later} calls later" if self.dies_later else ""
        where = f"call {call.number} ({call.name} of {call.artifact}, {call.path.name})"
        return f"{where}: {self.fault}, then {self.ending}{later}"


class StoreCase:
    """One operation on one store, below `root`. A new one is made for each point."""

    errors: tuple[type[Exception], ...] = (OSError,)  # those that the operation may raise at a fault

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the store as it is before the operation. No faults."""

    def operate(self) -> None:
        """Run the operation. A fault ends it with one of `errors`, or it handles the fault and goes on."""
        raise NotImplementedError

    def check(self) -> None:
        """Open the store again, check what `operate` promised to its caller, and finish the work."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep did."""

    calls: int
    points: int
    coverage: Coverage

    def __str__(self) -> str:
        cells, crashes = len(self.coverage.cells), len(self.coverage.crash_points)
        head = f"{self.calls} calls, {self.points} points, {cells} cells, {crashes} crash points"
        return "\n".join([head, *self.coverage.table()])


class BrokenPromise(AssertionError):
    """A store did not keep its promise at one point."""


def sweep(case: Callable[[Path], StoreCase], place: Path, extent: Extent) -> SweepReport:
    """Try the points of an operation. Raises `BrokenPromise` with all points at which the store broke its promise."""
    coverage, numbers = Coverage(), count()

    def fresh() -> Path:
        root = place / f"store {next(numbers)}"
        root.mkdir()
        return root

    calls = _calls(case, fresh())
    if not calls:
        raise ValueError("the operation makes no call that the lab can see")
    points = list(_all_points(calls) if extent is Extent.ALL else _sample(calls))
    broken: list[tuple[Point, Exception]] = []
    for point in points:
        root = fresh()
        try:
            _try(case(root), point, coverage)
        except Exception as error:  # noqa: BLE001  all broken points are reported together
            broken.append((point, error))
        remove_all(root)
    if broken:
        shown = [f"{point}\n    {_first_line(error)}" for point, error in broken[:_MAX_SHOWN]]
        head = f"the promise is broken at {len(broken)} of {len(points)} points:"
        raise BrokenPromise("\n".join([head, *shown])) from broken[0][1]
    _check_coverage(coverage, points)
    return SweepReport(len(calls), len(points), coverage)


@contextmanager
def on_disk(disk: SimulatedDisk, model: MemoryLmdb) -> Iterator[None]:
    """Run a process on a simulated disk: its files and its LMDB environments."""
    with durable.used(disk), lmdb_env.opened_by(model.open):
        yield


def _calls(case: Callable[[Path], StoreCase], root: Path) -> list[Call]:
    """The calls of an operation without faults, which must also keep its promise without any."""
    found: list[Call] = []
    for ending in (Ending.KILL, Ending.NOTHING_SURVIVES):
        here = root / ending.name
        here.mkdir()
        one, seen, platter = case(here), list[Call](), Platter(here)
        model = MemoryLmdb(platter)
        with on_disk(SimulatedDisk(platter), model):
            one.prepare()
        disk = SimulatedDisk(platter, lambda call, seen=seen: seen.append(call))  # type: ignore[misc]
        with on_disk(disk, model):
            one.operate()
        ending.end(disk, 0)
        try:
            with on_disk(SimulatedDisk(platter), model):
                one.check()
        except Exception as error:
            raise BrokenPromise(f"all {len(seen)} calls succeed, then {ending}: {_first_line(error)}") from error
        found = found or seen
    remove_all(root)
    return found


def _try(case: StoreCase, point: Point, coverage: Coverage) -> None:
    platter = Platter(case.root)
    model = MemoryLmdb(platter)
    with on_disk(SimulatedDisk(platter), model):
        case.prepare()
    platter.coverage = coverage
    disk = SimulatedDisk(platter, point.plan(), Random(point.seed))
    with on_disk(disk, model), suppress(Died, *case.errors):
        case.operate()
    if disk.calls < point.call.number:
        raise ValueError(f"the operation made {disk.calls} calls this time; its calls must not depend on chance")
    point.ending.end(disk, point.seed)
    with on_disk(SimulatedDisk(platter), model):
        case.check()


def _faults(call: Call) -> tuple[Fault | str, ...]:
    full = (FULL,) if Fault.ENOSPC in ERRORS[call.name] else ()
    return (*DEATHS, *ERRORS[call.name], *full)


def _endings() -> list[tuple[Ending, int]]:
    fixed = [(ending, 0) for ending in Ending if ending is not Ending.SOME_SURVIVES]
    return [*fixed, *((Ending.SOME_SURVIVES, seed) for seed in range(SEEDS))]


def _all_points(calls: list[Call]) -> Iterator[Point]:
    for call in calls:
        for fault in _faults(call):
            for ending, seed in _endings():
                yield Point(call, fault, ending, call.number * SEEDS + seed)


def _sample(calls: list[Call]) -> Iterator[Point]:
    """Every call at least once, and every cell at least once. Endings rotate."""
    turn, endings = count(), _endings()
    cells: dict[tuple[str, str, Fault | str], list[Call]] = {}
    for call in calls:
        for fault in _faults(call):
            cells.setdefault((call.artifact, call.name, fault), []).append(call)
    used = set[int]()
    for (*_, fault), found in cells.items():
        number = next(turn)
        call = next((one for one in found if one.number not in used), found[number % len(found)])
        used.add(call.number)
        yield Point(call, fault, *endings[number % len(endings)])
    for call in calls:
        if call.number not in used:
            number, faults = next(turn), _faults(call)
            yield Point(call, faults[number % len(faults)], *endings[number % len(endings)])


def _check_coverage(coverage: Coverage, points: list[Point]) -> None:
    """Fail if a fault that was planned for a kind of call never occurred."""
    planned = {(one.call.artifact, one.call.name, Fault.ENOSPC if one.fault == FULL else one.fault) for one in points}
    missing = coverage.missing(planned)
    if missing:
        raise BrokenPromise(f"these faults never occurred: {missing}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
