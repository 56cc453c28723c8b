"""`veen recorder` at a real hub."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.recorder.recorder_fixture import ADMIN, LOGIN, SHOP, WEB, RecorderFixture, recorder_fixture
from tests.cli.runner import Veen
from tests.cli.terminal import run_on_terminal
from veen.client import ClientDir


@pytest.fixture
def at(veen: Veen, tmp_path: Path) -> Iterator[RecorderFixture]:
    with recorder_fixture(veen, tmp_path) as made:
        yield made


def send(
    at: RecorderFixture, number: int, event_type: str = "http.request", who: str = SHOP, origin: str = "shop"
) -> None:
    payload = json.dumps({"n": number})
    at.does(who, "send", event_type, "--subject", "alice", "--origin", origin, "--payload", payload)


def replayed(text: str) -> list[int]:
    return [json.loads(line)["payload"]["n"] for line in text.splitlines()]


def test_an_event_is_sent_replayed_and_proved(at: RecorderFixture) -> None:
    for number in range(3):
        send(at, number)
    ran = at.does(ADMIN, "replay", WEB, "--with-proofs", "--json")
    first = json.loads(ran.out.splitlines()[0])
    assert replayed(ran.out) == [0, 1, 2]
    assert {"subject_id", "principal_id", "event_type", "event_time", "hub_commit_seq", "hub_commit_time"} < set(first)
    assert first["proof"]
    assert replayed(at.does(ADMIN, "replay", WEB, "--from", 2, "--to", 2, "--json").out) == [1]
    assert at.reads("replay", WEB, "--with-proofs", "--json").out == ran.out


def test_a_checkpoint_verifies_and_has_a_safe_window(at: RecorderFixture) -> None:
    send(at, 1)
    send(at, 2, "login")
    made = at.does(ADMIN, "checkpoint", "--json").json()
    assert {one["stream"]: one["last_seq"] for one in made["positions"]}[WEB] == 1
    found = at.does(ADMIN, "verify", "--full", "--json").json()
    assert found["holds"] is True
    assert found["log_root"] == made["log_root"]
    assert found["safe_until"]
    assert at.reads("verify", made["file"], "--full", "--json").json()["held"] == found["held"]
    send(at, 3)
    covered = at.does(ADMIN, "replay", WEB, "--checkpoint", made["file"], "--json")
    assert replayed(covered.out) == [1]
    assert "left out" in covered.err


def test_the_map_is_shown_and_moved(at: RecorderFixture) -> None:
    at.does(ADMIN, "init", "--stream", "record/app/slow", "--every-events", 5)
    at.does(ADMIN, "move", WEB, "record/app/slow", "--reason", "renamed")
    shown = at.does(ADMIN, "show", "--json").json()
    assert shown["types"]["http.request"] == "record/app/slow"
    refused = at.tries(SHOP, "send", "http.request", "--subject", "a", "--origin", "shop")
    assert (refused.status, "may not write to record/app/slow" in refused.error) == (5, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("send", "unheard.of", "--subject", "a", "--origin", "shop"), "not mapped to a stream"),
        (("send", "login", "--subject", "a", "--origin", "bank"), "is not an origin of producer shop"),
        (
            ("send", "login", "--subject", "a", "--origin", "shop", "--payload", json.dumps("x" * 70_000)),
            "the limit is",
        ),
        (("init", "--every", "5"), "cannot be the administrator"),
        (("map", "x", WEB), "CAP_MISSING"),
        (("checkpoint",), "only the administrator"),
    ],
)
def test_a_forbidden_command_of_a_producer_sends_nothing(
    at: RecorderFixture, arguments: tuple[str, ...], reason: str
) -> None:
    before = at.hub_fixture.hub.status()["entries"]
    ran = at.tries(SHOP, *arguments)
    assert ran.status == 5
    assert reason in ran.error
    assert at.hub_fixture.hub.status()["entries"] == before


def test_an_administrator_cannot_be_enrolled_nor_join_nor_send(at: RecorderFixture) -> None:
    kit = at.root / "own.kit"
    options = ("--origin", "shop", "--stream", WEB, "--out", kit)
    ran = at.tries(ADMIN, "enrol", "me", "--card", at.root / ADMIN, *options)
    assert (ran.status, "cannot be a producer" in ran.error) == (5, True)
    joined = at.hub_fixture.veen("recorder", "join", at.root / "shop.kit", "--client", at.root / ADMIN)
    assert (joined.status, "cannot be a producer" in joined.error) == (5, True)
    sent = at.tries(ADMIN, "send", "login", "--subject", "a", "--origin", "shop")
    assert (sent.status, "cannot be a producer" in sent.error) == (5, True)


def test_another_identity_cannot_join_with_the_kit(at: RecorderFixture) -> None:
    ClientDir.create(at.root / "thief", None, 1).close()
    ran = at.hub_fixture.veen("recorder", "join", at.root / "shop.kit", "--client", at.root / "thief")
    assert (ran.status, "another identity" in ran.error) == (4, True)


def test_the_audit_lists_who_wrote_what(at: RecorderFixture) -> None:
    at.enrols("bank", "bank", streams=(LOGIN,))
    send(at, 1)
    send(at, 2, "login", "bank", "bank")
    found = at.does(ADMIN, "audit", "--json").json()
    assert {(one["producer"], one["stream"], one["origin"]) for one in found["uses"]} == {
        ("shop", WEB, "shop"),
        ("bank", LOGIN, "bank"),
    }
    assert found["strays"] == []


def test_a_terminal_shows_dates_and_short_keys_and_a_pipe_gets_lines(at: RecorderFixture) -> None:
    send(at, 1)
    who = at.of(ADMIN)
    (line,) = at.does(ADMIN, "replay", WEB).out.splitlines()
    assert line.split("\t")[3:] == ["http.request", "alice", "shop", '{"n":1}']
    _, seen = run_on_terminal(at.hub_fixture.veen, ["recorder", "replay", WEB, "--with-proofs", *who])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    shown = r' +1  \d{4}-\d\d-\d\d [\d:]{8}  [0-9a-f]{8}  http\.request  alice  \(shop\)  {"n":1}\n'
    assert re.search(shown + r" +proved up to root [0-9a-f]{12}…", plain), plain
    _, seen = run_on_terminal(at.hub_fixture.veen, ["recorder", "audit", *who])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert re.search(r"\n[0-9a-f]{12}…  shop +record/app/web +shop +1\n", plain), plain


def test_tail_records_each_line_once_and_continues_where_it_stopped(at: RecorderFixture) -> None:
    file = at.root / "app.jsonl"
    file.write_text('{"event_type":"login","n":1}\nnot json\n{"n":2}\n')
    tail = ("tail", file, "--origin", "shop", "--type", "http.request", "--once")
    first = at.does(SHOP, *tail, "--json").json()
    assert (first["sent"], first["refused"]) == (2, 1)
    assert "line 2: not JSON text" in Path(first["set_aside"]).read_text()
    assert at.does(SHOP, *tail, "--json").json()["sent"] == 0
    with file.open("a") as more:
        more.write('{"n":3}\n')
    assert at.does(SHOP, *tail, "--json").json()["sent"] == 1
    assert replayed(at.does(ADMIN, "replay", WEB, "--json").out) == [2, 3]
