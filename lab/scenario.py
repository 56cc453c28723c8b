"""What happens in one seed: a hub, its clients, what they do, what goes wrong, and what is checked at the end."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random

from lab.crash_points import CrashPoints
from lab.disk import Coverage
from lab.faults import Faults
from lab.machines import ClientMachine, HubMachine, Machine, Operator
from lab.memory_lmdb import MemoryLmdb
from lab.promises import Ledger, Letter, Violation, check_same, shown
from lab.prunes import check_prunes
from lab.witnesses import WitnessMachine
from lab.world import Running, Stuck, World
from plumbing import lmdb_env
from veen.client.trust import Pin
from veen.core import Limits, Profile, naming, signing
from veen.core.envelopes import CheckpointOrder, CheckpointResponse, StreamRegistration
from veen.storage import fsck, journal, rotation
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import Folders
from veen.storage.store import Lookup

_NO_CONTENT = ("lock.mdb",)  # LMDB's table of readers
_LONGEST_RUN_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of a seed."""

    limits: Limits
    profile: Profile
    streams: tuple[str, ...]
    clients: tuple[str, ...]
    actions: int  # of each client
    has_root: bool
    segment_bytes: int
    filler_bytes: int
    witnesses: int

    @classmethod
    def of(cls, rng: Random) -> "Settings":
        limits = Limits(
            max_msg_bytes=4096,
            max_chunk_bytes=5120,
            max_checkpoint_interval=rng.choice((3, 7, 16)),
            chunk_zstd_level=rng.choice((None, None, 3)),
        )
        profile = Profile(epoch_sec=rng.choice((0, 0, 0, 30)), pad_block=rng.choice((0, 256)))
        return cls(
            limits,
            profile,
            tuple(f"stream {number}" for number in range(rng.choice((1, 1, 2)))),
            ("ann", "ben", "cyd")[: rng.choice((2, 2, 3))],
            rng.randrange(3, 9),
            rng.random() < 0.7,
            rng.choice((1 << 12, 1 << 14, journal.SEGMENT_BYTES)),
            rng.choice((1 << 10, 1 << 12, journal.MIN_FILLER_BYTES)),
            rng.choice((0, 0, 1, 3)),
        )


@dataclass
class Outcome:
    """What came out of a seed."""

    seed: int
    violations: list[str]
    fingerprint: str
    files: str  # hash over all files that the run left
    simulated_s: float
    steps: int
    messages: int
    coverage: Coverage = field(repr=False)
    trace: list[str] = field(repr=False)


class Run:
    """One seed."""

    def __init__(
        self, seed: int, place: Path, *, keep_trace: bool = False, keep_all: bool = False, explore: bool = False
    ) -> None:
        """With `explore`, power cuts are tried at calls of the hub: see `CrashPoints`."""
        self.rng = Random(f"scenario {seed}")
        self.world = World(seed, keep_trace=keep_trace, keep_all=keep_all)
        self.place = place
        self.settings = Settings.of(self.rng)
        self.ledger = Ledger()
        self.violations: list[str] = []
        self.epochs: set[int] = {0}
        self.labels: set[bytes] = set()
        self.coverage = Coverage()
        self.lmdb = MemoryLmdb()
        self.has_begun = False
        self.crash_points = CrashPoints(self, place.parent) if explore else None
        self.faults = Faults(self)
        self.settings = self.faults.fitted(self.settings)
        self.hub = HubMachine(self)
        self.operator = Operator(self)
        self.clients = [ClientMachine(self, name) for name in self.settings.clients]
        self.witnesses = [WitnessMachine(self, number) for number in range(self.settings.witnesses)]
        self.machines: list[Machine] = [self.hub, *self.clients, *self.witnesses]

    def note(self, text: str) -> None:
        self.world.note(text.replace(str(self.place), ""))

    def check(self, promise: Callable[[], None]) -> None:
        try:
            promise()
        except Violation as found:
            self.violated(str(found))

    def violated(self, what: str) -> None:
        """A promise was broken."""
        self.violations.append(what.replace(str(self.place), ""))
        self.note(f"VIOLATION: {what}")

    def letter(self, client: str, stream: str, number: int) -> Letter:
        name = f"{client} {number}".encode()
        return self.ledger.letters.setdefault(name, Letter(stream, name, name))

    def outcome(self) -> Outcome:
        with Running(self.world), lmdb_env.opened_by(self.lmdb.open), _small_segments(self.settings):
            try:
                self._play()
            except Stuck as stuck:
                self.violated(f"the clients do not converge: {stuck}")
            except Violation as found:
                self.violated(str(found))
            except Exception as error:  # noqa: BLE001  whatever a program raises here breaks a promise
                self.violated(f"{type(error).__name__}: {error}")
        files = digest_of(self.place)
        return Outcome(
            self.world.seed,
            self.violations,
            self.world.fingerprint(),
            files,
            self.world.now,
            self.world.steps,
            len(self.ledger.receipts),
            self.coverage,
            list(self.world.lines),
        )

    def _play(self) -> None:
        self._begin()
        self.faults.start()
        self.world.run(self._has_ended, _LONGEST_RUN_S)
        self.faults.stop()
        self.world.run(self._is_quiet, _LONGEST_RUN_S)
        if self.violations:
            return
        self.hub.stop()
        for machine in self.machines:
            machine.exit()
            machine.lose_unsynced()
            machine.start()
        self.world.run(self._is_quiet, _LONGEST_RUN_S)
        if self.violations:
            return
        self._converge()
        self._order_checkpoints()
        self.hub.stop()
        for label, upto_seq in self.ledger.cosignatures:
            stored = rotation.stored_checkpoint(Folders(self.hub.data_dir), label, upto_seq)
            if stored is not None:
                self.ledger.check_cosigned(stored)
        for process in self.world.processes:
            for fault in process.faults:
                self.violated(f"{process.name}: {fault}")
        self.hub.backups.check()
        report = fsck.check(self.hub.data_dir, isolated=False)
        if report.verdict is not FsckVerdict.CLEAN:
            raise Violation(f"fsck: {report.first}")

    def _begin(self) -> None:
        """Create everything, and start it, without faults."""
        self.pin = Pin.parse(self.hub.create().hex())
        self.hub.ask([witness.create() for witness in self.witnesses])
        for witness in self.witnesses:
            witness.start()
        for client in self.clients:
            client.create()
            client.todo = list(self._script())
        first, *others = self.clients
        for stream in self.settings.streams:
            key = first.add_stream(stream, None)
            for other in others:
                other.add_stream(stream, key)
        self.hub.start()
        self.world.run(lambda: self.hub.is_up, _LONGEST_RUN_S)
        if self.settings.profile.epoch_sec:
            for stream in self.settings.streams:
                registered = self.operator.do("/tooling/streams", StreamRegistration(naming.stream_id(stream)))
                self.world.run(registered.done)
        for client in self.clients:
            client.start()
        self.has_begun = True

    def _has_ended(self) -> bool:
        has_finished = all(client.is_done for client in self.clients) and not self.faults.waits
        return bool(self.violations) or not self.faults.is_active or has_finished

    def _is_quiet(self) -> bool:
        """Every program runs, every client has finished, and the operator waits for nothing."""
        if self.violations:
            return True
        has_finished = all(client.is_done for client in self.clients) and self.operator.is_idle
        return has_finished and all(machine.is_up for machine in self.machines)

    def _script(self) -> Iterator[tuple[str, str, int]]:
        rng = self.rng
        more = 6 if self.faults.needs or "retention" in self.faults.kinds else 0  # chunks must be closed, for instance
        for number in range(self.settings.actions + more):
            what = rng.choices(("send", "read", "wait", "prove", "checkpoint"), (6, 2, 2, 1, 1))[0]
            yield what, rng.choice(self.settings.streams), number * 10 + rng.randrange(4)

    def _converge(self) -> None:
        """Everyone reads everything, without further faults."""
        limits, profile = self.settings.limits, self.settings.profile
        store = self.hub.service.store
        with store.index.read() as rows:
            ends = {label: head.hub_ts for label, head in rows.labels()}
        ends |= {label: records[-1].hub_ts for tail in store.tails() for label, records in tail.labels.items()}
        ends |= {receipt.label: receipt.hub_ts for receipt in self.ledger.receipts.values()}
        for label, hub_ts in ends.items():
            self.epochs.update(profile.epochs_around(hub_ts, limits.max_epoch_skew_sec))
            self.labels.add(label)
        current = profile.epoch(int(self.world.wall()))
        tasks = {client.name: client.process.spawn(client.read_all(current)) for client in self.clients}
        self.world.run(lambda: all(task.done() for task in tasks.values()), _LONGEST_RUN_S)
        logs = {name: task.result() for name, task in tasks.items()}
        for label in next(iter(logs.values())):
            check_same({name: found[label] for name, found in logs.items()})
            for name, found in logs.items():
                self.ledger.check_log(found[label], name)
        self.ledger.check_complete(next(iter(logs.values())))
        check_prunes(self.hub.service.folders, Lookup(store))

    def _order_checkpoints(self) -> None:
        """Every witness cosigns the newest checkpoint of every label."""
        for label in sorted(self.ledger.labels()) if self.witnesses and not self.settings.profile.epoch_sec else ():
            ordered = self.operator.do("/tooling/checkpoint", CheckpointOrder(label))
            self.world.run(ordered.done, _LONGEST_RUN_S)
            made = CheckpointResponse.decode(ordered.result()).checkpoint
            digest, sigs = made.signing_digest(), made.witness_sigs or ()
            for address in self.hub.config.witness_addresses:
                if not any(signing.is_valid(address.witness_pk, digest, sig) for sig in sigs):
                    raise Violation(f"{address.url} did not cosign the checkpoint of {shown((label, made.upto_seq))}")
            self.ledger.cosigned(made, self.hub.config.witness_keys())


@contextmanager
def _small_segments(settings: Settings) -> Iterator[None]:
    """Segments of the journal that a short run fills."""
    before = journal.SEGMENT_BYTES, journal.MIN_FILLER_BYTES
    journal.SEGMENT_BYTES, journal.MIN_FILLER_BYTES = settings.segment_bytes, settings.filler_bytes
    try:
        yield
    finally:
        journal.SEGMENT_BYTES, journal.MIN_FILLER_BYTES = before


def digest_of(place: Path) -> str:
    """A hash over all files below a folder."""
    digest = sha256()
    for path in sorted(place.rglob("*")):
        if path.is_file() and path.name not in _NO_CONTENT:
            digest.update(f"{path.relative_to(place)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@contextmanager
def scratch_folder(parent: Path = Path("/dev/shm")) -> Iterator[Path]:
    """A folder in memory, if there is one."""
    folder = Path(tempfile.mkdtemp(prefix="veen-lab-", dir=parent if os.access(parent, os.W_OK) else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def play(
    seed: int, scratch: Path, *, keep_trace: bool = False, keep_all: bool = False, explore: bool = False
) -> Outcome:
    """Run one seed in a new folder below `scratch`."""
    place = scratch / "world"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    return Run(seed, place, keep_trace=keep_trace, keep_all=keep_all, explore=explore).outcome()
