"""Tables contain each entry of the log once, however often a load ran or crashed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from bench.big_log import BigLog
from bench.sealed_log import SealedLog
from tests.pipeline.damage import flip, frames
from tests.pipeline.tables.crashing_disk import DyingDisk
from tests.pipeline.tables.logs import DOORS, OTHERS, Place, begun, contents, everything, filled, recorded, writes
from veen.core import Malformed, Unavailable, Unverified
from veen.pipeline import select
from veen.pipeline.decoding import Keys
from veen.pipeline.jobs import in_processes
from veen.pipeline.tables import Table, Tables, load


def places(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["stream"], row["stream_seq"]) for row in rows]


def test_each_entry_is_an_event_or_in_quarantine_and_none_is_lost(place: Path) -> None:
    made = filled(place)
    assert (made.load().entries, len(contents(made.tables.root, Table.ENTRIES))) == (42, 42)
    found = everything(made.tables.root)
    assert [(row["kind"], row["stream_seq"]) for row in found["quarantine"]] == [("unknown", 21), ("malformed", 22)]
    both = sorted(places(found["events"]) + places(found["quarantine"]))
    assert (
        both
        == sorted(places(found["entries"]))
        == [(name, n) for name, last in ((DOORS, 22), (OTHERS, 20)) for n in range(1, last + 1)]
    )


def test_an_event_has_its_columns(place: Path) -> None:
    made = begun(place)
    made.log.say([(OTHERS, recorded(7, path="/x", deep={"n": [1, 2]}))])
    made.load()
    (row,) = contents(made.tables.root, Table.EVENTS)
    assert (row["subject_id"], row["event_type"], row["event_time"], row["origin"]) == (
        "user:3",
        "logout",
        1_700_000_000_007,
        "gateway",
    )
    assert (row["overlay"], row["stream"], row["day"]) == ("record.events", OTHERS, "2023-11-14")
    assert '"payload":{"deep":{"n":[1,2]},"path":"/x"}' in row["event"]


def test_entries_have_no_payload(place: Path) -> None:
    made = filled(place)
    made.load()
    kept = b"".join(path.read_bytes() for path in (made.tables.root / "entries").rglob("*.parquet"))
    assert b"value 3" not in kept
    assert "body" not in contents(made.tables.root, Table.ENTRIES)[0]


def test_without_a_key_entries_are_in_quarantine_as_sealed(place: Path) -> None:
    made = filled(place)
    load(made.tables, made.selection, Keys())
    found = everything(made.tables.root)
    assert (len(found["entries"]), len(found["events"]), {row["kind"] for row in found["quarantine"]}) == (
        42,
        0,
        {"sealed"},
    )


def test_a_repeated_load_changes_nothing_and_adds_new_entries(place: Path) -> None:
    made = filled(place)
    made.load()
    before = everything(made.tables.root)
    assert made.load().commits == 0
    assert everything(made.tables.root) == before
    made.log.say(writes(9, 100))
    assert (made.load().entries, made.load().entries) == (9, 0)
    after = everything(made.tables.root)
    shutil.rmtree(made.tables.root)
    made.load()
    assert everything(made.tables.root) == after


def test_the_tables_do_not_depend_on_steps_or_number_of_processes(place: Path) -> None:
    made = filled(place)
    for last in (3, 11, None):
        load(made.tables, select(made.log.folders.root, seq_max=last), made.keys)
    whole = Tables(place / "whole")
    load(whole, select(made.log.folders.root, parallelism=1), made.keys, in_processes(2))
    assert everything(whole.root) == everything(made.tables.root)


def test_each_day_has_a_folder(place: Path) -> None:
    made = begun(place, per_sec=1)
    made.log._born = 1_700_006_395  # five seconds before midnight
    made.log.say(writes(10))
    made.load()
    found = sorted((row["day"], row["stream_seq"]) for row in contents(made.tables.root, Table.EVENTS))
    assert found == [("2023-11-14", n) for n in range(1, 6)] + [("2023-11-15", n) for n in range(6, 11)]


def test_only_the_damaged_entry_is_in_quarantine_with_its_fault(place: Path) -> None:
    made = filled(place)
    path = next(
        path for path in sorted(made.log.folders.root.glob("log/chunk-*-0*[0-9].log")) if "000000008" in path.name
    )
    flip(path, len(frames(path)[0]) + 300)
    made.load()
    found = everything(made.tables.root)
    (row,) = [row for row in found["quarantine"] if row["kind"] == "unverified"]
    assert row["stream_seq"] == 9
    assert "client_sig" in row["reason"]
    assert len(found["entries"]) == 41


def test_unreadable_entries_are_in_quarantine_one_by_one(place: Path) -> None:
    made = filled(place)
    path = next(
        path for path in sorted(made.log.folders.root.glob("log/chunk-*-0*[0-9].log")) if "000000008" in path.name
    )
    first = frames(path)[0]
    path.write_bytes(first + b"\xff" * (path.stat().st_size - len(first)))
    made.load()
    found = everything(made.tables.root)
    broken = [row["stream_seq"] for row in found["quarantine"] if row["kind"] == "unverified"]
    assert broken == [9, 10, 11, 12, 13, 14]
    assert len(found["entries"]) == 36


def test_another_history_is_rejected(place: Path) -> None:
    made = filled(place)
    made.load()
    other = place / "other"
    shutil.copytree(made.log.folders.root, other)
    liar = begun_again(made, other)
    liar.say(writes(3, 500))
    made.log.say(writes(3, 600))
    made.load()
    with pytest.raises(Unverified, match="differs from the log in the tables"):
        load(made.tables, select(other), made.keys)


def begun_again(made: Place, other: Path) -> SealedLog:
    copied = made.log.copied(other.parent / "copied")
    shutil.rmtree(other)
    shutil.move(other.parent / "copied", other)
    copied._open(other)
    assert isinstance(copied, SealedLog)
    return copied


def test_a_log_that_ends_before_the_tables_is_rejected(place: Path) -> None:
    made = filled(place)
    older = place / "older"
    shutil.copytree(made.log.folders.root, older)
    made.log.say(writes(1))
    made.load()
    with pytest.raises(Unavailable, match="ends before entry 23, which the tables have"):
        load(made.tables, select(older), made.keys)


def test_two_copies_of_a_log_are_one_log(place: Path) -> None:
    made = filled(place)
    shutil.copytree(made.log.folders.root, place / "copy")
    load(made.tables, select([place / "copy", made.log.folders.root]), made.keys)
    assert len(contents(made.tables.root, Table.ENTRIES)) == 42


def test_labels_without_a_known_stream_are_named_by_their_hex(place: Path) -> None:
    log = BigLog(place / "hub", streams=1)
    log.grow(3)
    load(Tables(place / "tables"), select(place / "hub"), Keys())
    assert places(contents(place / "tables", Table.QUARANTINE)) == [(log.labels[0].hex(), n) for n in (1, 2, 3)]


def test_after_a_crash_in_a_commit_the_next_run_gives_the_same_tables(place: Path) -> None:
    made = filled(place)
    load(Tables(place / "whole"), made.selection, made.keys)
    whole, died = everything(place / "whole"), 0
    for calls in range(40):
        shutil.rmtree(made.tables.root, ignore_errors=True)
        dying = Tables(made.tables.root, DyingDisk(calls))
        try:
            load(dying, made.selection, made.keys)
            break
        except KeyboardInterrupt:
            died += 1
        made.load()
        assert everything(made.tables.root) == whole
        assert made.load().commits == 0
    assert died > 8


def test_the_commit_of_a_killed_writer_is_finished_by_the_next(place: Path) -> None:
    made = filled(place)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from veen.pipeline import select\n"
        "from veen.pipeline.decoding import Keys\n"
        "from veen.pipeline.tables import Tables, load\n"
        "class Kill(Tables):\n"
        "    def _finish(self):\n"
        "        intent = (self.own / 'pending.json').read_bytes()\n"
        "        if len(list((self.own / 'commits').iterdir())) == 0:\n"
        "            os.kill(os.getpid(), 9)\n"
        "        super()._finish()\n"
        "load(Kill(Path(sys.argv[1])), select(sys.argv[2]), Keys(tuple(sys.argv[3:])))\n"
    )
    command = [sys.executable, "-c", code, str(made.tables.root), str(made.log.folders.root), *made.keys.references]
    assert subprocess.run(command, check=False, env=dict(os.environ)).returncode == -9
    assert not (made.tables.root / "entries").exists()
    assert made.load().entries == 0  # the intent was written, so this run finished the commit
    assert len(contents(made.tables.root, Table.ENTRIES)) == 42


def test_a_second_writer_is_busy(place: Path) -> None:
    made = filled(place)
    with made.tables.writing(), pytest.raises(Unavailable, match="in use by process"):
        made.load()


def test_missing_tables_give_a_hint_how_to_create_them(place: Path) -> None:
    with pytest.raises(Unavailable, match="create them with veen pipeline run"):
        Tables(place / "none").view()


def test_a_missing_commit_is_noticed(place: Path) -> None:
    made = filled(place)
    for count in (1, 2, 3):
        made.log.say(writes(count))
        made.load()
    (made.tables.own / "commits" / "00000002.json").unlink()
    with pytest.raises(Exception, match="commit 2 is missing"):
        made.tables.view()


@pytest.mark.parametrize("url", ["s3://bucket/tables", "gs://b", "file:///tmp/tables", "hdfs://host:9000/x", "s3://"])
def test_a_url_for_tables_is_rejected_and_nothing_is_created(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (Path(url), Path(".") / url):
        with pytest.raises(Malformed, match="URLs are not supported") as raised:
            Tables(given)
        assert str(raised.value).startswith(f"{url}: ")
        assert raised.value.__notes__
    assert list(tmp_path.iterdir()) == []
    assert Tables(tmp_path / "a:b" / "c:").exist is False


def test_a_log_that_lost_its_end_is_not_loaded_as_complete(place: Path) -> None:
    made = begun(place, streams=(DOORS,))
    made.log.say(writes(9))
    for path in made.log.folders.log.glob("*-open.log"):
        path.unlink()
    with pytest.raises(Unverified, match="missing at the end of the label"):
        made.load()
