"""`veen pipeline`: tables from a hub or a data directory. Spark starts only if there is work."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from tests.cli.hub_fixture import EPOCHS, STREAM, HubFixture, hub_fixture
from tests.cli.runner import Ran, Veen
from tests.cli.terminal import run_on_terminal
from veen.core import naming

NO_SPARK = {"VEEN_SPARK_MASTER": "nonsense://nowhere"}  # starting Spark fails


@pytest.fixture
def place(veen: Veen, tmp_path: Path) -> Iterator[HubFixture]:
    with hub_fixture(veen, tmp_path) as found:
        fill(found)
        yield found


@pytest.fixture
def stopped(veen: Veen, tmp_path: Path) -> HubFixture:
    """The same after the hub has stopped, so its directory is complete."""
    with hub_fixture(veen, tmp_path) as found:
        fill(found)
    return found


def fill(place: HubFixture) -> None:
    for number in range(4):
        place.does("reader", "kv", "put", f"key {number % 2}", str(number))
    place.does("writer", "send", "--body", "no event")


def run(place: HubFixture, source: object, *more: object, who: str = "reader") -> Ran:
    arguments = ("pipeline", "run", source, "--out", place.root / "tables", "--client", place.root / who, *more)
    return place.veen(*arguments, env=NO_SPARK)


def test_tables_from_a_hub_record_the_log_they_were_made_from(place: HubFixture) -> None:
    done = run(place, place.url, "--processes", 1, "--json")
    assert done.status == 0, done.err
    found = done.json()
    assert (found["entries"], found["events"], found["quarantined"], found["commits"]) == (5, 4, 1, 1)
    (span,) = found["stands_for"]
    assert (span["stream"], span["upto_seq"], span["hub_id"]) == (STREAM, 5, place.hub_id)
    place.does("reader", "kv", "put", "key 1", "later")
    again = run(place, place.url, "--stream", STREAM, "--processes", 1, "--json").json()
    assert (again["entries"], again["stands_for"][0]["upto_seq"]) == (1, 6)
    shown = place.veen.done("pipeline", "status", place.root / "tables", "--json").json()
    (log,) = shown["stands_for"]
    assert (log["entries"], log["events"], log["quarantine"], log["mmr_root"]) == (
        6,
        5,
        1,
        again["stands_for"][0]["mmr_root"],
    )
    assert shown["commits"] == 3  # the last commit merged two files


def test_tables_can_be_made_from_a_data_directory(stopped: HubFixture) -> None:
    found = run(stopped, stopped.root / "hub", "--processes", 1, "--json").json()
    assert (found["entries"], found["events"], found["quarantined"]) == (5, 4, 1)


def test_without_work_spark_is_not_started(place: HubFixture) -> None:
    run(place, place.url, "--processes", 1)
    done = run(place, place.url)
    assert (done.status, done.facts()["entries"]) == (0, "0")


def test_a_stream_is_folded_and_its_state_is_that_of_the_state_commands(place: HubFixture) -> None:
    done = run(place, place.url, "--processes", 1, "--fold", "kv", "--json").json()
    (state,) = done["state"]
    states = place.veen.done("pipeline", "status", place.root / "tables", "--json").json()["state"]
    assert states == [{"stream": STREAM, "overlay": "kv", "upto_seq": 5, "parts": 2, "state_hash": state["state_hash"]}]
    shown = place.does("reader", "fold", "--overlay", "kv", "--json").json()
    assert shown["state_hash"] == state["state_hash"]


def test_verify_compares_tables_with_a_hub_and_damage_sets_the_status(place: HubFixture) -> None:
    run(place, place.url, "--processes", 1)
    verify = ("pipeline", "verify", place.root / "tables", "--against")
    sound = place.veen(*verify, place.url, "--json")
    assert (sound.status, sound.json()["verdict"], sound.json()["opened_again"]) == (0, "sound", False), sound.out
    assert place.veen(*verify, place.url, "--client", place.root / "reader", "--json").json()["opened_again"] is True
    path = next((place.root / "tables" / "events").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    damaged = place.veen(*verify, place.url)
    assert damaged.status == 8
    assert "its bytes differ from those committed" in damaged.out


def test_tables_of_another_hub_are_not_matched(place: HubFixture, veen: Veen, tmp_path: Path) -> None:
    run(place, place.url, "--processes", 1)
    veen.done("hub", "init", "--data-dir", tmp_path / "other", "--no-root")
    found = veen("pipeline", "verify", place.root / "tables", "--against", tmp_path / "other", "--json")
    assert (found.status, len(found.json()["unmatched"])) == (8, 1)


def test_small_files_are_merged_by_run_and_by_compact(place: HubFixture) -> None:
    tables = place.root / "tables"
    for number in range(2):
        place.does("reader", "kv", "put", "key", str(number))
        run(place, place.url, "--processes", 1)
    done = place.veen.done("pipeline", "compact", tables, "--processes", 1, "--json").json()
    assert done == {"files_before": 5, "files_after": 3}
    for number in range(2):
        place.does("reader", "kv", "put", "key", str(number))
        run(place, place.url, "--processes", 1)
    assert place.veen.done("pipeline", "status", tables, "--json").json()["files"] == 3
    assert place.veen("pipeline", "verify", place.root / "tables", "--against", place.url).status == 0


def _check_unknown_stream(place: HubFixture, source: object) -> None:
    typo = STREAM[:-1]
    failed = run(place, source, "--stream", typo, "--processes", 1)
    assert (failed.status, f"stream {typo} has no entries in" in failed.error) == (6, True), failed.err
    assert f"did you mean stream {STREAM}" in failed.err
    both = run(place, source, "--stream", STREAM, "--stream", typo, "--processes", 1)
    assert (both.status, f"stream {typo} has no entries in" in both.error) == (6, True), both.err
    assert not list((place.root / "tables").rglob("*.parquet"))  # nothing was loaded before the error


def test_a_stream_that_no_hub_has_is_an_error_that_names_similar_ones(place: HubFixture) -> None:
    _check_unknown_stream(place, place.url)
    assert run(place, place.url, "--stream", STREAM, "--processes", 1).facts()["entries"] == "5"
    assert run(place, place.url, "--stream", STREAM, "--processes", 1).facts()["entries"] == "0"


def test_a_stream_that_no_directory_has_is_an_error_that_names_similar_ones(stopped: HubFixture) -> None:
    _check_unknown_stream(stopped, stopped.root / "hub")
    assert run(stopped, stopped.root / "hub", "--stream", STREAM, "--processes", 1).facts()["entries"] == "5"


def test_a_pin_names_the_expected_hub(stopped: HubFixture) -> None:
    place = stopped
    assert run(place, place.root / "hub", "--pin", place.hub_id, "--processes", 1).status == 0
    assert "not the hub that was entered" in run(place, place.root / "hub", "--pin", "00" * 32, "--processes", 1).error


def test_invalid_options_are_rejected(stopped: HubFixture, tmp_path: Path) -> None:
    place, veen = stopped, stopped.veen
    for command in (("status", tmp_path / "none"), ("compact", tmp_path / "none")):
        assert "there are no tables in" in veen("pipeline", *command).error
    assert not (tmp_path / "none").exists()
    assert (
        "cannot be used with Spark options"
        in run(place, place.root / "hub", "--processes", 1, "--master", "local[1]").error
    )
    assert (
        "pipeline stream needs Spark"
        in veen("pipeline", "stream", "hub", "--out", tmp_path / "t", "--processes", 1).error
    )
    assert run(place, tmp_path / "nowhere", "--processes", 1).status == 6
    assert "no overlay of class nobody" in run(place, place.root / "hub", "--processes", 1, "--fold", "nobody").error
    (tmp_path / "key").write_bytes(b"x")
    (tmp_path / "key").chmod(0o600)
    assert (
        "neither a client directory nor a reader key" in run(place, place.root / "hub", "--key", tmp_path / "key").error
    )
    (tmp_path / "key").chmod(0o644)
    assert "accessible to others" in run(place, place.root / "hub", "--key", tmp_path / "key").error


def test_epochs_are_found_in_a_directory_and_at_a_hub(veen: Veen, tmp_path: Path) -> None:
    with hub_fixture(veen, tmp_path, profile=EPOCHS) as place:
        place.hub.register(naming.stream_id(STREAM))
        fill(place)
        found = run(place, place.url, "--processes", 1, "--json").json()
        assert (found["entries"], found["stands_for"][0]["stream"]) == (5, STREAM)
    for stream in ((), ("--stream", STREAM)):
        out = ("--out", tmp_path / f"from directory {len(stream)}")
        command = (
            "pipeline",
            "run",
            tmp_path / "hub",
            *out,
            "--client",
            tmp_path / "reader",
            "--processes",
            1,
            "--json",
        )
        spans = veen.done(*command, *stream).json()["stands_for"]
        assert [(one["stream"], one["epoch"]) for one in spans if one["stream"] == STREAM] == [(STREAM, 1)]


def test_streams_without_a_key_are_named_and_not_reported_as_damaged(place: HubFixture) -> None:
    run(place, place.url, "--processes", 1)
    place.veen.done("keygen", "--out", place.root / "keyless", "--no-passphrase")
    verify = ("pipeline", "verify", place.root / "tables", "--against", place.url, "--client", place.root / "keyless")
    ran = place.veen(*verify)
    assert (ran.status, ran.facts()["verdict"], ran.facts()["opened_again"]) == (0, "sound", "no"), ran.out
    assert f"no given key opens {STREAM}" in ran.err
    found = place.veen(*verify, "--json").json()
    assert [one["stream"] for one in found["unopened"]] == [STREAM]


def test_status_fits_a_terminal_and_a_pipe_has_whole_hashes(stopped: HubFixture) -> None:
    run(stopped, stopped.root / "hub", "--processes", 1, "--fold", "kv")
    found = stopped.veen.done("pipeline", "status", stopped.root / "tables", "--json").json()
    hashes = found["stands_for"][0]["mmr_root"], found["state"][0]["state_hash"]
    assert all(len(one) == 64 for one in hashes)
    assert all(one in stopped.veen.done("pipeline", "status", stopped.root / "tables").out for one in hashes)
    _, screen = run_on_terminal(stopped.veen, ("pipeline", "status", stopped.root / "tables"))
    assert all(f"{one[:12]}…" in screen for one in hashes)
    assert len(screen.splitlines()) == 4


def test_help_says_what_is_faster_for_a_small_log(veen: Veen) -> None:
    assert "--processes is faster for a small log" in " ".join(veen.done("pipeline", "run", "--help").out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("pipeline", "run", "hub", "--out", "s3://bucket/tables", "--processes", "1"),
        ("pipeline", "stream", "hub", "--out", "s3://bucket/tables"),
        ("pipeline", "compact", "s3://bucket/tables"),
        ("pipeline", "status", "s3://bucket/tables"),
        ("pipeline", "verify", "s3://bucket/tables", "--against", "hub"),
        ("query", "replay", "q-1", "--tables", "s3://bucket/tables", "--client", "reader"),
        ("query", "result", "r-1", "--out", "s3://bucket/rows.parquet", "--service", "http://127.0.0.1:1"),
        ("audit", "run", "hub", "--out", "s3://bucket/audited"),
    ],
)
def test_a_url_as_output_is_rejected_before_anything_is_created(
    veen: Veen, tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    done = veen(*arguments, env=NO_SPARK)
    assert done.status != 0
    assert "s3://bucket/" in done.err
    assert "URLs are not supported" in done.err
    assert "Traceback" not in done.err
    assert sorted(tmp_path.iterdir()) == before
