"""`veen hub clock`: the time of running and stopped hubs, and its acceptance."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.canned_server import Answers, canned_server
from tests.cli.runner import Veen
from tests.cli.test_hub_lifecycle import ANY_PORT, background
from tests.hub.client import START, TOKEN, Clock, Hub, make_dir, running
from veen.hub.hub_time import read_mark
from veen.storage.lock import exclusive
from veen.storage.paths import Folders

DAY = 86_400
OPERATOR = {"VEEN_OPERATOR_TOKEN": TOKEN}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(tmp_path: Path, clock: Clock) -> Iterator[Hub]:
    with running(make_dir(tmp_path), clock) as found:
        yield found


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A data directory whose log ended more than a year ago."""
    data_dir = make_dir(tmp_path)
    with running(data_dir, Clock()) as hub:
        hub.writer().send()
    return data_dir


def at(hub: Hub) -> tuple[str, str]:
    return "--hub", f"http://127.0.0.1:{hub.port}"


def test_show_says_whether_a_hub_follows_its_wall_clock(veen: Veen, hub: Hub, clock: Clock) -> None:
    shown = veen.done("hub", "clock", "show", *at(hub), "--json").json()
    assert (shown["state"], shown["hub_ts"], shown["wall_ts"], shown["lead_sec"]) == ("following", START, START, 0)
    assert (shown["max_clock_step"], shown["max_start_gap"]) == (60, 30 * DAY)
    clock.step(DAY)
    ran = veen.done("hub", "clock", "show", *at(hub))
    assert (ran.facts()["state"], ran.facts()["lead_sec"]) == ("holding", str(-DAY))
    assert "veen hub clock accept" in ran.err


def test_accept_makes_a_running_hub_follow_its_wall_clock(veen: Veen, hub: Hub, clock: Clock) -> None:
    clock.step(DAY)
    shown = veen.done("hub", "clock", "accept", *at(hub), "--json", env=OPERATOR).json()
    assert (shown["state_before"], shown["hub_ts_before"]) == ("holding", START)
    assert (shown["state"], shown["hub_ts"]) == ("following", START + DAY)
    assert hub.writer().send().hub_ts == START + DAY


def test_accepting_an_earlier_time_says_that_the_hub_runs_at_half_speed(veen: Veen, hub: Hub, clock: Clock) -> None:
    clock.step(-DAY)
    ran = veen.done("hub", "clock", "accept", *at(hub), env=OPERATOR)
    assert (ran.facts()["state"], ran.facts()["lead_sec"]) == ("ahead", str(DAY))
    assert "half speed" in ran.err


@pytest.mark.parametrize("token", ["", "not ascii: ä", "two\nlines"])
def test_accept_needs_a_token_in_the_environment(veen: Veen, hub: Hub, clock: Clock, token: str) -> None:
    clock.step(DAY)
    ran = veen("hub", "clock", "accept", *at(hub), env={"VEEN_OPERATOR_TOKEN": token})
    assert ran.status == 2
    assert ran.error == "VEEN_OPERATOR_TOKEN has no operator token"
    assert hub.status()["clock"]["state"] == "holding"


def test_a_wrong_token_is_rejected_by_the_hub(veen: Veen, hub: Hub, clock: Clock) -> None:
    clock.step(DAY)
    ran = veen("hub", "clock", "accept", *at(hub), env={"VEEN_OPERATOR_TOKEN": "wrong"})
    assert ran.status == 5
    assert ran.error.startswith("E.UNAUTHORIZED")
    assert "wrong" not in ran.err
    assert hub.status()["clock"]["state"] == "holding"


def test_a_hub_that_does_not_report_its_clock_is_named(veen: Veen, hub: Hub) -> None:
    status = hub.status()
    del status["clock"]
    answers: Answers = {"/tooling/status": (200, "application/json", json.dumps(status).encode())}
    with canned_server(answers) as url:
        for name in ("show", "accept"):
            ran = veen("hub", "clock", name, "--hub", url, env=OPERATOR)
            assert (ran.status, ran.error) == (6, f"{url} does not report its clock")


def test_a_hub_process_shows_the_clocks_of_its_machine(veen: Veen, data_dir: Path) -> None:
    with background(veen, data_dir, "--max-clock-step", "5m", "--max-start-gap", "7d"):
        shown = veen.done("hub", "clock", "show", "--data-dir", data_dir, "--json").json()
    assert shown["state"] == "following"
    assert abs(shown["hub_ts"] - time.time()) < 60 * 60
    assert (shown["max_clock_step"], shown["max_start_gap"]) == (300, 7 * DAY)


def test_a_hub_that_is_far_from_its_log_starts_after_acceptance(veen: Veen, old: Path) -> None:
    start = ("hub", "start", "--data-dir", old, *ANY_PORT)
    ran = veen.apart(*start)
    assert ran.status == 6
    assert f"after the last entry of the log ({START}); max_start_gap is 30 days" in ran.error
    assert f"veen hub clock accept --data-dir {old}" in ran.err
    shown = veen.done("hub", "clock", "show", "--data-dir", old)
    assert (shown.facts()["state"], shown.facts()["last_hub_ts"]) == ("stopped", str(START))
    assert "a hub does not start" in shown.err
    accepted = veen.done("hub", "clock", "accept", "--data-dir", old, "--json").json()
    assert accepted["trusted_ts"] == read_mark(Folders(old))
    assert abs(accepted["trusted_ts"] - time.time()) < 60 * 60
    assert veen.done("hub", "clock", "show", "--data-dir", old).err == ""
    with background(veen, old):
        assert veen.done("hub", "clock", "show", "--data-dir", old, "--json").json()["state"] == "following"
    assert veen.done("fsck", old).facts()["verdict"] == "clean"


def test_acceptance_by_a_stopped_hub_says_how_long_it_will_run_at_half_speed(veen: Veen, tmp_path: Path) -> None:
    ahead = int(time.time()) + 400 * DAY
    data_dir = make_dir(tmp_path, now=START)
    with running(data_dir, Clock(ahead)) as hub:
        hub.writer().send()
    assert veen.apart("hub", "start", "--data-dir", data_dir, *ANY_PORT).status == 6
    ran = veen.done("hub", "clock", "accept", "--data-dir", data_dir)
    assert "run at half speed for" in ran.err
    with background(veen, data_dir):
        shown = veen.done("hub", "clock", "show", "--data-dir", data_dir, "--json").json()
    assert shown["state"] == "ahead"
    assert shown["hub_ts"] >= ahead


def test_a_directory_in_use_is_not_accepted_behind_the_hubs_back(veen: Veen, old: Path) -> None:
    with exclusive(Folders(old).lock):
        ran = veen("hub", "clock", "accept", "--data-dir", old, env=OPERATOR)
    assert ran.status == 6
    assert "is locked by another process" in ran.error
    assert read_mark(Folders(old)) == 0


@pytest.mark.parametrize("name", ["show", "accept"])
def test_a_folder_that_is_not_a_data_directory_is_an_error(veen: Veen, tmp_path: Path, name: str) -> None:
    ran = veen("hub", "clock", name, "--data-dir", tmp_path)
    assert ran.status == 6
    assert ran.error == f"{tmp_path} is not a hub's data directory"
