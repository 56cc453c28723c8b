"""`veen fold` and `veen snapshot`: any installed overlay over any log, and snapshots bound to one log."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.state_fixture import StateFixture, state_hub
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
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateFixture]:
    root = tmp_path_factory.mktemp("filled")
    with state_hub(Veen(root / "home"), root, "other") as made:
        made.run("kv", "put", "door", "open")
        made.run("kv", "put", "door", "ajar, maybe")
        made.run("send", "--schema", "kv.delete.v1", "--body", "no map")
        made.run("kv", "put", "door", "shut")
        made.run("kv", "put", "door", "x", stream="other")
        yield made


def test_a_fold_shows_states_faults_and_the_state_hash(filled: StateFixture) -> None:
    answer = filled.run("fold", "--overlay", "kv", "--json").json()
    assert [part["state"]["value"] for part in answer["parts"]] == [b"shut".hex()]
    assert [(fault["stream_seq"], fault["kind"]) for fault in answer["faults"]] == [(3, "malformed")]
    lines = filled.run("fold", "--overlay", "kv").out.splitlines()
    assert lines[1].split("\t") == ["state_hash", answer["state_hash"]]
    assert lines[-1].startswith("entry 3\tmalformed: ")
    offline = filled.run_offline(filled.data_dir, "fold", "--overlay", "kv", "--json").json()
    assert offline["state_hash"] == answer["state_hash"]
    earlier = filled.run("fold", "--overlay", "kv", "--at", 1, "--json").json()
    assert earlier["state_hash"] != answer["state_hash"]
    assert earlier["faults"] == []


def test_an_overlay_of_another_distribution_folds_an_existing_log(
    filled: StateFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "example_longest.py").write_text(THIRD_PARTY)
    brought = tmp_path / "example_longest-1.dist-info"
    brought.mkdir()
    (brought / "METADATA").write_text("Metadata-Version: 2.1\nName: example-longest\nVersion: 1\n")
    (brought / "entry_points.txt").write_text("[veen.overlays]\nlongest = example_longest:LONGEST\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = filled.run("fold", "--overlay", "example.longest", "--json").json()
    assert [part["state"]["longest"] for part in answer["parts"]] == [len("ajar, maybe")]
    earlier = filled.run("fold", "--overlay", "example.longest", "--part", "door", "--at", 1, "--json").json()
    assert earlier["parts"][0]["state"]["longest"] == 4
    sys.modules.pop("example_longest")


@pytest.mark.parametrize("named", [("--overlay", "queue"), ("--overlay", "kv", "--part", "window")])
def test_a_stream_without_entries_of_the_overlay_is_remarked(filled: StateFixture, named: tuple[str, ...]) -> None:
    ran = filled.run("fold", *named, "--json")
    answer = ran.json()
    assert (answer["parts"], answer["faults"]) == ([], [])
    assert "no entry up to 4 belongs to" in ran.err
    assert "belongs to" not in filled.run("fold", "--overlay", "kv").err


@pytest.fixture(scope="module")
def shown(filled: StateFixture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make evidence of the last value and of a malformed entry."""
    file = tmp_path_factory.mktemp("shown") / "file"
    filled.run("evidence", "make", 3, 4, "--disclose", "--out", file)
    return file


def pinned(filled: StateFixture) -> tuple[str, str]:
    return "--pin", filled.town.hub_id


def test_a_fold_of_evidence_is_unverified_without_a_pin(filled: StateFixture, shown: Path) -> None:
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
    alone = filled.attempt("fold", "--overlay", "kv", "--trust-embedded")
    assert (alone.status, "--trust-embedded needs --evidence" in alone.error) == (2, True)


def test_a_fold_of_evidence_lists_faults(filled: StateFixture, shown: Path) -> None:
    given = ("fold", "--overlay", "kv", "--evidence", shown, "--stream", filled.stream, *pinned(filled))
    lines = filled.town.veen.done(*given).out.splitlines()
    assert lines[-2].startswith("door\tvalue=shut")
    assert lines[-1].startswith("entry 3\tmalformed: ")


def test_a_fold_of_evidence_makes_no_claim_about_absent_parts(filled: StateFixture, shown: Path) -> None:
    given = ("fold", "--evidence", shown, "--stream", filled.stream, "--json", *pinned(filled))
    for named in (("--overlay", "kv", "--part", "window"), ("--overlay", "queue")):
        ran = filled.town.veen.done(*given, *named)
        assert ran.json()["parts"] == []
        assert "so it proves nothing about it" in ran.err
    assert "neither" not in filled.town.veen.done(*given, "--overlay", "kv").err


def test_a_fold_of_evidence_checks_the_reader_key(filled: StateFixture, shown: Path) -> None:
    given = ("fold", "--overlay", "kv", "--evidence", shown, "--stream", filled.stream, *pinned(filled))
    unpinned = filled.town.veen.done(*given, "--json").json()
    assert (unpinned["reader_pinned"], unpinned["proved"]) == (False, True)
    lines = filled.town.veen.done(*given).out.splitlines()
    key = next(line.split("\t")[1] for line in lines if line.startswith("reader_pk\t"))
    assert filled.town.veen.done(*given, "--reader", key, "--json").json()["reader_pinned"] is True
    wrong = filled.town.veen(*given, "--reader", "ab" * 32)
    assert wrong.status == 4
    assert "not by the reader key that was entered" in wrong.error
    alone = filled.attempt("fold", "--overlay", "kv", "--reader", key)
    assert alone.status == 2
    assert "--reader needs --evidence" in alone.error


@pytest.mark.parametrize("option", [("--at", 1), ("--at", 0), ("--prove",), ("--forget",), ("--data-dir", ".")])
def test_options_that_do_not_apply_to_evidence_are_misuse(
    filled: StateFixture, shown: Path, option: tuple[object, ...]
) -> None:
    ran = filled.town.veen("fold", "--overlay", "kv", "--evidence", shown, "--stream", filled.stream, *option)
    assert ran.status == 2
    assert f"{option[0]} cannot be combined with --evidence" in ran.error
    assert ran.out == ""


def test_an_unknown_overlay_is_an_error_that_lists_the_installed_ones(filled: StateFixture) -> None:
    ran = filled.attempt("fold", "--overlay", "kvv")
    assert ran.status == 2
    assert "wallet.ledger" in ran.err


@pytest.mark.parametrize("at", [(), ("--at", "2")])
def test_a_snapshot_verifies_against_hub_and_directory(
    filled: StateFixture, tmp_path: Path, at: tuple[str, ...]
) -> None:
    file = tmp_path / "s"
    made = filled.run("snapshot", "make", "--overlay", "kv", "--out", file, *at).facts()
    assert filled.run("snapshot", "verify", file).facts()["verdict"] == "the log folds to this state"
    offline = filled.run_offline(filled.data_dir, "snapshot", "verify", file, "--no-cache")
    assert offline.status == 0
    shown = filled.town.veen.done("snapshot", "show", file, "--pin", filled.town.hub_id, "--json").json()
    assert (shown["state_hash"], shown["mmr_root"]) == (made["state_hash"], made["mmr_root"])
    assert shown["states"][0]["state"]["value"] == (b"ajar, maybe" if at else b"shut").hex()


def test_a_snapshot_is_unverified_without_a_pin(filled: StateFixture, tmp_path: Path) -> None:
    file = tmp_path / "s"
    filled.run("snapshot", "make", "--overlay", "kv", "--out", file)
    unnamed = filled.town.veen("snapshot", "show", file)
    assert unnamed.status == 4
    assert "verdict\tunverified: no hub was named\n" in unnamed.out
    as_json = filled.town.veen("snapshot", "show", file, "--json")
    assert (as_json.status, as_json.json()["verdict"]) == (4, "unverified: no hub was named")
    embedded = filled.town.veen.done("snapshot", "show", file, "--trust-embedded", "--json").json()
    assert embedded["verdict"].endswith("but the hub id was taken from the file: anyone could have made it")
    named = filled.town.veen.done("snapshot", "show", file, *pinned(filled), "--json").json()
    assert named["verdict"] == "signatures and hash are valid"


def test_a_snapshot_of_another_stream_hub_or_bytes_is_refused(filled: StateFixture, tmp_path: Path) -> None:
    file = tmp_path / "s"
    filled.run("snapshot", "make", "--overlay", "kv", "--out", file)
    other = filled.attempt("snapshot", "verify", file, stream="other")
    assert other.status == 4
    assert "another stream" in other.error
    assert filled.town.veen("snapshot", "show", file, "--pin", "00" * 32).status == 4
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    (tmp_path / "t").write_bytes(data)
    ran = filled.town.veen("snapshot", "show", tmp_path / "t")
    assert ran.status == 3
    assert "does not match state_hash" in ran.error


def test_a_snapshot_needs_a_new_file(filled: StateFixture, tmp_path: Path) -> None:
    assert filled.attempt("snapshot", "make", "--overlay", "kv").status == 2
    (tmp_path / "s").write_text("mine")
    assert filled.attempt("snapshot", "make", "--overlay", "kv", "--out", tmp_path / "s").status == 2
    assert (tmp_path / "s").read_text() == "mine"
