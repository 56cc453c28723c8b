"""`veen queue`: events that the rules reject are not sent, and a task is shown with its whole history."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.state_fixture import StateFixture, state_hub
from tests.cli.runner import Veen


@pytest.fixture
def queue_hub(veen: Veen, tmp_path: Path) -> Iterator[StateFixture]:
    with state_hub(veen, tmp_path) as made:
        yield made


def test_a_task_is_added_claimed_acknowledged_and_shown_with_its_history(
    queue_hub: StateFixture, tmp_path: Path
) -> None:
    task = queue_hub.run("queue", "add", "letter 4", "--json").json()["msg_id"]
    assert queue_hub.run("queue", "list").out.split("\t")[:2] == [task, "ready"]
    taken = queue_hub.run("queue", "take", "--lease", 300, "--json").json()
    assert (taken["task"], taken["text"], taken["tries"]) == (task, "letter 4", 1)
    assert queue_hub.run("queue", "list", "--status", "claimed").out.startswith(task)
    none = queue_hub.attempt("queue", "take")
    assert none.status == 6
    assert "no task is ready" in none.error
    queue_hub.run("queue", "ack", task)
    assert queue_hub.run("queue", "list").out == ""
    shown = queue_hub.run("queue", "show", task, "--prove", "--out", tmp_path / "e", "--json").json()
    assert [step["event"] for step in shown["history"]] == ["put", "claim", "ack"]
    assert [entry["stream_seq"] for entry in shown["evidence"]["entries"]] == [1, 2, 3]
    assert queue_hub.town.veen.done("evidence", "verify", tmp_path / "e", "--pin", queue_hub.town.hub_id).status == 0
    offline = queue_hub.run_offline(queue_hub.data_dir, "queue", "list", "--status", "done", "--json").json()
    assert [one["task"] for one in offline["tasks"]] == [task]
    before = queue_hub.run("queue", "list", "--at", 1).out.split("\t")
    assert before[:2] == [task, "ready"]


def test_dead_letters_are_listed_and_can_be_retried(queue_hub: StateFixture) -> None:
    task = queue_hub.run("queue", "add", "x", "--max-tries", 1, "--json").json()["msg_id"]
    queue_hub.run("queue", "take")
    queue_hub.run("queue", "fail", task, "--reason", "no address")
    (line,) = queue_hub.run("queue", "dead").out.splitlines()
    assert line.split("\t") == [task, "dead", "1", "x", "no address"]
    queue_hub.run("queue", "retry", task)
    assert queue_hub.run("queue", "dead").out == ""
    queue_hub.run("queue", "take")


def test_an_event_that_the_queue_rejects_is_not_sent(queue_hub: StateFixture) -> None:
    task = queue_hub.run("queue", "add", "x", "--json").json()["msg_id"]
    for arguments, message in [
        (("retry", task), "the task is not a dead letter"),
        (("ack", task, "--claim", "00" * 32), "the task is not held by this claim"),
        (("ack", "11" * 32, "--claim", "00" * 32), "no such task"),
    ]:
        ran = queue_hub.attempt("queue", *arguments)
        assert ran.status == 5
        assert message in ran.error
        assert "nothing was sent" in ran.err
    assert queue_hub.run("queue", "faults").out == ""
    # Sent with --blind, the event is in the log without effect, and is listed as a fault.
    queue_hub.run("queue", "retry", task, "--blind")
    (line,) = queue_hub.run("queue", "faults").out.splitlines()
    assert line.split("\t") == ["2", "refused", task, "the task is not a dead letter"]


MISTAKES = [
    (("queue", "ack", "nonsense"), 2, "is not a task"),
    (("queue", "ack", "11" * 32), 6, "is not claimed"),
    (("queue", "show", "11" * 32), 6, "there is no task"),
    (("queue", "list", "--status", "lost"), 2, "there is no task status"),
    (("queue", "take", "--blind"), 2, "needs to read the queue"),
    (("queue", "ack", "11" * 32, "--blind"), 2, "needs to read the state"),
]


def test_impossible_requests_are_errors(queue_hub: StateFixture) -> None:
    for arguments, status, message in MISTAKES:
        ran = queue_hub.attempt(*arguments)
        assert (ran.status, message in ran.error) == (status, True), ran.err
