"""Hub time under clocks that jump: it never goes back, never stands still, and a replay makes the same decisions."""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbing.durable import PLAIN_FILE, Disk
from tests.hub.client import START, TOKEN, Clock, Hub, Reply, Writer, log_file, log_rows, make_dir, running, until
from veen.core import Bucket, Profile, Rate, Unavailable
from veen.core.envelopes import ClockAcceptance
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig
from veen.hub.hub_time import (
    ACCEPT_TOLERANCE_S,
    DRIFT_WINDOW_S,
    MARK_INTERVAL_S,
    ClockGap,
    HubTime,
    check_start,
    read_mark,
    system_clocks,
    write_mark,
)
from veen.hub.service import HubService
from veen.storage import fsck
from veen.storage.paths import Folders

HOUR, DAY = 3600, 86_400
STEP = HubConfig(Path()).max_clock_step
GAP = HubConfig(Path()).max_start_gap
RATE = Rate(5, 5)
CAPABILITY: dict[str, Any] = {"admission": Admission.CAPABILITY}


def hub_time(clock: Clock, last_hub_ts: int = START) -> HubTime:
    return HubTime(clock.read, last_hub_ts, STEP)


# The clock alone.


def test_hub_time_follows_the_wall_clock() -> None:
    clock = Clock()
    found = hub_time(clock)
    for seconds in (0.25, 1, HOUR, 6 * HOUR, 10 * DAY):
        clock.now += seconds
        assert found.now() == clock.now
        assert (found.step, found.lead) == (0, 0)


@pytest.mark.parametrize("step", [DAY, -DAY, 400 * DAY, -400 * DAY, STEP + 1, -STEP - 1])
def test_after_a_step_hub_time_continues_with_the_boot_clock(step: int) -> None:
    clock = Clock()
    found = hub_time(clock)
    clock.step(step)
    for passed in (0, 1, HOUR, DAY):
        clock.now = START + step + passed
        assert found.now() == START + passed
        assert found.step == step


@pytest.mark.parametrize("step", [STEP, 1, -1, -STEP])
def test_a_small_step_is_followed_without_an_alarm(step: int) -> None:
    clock = Clock()
    found = hub_time(clock)
    clock.step(step)
    assert found.now() == START + max(0, step)
    assert found.step == 0
    clock.now += 2 * STEP
    assert found.now() == clock.now


def test_the_alarm_ends_when_the_wall_clock_returns() -> None:
    clock = Clock()
    found = hub_time(clock)
    clock.step(DAY)
    clock.now += HOUR
    assert found.now() == START + HOUR
    clock.step(-DAY)
    assert found.now() == START + HOUR == clock.now
    assert found.step == 0


def test_accepting_a_later_time_jumps_to_it() -> None:
    clock = Clock()
    found = hub_time(clock)
    clock.step(DAY)
    found.accept()
    assert found.now() == START + DAY
    assert (found.step, found.lead) == (0, 0)


def test_after_accepting_an_earlier_time_hub_time_runs_at_half_speed_until_both_agree() -> None:
    clock = Clock()
    found = hub_time(clock)
    clock.step(-DAY)
    found.accept()
    for passed in (0, 1, HOUR, DAY, 2 * DAY):
        clock.now = START - DAY + passed
        assert found.now() == START + passed / 2
    assert found.lead == 0
    clock.now += HOUR
    assert found.now() == clock.now


def test_a_hub_that_starts_ahead_of_the_wall_clock_runs_at_half_speed() -> None:
    clock = Clock()
    found = hub_time(clock, START + DAY)
    clock.now += HOUR
    assert found.now() == START + DAY + HOUR / 2


def test_slow_drift_never_adds_up_to_an_alarm() -> None:
    """NTP corrects a clock by 500 ppm at most. 30 days of it are 21 minutes."""
    for sign in (1, -1):
        clock = Clock()
        found = hub_time(clock)
        for _ in range(30 * 24 * 4):
            clock.now += HOUR / 4
            clock.step(sign * HOUR / 4 * 500e-6)
            found.now()
            assert found.step == 0
        assert abs(found.now() - clock.now) < 1


def test_many_small_steps_add_up_to_a_step() -> None:
    clock = Clock()
    found = hub_time(clock)
    for _ in range(STEP):
        clock.now += 1
        clock.step(STEP / 4)
        found.now()
    assert found.step
    assert found.now() < START + 3 * STEP


MOVES = st.one_of(
    st.tuples(st.just("passes"), st.floats(0, 30 * DAY)),
    st.tuples(st.just("passes"), st.floats(0, 5)),
    st.tuples(st.just("step"), st.floats(-500 * DAY, 500 * DAY)),
    st.tuples(st.just("step"), st.floats(-2 * STEP, 2 * STEP)),
)


@given(st.lists(MOVES, max_size=40), st.floats(-DAY, DAY))
def test_whatever_the_wall_clock_does_hub_time_advances_at_half_speed_at_least(
    moves: list[tuple[str, float]], lead: float
) -> None:
    clock = Clock()
    found = hub_time(clock, int(START + lead))
    before, since = found.now(), 0.0
    first = before
    for kind, seconds in moves:
        boot = clock.read().boot
        if kind == "passes":
            clock.now += seconds
        else:
            clock.step(seconds)
        elapsed = clock.read().boot - boot
        since += elapsed
        now = found.now()
        assert now >= before + elapsed / 2 - 1e-3
        assert now >= before
        # Nothing but the operator moves it further than time passed, small steps aside.
        assert now <= first + since + STEP * (1 + since / DRIFT_WINDOW_S) + 1e-3
        before = now


@given(st.lists(MOVES, max_size=20))
def test_after_an_acceptance_hub_time_meets_the_wall_clock(moves: list[tuple[str, float]]) -> None:
    clock = Clock()
    found = hub_time(clock)
    for kind, seconds in moves:
        if kind == "passes":
            clock.now += seconds
        else:
            clock.step(seconds)
        found.now()
    found.accept()
    assert found.step == 0
    clock.now += 2 * found.lead + 1e-3
    assert found.now() == clock.now
    assert (found.step, found.lead) == (0, 0)


def test_a_pause_between_reading_the_two_clocks_is_not_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([100.0, 3700.0, 3700.0, 3700.0])  # suspended for an hour after the first
    monkeypatch.setattr(time, "clock_gettime", lambda _: next(readings))
    monkeypatch.setattr(time, "time", lambda: START + 3600.0)
    assert system_clocks() == (START + 3600.0, 3700.0)


def test_the_clocks_of_this_machine_agree_with_each_other() -> None:
    found = HubTime(system_clocks, 0, STEP)
    assert abs(found.now() - time.time()) < STEP
    assert found.step == 0


# A hub with writers.


@dataclass
class Machine:
    """A hub that may be restarted, its clock, and a writer with a rate of five messages per second."""

    hub: Hub
    clock: Clock
    writer: Writer

    def restart(self) -> None:
        self.hub.stop()
        self.hub = self.writer.hub = self.hub.again()

    def accept(self) -> dict[str, Any]:
        return accept(self.hub, self.clock).json()

    def spend(self) -> None:
        """Send until the rate is used up."""
        for _ in range(RATE.burst + 1):
            message = self.writer.message()
            reply = self.hub.submit(message)
            if reply.status != 200:
                assert reply.refusal()[1] == "E.RATE"
                return
            self.writer.accepted(message)
        raise AssertionError("the rate is not enforced")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    clock, data_dir = Clock(), make_dir(tmp_path)
    hub = Hub(data_dir, clock, None, CAPABILITY).start()
    made = Machine(hub, clock, hub.granted(ttl=500 * DAY, rate=RATE))
    yield made
    made.hub.stop()


def accept(hub: Hub, clock: Clock, **headers: str) -> Reply:
    wanted = ClockAcceptance(int(clock.now))
    return hub.post("/tooling/clock", wanted, **{"authorization": f"Bearer {TOKEN}", **headers})


def step(seconds: float) -> Callable[[Machine], None]:
    return lambda machine: machine.clock.step(seconds)


def passes(seconds: float) -> Callable[[Machine], None]:
    def pass_(machine: Machine) -> None:
        machine.clock.now += seconds

    return pass_


def restarts_after(seconds: float, stepped: float = 0) -> Callable[[Machine], None]:
    def restart(machine: Machine) -> None:
        machine.clock.now += seconds
        machine.clock.step(stepped)
        machine.restart()

    return restart


def accepted(seconds: float) -> Callable[[Machine], None]:
    def accept(machine: Machine) -> None:
        machine.clock.step(seconds)
        assert machine.hub.status()["clock"]["state"] == "holding"
        machine.accept()

    return accept


# What happens, the bad states that follow, and how far hub time has moved.
EVENTS: dict[str, tuple[Callable[[Machine], None], list[str], float]] = {
    "a day ahead": (step(DAY), ["clock_step"], 0),
    "a day back": (step(-DAY), ["clock_step"], 0),
    "400 days ahead": (step(400 * DAY), ["clock_step"], 0),
    "400 days back": (step(-400 * DAY), ["clock_step"], 0),
    "suspended for an hour": (passes(HOUR), [], HOUR),
    "idle for 6 hours": (passes(6 * HOUR), [], 6 * HOUR),
    "restarted after 10 days": (restarts_after(10 * DAY), [], 10 * DAY),
    "restarted a day ahead": (restarts_after(0, DAY), [], DAY),
    "restarted a day back": (restarts_after(0, -DAY), ["clock_ahead"], 0),
    "a day ahead, accepted": (accepted(DAY), [], DAY),
    "a day back, accepted": (accepted(-DAY), ["clock_ahead"], 0),
    "400 days back, accepted": (accepted(-400 * DAY), ["clock_ahead"], 0),
}


@pytest.mark.parametrize("name", EVENTS)
def test_no_jump_of_the_clock_locks_writers_out(machine: Machine, name: str) -> None:
    event, states, moved = EVENTS[name]
    machine.spend()
    event(machine)
    clock = machine.hub.status()["clock"]
    assert clock["hub_ts"] == START + moved
    assert machine.hub.get("/readyz").json()["bad_states"] == states
    for _ in range(3):  # half speed refills the rate in two seconds, full speed in one
        machine.clock.now += 2
        machine.writer.send_many(RATE.burst)
    machine.clock.now += 2
    assert START + moved + 8 // 2 <= machine.writer.send().hub_ts <= START + moved + 8


@pytest.mark.parametrize("name", EVENTS)
def test_a_replayed_log_with_a_jump_makes_the_same_decisions(machine: Machine, name: str, tmp_path: Path) -> None:
    """A copy, and a copy without its index, have the state of the hub that wrote the log, and then decide alike."""
    machine.spend()
    EVENTS[name][0](machine)
    machine.clock.now += 2
    machine.writer.send_many(2)
    next_ones = [machine.writer.message(b"instead of the first")]
    for _ in range(RATE.burst + 1):
        next_ones.append(machine.writer.message())
        machine.writer.accepted(next_ones[-1])
    state = state_of(machine.hub, machine.writer)
    machine.hub.stop()
    decided = []
    for copy in ("whole", "without index"):
        shutil.copytree(machine.hub.data_dir, tmp_path / copy)
        if copy == "without index":
            shutil.rmtree(tmp_path / copy / "index")
        with running(tmp_path / copy, machine.clock, max_start_gap=500 * DAY, **CAPABILITY) as hub:
            assert state_of(hub, machine.writer) == state
            decided.append([(reply.status, reply.body) for reply in map(hub.submit, next_ones)])
    machine.hub = machine.hub.again(settings={**CAPABILITY, "max_start_gap": 500 * DAY})
    assert decided[0] == decided[1]
    assert {status for status, _ in decided[0]} == {200, 409, 429}


def state_of(hub: Hub, writer: Writer) -> tuple[int, Bucket | None]:
    """The time of the last entry, and what is left of the writer's rate."""
    assert writer.auth_ref is not None
    state = hub.service.sequencer.state
    return state.hub_ts, state.bucket(writer.auth_ref, writer.label)


PROCESS = """
import asyncio, sys
from pathlib import Path
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig
from veen.hub.hub_time import ClockReading
from veen.hub.service import HubService

data_dir, clocks = map(Path, sys.argv[1:])
config = HubConfig(data_dir, port=0, workers=0, admission=Admission.CAPABILITY)
service = HubService(config, clocks=lambda: ClockReading(*map(float, clocks.read_text().split())))
asyncio.run(service.run_until(asyncio.Event(), lambda port: print(port, flush=True)))
"""


@pytest.mark.parametrize("jump", [DAY, -DAY, 400 * DAY, -400 * DAY])
def test_a_hub_killed_after_a_jump_of_the_clock_goes_on_with_what_it_acknowledged(
    machine: Machine, tmp_path: Path, jump: int
) -> None:
    """The clocks of the hub processes are in a file."""
    clocks, hub, writer = tmp_path / "clocks", machine.hub, machine.writer
    hub.stop()

    def set_clocks() -> None:
        draft = clocks.with_suffix(".draft")
        draft.write_text(" ".join(map(str, machine.clock.read())))
        draft.replace(clocks)

    def run() -> "subprocess.Popen[str]":
        set_clocks()
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, hub.data_dir, clocks], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        hub.port = int(process.stdout.readline())
        return process

    with run() as process:
        machine.spend()
        machine.clock.step(jump)
        machine.clock.now += 2
        set_clocks()
        receipts = writer.send_many(RATE.burst)
        assert {receipt.hub_ts for receipt in receipts} == {START + 2}
        process.kill()
    if abs(jump) > GAP:
        write_mark(Disk(), Folders(hub.data_dir), int(machine.clock.now))
    with run() as process:
        machine.clock.now += 2
        set_clocks()
        for _ in range(RATE.burst):
            receipts.append(writer.send())
        process.kill()
    times = [receipt.hub_ts for receipt in receipts]
    assert times == sorted(times)
    assert times[-1] == START + (jump + 4 if jump > 0 else 3)
    assert [receipt.stream_seq for receipt in receipts] == list(range(6, 16))
    machine.hub = hub.again()


def test_a_clock_that_was_a_day_ahead_does_not_lock_writers_out(tmp_path: Path) -> None:
    clock, data_dir = Clock(START + DAY), make_dir(tmp_path)
    with running(data_dir, clock, admission=Admission.CAPABILITY) as hub:
        writer = hub.granted(rate=RATE)
        clock.now -= DAY
        writer.send_many(5)
        assert hub.submit(writer.message()).refusal()[1] == "E.RATE"
        clock.now += 1
        writer.send_many(5)


def test_a_capability_expires_although_the_clock_went_back(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path), clock, admission=Admission.CAPABILITY) as hub:
        writer = hub.granted(ttl=100)
        clock.step(-DAY)
        assert accept(hub, clock).status == 200
        clock.now += 199
        writer.send()
        clock.now += 3
        assert hub.submit(writer.message()).refusal()[3] == "CAP_TTL"


def test_a_step_ahead_does_not_end_an_epoch(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path, Profile(epoch_sec=DAY)), clock, admission=Admission.CAPABILITY) as hub:
        writer = hub.granted()
        clock.step(400 * DAY)
        assert writer.send().hub_ts == START


# The alarm.


def test_an_idle_hub_logs_one_line_when_the_clock_steps_and_one_when_it_is_accepted(tmp_path: Path) -> None:
    clock = Clock()
    with log_file(tmp_path / "log") as path, running(make_dir(tmp_path), clock) as hub:
        clock.step(DAY)
        until(lambda: "clock_step" in path.read_text())
        assert accept(hub, clock).status == 200
        until(lambda: "bad_state_left" in path.read_text())
    entered, left = (row for row in log_rows(path) if row.get("reason") == "clock_step")
    assert (entered["event"], entered["level"], entered["step_sec"]) == ("bad_state_entered", "error", DAY)
    assert (entered["hub_ts"], entered["wall_ts"]) == (START, START + DAY)
    assert left["event"] == "bad_state_left"


def test_metrics_and_readiness_show_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path), clock) as hub:

        def metric(name: str) -> float:
            lines = hub.get("/metrics").body.decode().splitlines()
            return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))

        assert metric("veen_hub_ts_lead_seconds") == 0
        clock.step(-DAY)
        assert metric("veen_hub_ts_lead_seconds") == DAY
        assert metric('veen_hub_bad_state{reason="clock_step"}') == 1
        ready = hub.get("/readyz").json()
        assert (ready["ready"], ready["bad_states"]) == (True, ["clock_step"])
        clock.step(2 * DAY)
        assert metric("veen_hub_ts_lead_seconds") == -DAY


def test_being_ahead_is_a_warning_that_ends_when_the_clock_has_caught_up(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path), clock) as hub:
        clock.step(-DAY)
        assert accept(hub, clock).json()["state"] == "ahead"
        assert [one["reason"] for one in hub.status()["bad_states"]] == ["clock_ahead"]
        clock.now += 2 * DAY
        assert hub.status()["clock"]["state"] == "following"
        assert hub.get("/readyz").json()["bad_states"] == []


# Acceptance.


def test_acceptance_needs_the_operators_token(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path), clock) as hub:
        clock.step(DAY)
        for token in ("", "Bearer wrong", TOKEN):
            assert accept(hub, clock, authorization=token).refusal()[:2] == (401, "E.UNAUTHORIZED")
        assert hub.status()["clock"]["state"] == "holding"
        assert accept(hub, clock).json() == hub.status()["clock"]
        assert hub.status()["clock"]["state"] == "following"


def test_a_time_that_the_operator_did_not_see_is_not_accepted(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path), clock) as hub:
        clock.step(DAY)
        for wrong in (START, START + DAY + ACCEPT_TOLERANCE_S + 1, START + DAY - ACCEPT_TOLERANCE_S - 1):
            reply = hub.post("/tooling/clock", ClockAcceptance(int(wrong)), authorization=f"Bearer {TOKEN}")
            assert reply.refusal()[:2] == (409, "E.CONFLICT")
            assert (reply.error().detail or {})["wall_ts"] == START + DAY
        assert hub.status()["clock"]["state"] == "holding"


class NoRoomForFiles(Disk):
    """Rejects new files while `full`."""

    full = False

    def write_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = PLAIN_FILE) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().write_file(path, data, mode)


def test_an_acceptance_that_cannot_be_stored_does_not_take_effect(tmp_path: Path) -> None:
    clock, disk, data_dir = Clock(), NoRoomForFiles(), make_dir(tmp_path)
    with running(data_dir, clock, disk) as hub:
        clock.step(DAY)
        disk.full = True
        assert accept(hub, clock).refusal()[:2] == (503, "E.UNAVAILABLE")
        assert hub.status()["clock"]["state"] == "holding"
        assert hub.get("/readyz").json()["bad_states"] == ["clock_step"]
        disk.full = False
        assert accept(hub, clock).json()["state"] == "following"
        assert hub.get("/readyz").json()["bad_states"] == []


def test_an_accepted_time_far_behind_the_log_survives_restarts(tmp_path: Path) -> None:
    clock, data_dir = Clock(START + 400 * DAY), make_dir(tmp_path)
    with running(data_dir, clock) as hub:
        writer = hub.writer()
        writer.send()
        clock.step(-400 * DAY)
        accept(hub, clock).json()
    for _ in range(3):  # the mark is renewed, so that 60 days later a start still passes
        clock.now += 20 * DAY
        with running(data_dir, clock) as hub:
            writer.hub = hub
            assert writer.send().hub_ts >= START + 400 * DAY
            until(lambda: read_mark(Folders(data_dir)) == int(clock.now))
    assert fsck.check(data_dir, isolated=False).findings == []


# Starts.


def gap_of(data_dir: Path, now: float, **settings: Any) -> str | None:
    """Why a hub does not start at that time."""
    try:
        service = HubService(HubConfig(data_dir, port=0, **settings), clocks=Clock(now).read)
    except ClockGap as gap:
        return str(gap)
    service.store.close()
    service.signer.close()
    return None


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A data directory whose log ends at `START`."""
    data_dir = make_dir(tmp_path, now=START - 500 * DAY)
    with running(data_dir, Clock()) as hub:
        hub.writer().send()
    return data_dir


@pytest.mark.parametrize("sign", [1, -1])
def test_a_hub_does_not_start_with_a_clock_far_from_its_log(used: Path, sign: int) -> None:
    assert gap_of(used, START + sign * GAP) is None
    found = gap_of(used, START + sign * (GAP + 1))
    assert found is not None
    assert f"30.0 days {'after' if sign > 0 else 'before'} the last entry of the log ({START})" in found
    assert gap_of(used, START + sign * (GAP + 1), max_start_gap=GAP + 1) is None


def test_an_accepted_time_starts_the_hub(used: Path) -> None:
    now = START + 400 * DAY
    assert gap_of(used, now) is not None
    write_mark(Disk(), Folders(used), now)
    assert gap_of(used, now + GAP) is None
    assert gap_of(used, now + GAP + 1) is not None
    assert gap_of(used, START) is None


def test_a_new_hub_starts_at_any_time(tmp_path: Path) -> None:
    assert gap_of(make_dir(tmp_path), START + 4000 * DAY) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"trusted_ts":"1"}', b'{"trusted_ts":-1}', b"\xff" * 100])
def test_a_damaged_mark_is_no_mark(used: Path, damage: bytes) -> None:
    Folders(used).clock.write_bytes(damage)
    assert read_mark(Folders(used)) == 0
    check_start(Folders(used), START, START, GAP)
    with pytest.raises(ClockGap):
        check_start(Folders(used), START + GAP + 1, START, GAP)


def test_a_hub_without_entries_for_months_starts_again(used: Path) -> None:
    clock = Clock()
    with running(used, clock) as hub:
        for passed in (MARK_INTERVAL_S, GAP, GAP):
            clock.now += passed
            hub.status()  # looks at the clock
            until(lambda: read_mark(Folders(used)) == int(clock.now))
    assert gap_of(used, clock.now + 29 * DAY) is None
    assert fsck.check(used, isolated=False).findings == []


def test_a_wall_clock_that_jumped_is_not_marked_as_trusted(used: Path) -> None:
    clock = Clock()
    with log_file(used.parent / "log") as path, running(used, clock):
        clock.step(400 * DAY)
        until(lambda: "clock_step" in path.read_text())
    assert read_mark(Folders(used)) == 0


@pytest.mark.parametrize("setting", ["max_clock_step", "max_start_gap"])
def test_a_bound_of_zero_seconds_is_rejected(used: Path, setting: str) -> None:
    with pytest.raises(Unavailable, match="at least 1 second"):
        gap_of(used, START, **{setting: 0})
