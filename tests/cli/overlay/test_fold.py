"""`veen fold` and `veen snapshot`: any overlay, ours or another's, over any log; a snapshot is of one log alone."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.people import People, people
from tests.cli.runner import Veen

THIRD_PARTY = """
from typing import ClassVar
from veen.core import cbor
from veen.overlays import MergeOverlay
from veen.overlays.crdt import Write


class Longest(MergeOverlay[int]):
    CLASS = "example.longest"
    EVENTS: ClassVar = (Write,)
    EMPTY = 0

    def parts(self, entry, event):
        return (event.key,)

    def lift(self, step):
        return len(step.event.value)

    def merge(self, a, b):
        return max(a, b)

    def encode_state(self, state):
        return cbor.encode(state)

    def decode_state(self, part, data):
        return cbor.decode(data)

    def plain(self, part, state):
        return {"key": part, "longest": state}


LONGEST = Longest()
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    root = tmp_path_factory.mktemp("filled")
    with people(Veen(root / "home"), root, "other") as made:
        made.does("kv", "put", "door", "open")
        made.does("kv", "put", "door", "ajar, maybe")
        made.does("send", "--schema", "kv.delete.v1", "--body", "no map")
        made.does("kv", "put", "door", "shut")
        made.does("kv", "put", "door", "x", stream="other")
        yield made


def test_a_fold_shows_states_faults_and_the_hash_of_it_all(filled: People) -> None:
    told = filled.does("fold", "--overlay", "kv", "--json").json()
    assert [part["state"]["value"] for part in told["parts"]] == [b"shut".hex()]
    assert [(fault["stream_seq"], fault["kind"]) for fault in told["faults"]] == [(3, "malformed")]
    lines = filled.does("fold", "--overlay", "kv").out.splitlines()
    assert lines[1].split("\t") == ["state_hash", told["state_hash"]]
    assert lines[-1].startswith("entry 3\tmalformed: ")
    offline = filled.reads(filled.data_dir, "fold", "--overlay", "kv", "--json").json()
    assert offline["state_hash"] == told["state_hash"]
    earlier = filled.does("fold", "--overlay", "kv", "--at", 1, "--json").json()
    assert earlier["state_hash"] != told["state_hash"]
    assert earlier["faults"] == []


def test_an_overlay_that_another_distribution_brings_applies_to_a_log_that_was_there_before(
    filled: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "example_longest.py").write_text(THIRD_PARTY)
    brought = tmp_path / "example_longest-1.dist-info"
    brought.mkdir()
    (brought / "METADATA").write_text("Metadata-Version: 2.1\nName: example-longest\nVersion: 1\n")
    (brought / "entry_points.txt").write_text("[veen.overlays]\nlongest = example_longest:LONGEST\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    told = filled.does("fold", "--overlay", "example.longest", "--json").json()
    assert [part["state"]["longest"] for part in told["parts"]] == [len("ajar, maybe")]
    earlier = filled.does("fold", "--overlay", "example.longest", "--part", "door", "--at", 1, "--json").json()
    assert earlier["parts"][0]["state"]["longest"] == 4
    sys.modules.pop("example_longest")


@pytest.mark.parametrize("named", [("--overlay", "queue"), ("--overlay", "kv", "--part", "window")])
def test_a_stream_of_something_else_is_said_to_have_nothing(filled: People, named: tuple[str, ...]) -> None:
    ran = filled.does("fold", *named, "--json")
    told = ran.json()
    assert (told["parts"], told["faults"]) == ([], [])
    assert "up to entry 4 there is nothing of" in ran.err
    assert "there is nothing of" not in filled.does("fold", "--overlay", "kv").err


@pytest.fixture(scope="module")
def shown(filled: People, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evidence of the last value, and of an entry that makes no sense."""
    file = tmp_path_factory.mktemp("shown") / "file"
    filled.does("evidence", "make", 3, 4, "--disclose", "--out", file)
    return file


def pinned(filled: People) -> tuple[str, str]:
    return "--pin", filled.town.hub_id


def test_a_fold_of_evidence_is_unverified_while_nobody_names_its_hub(filled: People, shown: Path) -> None:
    given = ("fold", "--overlay", "kv", "--evidence", shown, "--stream", filled.stream)
    unnamed = filled.town.veen(*given)
    assert unnamed.status == 4
    assert unnamed.out.startswith("verdict\tunverified: no hub was named\n")
    assert "no hub was named" in unnamed.error
    as_json = filled.town.veen(*given, "--json")
    assert (as_json.status, as_json.json()["verdict"]) == (4, "unverified: no hub was named")
    embedded = filled.town.veen.done(*given, "--trust-embedded", "--json").json()
    assert embedded["verdict"] == "it holds, but the hub id was taken from the file: anyone could have made it"
    assert filled.town.veen.done(*given, *pinned(filled), "--json").json()["verdict"] == "it holds"
    alone = filled.tries("fold", "--overlay", "kv", "--trust-embedded")
    assert (alone.status, "--trust-embedded goes with --evidence" in alone.error) == (2, True)


def test_a_fold_of_evidence_lists_what_makes_no_sense_in_it(filled: People, shown: Path) -> None:
    given = ("fold", "--overlay", "kv", "--evidence", shown, "--stream", filled.stream, *pinned(filled))
    lines = filled.town.veen.done(*given).out.splitlines()
    assert lines[-2].startswith("door\tvalue=shut")
    assert lines[-1].startswith("entry 3\tmalformed: ")


def test_a_fold_of_evidence_claims_nothing_of_what_is_not_in_it(filled: People, shown: Path) -> None:
    given = ("fold", "--evidence", shown, "--stream", filled.stream, "--json", *pinned(filled))
    for named in (("--overlay", "kv", "--part", "window"), ("--overlay", "queue")):
        ran = filled.town.veen.done(*given, *named)
        assert ran.json()["parts"] == []
        assert "neither that it is there nor that it is not" in ran.err
    assert "neither" not in filled.town.veen.done(*given, "--overlay", "kv").err


def test_a_fold_of_evidence_is_held_against_the_readers_key(filled: People, shown: Path) -> None:
    given = ("fold", "--overlay", "kv", "--evidence", shown, "--stream", filled.stream, *pinned(filled))
    unpinned = filled.town.veen.done(*given, "--json").json()
    assert (unpinned["reader_pinned"], unpinned["proved"]) == (False, True)
    lines = filled.town.veen.done(*given).out.splitlines()
    key = next(line.split("\t")[1] for line in lines if line.startswith("reader_pk\t"))
    assert filled.town.veen.done(*given, "--reader", key, "--json").json()["reader_pinned"] is True
    wrong = filled.town.veen(*given, "--reader", "ab" * 32)
    assert wrong.status == 4
    assert "not the pinned reader" in wrong.error
    alone = filled.tries("fold", "--overlay", "kv", "--reader", key)
    assert alone.status == 2
    assert "--reader goes with --evidence" in alone.error


@pytest.mark.parametrize("option", [("--at", 1), ("--at", 0), ("--prove",), ("--forget",), ("--data-dir", ".")])
def test_options_that_a_fold_of_evidence_cannot_follow_are_refused(
    filled: People, shown: Path, option: tuple[object, ...]
) -> None:
    ran = filled.town.veen("fold", "--overlay", "kv", "--evidence", shown, "--stream", filled.stream, *option)
    assert ran.status == 2
    assert f"{option[0]} does not go with --evidence" in ran.error
    assert ran.out == ""


def test_an_overlay_that_is_not_there_is_named_with_those_that_are(filled: People) -> None:
    ran = filled.tries("fold", "--overlay", "kvv")
    assert ran.status == 2
    assert "wallet.ledger" in ran.err


@pytest.mark.parametrize("at", [(), ("--at", "2")])
def test_a_snapshot_holds_against_its_log_from_hub_and_directory(
    filled: People, tmp_path: Path, at: tuple[str, ...]
) -> None:
    file = tmp_path / "s"
    made = filled.does("snapshot", "make", "--overlay", "kv", "--out", file, *at).facts()
    assert filled.does("snapshot", "verify", file).facts()["verdict"] == "the log comes to this state"
    offline = filled.reads(filled.data_dir, "snapshot", "verify", file, "--no-cache")
    assert offline.status == 0
    shown = filled.town.veen.done("snapshot", "show", file, "--pin", filled.town.hub_id, "--json").json()
    assert (shown["state_hash"], shown["mmr_root"]) == (made["state_hash"], made["mmr_root"])
    assert shown["states"][0]["state"]["value"] == (b"ajar, maybe" if at else b"shut").hex()


def test_a_snapshot_is_unverified_while_nobody_names_its_hub(filled: People, tmp_path: Path) -> None:
    file = tmp_path / "s"
    filled.does("snapshot", "make", "--overlay", "kv", "--out", file)
    unnamed = filled.town.veen("snapshot", "show", file)
    assert unnamed.status == 4
    assert "verdict\tunverified: no hub was named\n" in unnamed.out
    as_json = filled.town.veen("snapshot", "show", file, "--json")
    assert (as_json.status, as_json.json()["verdict"]) == (4, "unverified: no hub was named")
    embedded = filled.town.veen.done("snapshot", "show", file, "--trust-embedded", "--json").json()
    assert embedded["verdict"].endswith("but the hub id was taken from the file: anyone could have made it")
    named = filled.town.veen.done("snapshot", "show", file, *pinned(filled), "--json").json()
    assert named["verdict"] == "its signatures and its hash hold"


def test_a_snapshot_of_another_stream_hub_or_bytes_is_refused(filled: People, tmp_path: Path) -> None:
    file = tmp_path / "s"
    filled.does("snapshot", "make", "--overlay", "kv", "--out", file)
    other = filled.tries("snapshot", "verify", file, stream="other")
    assert other.status == 4
    assert "another stream" in other.error
    assert filled.town.veen("snapshot", "show", file, "--pin", "00" * 32).status == 4
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    (tmp_path / "t").write_bytes(data)
    ran = filled.town.veen("snapshot", "show", tmp_path / "t")
    assert ran.status == 3
    assert "not the one of its hash" in ran.error


def test_a_snapshot_needs_a_file_that_is_not_there_yet(filled: People, tmp_path: Path) -> None:
    assert filled.tries("snapshot", "make", "--overlay", "kv").status == 2
    (tmp_path / "s").write_text("mine")
    assert filled.tries("snapshot", "make", "--overlay", "kv", "--out", tmp_path / "s").status == 2
    assert (tmp_path / "s").read_text() == "mine"
