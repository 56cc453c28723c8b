"""`veen kv`: hub and data directory give the same answers at any entry, with proof; faults are skipped."""

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.hub_fixture import STREAM
from tests.cli.overlay.state_fixture import KEEPER, StateFixture, state_hub
from tests.cli.runner import Veen
from tests.cli.test_edges import COMMAND


@pytest.fixture
def kv_hub(veen: Veen, tmp_path: Path) -> Iterator[StateFixture]:
    with state_hub(veen, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateFixture]:
    """A read-only stream with door: open, shut; window: open, deleted; and a malformed entry in between."""
    root = tmp_path_factory.mktemp("filled")
    with state_hub(Veen(root / "home"), root) as made:
        made.run("kv", "put", "door", "open")
        made.run("kv", "put", "window", "hex:00ff")
        made.run("send", "--schema", "crdt.lww.v1", "--body", "no map")
        made.run("kv", "put", "door", "shut")
        made.run("kv", "delete", "window")
        yield made


BOTH = pytest.mark.parametrize("offline", [False, True])


def ask(at: StateFixture, offline: bool, *arguments: object) -> list[str]:
    ran = at.run_offline(at.data_dir, *arguments) if offline else at.run(*arguments)
    assert ran.status == 0, ran.err
    return ran.out.splitlines()


@BOTH
def test_a_value_is_shown_at_any_entry(filled: StateFixture, offline: bool) -> None:
    assert ask(filled, offline, "kv", "get", "door") == ["shut"]
    assert ask(filled, offline, "kv", "get", "door", "--at", 3) == ["open"]
    assert ask(filled, offline, "kv", "get", "window", "--at", "0:4") == ["hex:00ff"]
    assert ask(filled, offline, "kv", "get", "hex:646f6f72", "--no-cache") == ["shut"]


@BOTH
def test_keys_and_histories_are_listed(filled: StateFixture, offline: bool) -> None:
    assert ask(filled, offline, "kv", "list") == ["door\tshut\t4"]
    assert ask(filled, offline, "kv", "list", "win", "--at", 4) == ["window\thex:00ff\t2"]
    lines = [line.split("\t") for line in ask(filled, offline, "kv", "history", "window")]
    assert [(line[0], line[3]) for line in lines] == [("2", "hex:00ff"), ("5", "(deleted)")]


@BOTH
def test_json_names_the_log_of_an_answer(filled: StateFixture, offline: bool) -> None:
    (line,) = ask(filled, offline, "kv", "get", "door", "--at", 3, "--json")
    answer = json.loads(line)
    assert (answer["key_text"], answer["text"], answer["value"]) == ("door", "open", b"open".hex())
    assert answer["at"] == {"epoch": 0, "stream_seq": 3}
    assert answer["written"] == {"epoch": 0, "stream_seq": 1}
    assert answer["hub_id"] == filled.town.hub_id
    receipt = filled.run("receipt", 3, "--json").json()
    assert answer["mmr_root"] == receipt["mmr_root"]


@BOTH
def test_faults_are_listed_with_their_reason(filled: StateFixture, offline: bool) -> None:
    ((directory_hub, kind, part, reason),) = [line.split("\t") for line in ask(filled, offline, "kv", "faults")]
    assert (directory_hub, kind, part) == ("3", "malformed", "")
    assert "crdt.lww.v1" in reason
    assert ask(filled, offline, "kv", "faults", "--at", 2) == []


@BOTH
def test_a_proof_can_be_checked_by_anyone_who_knows_the_hub(
    filled: StateFixture, tmp_path: Path, offline: bool
) -> None:
    file = tmp_path / "door.evidence"
    answer = ask(filled, offline, "kv", "get", "door", "--prove", "--out", file)
    assert answer[0] == "shut"
    facts = dict(line.split("\t", 1) for line in answer[1:5])
    verified = filled.town.veen.done("evidence", "verify", file, "--pin", filled.town.hub_id, "--json").json()
    assert [entry["stream_seq"] for entry in verified["entries"]] == [4]
    folded = filled.town.veen.done(
        "fold", "--overlay", "kv", "--part", "door", "--evidence", file, "--stream", STREAM, "--pin", filled.town.hub_id
    ).facts()
    assert folded["state_hash"] == facts["state_hash"]
    assert "value=shut" in folded["door"]


def test_a_proof_of_a_history_shows_all_of_it(filled: StateFixture, tmp_path: Path) -> None:
    answer = filled.run("kv", "history", "door", "--prove", "--json").json()
    assert [entry["stream_seq"] for entry in answer["evidence"]["entries"]] == [1, 4]
    bytes.fromhex(answer["evidence"]["bytes"])


def test_a_tampered_proof_is_refused(filled: StateFixture, tmp_path: Path) -> None:
    file = tmp_path / "e"
    filled.run("kv", "get", "door", "--prove", "--out", file)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    ran = filled.town.veen("fold", "--overlay", "kv", "--evidence", file, "--stream", STREAM)
    assert ran.status in (3, 4)
    assert "the file proves nothing" in ran.err


MISTAKES = [
    (("kv", "get", "nothing"), 6, "has no value at entry 5"),
    (("kv", "get", "window"), 6, "has no value at entry 5"),
    (("kv", "get", "door", "--at", "6"), 6, "there is no entry 6 yet"),
    (("kv", "get", "door", "--at", "soon"), 2, "is not a place in the log"),
    (("kv", "get", "door", "--at", "1:x"), 2, "is not a place in the log"),
    (("kv", "get", "hex:0"), 2, "is not hex"),
    (("kv", "get", "nothing", "--at", "0"), 6, "has no value at entry 0"),
    (("kv", "faults", "--prove"), 2, "depends on the whole log"),
    (("kv", "put", "door", "@/nowhere"), 6, "no such file"),
]


@pytest.mark.parametrize(("arguments", "status", "message"), MISTAKES)
def test_impossible_requests_are_errors(
    filled: StateFixture, arguments: tuple[str, ...], status: int, message: str
) -> None:
    ran = filled.attempt(*arguments)
    assert ran.status == status
    assert message in ran.error


def test_evidence_never_replaces_a_file(filled: StateFixture, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    ran = filled.attempt("kv", "get", "door", "--prove", "--out", tmp_path / "there")
    assert ran.status == 2
    assert (tmp_path / "there").read_text() == "mine"


def test_a_writer_without_the_reader_key_must_send_blind(kv_hub: StateFixture) -> None:
    of_writer = ("--client", kv_hub.town.root / "writer", "--hub", kv_hub.town.url, "--stream", STREAM)
    pinned = (*of_writer, "--pin", kv_hub.data_dir)
    ran = kv_hub.town.veen("kv", "put", "door", "open", *pinned)
    assert ran.status == 6
    assert "no reader key" in ran.error
    assert "stream-key create" not in ran.err  # the stream has a key, so creating one would be wrong
    answer = kv_hub.town.veen.done("kv", "put", "door", "open", "--blind", *pinned).facts()
    assert answer["state"] == "not checked (--blind)"
    assert kv_hub.run("kv", "get", "door").out == "open\n"


def test_a_stream_without_a_key_is_an_error_with_a_hint(kv_hub: StateFixture) -> None:
    ran = kv_hub.attempt("kv", "get", "door", stream="another")
    assert ran.status == 6
    assert "no reader key of stream 'another'" in ran.error
    assert "veen stream-key import" in ran.err
    assert "veen stream-key create another" in ran.err


def test_a_copy_that_was_tampered_with_is_refused(filled: StateFixture, tmp_path: Path) -> None:
    shutil.copytree(filled.data_dir, tmp_path / "copy")
    (segment,) = (tmp_path / "copy" / "journal").iterdir()
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(data)
    for chunk in (tmp_path / "copy" / "log").iterdir():
        chunk.unlink()
    ran = filled.run_offline(tmp_path / "copy", "kv", "get", "door", "--no-cache")
    assert ran.status == 3
    assert "journal" in ran.error
    assert f"veen fsck {tmp_path / 'copy'} locates the damage" in ran.err


def test_a_copy_of_another_hub_fails_the_pin(filled: StateFixture) -> None:
    ran = filled.run_offline(filled.data_dir, "kv", "get", "door", "--pin", "00" * 32)
    assert ran.status == 4


def test_a_path_that_is_not_a_data_directory_is_an_error(kv_hub: StateFixture, tmp_path: Path) -> None:
    assert "no data directory at" in kv_hub.run_offline(tmp_path / "nowhere", "kv", "list").error
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty"):
        ran = kv_hub.run_offline(tmp_path / name, "kv", "list")
        assert ran.status == 6
        assert "is neither a hub's data directory nor a copy of one" in ran.err


def test_forget_deletes_the_cache(filled: StateFixture) -> None:
    filled.run("kv", "list")
    kept = filled.town.root / KEEPER / "overlays"
    assert len(list(kept.glob("*/kv-*"))) >= 1
    assert filled.run("fold", "--overlay", "kv", "--forget").facts()["forgotten"] == "yes"
    assert filled.run("fold", "--overlay", "kv", "--forget").facts()["forgotten"] == "no"
    assert filled.run("kv", "get", "door").out == "shut\n"


def test_no_cache_stores_nothing(kv_hub: StateFixture) -> None:
    kv_hub.run("kv", "put", "door", "open", "--no-cache")
    kv_hub.run("kv", "get", "door", "--no-cache")
    assert not (kv_hub.town.root / KEEPER / "overlays").exists()


def test_an_unreadable_cache_is_an_error_with_a_hint(filled: StateFixture) -> None:
    filled.run("kv", "list")
    (data,) = (filled.town.root / KEEPER / "overlays").glob("*/kv-*/data.mdb")
    data.write_bytes(b"no cache at all" * 1000)
    ran = filled.attempt("kv", "list")
    assert ran.status == 3
    assert "--forget deletes the cached state" in ran.err
    filled.run("fold", "--overlay", "kv", "--forget")
    assert filled.run("kv", "list").out == "door\tshut\t4\n"


def test_watch_prints_changes_as_they_arrive(kv_hub: StateFixture) -> None:
    kv_hub.run("kv", "put", "door", "open")
    watching = subprocess.Popen(
        [
            *COMMAND,
            *map(str, ("kv", "watch", "--client", kv_hub.town.root / KEEPER, "--hub", kv_hub.town.url)),
            *("--stream", STREAM, "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=kv_hub.town.veen.shell_env(os.environ),
    )
    assert watching.stdout is not None
    try:
        number = 0
        first = None
        # The watcher prints nothing until something changes, so write until its first line shows that it runs.
        while first is None:
            number += 1
            kv_hub.run("kv", "put", "door", f"{number}")
            first = _line(watching.stdout.fileno())
        answer = json.loads(first)
        assert answer["key_text"] == "door"
        assert bytes.fromhex(answer["after"]).decode().isdigit()
    finally:
        watching.terminate()
        watching.wait()
        watching.stdout.close()


def _line(fd: int) -> str | None:
    """Return the next output line, if there is one within a short time."""
    ready, _, _ = select.select([fd], [], [], 0.5)
    return os.read(fd, 1 << 16).decode().splitlines()[0] if ready else None


def test_a_value_that_is_too_large_is_not_sent(kv_hub: StateFixture, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(2_000_000))
    for more in ((), ("--blind",)):
        ran = kv_hub.attempt("kv", "put", "door", f"@{tmp_path / 'big'}", *more)
        assert ran.status == 2
        assert "value has 2000000 bytes, above" in ran.error
    ran = kv_hub.attempt("kv", "put", "door", "open", "--expires-in", 2**64)
    assert ran.status == 2
    assert kv_hub.run("kv", "list").out == ""
