"""What goes wrong in a seed: which faults, when, and at which call.

A seed has some kinds of faults, not all of them: combinations of few faults go deeper than all of them at once. Faults
come at a moment, at a call of a kind that the seed chose (`Target`), or at any call with a small probability. They end
when the clients have finished or at `end_at`; then everything must work again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from lab.coverage import CLOCK_STEPS_S, NETWORK_TROUBLE, REPEATS, SHUFFLED, machine_kind, needs_of, step_name
from lab.disk import DEATHS, ERRORS, Call, EverythingSurvives, Fault, RemovalsSurvive, SeededSurvival, Survival
from lab.world import End

if TYPE_CHECKING:
    from lab.machines import Machine
    from lab.scenario import Run, Settings

KINDS = ("death", "error", "full disk", "slow disk", "crash", "network", "partition", "clock", "signer", "operator")
_MAX_CRASHES = 12
_TARGETS_IN_TURN = 3  # in each seed
_LONGEST_WAIT_S = 20.0  # for a call that is a target
_SMALL_SEGMENT_BYTES = 1 << 12


@dataclass(slots=True)
class Target:
    """The fault happens at the call of this kind after `skipped` others."""

    artifact: str
    call: str
    fault: Fault
    skipped: int

    def is_met(self, call: Call) -> bool:
        if (call.artifact, call.name) != (self.artifact, self.call):
            return False
        self.skipped -= 1
        return self.skipped < 0


class Faults:
    """The faults of one run."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        rng = self._rng = Random(f"faults {run.world.seed}")
        self.is_active = False
        self.kinds = frozenset(kind for kind in KINDS if rng.random() < 0.45)
        self.end_at = 2.0 + rng.expovariate(0.1)
        self._death_rate = rng.choice((0.001, 0.005, 0.02)) if "death" in self.kinds else 0.0
        self._error_rate = rng.choice((0.002, 0.01, 0.05)) if "error" in self.kinds else 0.0
        self._network_rate = rng.choice((0.01, 0.05)) if "network" in self.kinds else 0.0
        self._crashes_left = _MAX_CRASHES
        first = run.world.seed * _TARGETS_IN_TURN
        self._in_turn = [Target(*SHUFFLED[(first + number) % len(SHUFFLED)], 0) for number in range(_TARGETS_IN_TURN)]
        self._targets = [*self._in_turn, *(self._target() for _ in range(rng.choice((0, 0, 1, 2))))]
        self.needs = frozenset(need for one in self._targets for need in needs_of(one.artifact, one.call))
        if "lost commit" in self.needs:  # the log is ahead of its index then
            self._targets.append(Target("index", "commit", Fault.DIE_BEFORE, rng.choice((0, 1, 2, 4))))
        self.kinds |= self.needs & {*KINDS, "retention", "backup"}
        for kind in ("retention", "backup"):
            if rng.random() < 0.3:
                self.kinds |= {kind}
        if self.needs:
            self.end_at = min(max(self.end_at, 0.5 * _LONGEST_WAIT_S), _LONGEST_WAIT_S)
        self._full_until: dict[Machine, float] = {}
        self._slow_until: dict[Machine, float] = {}

    def fitted(self, settings: "Settings") -> "Settings":
        """The settings of a seed, changed so that the targets of the seed occur."""
        if "witness" in self.needs:
            settings = replace(settings, witnesses=max(settings.witnesses, 1))
        if "compression" in self.needs:
            settings = replace(settings, limits=replace(settings.limits, chunk_zstd_level=3))
        if "small chunks" in self.needs:
            settings = replace(settings, limits=replace(settings.limits, max_checkpoint_interval=3))
        if "small segments" in self.needs:
            settings = replace(settings, segment_bytes=_SMALL_SEGMENT_BYTES)
        return settings

    @property
    def waits(self) -> bool:
        """Whether a target of this seed may still occur, although the clients have finished."""
        return any(one in self._targets and needs_of(one.artifact, one.call) for one in self._in_turn)

    def start(self) -> None:
        """Begin. The machines are running."""
        rng, world = self._rng, self._run.world
        self.is_active = True
        world.network.trouble = self._network_trouble
        world.at(self.end_at, None, self.stop)
        for kind, act in (
            ("crash", self._crash),
            ("full disk", self._fill_disk),
            ("slow disk", self._slow_down),
            ("partition", self._cut_off),
            ("clock", self._step_clock),
            ("signer", self._kill_signer),
            ("operator", self._operate),
            ("retention", self._prune),
            ("backup", self._back_up),
        ):
            if kind in self.kinds:
                for _ in range(1 + rng.randrange(3)):
                    world.at(rng.uniform(0.0, self.end_at), None, self._while_active(act))
                if kind in self.needs:  # early enough for what follows, and again when there is more to work with
                    for part in (0.05, 0.2, 0.5):
                        world.at(part * self.end_at, None, self._while_active(act, self._run.hub))
        if "rotation" in self.needs:
            world.at(0.3 * self.end_at, None, self._while_active(self._rotate, self._run.hub))

    def stop(self) -> None:
        """No more faults; what was broken works again."""
        if self.is_active:
            self.is_active = False
            self._run.note("faults end")
            self._run.world.network.cut.clear()
            for machine in self._run.machines:
                machine.set_clock(0.0)

    def _target(self) -> Target:
        return Target(*self._rng.choice(SHUFFLED), self._rng.choice((0, 0, 1, 2, 5, 12)))

    def _while_active(self, act: Callable[["Machine"], None], machine: "Machine | None" = None) -> Callable[[], None]:
        def acted() -> None:
            if self.is_active:
                act(machine or self._some_machine())

        return acted

    def _some_machine(self) -> "Machine":
        machines = self._run.machines
        return machines[0] if self._rng.random() < 0.6 else self._rng.choice(machines)  # the hub is the first

    # Calls of the disk.

    def at_call(self, machine: "Machine", call: Call) -> Fault | None:
        """The fault of a call, if any."""
        if self._run.world.keep_all:
            self._run.world.detail(f"{call.name} {call.path.name} {call.size or ''}")
        if not self.is_active:
            return None
        fault = self._fault_of(machine, call)
        if fault:
            self._run.note(f"{machine.name}: {fault} at {call.name} of {call.artifact}")
        return fault

    def _fault_of(self, machine: "Machine", call: Call) -> Fault | None:
        rng, world = self._rng, self._run.world
        errors = ERRORS.get(call.name, ())
        if self._slow_until.get(machine, 0.0) > world.now and call.name in ("sync", "commit"):
            self._count(machine, call.name, "slow")
            world.now += rng.uniform(0.0, 0.5)
        for target in self._targets:
            if target.is_met(call):
                self._targets.remove(target)
                return target.fault
        if self._death_rate and self._crashes_left and rng.random() < self._death_rate:
            return rng.choice(DEATHS)
        if Fault.ENOSPC in errors and self._full_until.get(machine, 0.0) > world.now:
            self._count(machine, "disk", "full")
            return Fault.ENOSPC
        if self._error_rate and errors and rng.random() < self._error_rate:
            return rng.choice(errors)
        return None

    def ends_by_power_cut(self) -> bool:
        """How a process that died at a call ended."""
        self._crashes_left -= 1
        return self._rng.random() < 0.6

    def survival(self) -> Survival:
        """What a power cut leaves."""
        kind = self._rng.randrange(8)
        if kind < 3:
            return (Survival(), EverythingSurvives(), RemovalsSurvive())[kind]
        return SeededSurvival(self._rng)

    def restart_delay(self) -> float:
        return self._rng.choice((0.01, 0.5, 3.0)) * self._rng.random() if self.is_active else 0.1

    # Moments.

    def _crash(self, machine: "Machine") -> None:
        if self._crashes_left:
            power = self.ends_by_power_cut()
            self._count(machine, "run", "power cut" if power else "kill")
            machine.crash(power=power)

    def _fill_disk(self, machine: "Machine") -> None:
        self._run.note(f"{machine.name}: the disk is full")
        self._full_until[machine] = self._run.world.now + self._rng.choice((0.3, 3.0, 20.0))

    def _slow_down(self, machine: "Machine") -> None:
        self._run.note(f"{machine.name}: the disk is slow")
        self._slow_until[machine] = self._run.world.now + self._rng.choice((0.3, 3.0, 20.0))

    def _cut_off(self, machine: "Machine") -> None:
        world = self._run.world
        self._run.note(f"{machine.name}: cut off")
        self._count(machine, "network", "cut off")
        world.network.cut.add(machine.name)
        world.at(world.now + self._rng.choice((0.5, 4.0, 15.0)), None, lambda: world.network.cut.discard(machine.name))

    def _step_clock(self, machine: "Machine") -> None:
        step = self._rng.choice(CLOCK_STEPS_S)
        self._run.note(f"{machine.name}: the clock steps by {step:g} s")
        self._count(machine, "clock", step_name(step))
        machine.set_clock(machine.clock_step + step)

    def _kill_signer(self, _: "Machine") -> None:
        if self._run.hub.kill_signer():
            self._count(self._run.hub, "signer", "kill")

    def _rotate(self, _: "Machine") -> None:
        self._run.operator.rotate()

    def _operate(self, _: "Machine") -> None:
        self._run.operator.do_something(self._rng)

    def _prune(self, _: "Machine") -> None:
        self._run.operator.prune(self._rng)

    def _back_up(self, _: "Machine") -> None:
        self._run.operator.back_up(self._rng)

    # The network.

    def _network_trouble(self, end: End, data: bytes) -> str:
        if not self.is_active or not self._network_rate or self._rng.random() >= self._network_rate:
            return ""
        trouble = self._rng.choice(NETWORK_TROUBLE)
        machine = machine_kind(end.process.name)
        if trouble != "repeat" or machine in REPEATS:
            self._run.coverage.count(machine, "send", trouble)
        return trouble

    def _count(self, machine: "Machine", call: str, fault: str) -> None:
        self._run.coverage.count(machine_kind(machine.name), call, fault)
