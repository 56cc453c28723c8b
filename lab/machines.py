"""The machines of a run: each has a disk, a clock and a program that starts again whenever it ends."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING, TypeVar

import httpx
from anyio._backends._asyncio import CancelScope

from lab.backups import KEPT, Backups
from lab.crash_points import TOO_EARLY
from lab.disk import Call, Fault, Platter, SimulatedDisk, Survival
from lab.promises import Letter, ReadLog, read_log
from lab.threads import SimulatedThreads
from lab.world import Process, ProcessEnded, Strand, number_objects
from plumbing.durable import PRIVATE_FOLDER
from plumbing.http.connection import Connection
from veen.client import ClientDir, local_files
from veen.client.client import Client
from veen.client.sender import Draft, Undecided
from veen.client.transport import CBOR, RetryPolicy
from veen.client.tree_follower import PrunedEntries
from veen.core import DhKey, Refused, SigningKey, Unavailable, Unverified
from veen.core.cbor import Wire
from veen.core.envelopes import ClockAcceptance, RotationRequest, StreamRegistration
from veen.core.profile import LoweredLimits
from veen.core.retention import RetentionPolicy, RetentionRequest
from veen.core.root_key import RootSecret
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig, WitnessAddress
from veen.hub.service import HubService
from veen.storage import backup, metadata, rotation
from veen.storage.journal import JournalBroken
from veen.storage.paths import Folders

if TYPE_CHECKING:
    from lab.scenario import Run

T = TypeVar("T")
for _in_sets in (CancelScope, Connection):
    number_objects(_in_sets)

PORT = 37411
HOST = "127.0.0.1"
URL = f"http://{HOST}:{PORT}"
TOKEN = "operator of the lab"
POLICY = RetryPolicy(attempts=4, first_wait_s=0.1, longest_wait_s=2.0, connect_s=5.0, answer_s=10.0)
_RETRY_S = 1.0


class Machine:
    """A disk, a clock, and one program at a time. A subclass says in `run_program` what the program does."""

    process: Process
    disk: SimulatedDisk
    waits_at_start = False  # for other machines

    def __init__(self, run: "Run", name: str) -> None:
        self._run = run
        self.name = name
        self.root = run.place / name
        self.root.mkdir(PRIVATE_FOLDER)
        self.platter = Platter(self.root, run.coverage)
        self.clock_step = 0.0
        self._starts = 0
        run.lmdb.add(self.platter)

    # Starting.

    def boot(self) -> Process:
        """A new process, and its view of the disk."""
        world = self._run.world
        self._starts += 1
        self.process = world.process(self.name)
        self.process.clock_step = self.clock_step
        rng = Random(f"disk {world.seed} {self.name} {self._starts}")
        self.disk = SimulatedDisk(self.platter, self._fault_of, rng, self._died)
        return self.process

    def call(self, work: Callable[[], T]) -> T:
        """Run blocking code in a process of this machine that ends with it."""
        process = self.boot()
        try:
            return process.call(work)
        finally:
            self.exit()

    def start(self) -> None:
        """Start the program, and start it again later if it cannot be started now."""
        process = self.boot()
        if self.waits_at_start:
            Strand(process, self._try_to_run).resume()
        else:
            self._try_to_run()

    def _try_to_run(self) -> None:
        try:
            self.run_program()
        except ProcessEnded:
            return  # `_died` starts the next one
        except Exception as error:  # noqa: BLE001  a fault that no crash may cause
            if isinstance(error, Unavailable) or TOO_EARLY in str(error):
                self._run.note(f"{self.name} does not start: {error}")
                self.exit()
                self.start_later(_RETRY_S)
                return
            self._run.violated(f"{self.name} does not start: {type(error).__name__}: {error}")
            self.exit()

    def run_program(self) -> None:
        raise NotImplementedError

    def start_later(self, delay: float) -> None:
        world, before = self._run.world, self.process

        def start() -> None:
            if self.process is before:
                self.start()

        world.at(world.now + delay, None, start)

    @property
    def is_up(self) -> bool:
        return self.process.alive

    def set_clock(self, step: float) -> None:
        self.clock_step = self.process.clock_step = step

    # Ending.

    def exit(self) -> None:
        """The program ended by itself."""
        self.process.end()
        self.disk.exit()

    def crash(self, *, power: bool) -> None:
        """Kill the program, or cut the power, also if the program is not running."""
        if self.process.alive or power:
            self.process.end(silently=power)
            self._after_death(power=power)

    def lose_unsynced(self) -> None:
        """Cut the power of a machine whose program has stopped. Nothing that was not synced survives."""
        self.disk.cut_power(Survival())

    def _fault_of(self, call: Call) -> Fault | None:
        return self._run.faults.at_call(self, call)

    def _died(self) -> None:
        """The program died in a call. The rest happens after its stack is unwound."""
        power, world = self._run.faults.ends_by_power_cut(), self._run.world
        self.process.end(silently=power)
        world.at(world.now, None, lambda: self._after_death(power=power))

    def _after_death(self, *, power: bool) -> None:
        self._run.note(f"{self.name}: {'power cut' if power else 'killed'}")
        if power:
            self.disk.cut_power(self._run.faults.survival())
        else:
            self.disk.kill()
        self.start_later(self._run.faults.restart_delay())


class HubMachine(Machine):
    """The machine of the hub, with its supervisor."""

    def __init__(self, run: "Run") -> None:
        super().__init__(run, "hub")
        self.data_dir = self.root / "data"
        self.config = HubConfig(
            self.data_dir,
            HOST,
            PORT,
            admission=Admission.OPEN,
            workers=0,
            scrub_bytes_per_s=0,
            disk_reserve_bytes=0,
            operator_token=TOKEN,
        )
        self._has_started = False
        self.backups = Backups(self.root / "backups")

    @property
    def is_up(self) -> bool:
        return self._has_started and super().is_up

    def ask(self, witnesses: Iterable[WitnessAddress]) -> None:
        """Have these witnesses from the next start on."""
        self.config = replace(self.config, witness_addresses=tuple(witnesses))
        self.waits_at_start = bool(self.config.witness_addresses)

    def create(self) -> bytes:
        world, settings = self._run.world, self._run.settings
        self.root_key = SigningKey(world.entropy.randbytes(32)) if settings.has_root else None
        made = self.call(
            lambda: metadata.create(
                self.disk,
                self.data_dir,
                settings.profile,
                settings.limits,
                int(world.wall()),
                root_key=self.root_key,
            )
        )
        return made.identity.hub_id

    def run_program(self) -> None:
        process, self._has_started = self.process, False
        self.service = process.call(
            lambda: HubService(self.config, disk=self.disk, background=SimulatedThreads(process))
        )
        self._stopped = process.call(asyncio.Event)
        serving = process.spawn(self.service.run_until(self._stopped, lambda port: self._run.note("starts")))
        serving.add_done_callback(self._ended)
        self._has_started = True

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = task.exception()
        self._run.note(f"ends: {error}" if error else "stops")
        self.exit()
        if error is not None:
            if not isinstance(error, JournalBroken | Unavailable):
                self._run.violated(f"the hub ends: {type(error).__name__}: {error}")
            self.start_later(self._run.faults.restart_delay())

    def _fault_of(self, call: Call) -> Fault | None:
        if self._run.crash_points and self._run.has_begun:
            self._run.crash_points.at_call(self, call)
        return super()._fault_of(call)

    def kill_signer(self) -> bool:
        """Kill the signer process, if there is one. Returns whether there was."""
        if self.is_up and self.process.children:
            self._run.note("hub: the signer is killed")
            self.process.children[-1].kill()
            return True
        return False

    def administer(self, work: Callable[[SimulatedDisk, Folders], T]) -> T | None:
        """Run a command of the operator on this machine. Returns None if it fails or is killed."""
        process = self._run.world.process("admin")
        process.clock_step = self.clock_step
        disk = SimulatedDisk(self.platter, self._fault_of, Random(f"admin {process.number}"), process.end)
        self.platter.process = self.disk
        try:
            return process.call(lambda: work(disk, Folders(self.data_dir)))
        except ProcessEnded:
            return None
        except (Unavailable, Unverified, OSError) as error:
            if isinstance(error, Unverified) and not Folders(self.data_dir).rotation.exists():
                raise  # the metadata may be inconsistent only until an interrupted rotation is completed
            self._run.note(f"the operator's command fails: {error}")
            return None
        finally:
            process.end()
            disk.exit()

    def stop(self) -> None:
        """Stop it as an operator does."""
        process = self.process
        process.loop.call_soon(self._stopped.set)
        self._run.world.run(lambda: not process.alive)


class Operator:
    """Sends the requests that need the operator's token."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._asked: list[asyncio.Task[bytes]] = []

    @property
    def is_idle(self) -> bool:
        """The hub has answered every request."""
        return all(task.done() for task in self._asked)

    def do(self, path: str, request: Wire) -> "asyncio.Task[bytes]":
        """Send a request until the hub answers. Returns the answer, which may be a rejection."""
        self._asked.append(self._run.world.process("operator").spawn(self._post(path, request.encode())))
        return self._asked[-1]

    def do_something(self, rng: Random) -> None:
        """Rotate the key, lower the limits, register a stream or accept the clock."""
        what = rng.choice((self.rotate, self.rotate, self._lower_limits, self._register, self._accept_clock))
        what()

    def rotate(self) -> None:
        run = self._run
        now = int(run.world.wall() + run.hub.clock_step)

        def request(disk: SimulatedDisk, folders: Folders) -> RotationRequest:
            identity = metadata.read_metadata(folders).identity
            if run.hub.root_key:
                asked = rotation.request_rotation(disk, folders, now)
                root = RootSecret(run.hub.root_key.seed, identity.hub_id, 0)
                return RotationRequest(asked.key.hub_pk, asked.key.valid_from, 0, asked.endorse(root).sig)
            new = metadata.next_key(folders, identity)
            metadata.add_signing_key(disk, folders, new)
            return RotationRequest(new.signer.public_key, max(now, identity.hub_keys[-1].valid_from + 1), 0)

        asked = run.hub.administer(request)
        if asked:
            run.note("the operator rotates the key")
            self.do("/tooling/rotate-key", asked)

    def _lower_limits(self) -> None:
        registry = self._run.hub.administer(lambda _, folders: metadata.read_metadata(folders).limit_registry)
        if registry and registry.limits.max_msg_bytes > 2048:
            lowered = replace(registry.limits, max_msg_bytes=registry.limits.max_msg_bytes - 64)
            self._run.note(f"the operator lowers max_msg_bytes to {lowered.max_msg_bytes}")
            self.do("/tooling/limits", LoweredLimits(registry.limits, lowered))

    def _register(self) -> None:
        self.do("/tooling/streams", StreamRegistration(self._run.rng.randbytes(32)))

    def prune(self, rng: Random) -> None:
        """Set a policy that is soon due, and prune what it allows; or erase some entries now."""
        run = self._run
        label = rng.choice(sorted(run.ledger.labels())) if run.ledger.receipts and rng.random() < 0.3 else None
        if label is not None:
            first = 1 + rng.randrange(run.ledger.size(label))
            run.note(f"the operator erases entries {first} to {first + 2} of {label.hex()[:8]}")
            self.do("/tooling/retention/run", RetentionRequest(False, label, first, first + 2, "asked for"))
            return
        keep = rng.choice((0, 1, 5))
        policy = RetentionPolicy(keep, rng.choice((None, keep, keep + 3)))
        run.note(f"the operator keeps payloads for {keep} s, receipts for {policy.receipt_sec} s, and prunes")
        self.do("/tooling/retention/policy", policy)
        for wait in (0.2, 1.0, 4.0, 10.0):
            run.world.at(run.world.now + wait, None, self._run_retention)

    def back_up(self, rng: Random) -> None:
        """Add a backup. If the command is killed, the machine may lose power, too."""
        run, hub = self._run, self._run.hub
        sizes = {label: run.ledger.size(label) for label in run.ledger.labels()}
        now = int(run.world.wall() + hub.clock_step)
        run.note("the operator makes a backup")
        made = hub.administer(
            lambda disk, folders: backup.backup(disk, folders.root, hub.backups.folder, now, keep=KEPT)
        )
        if made:
            hub.backups.add(made[0], sizes)
            run.note(f"backup {made[0].path.name} has {made[0].entries} entries")
        elif rng.random() < 0.5:
            run.world.at(run.world.now, None, lambda: hub.crash(power=True))

    def _run_retention(self) -> None:
        if self._run.faults.is_active:
            self.do("/tooling/retention/run", RetentionRequest(False))

    def _accept_clock(self) -> None:
        self.do("/tooling/clock", ClockAcceptance(int(self._run.world.wall() + self._run.hub.clock_step)))

    async def _post(self, path: str, body: bytes) -> bytes:
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": CBOR}
        async with httpx.AsyncClient(base_url=URL, headers=headers, trust_env=False, verify=False) as http:
            while True:
                try:
                    answer = await http.post(path, content=body, timeout=10.0)
                except httpx.TransportError as error:
                    self._run.note(f"waits: {error!r}")
                else:
                    if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                        self._run.note(f"{path} {answer.status_code}")
                        return answer.content
                await asyncio.sleep(1.0)


class ClientDisk(local_files.Disk):
    """The files of a client on a simulated disk."""

    def __init__(self, files: SimulatedDisk) -> None:
        self.files = files


class ClientMachine(Machine):
    """The machine of a client. After a crash its program goes on with its list."""

    def __init__(self, run: "Run", name: str) -> None:
        super().__init__(run, name)
        self.folder = self.root / "client"
        self.rng = Random(f"client {run.world.seed} {name}")
        self.todo: list[tuple[str, str, int]] = []
        self._letters: list[Letter] = []
        self.is_done = False

    def create(self) -> None:
        now = int(self._run.world.wall())
        self.call(lambda: ClientDir.create(self.folder, None, now, disk=ClientDisk(self.disk)).close())

    def add_stream(self, stream: str, secret: DhKey | None) -> DhKey:
        """Make a key for a stream, or import one. Returns it."""

        def add() -> DhKey:
            with ClientDir.open(self.folder, disk=ClientDisk(self.disk)) as opened:
                if secret is None:
                    return opened.stream_keys.create(stream)
                opened.stream_keys.import_secret(stream, secret)
                return secret

        return self.call(add)

    def run_program(self) -> None:
        process = self.process
        self.is_done = False
        self.dir = process.call(lambda: ClientDir.open(self.folder, disk=ClientDisk(self.disk)))
        process.spawn(self._live()).add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = task.exception()
        if error is not None:
            self._run.violated(f"{self.name} ended with {type(error).__name__}: {error}")
        self.is_done = True

    def connected(self) -> Client:
        return Client(URL, self.dir, pin=self._run.pin, retry_policy=POLICY)

    async def _live(self) -> None:
        is_settled = False
        while self.todo or not is_settled:
            try:
                async with self.connected() as client:
                    await client.recover()
                    while self.todo:
                        await self._act(client, *self.todo[0])
                        self.todo.pop(0)
                    is_settled = await self._send_all(client, self._letters)
            except Unavailable as error:
                self._run.note(f"waits: {error}")
                await asyncio.sleep(self.rng.uniform(0.1, 2.0))
        self._run.note("has finished")

    async def _act(self, client: Client, what: str, stream: str, number: int) -> None:
        run = self._run
        if what == "wait":
            await asyncio.sleep(self.rng.expovariate(1.0))
        elif what == "send":
            letters = [run.letter(self.name, stream, number + part) for part in range(1 + number % 4)]
            self._letters += [one for one in letters if one not in self._letters]
            await self._send_all(client, letters)
        elif what == "read":
            log = await read_log(client, stream)
            run.check(lambda: run.ledger.check_log(log, self.name))
            run.note(f"read {len(log.entries)} entries of {stream}")
        elif what == "prove":
            epoch = client.epoch()
            end = await client.follower(stream, epoch).end()
            if end:
                seq = self.rng.randrange(end) + 1
                try:
                    await client.proof(stream, seq, end, epoch=epoch)
                    run.note(f"proved {seq} of {end} entries of {stream}")
                except PrunedEntries as pruned:
                    run.note(f"not proved: {pruned.message}")
        elif what == "checkpoint":
            epoch = client.epoch()
            if await client.follower(stream, epoch).end():
                made = await client.checkpoint(stream, epoch=epoch)
                run.ledger.cosigned(made, run.hub.config.witness_keys())
                run.note(f"checkpoint of {made.upto_seq}, cosigned by {len(made.witness_sigs or ())}")

    async def _send_all(self, client: Client, letters: list[Letter]) -> bool:
        """Send the letters that are neither in the outbox nor in the log. Returns False if some have no outcome."""
        known = client.dir.outbox.marks(f"{self.name} ".encode())
        unsent = [one for one in letters if one.mark not in known and one.refusal is None]
        for result in await asyncio.gather(*(self._send(client, one) for one in unsent), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return not client.dir.outbox.places()

    async def _send(self, client: Client, letter: Letter) -> None:
        run = self._run
        try:
            sent = await client.sender(letter.stream).put(Draft(letter.body, mark=letter.mark))
        except Undecided:
            return  # it is in the outbox: the next run sends it
        except PrunedEntries as pruned:
            run.note(f"{letter.body.decode()}: {pruned.message}")
            return
        except Refused as refused:
            letter.refusal = str(refused)
            run.note(f"{letter.body.decode()} is rejected: {refused}")
            return
        letter.receipt = sent.receipt
        run.check(lambda: run.ledger.add(sent.receipt, self.name))
        run.note(f"{letter.body.decode()} is at {sent.stream_seq}")

    async def read_all(self, current: int) -> dict[bytes, ReadLog]:
        """Read every label that has entries, or is that of its stream in the epoch `current`.

        The epoch is the same for all clients: one may begin while they read.
        """
        logs: dict[bytes, ReadLog] = {}
        async with self.connected() as client:
            for stream in self._run.settings.streams:
                for epoch in sorted({*self._run.epochs, current}):
                    label = client.label(stream, epoch)
                    if epoch == current or label in self._run.labels:
                        logs[label] = await read_log(client, stream, epoch)
        return logs
