"""A stage for scripted runs: hubs and clients that act when the script says, in one world, from one seed.

`lab.scenario` lets everything happen at once and asks what survives. A script decides who acts when, because the faults
it plays (a copied directory, a damaged file, a lie) have a promise of their own for each order.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from lab.disk import Coverage, Platter, SimulatedDisk
from lab.memory_lmdb import MemoryLmdb
from lab.promises import Ledger, Letter, ReadLog, Violation, read_log
from lab.threads import SimulatedThreads
from lab.world import Process, Running, Strand, Stuck, World
from plumbing import lmdb_env
from plumbing.durable import Disk
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.sender import Draft
from veen.client.transport import RetryPolicy
from veen.client.trust import Pin
from veen.core import DhKey, Limits, Profile, SigningKey
from veen.core.root_key import RootSecret
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.storage import fsck, metadata
from veen.storage.fsck_report import FsckReport

T = TypeVar("T")

HOST = "127.0.0.1"
PORT = 37411
TOKEN = "operator of the lab"
POLICY = RetryPolicy(attempts=12, first_wait_s=0.1, longest_wait_s=1.0, connect_s=5.0, answer_s=10.0)
_LONGEST_STEP_S = 3600.0
STREAM = "stream"
_AGE_S = 86_400  # of the hub's first key


@dataclass
class Played:
    """What came out of a seed."""

    seed: int
    script: str
    violations: list[str]
    fingerprint: str
    simulated_s: float
    messages: int
    coverage: Coverage
    trace: list[str] = field(repr=False)


class Stage:
    """The world of one seed, its hubs and its clients."""

    def __init__(self, seed: int, place: Path, *, keep_trace: bool = False) -> None:
        self.rng = Random(f"stage {seed}")
        self.world = World(seed, keep_trace=keep_trace)
        self.place = place
        self.ledger = Ledger()
        (place / "machine").mkdir(mode=0o700)
        self.platter = Platter(place / "machine")  # of the hubs
        self.violations: list[str] = []
        self.root: RootSecret | None = None
        self.parties: list[Party] = []
        self.reader_key: DhKey | None = None
        self.pin: Pin | None = None
        self.hub_id = b""
        self.limits = Limits(
            max_msg_bytes=4096,
            max_chunk_bytes=5120,
            max_checkpoint_interval=self.rng.choice((3, 7, 16)),
            chunk_zstd_level=self.rng.choice((None, None, 3)),
        )
        self.profile = Profile(epoch_sec=0, pad_block=self.rng.choice((0, 256)))

    def note(self, text: str) -> None:
        self.world.note(text.replace(str(self.place), ""))

    def broken(self, what: str) -> None:
        """Record a violation and go on."""
        self.violations.append(what)
        self.note(f"VIOLATION: {what}")

    def check(self, promise: Callable[[], None]) -> None:
        try:
            promise()
        except Violation as found:
            self.broken(str(found))

    def expect(self, holds: bool, what: str) -> None:
        """End the run with a violation unless something holds."""
        if not holds:
            raise Violation(what)

    def hub(self, name: str = "hub", port: int = PORT, **config: Any) -> "HubPlace":
        return HubPlace(self, name, port, config)

    def create_hub(self, *, with_root: bool, **config: Any) -> "HubPlace":
        """A hub with a new directory. The root key, if there is one, is not on its machine."""
        made = self.hub(**config)
        seed = self.world.entropy.randbytes(32)
        now = int(self.world.wall()) - _AGE_S
        key = SigningKey(seed) if with_root else None
        created = self.alone(
            lambda: metadata.create(Disk(), made.data_dir, self.profile, self.limits, now, root_key=key)
        )
        self.hub_id = created.identity.hub_id
        self.pin = Pin(key=self.hub_id)
        self.root = RootSecret(seed, self.hub_id, now) if with_root else None
        return made

    def party(self, name: str, port: int = PORT) -> "Party":
        """A client with the reader key of the stream."""
        made = Party(self, name, port)
        if self.reader_key is None:
            self.reader_key = made.dir.stream_keys.create(STREAM)
        else:
            made.dir.stream_keys.import_secret(STREAM, self.reader_key)
        self.parties.append(made)
        return made

    def alone(self, work: Callable[[], T]) -> T:
        """Run blocking code as a program of its own, such as a command of the operator."""
        process = self.world.process("command")
        try:
            return process.call(work)
        finally:
            process.end()

    def waiting(self, process: Process, work: Callable[[], T]) -> T:
        """Run blocking code that may wait for other machines, in a process that has no loop yet."""
        found: list[T] = []
        failed: list[Exception] = []

        def job() -> None:
            try:
                found.append(process.call(work))
            except Exception as error:  # noqa: BLE001  the caller gets it
                failed.append(error)

        Strand(process, job).resume()
        self.world.run(lambda: bool(found or failed), _LONGEST_STEP_S)
        if failed:
            raise failed[0]
        return found[0]

    def finish(self, *tasks: "asyncio.Task[Any]") -> None:
        """Run the world until the tasks are done."""
        self.world.run(lambda: all(task.done() for task in tasks), _LONGEST_STEP_S)

    def finish_one(self, task: "asyncio.Task[T]") -> T:
        self.finish(task)
        return task.result()

    def fsck(self, hub: "HubPlace") -> FsckReport:
        return self.alone(lambda: fsck.check(hub.data_dir, isolated=False))

    def check_clean(self, hub: "HubPlace") -> None:
        for finding in self.fsck(hub).findings:
            raise Violation(f"fsck: {finding}")


class HubPlace:
    """A data directory and the hub that runs on it, or does not."""

    def __init__(self, stage: Stage, name: str, port: int, config: dict[str, Any]) -> None:
        self.stage = stage
        self.name = name
        self.port = port
        self.data_dir = stage.platter.root / name
        self.service: HubService | None = None
        self.ended: BaseException | None = None  # why the last run ended by itself
        self._config = config
        self._process: Process | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.alive

    def start(self) -> None:
        """Start it. Raises what the start of a hub raises."""
        stage = self.stage
        process = stage.world.process(self.name)
        settings: dict[str, Any] = {"admission": Admission.OPEN, "workers": 0, "scrub_bytes_per_s": 0}
        config = HubConfig(self.data_dir, HOST, self.port, operator_token=TOKEN, **settings | self._config)
        disk = self._disk = SimulatedDisk(stage.platter)
        self.ended = None
        try:
            self.service = stage.waiting(
                process, lambda: HubService(config, disk=disk, background=SimulatedThreads(process))
            )
        except BaseException:
            process.end()
            raise
        self._process, self._stopped = process, process.call(asyncio.Event)
        started: list[int] = []
        self._serving = process.spawn(self.service.run_until(self._stopped, started.append))
        self._serving.add_done_callback(self._ended)
        stage.world.run(lambda: bool(started) or self._serving.done(), _LONGEST_STEP_S)
        stage.note(f"{self.name} starts")
        if self.ended:
            raise self.ended

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run something in the hub's process."""
        assert self._process is not None
        return self._process.spawn(work)

    def stop(self) -> None:
        """Stop it as an operator does, if it runs."""
        process = self._process
        if process is not None and process.alive:
            process.loop.call_soon(self._stopped.set)
            self.stage.world.run(lambda: not process.alive, _LONGEST_STEP_S)
            self.stage.note(f"{self.name} stops")

    def kill(self) -> None:
        """End the process at once. What it wrote stays."""
        assert self._process is not None
        self._process.end()
        self._disk.kill()
        self.stage.note(f"{self.name} is killed")

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock of its machine."""
        assert self._process is not None
        self._process.clock_step += seconds

    def copy_to(self, other: "HubPlace") -> None:
        """Copy the directory, as a backup or a thief does. The hub must not run."""
        shutil.rmtree(other.data_dir, ignore_errors=True)
        shutil.copytree(self.data_dir, other.data_dir)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.ended = task.exception()
        if self.ended:
            self.stage.note(f"{self.name} ends: {self.ended}")
        assert self._process is not None
        self._process.end()


class Party:
    """An honest client. Its program starts for each thing it does."""

    def __init__(self, stage: Stage, name: str, port: int) -> None:
        self.stage = stage
        self.name = name
        self.port = port
        self.count = 0
        self.process = stage.world.process(name)
        now = int(stage.world.wall())
        self.dir = self.process.call(lambda: ClientDir.create(stage.place / name, None, now))

    def task(self, work: Callable[[Client], Awaitable[T]], *, allow_caught: bool = False) -> "asyncio.Task[T]":
        """Connect and do something."""

        async def run() -> T:
            url = f"http://{HOST}:{self.port}"
            async with Client(
                url, self.dir, pin=self.stage.pin, retry_policy=POLICY, allow_caught=allow_caught
            ) as client:
                return await work(client)

        return self.process.spawn(run())

    def do(self, work: Callable[[Client], Awaitable[T]], *, allow_caught: bool = False) -> T:
        """Connect, do something, and return or raise what came out of it."""
        task = self.task(work, allow_caught=allow_caught)
        self.stage.finish(task)
        return task.result()

    async def sending(self, client: Client, count: int, attachments: tuple[Path, ...] = ()) -> None:
        """Send new messages one after another, and enter their receipts."""
        for _ in range(count):
            self.count += 1
            body = f"{self.name} {self.count}".encode()
            letter = self.stage.ledger.letters.setdefault(body, Letter(STREAM, body, body))
            sent = await client.sender(STREAM).put(Draft(body, files=attachments, mark=body))
            letter.receipt = sent.receipt
            self.stage.ledger.add(sent.receipt, self.name)

    def send(self, count: int) -> None:
        self.do(lambda client: self.sending(client, count))
        self.stage.note(f"{self.name} has sent {self.count}")

    async def reading(self, client: Client) -> ReadLog:
        log = await read_log(client, STREAM)
        self.stage.ledger.check_log(log, self.name)
        return log

    def read(self) -> ReadLog:
        return self.do(self.reading)


Script = Callable[[Stage], None]


def play(seed: int, scratch: Path, scripts: dict[str, Script], *, keep_trace: bool = False) -> Played:
    """Play the script that the seed chooses, in a new folder below `scratch`."""
    place = scratch / "stage"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    stage = Stage(seed, place, keep_trace=keep_trace)
    names = sorted(scripts)
    name = names[seed % len(names)]
    with Running(stage.world), lmdb_env.opened_by(MemoryLmdb(stage.platter).open):
        stage.note(name)
        try:
            scripts[name](stage)
        except Stuck as stuck:
            stage.broken(f"{name}: it does not end: {stuck}")
        except Violation as found:
            stage.broken(f"{name}: {found}")
        finally:
            for party in stage.parties:
                party.dir.close()
    return Played(
        seed,
        name,
        stage.violations,
        stage.world.fingerprint(),
        stage.world.now,
        len(stage.ledger.receipts),
        stage.platter.coverage,
        list(stage.world.lines),
    )


@contextmanager
def refused(stage: Stage, what: str, *kinds: type[BaseException]) -> Iterator[list[BaseException]]:
    """The block must end with one of these errors, which is put into the list."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kinds as error:
        stage.note(f"{what}: {error}")
        caught.append(error)
    else:
        raise Violation(f"{what}: it was not refused")
