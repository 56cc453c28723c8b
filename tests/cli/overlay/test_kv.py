"""`veen kv`: the same answers from a hub and from its directory, at any entry, with proof; bad entries stop nothing."""

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.people import KEEPER, People, people
from tests.cli.runner import Veen
from tests.cli.test_edges import COMMAND
from tests.cli.town import STREAM


@pytest.fixture
def at_home(veen: Veen, tmp_path: Path) -> Iterator[People]:
    with people(veen, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """door: open, shut; window: open, deleted; and in between what is no event at all. Nobody adds to it."""
    root = tmp_path_factory.mktemp("filled")
    with people(Veen(root / "home"), root) as made:
        made.does("kv", "put", "door", "open")
        made.does("kv", "put", "window", "hex:00ff")
        made.does("send", "--schema", "crdt.lww.v1", "--body", "no map")
        made.does("kv", "put", "door", "shut")
        made.does("kv", "delete", "window")
        yield made


BOTH = pytest.mark.parametrize("offline", [False, True])


def ask(at: People, offline: bool, *arguments: object) -> list[str]:
    ran = at.reads(at.data_dir, *arguments) if offline else at.does(*arguments)
    assert ran.status == 0, ran.err
    return ran.out.splitlines()


@BOTH
def test_a_value_is_shown_as_it_is_at_any_entry(filled: People, offline: bool) -> None:
    assert ask(filled, offline, "kv", "get", "door") == ["shut"]
    assert ask(filled, offline, "kv", "get", "door", "--at", 3) == ["open"]
    assert ask(filled, offline, "kv", "get", "window", "--at", "0:4") == ["hex:00ff"]
    assert ask(filled, offline, "kv", "get", "hex:646f6f72", "--no-cache") == ["shut"]


@BOTH
def test_keys_and_histories_are_listed(filled: People, offline: bool) -> None:
    assert ask(filled, offline, "kv", "list") == ["door\tshut\t4"]
    assert ask(filled, offline, "kv", "list", "win", "--at", 4) == ["window\thex:00ff\t2"]
    lines = [line.split("\t") for line in ask(filled, offline, "kv", "history", "window")]
    assert [(line[0], line[3]) for line in lines] == [("2", "hex:00ff"), ("5", "(deleted)")]


@BOTH
def test_json_tells_which_log_it_is_of(filled: People, offline: bool) -> None:
    (line,) = ask(filled, offline, "kv", "get", "door", "--at", 3, "--json")
    told = json.loads(line)
    assert (told["key_text"], told["text"], told["value"]) == ("door", "open", b"open".hex())
    assert told["at"] == {"epoch": 0, "stream_seq": 3}
    assert told["written"] == {"epoch": 0, "stream_seq": 1}
    assert told["hub_id"] == filled.town.hub_id
    receipt = filled.does("receipt", 3, "--json").json()
    assert told["mmr_root"] == receipt["mmr_root"]


@BOTH
def test_entries_that_changed_nothing_are_listed_with_their_reason(filled: People, offline: bool) -> None:
    ((place, kind, part, reason),) = [line.split("\t") for line in ask(filled, offline, "kv", "faults")]
    assert (place, kind, part) == ("3", "malformed", "")
    assert "crdt.lww.v1" in reason
    assert ask(filled, offline, "kv", "faults", "--at", 2) == []


@BOTH
def test_a_proof_can_be_checked_by_anyone_who_knows_the_hub(filled: People, tmp_path: Path, offline: bool) -> None:
    file = tmp_path / "door.evidence"
    told = ask(filled, offline, "kv", "get", "door", "--prove", "--out", file)
    assert told[0] == "shut"
    facts = dict(line.split("\t", 1) for line in told[1:5])
    verified = filled.town.veen.done("evidence", "verify", file, "--pin", filled.town.hub_id, "--json").json()
    assert [entry["stream_seq"] for entry in verified["entries"]] == [4]
    folded = filled.town.veen.done(
        "fold", "--overlay", "kv", "--part", "door", "--evidence", file, "--stream", STREAM, "--pin", filled.town.hub_id
    ).facts()
    assert folded["state_hash"] == facts["state_hash"]
    assert "value=shut" in folded["door"]


def test_a_proof_of_a_history_shows_all_of_it(filled: People, tmp_path: Path) -> None:
    told = filled.does("kv", "history", "door", "--prove", "--json").json()
    assert [entry["stream_seq"] for entry in told["evidence"]["entries"]] == [1, 4]
    bytes.fromhex(told["evidence"]["bytes"])


def test_a_tampered_proof_is_refused(filled: People, tmp_path: Path) -> None:
    file = tmp_path / "e"
    filled.does("kv", "get", "door", "--prove", "--out", file)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    ran = filled.town.veen("fold", "--overlay", "kv", "--evidence", file, "--stream", STREAM)
    assert ran.status in (3, 4)
    assert "it proves nothing" in ran.err


MISTAKES = [
    (("kv", "get", "nothing"), 6, "has no value at entry 5"),
    (("kv", "get", "window"), 6, "has no value at entry 5"),
    (("kv", "get", "door", "--at", "6"), 6, "there is no entry 6 yet"),
    (("kv", "get", "door", "--at", "soon"), 2, "names no entry"),
    (("kv", "get", "door", "--at", "1:x"), 2, "names no entry"),
    (("kv", "get", "hex:0"), 2, "is not hex"),
    (("kv", "get", "nothing", "--at", "0"), 6, "has no value at entry 0"),
    (("kv", "faults", "--prove"), 2, "follows from the whole log"),
    (("kv", "put", "door", "@/nowhere"), 6, "no such file"),
]


@pytest.mark.parametrize(("arguments", "status", "said"), MISTAKES)
def test_what_cannot_be_done_is_said(filled: People, arguments: tuple[str, ...], status: int, said: str) -> None:
    ran = filled.tries(*arguments)
    assert ran.status == status
    assert said in ran.error


def test_evidence_never_replaces_a_file(filled: People, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    ran = filled.tries("kv", "get", "door", "--prove", "--out", tmp_path / "there")
    assert ran.status == 2
    assert (tmp_path / "there").read_text() == "mine"


def test_a_writer_who_cannot_read_sends_blind_or_not_at_all(at_home: People) -> None:
    of_writer = ("--client", at_home.town.root / "writer", "--hub", at_home.town.url, "--stream", STREAM)
    pinned = (*of_writer, "--pin", at_home.data_dir)
    ran = at_home.town.veen("kv", "put", "door", "open", *pinned)
    assert ran.status == 6
    assert "no reader key" in ran.error
    assert "stream-key create" not in ran.err  # somebody has made it already
    told = at_home.town.veen.done("kv", "put", "door", "open", "--blind", *pinned).facts()
    assert told["state"] == "nobody looked: it was sent blind"
    assert at_home.does("kv", "get", "door").out == "open\n"


def test_a_stream_without_a_key_is_named_with_what_to_do(at_home: People) -> None:
    ran = at_home.tries("kv", "get", "door", stream="another")
    assert ran.status == 6
    assert "no reader key of stream 'another'" in ran.error
    assert "veen stream-key import" in ran.err
    assert "veen stream-key create another" in ran.err


def test_a_copy_that_was_tampered_with_is_refused(filled: People, tmp_path: Path) -> None:
    shutil.copytree(filled.data_dir, tmp_path / "copy")
    (segment,) = (tmp_path / "copy" / "journal").iterdir()
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(data)
    for chunk in (tmp_path / "copy" / "log").iterdir():
        chunk.unlink()
    ran = filled.reads(tmp_path / "copy", "kv", "get", "door", "--no-cache")
    assert ran.status == 3
    assert "journal" in ran.error
    assert f"veen fsck {tmp_path / 'copy'} tells where" in ran.err


def test_another_hubs_copy_is_refused_where_one_is_pinned(filled: People) -> None:
    ran = filled.reads(filled.data_dir, "kv", "get", "door", "--pin", "00" * 32)
    assert ran.status == 4


def test_a_directory_that_is_none_is_said_to_be_none(at_home: People, tmp_path: Path) -> None:
    assert "there is no data directory" in at_home.reads(tmp_path / "nowhere", "kv", "list").error
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty"):
        ran = at_home.reads(tmp_path / name, "kv", "list")
        assert ran.status == 6
        assert "is no data directory of a hub" in ran.err


def test_what_is_kept_is_forgotten_when_asked(filled: People) -> None:
    filled.does("kv", "list")
    kept = filled.town.root / KEEPER / "overlays"
    assert len(list(kept.glob("*/kv-*"))) >= 1
    assert filled.does("fold", "--overlay", "kv", "--forget").facts()["forgotten"] == "yes"
    assert filled.does("fold", "--overlay", "kv", "--forget").facts()["forgotten"] == "no"
    assert filled.does("kv", "get", "door").out == "shut\n"


def test_without_a_cache_nothing_is_kept(at_home: People) -> None:
    at_home.does("kv", "put", "door", "open", "--no-cache")
    at_home.does("kv", "get", "door", "--no-cache")
    assert not (at_home.town.root / KEEPER / "overlays").exists()


def test_a_cache_that_cannot_be_read_is_named_with_what_to_do(filled: People) -> None:
    filled.does("kv", "list")
    (data,) = (filled.town.root / KEEPER / "overlays").glob("*/kv-*/data.mdb")
    data.write_bytes(b"no cache at all" * 1000)
    ran = filled.tries("kv", "list")
    assert ran.status == 3
    assert "--forget drops what was kept" in ran.err
    filled.does("fold", "--overlay", "kv", "--forget")
    assert filled.does("kv", "list").out == "door\tshut\t4\n"


def test_changes_are_told_as_they_come(at_home: People) -> None:
    at_home.does("kv", "put", "door", "open")
    watching = subprocess.Popen(
        [
            *COMMAND,
            *map(str, ("kv", "watch", "--client", at_home.town.root / KEEPER, "--hub", at_home.town.url)),
            *("--stream", STREAM, "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=at_home.town.veen.shell_env(os.environ),
    )
    assert watching.stdout is not None
    try:
        number = 0
        first = None
        # The watcher says nothing until something changes: so change something until it has begun to listen.
        while first is None:
            number += 1
            at_home.does("kv", "put", "door", f"{number}")
            first = _line(watching.stdout.fileno())
        told = json.loads(first)
        assert told["key_text"] == "door"
        assert bytes.fromhex(told["after"]).decode().isdigit()
    finally:
        watching.terminate()
        watching.wait()
        watching.stdout.close()


def _line(fd: int) -> str | None:
    """What has been written, if anything was within a moment."""
    ready, _, _ = select.select([fd], [], [], 0.5)
    return os.read(fd, 1 << 16).decode().splitlines()[0] if ready else None


def test_a_value_that_no_message_can_hold_is_refused_before_it_is_sent(at_home: People, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(2_000_000))
    for more in ((), ("--blind",)):
        ran = at_home.tries("kv", "put", "door", f"@{tmp_path / 'big'}", *more)
        assert ran.status == 2
        assert "value has 2000000 bytes, above" in ran.error
    ran = at_home.tries("kv", "put", "door", "open", "--expires-in", 2**64)
    assert ran.status == 2
    assert at_home.does("kv", "list").out == ""
