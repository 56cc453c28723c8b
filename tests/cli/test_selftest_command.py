"""`veen selftest` tests a hub, and its exit status says whether the hub passed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.cli.canned_server import canned_server
from tests.cli.hub_fixture import HubFixture, hub_fixture
from tests.cli.runner import Veen
from tests.hub.client import TOKEN
from tests.selftest.broken_hub import Answer, BrokenHub, Call
from veen.cli.app import selftest_main
from veen.cli.kit.exit_status import FAILED_STATUS
from veen.core import Limits, Profile
from veen.hub.admission_rules import Admission
from veen.selftest import SUITES
from veen.selftest.check import Skipped
from veen.selftest.check_context import CheckContext, HubFacts
from veen.selftest.probe import Probe

FEW = ("--count", 3, "--seed", 7)


@pytest.fixture
def place(veen: Veen, tmp_path: Path) -> Iterator[HubFixture]:
    with hub_fixture(veen, tmp_path, admission=Admission.CAPABILITY) as found:
        yield found


def test_without_a_hub_a_temporary_one_is_started_and_removed(
    veen: Veen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = set(tmp_path.iterdir())
    report = veen.done("selftest", "props", *FEW, "--json").json()
    assert report["ok"] is True
    assert report["counts"]["fail"] == 0
    assert (report["seed"], report["count"]) == (7, 3)
    assert set(tmp_path.iterdir()) == before


def not_passed(veen: Veen, *arguments: object, token: str | None = None) -> set[str]:
    """The checks of `core` that were skipped, or failed."""
    env = {} if token is None else {"VEEN_OPERATOR_TOKEN": token}
    report = veen("selftest", "core", *FEW, *arguments, "--json", env=env).json()
    return {one["id"] for one in report["results"] if one["outcome"] != "pass"}


def test_the_temporary_hub_has_epochs(veen: Veen) -> None:
    assert not_passed(veen) == {"cap.needed"}


def test_an_open_hub_with_epochs_is_tested_with_the_operators_token(veen: Veen, tmp_path: Path) -> None:
    limits = Limits(max_epoch_skew_sec=86_400)
    with hub_fixture(veen, tmp_path, profile=Profile(epoch_sec=86_400), limits=limits) as place:
        epochs = {"epoch.window", "epoch.roll", "refuse.EPOCH", "append.receipt"}
        assert epochs <= not_passed(veen, "--hub", place.url)
        found = not_passed(veen, "--hub", place.url, "--pin", place.hub_id, token=TOKEN)
        assert not epochs & found
        assert {one for one in found if not one.startswith("cap.")} == {
            *(f"refuse.{row}" for row in ("AUTH_REF", "CAP_INVALID", "CAP_RATE", "CAP_TTL")),
        }


def test_the_operators_token_reaches_no_hub_but_the_pinned_one(veen: Veen, tmp_path: Path) -> None:
    limits = Limits(max_epoch_skew_sec=86_400)
    sent: list[str] = []
    with hub_fixture(veen, tmp_path, profile=Profile(epoch_sec=86_400), limits=limits) as place:
        proxy = BrokenHub(place.hub)
        try:
            for is_signed, *pin in ((True,), (True, "--pin", "ab" * 32), (False, "--pin", place.hub_id)):
                proxy.handle = partial(answer_and_note, sent, is_signed)
                assert "append.receipt" in not_passed(veen, "--hub", proxy.url, *pin, token=TOKEN)
            assert sent
            assert not [text for text in sent if TOKEN in text]
            assert place.hub.status()["entries"] == 0
            proxy.handle = partial(answer_and_note, sent, True)
            assert "append.receipt" not in not_passed(veen, "--hub", proxy.url, "--pin", place.hub_id, token=TOKEN)
            assert [text for text in sent if TOKEN in text]
        finally:
            proxy.stop()


def answer_and_note(sent: list[str], is_signed: bool, call: Call) -> Answer:
    """Forward a request and note its headers. Unless `is_signed`, leave the signature out of the hub's status."""
    sent.append(json.dumps(call.headers))
    answer = call.ask()
    if call.path != "/tooling/status" or is_signed:
        return answer
    shown = {name: field for name, field in json.loads(answer.body).items() if name != "identity_sig"}
    return replace(answer, body=json.dumps(shown).encode())


@pytest.mark.parametrize(
    ("url", "may_write"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("https://hub.example", True),
        ("http://hub.example", False),
        ("http://127.0.0.1.hub.example", False),
        ("http://10.0.0.1:1", False),
    ],
)
def test_the_operators_token_is_not_sent_in_plain_text_over_a_network(
    url: str, may_write: bool, veen: Veen, tmp_path: Path
) -> None:
    with hub_fixture(veen, tmp_path, profile=Profile(epoch_sec=86_400)) as place:
        facts = HubFacts.read(place.hub.status())
    probe = Probe(url)
    context = CheckContext(probe, facts, issuer=None, operator=TOKEN, pin=facts.hub_id, seed=1, count=1)
    probe.close()
    assert context.may_write is may_write
    if not may_write:
        with pytest.raises(Skipped, match="only over TLS"):
            context.writer()


def test_a_given_hub_is_tested_with_an_issuer_that_it_trusts(place: HubFixture) -> None:
    hub = ["--hub", place.url, "--pin", place.hub_id]
    report = place.veen.done("selftest", "props", *FEW, *hub, "--issuer", place.root / "operator", "--json").json()
    assert report["counts"]["skip"] == 0
    without = place.veen("selftest", "props", *FEW, *hub)
    assert without.status == FAILED_STATUS  # no client may write, so every check is skipped
    assert {line.split("\t")[0] for line in without.out.splitlines()[:9]} == {"skip"}


def test_a_hub_that_differs_from_the_pin_fails(place: HubFixture) -> None:
    ran = place.veen("selftest", "core", *FEW, "--hub", place.url, "--pin", "ab" * 32, "--json")
    assert ran.status == FAILED_STATUS
    assert [one["id"] for one in ran.json()["results"] if one["outcome"] == "fail"]


def test_a_server_that_is_not_a_hub_fails_and_the_hint_repeats_the_run(veen: Veen) -> None:
    with canned_server({"/tooling/status": (200, "application/json", json.dumps({"hub_id": "x"}).encode())}) as url:
        ran = veen("selftest", "fuzz", *FEW, "--hub", url)
    assert ran.status == FAILED_STATUS
    assert ran.out.splitlines()[0].startswith("fail\t")
    assert "verdict\ta check failed" in ran.out
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
def test_contradictory_options_are_rejected(arguments: list[str], status: int, veen: Veen) -> None:
    ran = veen("selftest", *arguments)
    assert ran.status == status
    assert ran.error


def test_the_container_entry_point_runs_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["veen-selftest", "nothing", "--json"])
    with pytest.raises(SystemExit) as ended:
        selftest_main()
    assert ended.value.code == 2
    assert "there is no suite 'nothing'" in capsys.readouterr().err


def test_the_hub_of_the_context_is_not_tested_by_accident(place: HubFixture) -> None:
    place.veen.done("context", "add", "daily", "--hub", place.url)
    report = place.veen.done("selftest", "props", *FEW, "--json", env={"VEEN_HUB": place.url}).json()
    assert report["hub"] != place.url
    assert place.hub.status()["entries"] == 0


@pytest.mark.slow
def test_all_runs_every_suite_and_skips_airgap_with_one_given_hub(place: HubFixture) -> None:
    every = {*SUITES, "airgap"}
    report = place.veen.done("selftest", "all", *FEW, "--json").json()
    assert {one["suite"] for one in report["results"]} == every
    assert {one["outcome"] for one in report["results"] if one["suite"] in ("airgap", "recorder")} == {"pass"}
    hub = ["--hub", place.url, "--pin", place.hub_id, "--issuer", place.root / "operator"]
    report = place.veen.done("selftest", "all", *FEW, *hub, "--json").json()
    assert {one["suite"] for one in report["results"]} == every
    skipped = [one for one in report["results"] if one["suite"] == "airgap"]
    assert {(one["outcome"], one["reason"]) for one in skipped} == {
        ("skip", "needs two hubs; name the second with --hub2")
    }
