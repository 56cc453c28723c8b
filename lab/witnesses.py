"""Witnesses: the real service, on a machine that fails or on the stage of a script."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lab.machines import HOST, Machine
from lab.promises import Violation, shown
from lab.threads import SimulatedThreads
from lab.world import Process
from plumbing.durable import Disk
from plumbing.json_log import JsonLog, LineWriter
from veen.core.cosignature import Cosignature, CosignRequest, ResetRequest
from veen.hub.config import WitnessAddress
from veen.witness import witness_dir
from veen.witness.witness_app import serving
from veen.witness.witness_dir import WitnessDir

if TYPE_CHECKING:
    from lab.scenario import Run
    from lab.stage import Stage

FIRST_PORT = 37421


class Answers:
    """What one witness has cosigned, recorded outside of its machine when it answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.roots: dict[tuple[bytes, int], bytes] = {}  # by label and size
        self.newest: dict[tuple[bytes, bytes], int] = {}  # the last size by hub and label

    def add(self, asked: CosignRequest) -> None:
        """Raises `Violation` if it cosigned another root at that size, or a larger size before."""
        checkpoint = asked.checkpoint
        place = checkpoint.label_curr, checkpoint.upto_seq
        if self.roots.setdefault(place, checkpoint.mmr_root) != checkpoint.mmr_root:
            raise Violation(f"{self.name} cosigned two roots of {shown(place)}")
        known = asked.identity.hub_id, checkpoint.label_curr
        if self.newest.get(known, 0) > checkpoint.upto_seq:
            raise Violation(f"{self.name} cosigned {shown(place)} after {self.newest[known]} entries")
        self.newest[known] = checkpoint.upto_seq

    def reset(self, hub_id: bytes, label: bytes, size: int) -> None:
        """It cosigned a recovery: the label continues from a smaller size."""
        self.newest[hub_id, label] = size
        self.roots = {place: root for place, root in self.roots.items() if place[0] != label or place[1] <= size}

    def check_held(self, state: WitnessDir) -> None:
        """After a start: the witness remembers every size that it cosigned."""
        for (hub_id, label), size in self.newest.items():
            held = state.size(hub_id, label)
            if held < size:
                raise Violation(f"{self.name} cosigned {shown((label, size))}, and remembers {held} entries")


class RecordedWitness(WitnessDir):
    """The real directory of a witness. What it answers is recorded."""

    def record(self, answers: Answers, check: Callable[[Callable[[], None]], None]) -> None:
        self._answers, self._check = answers, check

    def cosign(self, asked: CosignRequest) -> Cosignature:
        made = super().cosign(asked)
        self._check(lambda: self._answers.add(asked))
        return made

    def reset(self, asked: ResetRequest) -> Cosignature:
        made = super().reset(asked)
        hub_id = asked.identity.hub_id
        self._answers.reset(hub_id, asked.label, self.size(hub_id, asked.label))
        return made


def opened(folder: Path, disk: Disk, answers: Answers, check: Callable[[Callable[[], None]], None]) -> RecordedWitness:
    """Open the directory of a witness, and compare it with what it answered before."""
    state = RecordedWitness(folder, witness_dir.read_key(folder, None), disk=disk)
    state.record(answers, check)
    check(lambda: answers.check_held(state))
    return state


async def serve(process: Process, state: WitnessDir, port: int, stopped: asyncio.Event) -> None:
    """Serve a witness until it is stopped."""
    log = JsonLog(LineWriter(None), "witness", "witness")
    async with serving(state, log, HOST, port, background=SimulatedThreads(process)):
        await stopped.wait()


class WitnessMachine(Machine):
    """The machine of a witness, with its supervisor."""

    def __init__(self, run: "Run", number: int) -> None:
        super().__init__(run, f"witness {number}")
        self.folder = self.root / "witness"
        self.port = FIRST_PORT + number
        self._answers = Answers(self.name)

    def create(self) -> WitnessAddress:
        now = int(self._run.world.wall())
        key = self.call(lambda: witness_dir.create(self.folder, None, disk=self.disk, now=now))
        return WitnessAddress(f"http://{HOST}:{self.port}", key)

    def run_program(self) -> None:
        process = self.process
        state = process.call(lambda: opened(self.folder, self.disk, self._answers, self._run.check))
        serving = process.spawn(serve(process, state, self.port, process.call(asyncio.Event)))
        serving.add_done_callback(self._ended)
        self._run.note("starts")

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = task.exception()
        if error is not None:
            self._run.violated(f"{self.name} ended with {type(error).__name__}: {error}")
        self.exit()


class WitnessPlace:
    """A witness that starts and stops when a script says so."""

    def __init__(self, stage: "Stage", number: int) -> None:
        self._stage = stage
        self.name = f"witness {number}"
        self.folder = stage.place / f"witness{number}"
        self.port = FIRST_PORT + number
        self._answers = Answers(self.name)
        self._process: Process | None = None
        key = stage.alone(lambda: witness_dir.create(self.folder, None, now=int(stage.world.wall())))
        self.address = WitnessAddress(f"http://{HOST}:{self.port}", key)

    def start(self) -> None:
        process = self._process = self._stage.world.process(self.name)
        state = process.call(lambda: opened(self.folder, Disk(), self._answers, self._stage.check))
        process.spawn(serve(process, state, self.port, process.call(asyncio.Event)))
        self._stage.world.run(lambda: (HOST, self.port) in self._stage.world.network.listeners)
        self._stage.note(f"{self.name} starts")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.alive

    def kill(self) -> None:
        assert self._process is not None
        self._process.end()
        self._stage.note(f"{self.name} is killed")
