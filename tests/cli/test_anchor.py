"""`veen anchor` with every backend."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.bridge_fixture import Zones, zones
from tests.bridge.tsa_server import authority
from tests.cli.runner import Ran, Veen
from veen.client import ClientDir
from veen.hub.admission_rules import Admission


class Keeper:
    """A client that anchors the stream `news`."""

    def __init__(self, veen: Veen, at: Zones) -> None:
        self.veen = veen
        self.at = at

    def __call__(self, *arguments: object) -> Ran:
        url = f"http://127.0.0.1:{self.at.online.port}"
        options = (
            "--client",
            self.at.root / "keeper",
            "--hub",
            url,
            "--stream",
            "news",
            "--pin",
            self.at.online.data_dir,
        )
        return self.veen(*arguments, *options)

    def send(self) -> None:
        assert self("send", "--body", "x").status == 0

    def publish(self, to: str, *options: object) -> Path:
        ran = self("anchor", "publish", "--to", to, *options, "--json")
        assert ran.status == 0, ran.err
        return Path(ran.json()["file"])

    def verify(self, path: Path, *options: object) -> Ran:
        return self.veen("anchor", "verify", path, "--pin", self.at.source_id.hex(), *options)


@pytest.fixture
def keeper(veen: Veen, tmp_path: Path) -> Iterator[Keeper]:
    with zones(tmp_path, admission=Admission.OPEN) as at:
        with ClientDir.create(tmp_path / "keeper", None, 1) as folder:
            folder.stream_keys.create("news")
            folder.stream_keys.create("anchors")
        found = Keeper(veen, at)
        found.send()
        yield found


def test_an_anchor_in_a_file_verifies_until_the_file_changes(keeper: Keeper, tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = keeper.publish(f"file:{log}")
    assert path.parent == tmp_path / "keeper" / "anchors"
    held = keeper.verify(path, "--file", log, "--json")
    assert held.status == 0, held.err
    assert [(one["kind"], one["upto_seq"], one["verdict"]) for one in held.json()] == [("file", 1, "holds")]
    log.write_bytes(log.read_bytes().replace(b"1 ", b"2 ", 1))
    broken = keeper.verify(path, "--file", log)
    assert broken.status == 4
    assert "line 1" in broken.error


def test_an_anchor_in_git_verifies_only_on_its_branch(keeper: Keeper, tmp_path: Path) -> None:
    repo = tmp_path / "anchors.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(repo)], check=True)
    path = keeper.publish(f"git:{repo}#others")
    assert keeper.verify(path, "--git", f"{repo}#others").status == 0
    assert keeper.verify(path, "--git", repo).status == 4


def test_a_time_stamp_verifies_with_the_root_of_its_authority(keeper: Keeper, tmp_path: Path) -> None:
    (tmp_path / "tsa").mkdir()
    with authority(tmp_path / "tsa") as tsa:
        path = keeper.publish(f"tsa:{tsa.url}", "--tsa-root", tsa.roots)
    assert keeper.verify(path, "--tsa-root", tsa.roots).status == 0
    unknown = keeper.verify(path)
    assert unknown.status == 2
    assert "'tsa'" in unknown.error


def test_an_anchor_at_another_hub_verifies_with_the_pin_of_that_hub(keeper: Keeper) -> None:
    other = keeper.at.target_id.hex()
    path = keeper.publish(f"hub:http://127.0.0.1:{keeper.at.offline.port}", "--anchor-pin", other)
    assert keeper.verify(path, "--anchor-pin", other).status == 0
    assert keeper.verify(path, "--anchor-pin", keeper.at.source_id.hex()).status == 4


def test_run_once_anchors_only_when_enough_entries_are_new(keeper: Keeper, tmp_path: Path) -> None:
    run = ("anchor", "run", "--to", f"file:{tmp_path / 'log'}", "--every-entries", 2, "--once", "--json")
    assert keeper(*run).json() == []
    keeper.send()
    assert [one["upto_seq"] for one in keeper(*run).json()] == [2]
    assert keeper(*run).json() == []
    listed = keeper.veen.done("anchor", "list", "--client", tmp_path / "keeper", "--json").json()
    assert [(one["upto_seq"], one["kind"]) for one in listed] == [(2, "file")]


def test_an_anchor_of_another_hub_than_the_pinned_one_fails(keeper: Keeper, tmp_path: Path) -> None:
    path = keeper.publish(f"file:{tmp_path / 'log'}")
    wrong = keeper.veen("anchor", "verify", path, "--pin", "ab" * 32, "--file", tmp_path / "log")
    assert wrong.status == 4
    assert "not the hub that was entered" in wrong.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("publish", "--to", "nowhere"), "not an anchor target"),
        (("publish", "--to", "chain:x"), "not an anchor target"),
        (("publish", "--to", "tsa:http://x/"), "root"),
        (("publish", "--to", "file:x", "--remote", "origin"), "--remote needs a git target"),
        (("publish", "--to", "hub:not a url/x"), "not a url"),
        (("run", "--to", "file:x"), "missing --every-entries or --every-seconds"),
    ],
)
def test_contradictory_options_are_rejected(veen: Veen, options: tuple[str, ...], message: str) -> None:
    ran = veen("anchor", *options, "--stream", "news", "--hub", "http://127.0.0.1:1", "--client", "x")
    assert ran.status == 2
    assert message in ran.error
