"""Streams of a hub with epochs: commands treat a stream over many epochs as one."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.hub_fixture import STREAM, HubFixture, hub_fixture
from tests.cli.runner import Ran, Veen
from tests.hub.client import START, TOKEN, Clock, until
from veen.core import Limits, Profile, naming
from veen.core.envelopes import EpochList
from veen.hub.epochs import StreamEpochs
from veen.hub.hub_time import ClockReading
from veen.storage.store import Lookup

EPOCH_SEC = 1000
FIRST = START // EPOCH_SEC
OPERATOR = {"VEEN_OPERATOR_TOKEN": TOKEN}


class JumpingClock(Clock):
    """A clock that goes on by `jump` seconds whenever it is read."""

    jump = 0

    def read(self) -> ClockReading:
        self.now += self.jump
        return super().read()


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def place(veen: Veen, tmp_path: Path, clock: Clock) -> Iterator[HubFixture]:
    profile, limits = Profile(epoch_sec=EPOCH_SEC), Limits(max_epoch_skew_sec=0)
    with hub_fixture(veen, tmp_path, profile=profile, limits=limits, clock=clock) as found:
        yield found


def add(place: HubFixture, *streams: str) -> None:
    place.veen.done("hub", "stream", "add", *streams, "--hub", place.url, env=OPERATOR)


def fill(place: HubFixture, clock: Clock, epochs: int = 3) -> None:
    """Two entries in each of some epochs, named for their places."""
    add(place, STREAM)
    for number in range(epochs):
        clock.now = START + number * EPOCH_SEC
        place.send(f"{number} a")
        clock.now += 100
        place.send(f"{number} b")


def entries(place: HubFixture, *arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.does("reader", "stream", *arguments, "--json").out.splitlines()]


def texts(place: HubFixture, *arguments: object) -> list[str]:
    return [entry["text"] for entry in entries(place, *arguments)]


def test_an_unregistered_stream_is_named_as_such_and_the_operator_registers_it(place: HubFixture) -> None:
    ran = place.fails("writer", "send", "--body", "one")
    assert ran.error == "E.TIME/EPOCH: the stream is not registered at the hub"
    assert "veen hub stream add" in ran.err
    assert "take epoch and hub_ts" not in ran.err
    missing = place.veen.done("hub", "stream", "list", STREAM, "--hub", place.url, env=OPERATOR)
    assert f"stream {STREAM} is not registered" in missing.err
    added = place.veen.done("hub", "stream", "add", STREAM, "--hub", place.url, "--json", env=OPERATOR).json()
    (row,) = added["streams"]
    assert (row["stream"], row["stream_id"]) == (STREAM, naming.stream_id(STREAM).hex())
    again = place.veen.done("hub", "stream", "add", row["stream_id"], "--hub", place.url, "--json", env=OPERATOR).json()
    assert again["streams"][0]["registered"] == row["registered"]
    listed = place.veen.done("hub", "stream", "list", "--hub", place.url, "--json", env=OPERATOR).json()
    assert [one["stream_id"] for one in listed["streams"]] == [row["stream_id"]]
    place.send("one")


def test_only_the_operator_registers_and_lists_streams(place: HubFixture) -> None:
    for command in (("add", STREAM), ("list",)):
        ran = place.veen("hub", "stream", *command, "--hub", place.url, env={"VEEN_OPERATOR_TOKEN": "another"})
        assert ran.status != 0
        assert "E.UNAUTHORIZED" in ran.error


def test_the_list_of_streams_continues_over_several_pages(place: HubFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veen.hub.epochs.MAX_PAGE_ITEMS", 4)
    names = [f"s{number}" for number in range(11)]
    add(place, *names)
    listed = place.veen.done("hub", "stream", "list", "--hub", place.url, "--json", env=OPERATOR).json()
    assert [one["stream_id"] for one in listed["streams"]] == sorted(naming.stream_id(one).hex() for one in names)


def test_a_stream_is_read_across_its_epochs_unless_one_is_named(place: HubFixture, clock: Clock) -> None:
    fill(place, clock)
    everything = ["0 a", "0 b", "1 a", "1 b", "2 a", "2 b"]
    assert texts(place) == everything
    clock.now = START + 10 * EPOCH_SEC  # nothing was sent in this epoch
    assert texts(place) == everything
    assert texts(place, "--epoch", FIRST + 1) == ["1 a", "1 b"]
    assert texts(place, "--from", f"{FIRST}:2", "--to", f"{FIRST + 1}:1") == ["0 b", "1 a"]
    assert texts(place, "--from", 2) == ["2 b"]
    assert texts(place, "--to", 1) == everything[:5]
    lines = [line.split("\t")[0] for line in place.does("reader", "stream").out.splitlines()]
    assert lines == [f"{FIRST + number // 2}:{number % 2 + 1}" for number in range(6)]


def test_the_epochs_of_a_stream_are_listed_with_their_last_checkpoints(place: HubFixture, clock: Clock) -> None:
    fill(place, clock)

    def listed() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = place.does("reader", "stream", "--epochs", "--json").json()["epochs"]
        return rows

    until(lambda: listed()[1]["checkpoint"] == 2)
    rows = listed()
    assert [(row["epoch"], row["entries"], row["ended"]) for row in rows] == [
        (FIRST, 2, True),
        (FIRST + 1, 2, True),
        (FIRST + 2, 2, False),
    ]
    assert (rows[0]["begins"], rows[0]["ends"]) == (FIRST * EPOCH_SEC, (FIRST + 1) * EPOCH_SEC)
    assert [row["label"] for row in rows] == [place.hub.label(STREAM, row["epoch"]).hex() for row in rows]
    assert place.does("reader", "stream", "--epochs").out.startswith(f"{FIRST}\t")


def test_verify_counts_the_entries_of_all_epochs(place: HubFixture, clock: Clock) -> None:
    fill(place, clock)
    clock.now = START + 10 * EPOCH_SEC
    found = place.does("reader", "verify", "--json").json()
    assert (found["entries"], found["opened"], found["epochs"]) == (6, 6, 3)
    narrowed = place.does("reader", "verify", "--epoch", FIRST, "--json").json()
    assert narrowed["entries"] == 2


def test_receipt_proof_and_checkpoint_are_of_the_newest_epoch_with_entries(place: HubFixture, clock: Clock) -> None:
    fill(place, clock)
    clock.now = START + 10 * EPOCH_SEC
    made = place.does("reader", "checkpoint", "--json").json()
    assert (made["epoch"], made["upto_seq"]) == (FIRST + 2, 2)
    assert made["label"] == place.hub.label(STREAM, FIRST + 2).hex()
    assert place.does("reader", "checkpoint", "--epoch", FIRST, "--json").json()["epoch"] == FIRST
    assert place.does("reader", "receipt", 1, "--json").json()["label"] == place.hub.label(STREAM, FIRST + 2).hex()
    older = place.does("reader", "proof", f"{FIRST}:1", "--upto", 2, "--json").json()
    assert older["label"] == place.hub.label(STREAM, FIRST).hex()
    ran = place.fails("reader", "receipt", f"{FIRST}:1", "--epoch", FIRST + 1)
    assert ran.status == 2


def test_the_operator_and_a_witness_find_the_newest_epoch_with_entries(
    place: HubFixture, clock: Clock, tmp_path: Path
) -> None:
    fill(place, clock)
    clock.now = START + 10 * EPOCH_SEC  # a quiet epoch
    label = place.hub.label(STREAM, FIRST + 2).hex()
    made = place.veen.done("hub", "checkpoint", "--hub", place.url, "--stream", STREAM, "--json").json()
    assert (made["label"], made["epoch"], made["upto_seq"]) == (label, FIRST + 2, 2)
    place.veen.done("witness", "init", "--dir", tmp_path / "witness", "--no-passphrase")
    asked = ("--dir", tmp_path / "witness", "--hub", place.url, "--pin", place.hub_id)
    found = place.veen.done("witness", "cosign", *asked, "--stream", STREAM, "--json").json()
    assert (found["label"], found["upto_seq"]) == (label, 2)
    for command in (("hub", "checkpoint", "--hub", place.url), ("witness", "cosign", *asked)):
        ran = place.veen(*command, "--stream", "unknown")
        assert (ran.status, ran.error) == (2, "the stream has no entries")


def test_a_hub_whose_clock_runs_away_from_the_sender_is_named_as_such(place: HubFixture, clock: JumpingClock) -> None:
    add(place, STREAM)
    place.send("in time")
    clock.jump = EPOCH_SEC  # at each reading: whatever time the hub states is over when the message arrives
    ran = place.fails("writer", "send", "--body", "too late")
    clock.jump = 0
    told = re.fullmatch(r"E\.TIME/EPOCH: the message is of epoch (\d+), but the hub is in epoch (\d+)", ran.error)
    assert told, ran.err
    assert int(told[1]) < int(told[2])
    assert "compare the clocks of both machines" in ran.err
    assert "veen hub stream add" not in ran.err


def test_one_evidence_file_proves_entries_of_several_epochs(place: HubFixture, clock: Clock, tmp_path: Path) -> None:
    fill(place, clock)
    file = tmp_path / "two.evidence"
    place.does("reader", "evidence", "make", f"{FIRST}:1", f"{FIRST + 2}:2", "--disclose", "--out", file)
    shown = place.veen.done("evidence", "verify", file, "--pin", place.hub_id, "--json").json()
    assert [entry["text"] for entry in shown["entries"]] == ["0 a", "2 b"]
    assert len(shown["checkpoints"]) == 2


def test_entries_are_found_by_time(place: HubFixture, clock: Clock) -> None:
    fill(place, clock)
    assert texts(place, "--since", START + 100, "--until", START + 2 * EPOCH_SEC + 1) == ["0 b", "1 a", "1 b", "2 a"]
    assert texts(place, "--since", START + 2 * EPOCH_SEC) == ["2 a", "2 b"]
    assert texts(place, "--until", START + 1) == ["0 a"]
    assert texts(place, "--since", START + 1, "--until", START + 100) == []
    assert texts(place, "--since", START + 50, "--epoch", FIRST) == ["0 b"]
    for wrong in (["--since", 9, "--until", 9], ["--follow", "--until", 9], ["--since", "x"], ["--from", "1:"]):
        assert place.fails("reader", "stream", *wrong).status == 2


def test_state_is_folded_across_epochs(place: HubFixture, clock: Clock) -> None:
    add(place, STREAM)
    for number in range(3):
        clock.now = START + number * EPOCH_SEC
        place.does("writer", "kv", "put", f"key{number}", str(number), "--blind")
    clock.now = START + 9 * EPOCH_SEC
    assert place.does("reader", "kv", "get", "key0").out.strip().endswith("0")
    assert len(place.does("reader", "kv", "list").out.splitlines()) == 3


def lie(monkeypatch: pytest.MonkeyPatch, change: Callable[[EpochList], EpochList]) -> None:
    """Let the hub change its lists of epochs."""
    honest = StreamEpochs.epochs
    monkeypatch.setattr(StreamEpochs, "epochs", lambda *given: change(honest(*given)))


def without(epoch: int) -> Callable[[EpochList], EpochList]:
    return lambda made: replace(made, epochs=tuple(one for one in made.epochs if one.epoch != epoch))


def test_a_list_that_leaves_out_an_epoch_is_caught_by_verify_and_by_who_has_read_it(
    place: HubFixture, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(place, clock)
    texts(place, "--epoch", FIRST)
    with monkeypatch.context() as patched:
        lie(patched, without(FIRST))
        assert texts(place) == ["0 a", "0 b", "1 a", "1 b", "2 a", "2 b"]
    lie(monkeypatch, without(FIRST + 1))
    ran = place.fails("operator", "verify")  # this client has read nothing yet
    assert ran.status == 4
    assert f"the hub has entries in epoch {FIRST + 1}" in ran.error
    assert place.does("operator", "verify", "--epoch", FIRST + 1, "--json").json()["entries"] == 2
    assert place.does("operator", "verify", "--json").json()["entries"] == 6  # known since then


def test_a_list_with_another_label_or_the_checkpoint_of_another_log_is_rejected(
    place: HubFixture, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(place, clock)

    def are_closed() -> bool:
        rows = place.does("reader", "stream", "--epochs", "--json").json()["epochs"]
        return all(row["checkpoint"] for row in rows[:2])

    def swapped(made: EpochList) -> EpochList:
        return replace(made, epochs=tuple(replace(one, label=bytes(32)) for one in made.epochs))

    def smaller(made: EpochList) -> EpochList:
        return replace(made, epochs=tuple(replace(one, entries=1) for one in made.epochs))

    until(are_closed)
    for change in (swapped, smaller):
        with monkeypatch.context() as patched:
            lie(patched, change)
            assert place.fails("reader", "stream").status == 4


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_wrong_place_in_time_is_rejected(
    place: HubFixture, clock: Clock, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    add(place, STREAM)
    for number in range(4):
        clock.now = START + number
        place.send(str(number))
    honest = Lookup.first_since
    monkeypatch.setattr(Lookup, "first_since", lambda *given: honest(*given) + wrong)
    ran = place.fails("reader", "stream", "--since", START + 2)
    assert ran.status == 4
    assert "is not the first at" in ran.error


def test_an_erasure_in_a_stream_with_several_epochs_must_name_one(veen: Veen, tmp_path: Path, clock: Clock) -> None:
    profile, limits = Profile(epoch_sec=EPOCH_SEC), Limits(max_epoch_skew_sec=0)
    with hub_fixture(veen, tmp_path, profile=profile, limits=limits, clock=clock) as place:
        asked = ("--stream", STREAM, "--from", 1, "--to", 2, "--reason", "request 3", "--hub", place.url)

        def erase(*arguments: object) -> Ran:
            return veen("retention", "erase", *asked, *arguments, "--json", env=OPERATOR)

        fill(place, clock, 1)
        clock.now += EPOCH_SEC  # the end of the epoch closes its chunk
        (only,) = erased(erase)
        assert (only["label"], only["from_seq"], only["to_seq"]) == (place.hub.label(STREAM, FIRST).hex(), 1, 2)
        for number in (1, 2):
            clock.now = START + number * EPOCH_SEC
            place.send(f"{number} a", f"{number} b")
        refused = erase()
        assert refused.status == 2
        assert f"stream '{STREAM}' has entries in 3 epochs, {FIRST} to {FIRST + 2}" in refused.error
        assert "--epoch N, or the --label" in refused.err
        (second,) = erased(lambda: erase("--epoch", FIRST + 1))
        assert second["label"] == place.hub.label(STREAM, FIRST + 1).hex()
        assert texts(place) == ["2 a", "2 b"]
        assert erase("--label", second["label"]).status == 2


def erased(erase: Callable[[], Ran]) -> list[dict[str, Any]]:
    """What an erasure erased, repeated until the hub has closed the chunk."""
    found: list[dict[str, Any]] = []

    def done() -> bool:
        ran = erase()
        found[:] = ran.json()["ranges"] if ran.status == 0 else []
        return bool(found)

    until(done)
    return found
