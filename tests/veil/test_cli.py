"""The `veil` command: help, errors and exit statuses, and a session with real nodes."""

import io
import json
import locale
import socket
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from tests import command_tree
from tests.command_tree import Found
from tests.veil.cli_runner import Veil
from veil import veil_errors
from veil.cli import exit_status
from veil.cli.app import COMMANDS, app
from veil.cli.contact import qr_text
from veil.lanes import Unavailable
from veil.veil_limits import MAX_OBJECT_BYTES

TOP_COMMANDS = {
    "node",
    "id",
    "contact",
    "subscribe",
    "publish",
    "feed",
    "peers",
    "lanes",
    "policy",
    "cache",
    "sim",
    "bench",
}


@pytest.fixture
def veil(tmp_path: Path) -> Veil:
    return Veil(tmp_path / "home")


TREE = command_tree.walk(app)
each = pytest.mark.parametrize("found", TREE, ids=lambda found: found.path)
each_leaf = pytest.mark.parametrize("found", [one for one in TREE if one.is_leaf], ids=lambda found: found.path)


def test_the_command_tree_has_the_documented_commands() -> None:
    paths = {found.path for found in TREE}
    assert {f"veil {name}" for name in TOP_COMMANDS} <= paths
    assert {"veil sim run", "veil sim sweep", "veil node start", "veil contact add"} <= paths


@each
def test_a_command_has_a_summary_line_and_a_help_page(found: Found, veil: Veil) -> None:
    command_tree.check_line(found)
    command_tree.check_help(found, veil)


@each_leaf
def test_a_command_has_an_example_of_itself_and_answers_in_json(found: Found) -> None:
    command_tree.check_leaf(found)


@each
def test_an_example_names_commands_and_options_that_exist(found: Found) -> None:
    command_tree.check_examples(found, TREE)


@each
def test_every_option_says_what_it_takes_and_what_it_is_for(found: Found) -> None:
    command_tree.check_options(found)


def test_the_command_table_has_the_summaries_of_the_modules() -> None:
    command_tree.check_entries(COMMANDS, TREE)


def test_every_error_has_a_status_and_a_hint() -> None:
    kinds = {
        one for one in vars(veil_errors).values() if isinstance(one, type) and issubclass(one, veil_errors.VeilError)
    }
    assert kinds - {veil_errors.VeilError} | {Unavailable} <= set(exit_status.STATUS)
    assert set(exit_status.STATUS) - {typer.TyperException} == set(exit_status.HINTS)


WRONG = [
    (["nod"], 2, "no command 'nod'"),
    (["node", "shwo"], 2, "no command 'shwo'"),
    (["peers"], 6, "there is no node in this directory"),
    (["id", "show"], 6, "there is no node in this directory"),
    (["node", "start"], 6, "there is no node in this directory"),
    (["node", "init", "--listen", "http://x:1"], 3, "endpoint"),
    (["node", "init", "--api", "0.0.0.0:80"], 3, "needs a loopback address"),
    (["node", "init", "--api", "here"], 3, "HOST:PORT"),
    (["node", "init", "--name", "a\nb"], 3, "name"),
    (["publish"], 2, "missing argument"),
    (["publish", "x", "--wait", "for ever"], 2, "invalid value for --wait: 'for ever'"),
    (["publish", "x", "--wait-s", "1w"], 2, "'--wait-s': '1w' is not a duration; give seconds, or"),
    (["bench", "--seconds", "1h"], 2, "'--seconds': '1h' is more than 60 seconds"),
    (["publish", "-5"], 6, "there is no node in this directory"),
    (["contact", "add", "bob"], 2, "'bob' is not a contact"),
    (["contact", "add", "@nowhere"], 6, "nowhere"),
    (["contact", "add", "veil:garbage"], 3, "not a contact, or not complete"),
    (["publish", "x" * (MAX_OBJECT_BYTES + 1)], 5, f"more than the {MAX_OBJECT_BYTES} bytes of an object"),
    (["policy", "explain"], 2, "missing WHO or --tag"),
    (["sim", "run", "--eclipsed", "tor"], 2, "no lane 'tor'"),
    (["sim", "sweep", "--losses", "a,b"], 2, "not a list of losses"),
    (["sim", "sweep", "--losses", "0.99"], 2, "not a list of losses"),
    (["sim", "run", "--nodes", "2"], 2, "--nodes"),
    (["feed", "--limt", "1"], 2, "no such option"),
]


@pytest.mark.parametrize(
    ("arguments", "status", "why"), WRONG, ids=lambda one: " ".join(one)[:60] if isinstance(one, list) else ""
)
def test_an_invalid_command_fails_with_a_reason_and_a_hint(
    arguments: list[str], status: int, why: str, veil: Veil
) -> None:
    ran = veil(*arguments)
    assert ran.status == status, ran.err
    assert why in ran.error
    assert ran.out == ""
    assert not (veil.home / "data" / "veil" / "identity.json").exists()


def test_a_group_without_a_command_lists_its_commands_and_fails(veil: Veil) -> None:
    command_tree.check_groups(veil, [], ["node"], ["sim"])


def test_a_node_is_created_once(veil: Veil) -> None:
    made = veil.done("node", "init", "--name", "alice").facts()
    assert veil.done("id", "show").facts()["pubkey"] == made["pubkey"]
    assert veil("node", "init").status == 5
    assert veil("peers").status == 6
    assert veil("node", "destroy").status == 2
    veil.done("node", "destroy", "--yes")
    assert veil("id", "show").status == 6


def test_settings_are_changed_one_at_a_time(veil: Veil) -> None:
    veil.done("node", "init", "--listen", "quic://127.0.0.1:0")
    veil.done("node", "set", "--proxy", "127.0.0.1:9050")
    shown = veil.done("node", "set", "--relay-all", "--json").json()
    assert (shown["listen"], shown["proxy"], shown["relay_all"]) == (["quic://127.0.0.1:0"], "127.0.0.1:9050", True)
    assert veil("node", "set", "--proxy", "nonsense").status == 3
    assert veil.done("node", "set", "--no-relay-all", "--json").json()["proxy"] == "127.0.0.1:9050"


def test_a_simulation_reports_the_delivery_rate_and_repeats_exactly(veil: Veil) -> None:
    arguments = ("sim", "run", "--nodes", 12, "--objects", 2, "--payload-bytes", 2000, "--seed", 7, "--json")
    first = veil.done(*arguments).json()
    assert first["rate"] == 1
    assert veil.done(*arguments).json() == first


def test_a_sweep_is_drawn(veil: Veil, tmp_path: Path) -> None:
    sizes = ("--nodes", 12, "--objects", 1, "--payload-bytes", 2000, "--seeds", 1)
    rows = veil.done("sim", "sweep", "--losses", "0,0.2", *sizes, "--svg", tmp_path / "x.svg", "--json").json()
    assert [row["loss"] for row in rows] == [0, 0.2]
    assert (tmp_path / "x.svg").read_text().startswith("<svg")


def test_bench_fails_if_a_measurement_is_below_the_promised_rate(veil: Veil) -> None:
    ran = veil("bench", "--seconds", 0.1, "--json")
    kept = all(row["measured"] >= row["promised"] for row in ran.json())
    assert ran.status == (0 if kept else exit_status.MISSED_STATUS)


@pytest.mark.parametrize(("encoding", "drawn_with"), [("ascii", "\x1b[7m"), ("latin-1", "\x1b[7m"), ("utf-8", "█")])
def test_a_qr_code_uses_only_characters_that_the_terminal_can_show(
    encoding: str, drawn_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    monkeypatch.setattr(locale, "setlocale", lambda category: "C.UTF-8")
    drawn = qr_text("veil:contact")
    assert drawn_with in drawn
    drawn.encode(encoding)


def test_two_nodes_are_started_used_and_stopped(veil: Veil, tmp_path: Path) -> None:
    here = {name: tmp_path / name for name in ("alice", "bob")}
    at = {name: ("--data-dir", path) for name, path in here.items()}
    for name in here:
        veil.done("node", "init", "--name", name, "--listen", "tls://127.0.0.1:0", *at[name])
    try:
        for name in here:
            assert veil.apart("node", "start", *at[name]).facts()["listens"].startswith("tls://127.0.0.1:")
        assert "already running" in veil("node", "start", *at["bob"]).error
        for name, other in (("alice", "bob"), ("bob", "alice")):
            contact = tmp_path / f"{name}.contact"
            contact.write_text(veil.done("contact", "show", *at[name]).out)
            veil.done("contact", "add", f"@{contact}", *at[other])
        assert [one["name"] for one in veil.done("contact", "list", "--json", *at["bob"]).json()] == ["alice"]
        veil.done("subscribe", "feed", "alice", *at["bob"])
        published = veil.done("publish", "hello", "--to", "bob", "--wait", "acked", *at["alice"])
        assert published.facts()["state"] == "acked"
        veil.done("publish", "to all", "--wait", "sent", *at["alice"])
        received = veil.done("feed", "--follow", "--count", 2, *at["bob"]).out.splitlines()
        assert sorted(received) == ["alice\thello", "alice\tto all"]
        assert veil.done("feed", "--raw", "--namespace", 1, *at["bob"]).out == "to all"
        assert veil.done("peers", "--json", *at["bob"]).json()[0]["name"] == "alice"
        assert {row.split("\t")[0] for row in veil.done("lanes", *at["bob"]).out.splitlines()} >= {
            "quic",
            "tls",
            "file",
        }
        assert veil.done("cache", "list", "--json", *at["bob"]).json()
        assert "veil_frames_in" in veil.done("metrics", *at["bob"]).out
        assert len(veil.done("contact", "show", "--qr", *at["bob"]).out.splitlines()) > 20
        tag = veil.done("id", "tag", "alice", *at["bob"]).facts()["tag"]
        assert tag in veil.done("subscribe", "list", *at["bob"]).out
        assert json.loads(veil.done("policy", "explain", "--tag", tag, "--json", *at["bob"]).out)["reasons"]
        kinds = {line.split("\t")[2] for line in veil.done("events", *at["alice"]).out.splitlines()}
        assert {"peer_up", "queued", "sealed", "acked"} <= kinds
        assert veil.done("outbox", "list", "--json", *at["alice"]).json() == []
        late = veil(
            "publish", "no reader", "--to", "bob", "--namespace", 77, "--wait", "acked", "--wait-s", 1, *at["alice"]
        )
        assert late.status == exit_status.PENDING_STATUS
        assert "stays queued" in late.err
        [waiting] = veil.done("outbox", "list", "--json", *at["alice"]).json()
        row = veil.done("outbox", "list", *at["alice"]).out.rstrip("\n").split("\t")
        assert (row[0], row[1]) == (str(waiting["message_id"]), waiting["state"])
        assert row[4] == str(waiting["peers_whole"])
    finally:
        for name in here:
            stopped = veil("node", "stop", *at[name])
            assert stopped.status == 0, stopped.err
    assert veil("peers", *at["bob"]).status == 6
    for path in here.values():
        log = (path / "node.log").read_text().splitlines()
        assert [line.rpartition(" at ")[0] for line in log] == ["veil: node started, local API"]


def test_a_node_stops_if_its_only_port_is_taken_and_names_the_failed_lane_if_another_works(
    veil: Veil, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"tls://127.0.0.1:{taken.getsockname()[1]}"
        veil.done("node", "init", "--listen", place)
        ran = veil.apart("node", "start")
        assert (ran.status, ran.out) == (6, "")
        assert f"cannot listen: {place}" in ran.error
        assert "veil node set --listen" in ran.err
        assert veil("node", "status").status == 6  # it does not run
        veil.done("node", "set", "--listen", place, "--listen", "quic://127.0.0.1:0")
        veil.done("node", "set", "--api", place.removeprefix("tls://"))
        ran = veil.apart("node", "start")
        assert (ran.status, "in use" in ran.error, "--api HOST:PORT" in ran.err) == (6, True, True)
        veil.done("node", "set", "--api", "127.0.0.1:0")
        ran = veil.apart("node", "start", "--json")
        try:
            assert ran.status == 0, ran.err
            assert list(ran.json()["does_not_listen"]) == ["tls"]
            assert f"tls does not listen: {place}" in ran.err
            edge = veil("publish", "x" * MAX_OBJECT_BYTES)
            assert (edge.status, "an object carries" in edge.error, "in parts" in edge.err) == (5, True, True)
        finally:
            veil.done("node", "stop")


def test_the_version_is_that_of_the_distribution(veil: Veil) -> None:
    assert veil.done("--version").out.strip() == version("veen")


def test_node_start_prints_why_the_node_could_not_start(veil: Veil, tmp_path: Path) -> None:
    veil.done("node", "init")
    (veil.home / "data" / "veil" / "contacts.json").write_text("{")
    ran = veil("node", "start")
    assert ran.status == 6
    assert "not JSON" in ran.error
