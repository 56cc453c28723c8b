"""Many power cuts in one run: at calls of the hub, what would a power cut here leave, and does a hub start on it?

The run itself goes on undisturbed. Each new crash point (`Platter.note_crash`) is written to a folder of its own, a hub
opens it with its real recovery, and must have every receipt that a client has.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from lab.disk import Call, EverythingSurvives, RemovalsSurvive, SeededSurvival, Survival
from lab.prunes import check_prunes
from lab.threads import SimulatedThreads
from lab.world import Process
from plumbing.durable import PRIVATE_FOLDER, Disk
from veen.hub.config import HubConfig
from veen.hub.hub_time import ClockGap
from veen.hub.service import HubService
from veen.storage.store import Lookup

if TYPE_CHECKING:
    from lab.machines import HubMachine
    from lab.scenario import Run

RATE = 0.25  # the part of all calls at which power cuts are tried
TRIES = 6
TOO_EARLY = "no key is active"  # the clock is before the hub was made, and the log is empty


class CrashPoints:
    """Tries power cuts at calls of the hub of one run."""

    def __init__(self, run: "Run", scratch: Path) -> None:
        self._run = run
        self._rng = Random(f"crash points {run.world.seed}")
        self._folder = scratch / "crash point"

    def at_call(self, hub: "HubMachine", call: Call) -> None:
        """Before a call. What the calls before it wrote may be lost or kept."""
        if self._rng.random() >= RATE:
            return
        state, known = hub.platter.state(), self._run.coverage.crash_points
        survivals: list[Survival] = [Survival(), EverythingSurvives(), RemovalsSurvive()]
        survivals += [SeededSurvival(self._rng) for _ in range(TRIES - len(survivals))]
        for survival in survivals:
            survivors, count = state.after_power_cut(survival), len(known)
            hub.platter.note_crash(survivors.choices)
            if len(known) > count:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder.mkdir(PRIVATE_FOLDER)
                survivors.write(self._folder)
                self._recover(self._folder / hub.data_dir.name, hub.config, call)

    def _recover(self, data_dir: Path, config: HubConfig, call: Call) -> None:
        run, world = self._run, self._run.world
        probe, entropy = Process(world, "probe", 0), world.entropy
        probe.clock_step, world.entropy = run.hub.clock_step, self._rng
        try:
            probe.call(lambda: self._check(probe, data_dir, config))
        except Exception as error:  # noqa: BLE001  every error is a violation
            if isinstance(error, ClockGap) or TOO_EARLY in str(error):
                return  # the hub waits for a better clock
            run.violated(f"power cut before {call.name} of {call.artifact}: {type(error).__name__}: {error}")
        finally:
            world.entropy = entropy
            probe.end()

    def _check(self, probe: Process, data_dir: Path, config: HubConfig) -> None:
        service = HubService(
            replace(config, data_dir=data_dir, witness_addresses=()), disk=Disk(), background=SimulatedThreads(probe)
        )
        lookup = Lookup(service.store)
        try:
            for (label, stream_seq), receipt in self._run.ledger.receipts.items():
                _, found = lookup.headers(label, stream_seq)
                signed = found.hub_sig if found and any(found.hub_sig) else receipt.hub_sig  # receipts may be pruned
                if found is None or replace(found, hub_sig=signed) != receipt:
                    raise ValueError(f"the receipt of entry {stream_seq} is lost or changed")
            check_prunes(service.folders, lookup)
        finally:
            service.close()
