"""`veen queue`: what the rules refuse is not sent, and a task can be followed from its put to its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.people import People, people
from tests.cli.runner import Veen


@pytest.fixture
def at_work(veen: Veen, tmp_path: Path) -> Iterator[People]:
    with people(veen, tmp_path) as made:
        yield made


def test_a_task_goes_from_put_to_done_and_its_whole_way_can_be_shown(at_work: People, tmp_path: Path) -> None:
    task = at_work.does("queue", "add", "letter 4", "--json").json()["msg_id"]
    assert at_work.does("queue", "list").out.split("\t")[:2] == [task, "ready"]
    taken = at_work.does("queue", "take", "--lease", 300, "--json").json()
    assert (taken["task"], taken["text"], taken["tries"]) == (task, "letter 4", 1)
    assert at_work.does("queue", "list", "--status", "claimed").out.startswith(task)
    none = at_work.tries("queue", "take")
    assert none.status == 6
    assert "no task is ready" in none.error
    at_work.does("queue", "ack", task)
    assert at_work.does("queue", "list").out == ""
    shown = at_work.does("queue", "show", task, "--prove", "--out", tmp_path / "e", "--json").json()
    assert [step["event"] for step in shown["history"]] == ["put", "claim", "ack"]
    assert [entry["stream_seq"] for entry in shown["evidence"]["entries"]] == [1, 2, 3]
    assert at_work.town.veen.done("evidence", "verify", tmp_path / "e", "--pin", at_work.town.hub_id).status == 0
    offline = at_work.reads(at_work.data_dir, "queue", "list", "--status", "done", "--json").json()
    assert [one["task"] for one in offline["tasks"]] == [task]
    before = at_work.does("queue", "list", "--at", 1).out.split("\t")
    assert before[:2] == [task, "ready"]


def test_dead_letters_are_listed_and_can_be_retried(at_work: People) -> None:
    task = at_work.does("queue", "add", "x", "--max-tries", 1, "--json").json()["msg_id"]
    at_work.does("queue", "take")
    at_work.does("queue", "fail", task, "--reason", "no address")
    (line,) = at_work.does("queue", "dead").out.splitlines()
    assert line.split("\t") == [task, "dead", "1", "x", "no address"]
    at_work.does("queue", "retry", task)
    assert at_work.does("queue", "dead").out == ""
    at_work.does("queue", "take")


def test_what_the_queue_refuses_is_not_sent(at_work: People) -> None:
    task = at_work.does("queue", "add", "x", "--json").json()["msg_id"]
    for arguments, said in [
        (("retry", task), "the task is no dead letter"),
        (("ack", task, "--claim", "00" * 32), "the task is not under this claim"),
        (("ack", "11" * 32, "--claim", "00" * 32), "there is no such task"),
    ]:
        ran = at_work.tries("queue", *arguments)
        assert ran.status == 5
        assert said in ran.error
        assert "nothing was sent" in ran.err
    assert at_work.does("queue", "faults").out == ""
    # Whoever sends it all the same changes nothing, and is listed.
    at_work.does("queue", "retry", task, "--blind")
    (line,) = at_work.does("queue", "faults").out.splitlines()
    assert line.split("\t") == ["2", "refused", task, "the task is no dead letter"]


MISTAKES = [
    (("queue", "ack", "nonsense"), 2, "is not a task"),
    (("queue", "ack", "11" * 32), 6, "under no claim"),
    (("queue", "show", "11" * 32), 6, "no such task"),
    (("queue", "list", "--status", "lost"), 2, "no task is ever"),
    (("queue", "take", "--blind"), 2, "cannot be taken"),
    (("queue", "ack", "11" * 32, "--blind"), 2, "cannot be said without a look"),
]


def test_what_cannot_be_done_is_said(at_work: People) -> None:
    for arguments, status, said in MISTAKES:
        ran = at_work.tries(*arguments)
        assert (ran.status, said in ran.error) == (status, True), ran.err
