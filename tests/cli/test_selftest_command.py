"""`veen selftest` tries a hub from end to end, and its exit status says whether the hub passed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runner import Veen
from tests.cli.stranger import answering
from tests.cli.town import Town, town
from veen.cli.app import selftest_main
from veen.cli.kit.exit_status import FAILED_STATUS
from veen.hub.admission_rules import Admission
from veen.selftest import SUITES

FEW = ("--count", 3, "--seed", 7)


@pytest.fixture
def place(veen: Veen, tmp_path: Path) -> Iterator[Town]:
    with town(veen, tmp_path, admission=Admission.CAPABILITY) as found:
        yield found


def test_a_hub_is_started_tried_and_removed(veen: Veen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = set(tmp_path.iterdir())
    told = veen.done("selftest", "props", *FEW, "--json").json()
    assert told["ok"] is True
    assert told["counts"]["fail"] == 0
    assert (told["seed"], told["count"]) == (7, 3)
    assert set(tmp_path.iterdir()) == before


def test_a_hub_that_is_named_is_tried_with_the_issuer_it_trusts(place: Town) -> None:
    hub = ["--hub", place.url, "--pin", place.hub_id]
    told = place.veen.done("selftest", "props", *FEW, *hub, "--issuer", place.root / "operator", "--json").json()
    assert told["counts"]["skip"] == 0
    without = place.veen("selftest", "props", *FEW, *hub)
    assert without.status == FAILED_STATUS  # nobody may write, so nothing could be tried
    assert {line.split("\t")[0] for line in without.out.splitlines()[:9]} == {"skip"}


def test_another_hub_than_the_one_that_was_meant_fails(place: Town) -> None:
    ran = place.veen("selftest", "core", *FEW, "--hub", place.url, "--pin", "ab" * 32, "--json")
    assert ran.status == FAILED_STATUS
    assert [one["id"] for one in ran.json()["results"] if one["outcome"] == "fail"]


def test_what_is_no_hub_fails_and_says_how_to_try_the_same_again(veen: Veen) -> None:
    with answering({"/tooling/status": (200, "application/json", json.dumps({"hub_id": "x"}).encode())}) as url:
        ran = veen("selftest", "fuzz", *FEW, "--hub", url)
    assert ran.status == FAILED_STATUS
    assert ran.out.splitlines()[0].startswith("fail\t")
    assert "verdict\tit does not hold" in ran.out
    assert "veen selftest fuzz --seed 7 --count 3" in ran.err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["all", "--hub", "http://127.0.0.1:1"], 6),
        (["everything"], 2),
        ([], 2),
        (["core", "--issuer", "x"], 2),
        (["core", "--pin", "ab" * 32], 2),
        (["core", "--hub", "ftp://x"], 2),
        (["core", "--count", "0"], 2),
        (["core", "--hub", "http://127.0.0.1:1", "--pin", "ab"], 2),
        (["core", "--hub", "http://127.0.0.1:1", "--issuer", "nobody"], 6),
        (["core", "--hub", "http://127.0.0.1:1", "--hub2", "http://127.0.0.1:2"], 2),
        (["airgap", "--hub", "http://127.0.0.1:1"], 2),
        (["airgap", "--hub2", "http://127.0.0.1:1"], 2),
        (["all", "--hub2", "http://127.0.0.1:1"], 2),
        (["all", "--hub", "http://127.0.0.1:1", "--pin2", "ab" * 32], 2),
    ],
)
def test_what_cannot_be_tried_is_said(arguments: list[str], status: int, veen: Veen) -> None:
    ran = veen("selftest", *arguments)
    assert ran.status == status
    assert ran.error


def test_the_alias_of_a_container_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["veen-selftest", "nothing", "--json"])
    with pytest.raises(SystemExit) as ended:
        selftest_main()
    assert ended.value.code == 2
    assert "there is no suite 'nothing'" in capsys.readouterr().err


def test_the_hub_of_a_context_is_not_written_to_by_mistake(place: Town) -> None:
    place.veen.done("context", "add", "daily", "--hub", place.url)
    told = place.veen.done("selftest", "props", *FEW, "--json", env={"VEEN_HUB": place.url}).json()
    assert told["hub"] != place.url
    assert place.hub.status()["entries"] == 0


@pytest.mark.slow
def test_all_is_every_suite_and_the_air_gap_where_there_are_two_hubs(place: Town) -> None:
    every = {*SUITES, "airgap"}
    told = place.veen.done("selftest", "all", *FEW, "--json").json()
    assert {one["suite"] for one in told["results"]} == every
    assert {one["outcome"] for one in told["results"] if one["suite"] in ("airgap", "recorder")} == {"pass"}
    hub = ["--hub", place.url, "--pin", place.hub_id, "--issuer", place.root / "operator"]
    told = place.veen.done("selftest", "all", *FEW, *hub, "--json").json()
    assert {one["suite"] for one in told["results"]} == every
    skipped = [one for one in told["results"] if one["suite"] == "airgap"]
    assert {(one["outcome"], one["reason"]) for one in skipped} == {
        ("skip", "it takes two hubs: name the second with --hub2")
    }
