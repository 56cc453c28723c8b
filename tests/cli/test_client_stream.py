"""`veen stream`: entries are verified before they are shown, and their content cannot control a terminal."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.hub_fixture import EPOCHS, STREAM, HubFixture, hub_fixture
from tests.cli.runner import Veen
from tests.cli.test_edges import COMMAND, on_a_terminal
from veen.cli import stream
from veen.cli.kit import sanitize
from veen.client import ClientDir
from veen.client.message_attachments import Attachment
from veen.core import Leaf, MmrProof, Receipt, naming, proof


@pytest.fixture
def place(veen: Veen, tmp_path: Path) -> Iterator[HubFixture]:
    with hub_fixture(veen, tmp_path) as found:
        yield found


def entries(place: HubFixture, *arguments: object, person: str = "reader") -> list[dict[str, Any]]:
    ran = place.does(person, "stream", *arguments, "--json")
    return [json.loads(line) for line in ran.out.splitlines()]


def test_every_entry_is_a_line_in_a_pipe_and_an_object_in_json(place: HubFixture) -> None:
    place.send("one", "two")
    lines = [line.split("\t") for line in place.does("reader", "stream").out.splitlines()]
    assert [(line[0], line[3]) for line in lines] == [("1", "one"), ("2", "two")]
    first, second = entries(place)
    assert (first["stream_seq"], first["text"], first["fault"]) == (1, "one", None)
    assert lines[1][1:3] == [str(second["hub_ts"]), second["client_id"]]


def test_a_range_can_be_read(place: HubFixture) -> None:
    place.send(*"abcde")
    assert [entry["text"] for entry in entries(place, "--from", 2, "--to", 3)] == ["b", "c"]
    assert [entry["text"] for entry in entries(place, "--from", 4)] == ["d", "e"]
    end = place.does("reader", "stream", "--from", 6)
    assert end.out == ""
    assert "has no such entries" in end.err
    beyond = place.fails("reader", "stream", "--from", 9)
    assert beyond.status == 5
    assert "the stream has no entry 9" in beyond.error


@pytest.mark.parametrize(
    "arguments", [["--from", 0], ["--from", 3, "--to", 2], ["--follow", "--to", 3], ["--to", "x"], ["--epoch", -1]]
)
def test_an_invalid_range_is_a_usage_error(arguments: list[object], place: HubFixture) -> None:
    ran = place.fails("reader", "stream", *arguments)
    assert ran.status == 2
    assert ran.error


def test_without_the_reader_key_entries_are_verified_and_stay_sealed(place: HubFixture) -> None:
    place.send("one")
    ran = place.does("operator", "stream")
    assert ran.out.split("\t")[3] == "(sealed)"
    assert "this client has no reader key" in ran.err
    (entry,) = entries(place, person="operator")
    assert entry["body"] is None
    assert entry["fault"]
    saved = place.fails("operator", "stream", "--save-attachments", place.root / "saved")
    assert saved.status == 2
    assert not (place.root / "saved").exists()


def test_an_entry_that_cannot_be_opened_does_not_stop_the_reader(place: HubFixture, tmp_path: Path) -> None:
    place.send("one")
    with ClientDir.create(tmp_path / "odd", None, int(time.time())) as odd:
        odd.stream_keys.create(STREAM)  # another key than the reader's
    place.does("odd", "send", "--body", "sealed with another key")
    place.send("three")
    ran = place.does("reader", "stream")
    shown = [line.split("\t")[3] for line in ran.out.splitlines()]
    assert shown[0::2] == ["one", "three"]
    assert shown[1].startswith("(cannot be opened: ")
    assert "1 of 3 entries are verified but could not be opened" in ran.err


EVIL = "\x1b]0;owned\x07\x1b[2J\r\nfake\t9\u202e\x9b31m"


def test_content_reaches_a_terminal_without_control_characters(place: HubFixture) -> None:
    place.send(EVIL)
    piped = place.does("reader", "stream").out
    assert len(piped.splitlines()) == 1
    assert piped.split("\t")[3] == r"\x1b]0;owned\x07\x1b[2J\r\nfake\t9\u202e\x9b31m"
    seen = on_a_terminal(place.veen, "stream", *map(str, place.of("reader")))
    assert not re.search("[\x07\x9b\u202e]|\x1b[^\\[]|\x1b\\[[^m]*[^m\\d;]", seen)
    assert entries(place)[0]["text"] == EVIL


@pytest.mark.parametrize(
    ("body", "line", "glance"),
    [
        ("Grüße 👩\u200d🚀".encode(), "Grüße 👩\u200d🚀", "Grüße 👩\u200d🚀"),
        (b"", "", ""),
        (b"\xff\xfe", "hex:fffe", "2 bytes, not text: fffe"),
        (b"\xff" * 40, "hex:" + "ff" * 40, "40 bytes, not text: " + "ff" * 32 + "…"),
        (b"x" * 3000, "x" * 3000, "x" * 2000 + "… (2.9 KiB)"),
    ],
)
def test_a_body_is_complete_in_a_pipe_and_shortened_on_a_terminal(body: bytes, line: str, glance: str) -> None:
    assert sanitize.line_of(body) == line
    assert sanitize.preview(body) == glance


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 40, "3072.0 GiB"),
    ],
)
def test_sizes_are_shown_in_a_suitable_unit(count: int, words: str) -> None:
    assert sanitize.size(count) == words


def test_with_proof_every_entry_has_a_valid_inclusion_proof(place: HubFixture) -> None:
    place.send(*"abc")
    for entry in entries(place, "--with-proof"):
        receipt = Receipt.decode(bytes.fromhex(entry["receipt"]))
        place.hub.service.hub_metadata.identity.verify_receipt(receipt)
        proof.verify_inclusion(MmrProof.decode(bytes.fromhex(entry["proof"])), Leaf.of(receipt), receipt)
    assert "proof" not in entries(place)[0]


# Attachments.


def attach(place: HubFixture, *names: str) -> None:
    files = []
    for number, name in enumerate(names):
        path = place.root / name
        path.write_bytes(bytes([number]) * 1000)
        files += ["--attach", path]
    place.does("writer", "send", "--body", "look", *files)


def test_attachments_are_saved_under_their_place_and_name(place: HubFixture) -> None:
    attach(place, "a.jpg", "b.jpg")
    saved = place.root / "saved"
    (entry,) = entries(place, "--save-attachments", saved)
    assert [one["saved"] for one in entry["attachments"]] == [str(saved / "1.1-a.jpg"), str(saved / "1.2-b.jpg")]
    assert (saved / "1.2-b.jpg").read_bytes() == b"\1" * 1000
    assert len(entries(place, "--save-attachments", saved)) == 1  # saving again is fine


def test_an_existing_file_with_other_content_is_not_overwritten(place: HubFixture) -> None:
    attach(place, "a.jpg")
    saved = place.root / "saved"
    saved.mkdir()
    (saved / "1.1-a.jpg").write_text("mine")
    ran = place.fails("reader", "stream", "--save-attachments", saved)
    assert ran.status == 4
    assert (saved / "1.1-a.jpg").read_text() == "mine"
    (saved / "1.1-a.jpg").unlink()
    (saved / "1.1-a.jpg").symlink_to(place.root / "elsewhere")
    assert place.fails("reader", "stream", "--save-attachments", saved).status == 4
    assert not (place.root / "elsewhere").exists()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "7.1-etc_passwd"),
        ("/etc/passwd", "7.1-etc_passwd"),
        ("..", "7.1-attachment"),
        ("", "7.1-attachment"),
        ("-rf", "7.1--rf"),
        (".bashrc", "7.1-bashrc"),
        ("a b;$(c)\n\x1b.txt", "7.1-a_b_c_.txt"),
        ("x" * 500 + ".jpg", "7.1-" + "x" * 116 + ".jpg"),
        ("имя.txt", "7.1-txt"),
    ],
)
def test_saved_files_get_safe_names(name: str, kept: str) -> None:
    class Seven:
        epoch, stream_seq, attachments = 0, 7, (Attachment(bytes(32), 0, name),)

    found = stream.name_for(Seven, 0)  # type: ignore[arg-type]
    assert found == kept
    assert "/" not in found


# Following.


def test_a_follower_reports_that_the_hub_is_away_and_continues_when_it_is_back(place: HubFixture) -> None:
    place.send("before")
    command = [*COMMAND, "stream", "--follow", *map(str, place.of("reader")), "--pin", place.hub_id]
    env = place.veen.shell_env(os.environ)
    hub = place.hub
    hub.settings["port"] = hub.port
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.readline().split("\t")[3] == "before"
        hub.stop()
        try:
            assert follower.stderr.readline().endswith("; retrying\n")
        finally:
            hub.start()
        place.send("after")
        assert follower.stdout.readline().split("\t")[3] == "after"
        follower.send_signal(signal.SIGINT)
        assert follower.stderr.read() == "veen: interrupted\n"  # the retry is reported only once


def test_a_stream_is_followed_until_ctrl_c(place: HubFixture) -> None:
    place.send("before")
    command = [*COMMAND, "stream", "--follow", *map(str, place.of("reader")), "--pin", place.hub_id]
    env = place.veen.shell_env(os.environ)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.readline().split("\t")[3] == "before"
        for body in ("one", "two"):
            place.send(body)
            assert follower.stdout.readline().split("\t")[3] == body
        follower.send_signal(signal.SIGINT)
        assert follower.stderr.read() == "veen: interrupted\n"
        assert follower.wait() == 130


# Epochs.


def test_an_epoch_can_be_selected(veen: Veen, tmp_path: Path) -> None:
    with hub_fixture(veen, tmp_path, profile=EPOCHS) as place:
        place.hub.register(naming.stream_id(STREAM))
        place.send("now")
        epoch = int(place.hub.status()["epoch"])
        assert [entry["epoch"] for entry in entries(place)] == [epoch]
        assert [entry["text"] for entry in entries(place, "--epoch", epoch)] == ["now"]
        assert place.does("reader", "stream", "--epoch", epoch - 1).out == ""
        assert place.does("reader", "checkpoint", "--json").json()["epoch"] == epoch
