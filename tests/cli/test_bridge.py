"""`veen bridge` between two zones."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.bridge_fixture import EXPORT, IMPORT, PEOPLE, Zones, zones
from tests.cli.runner import Ran, Veen
from veen.cli.app import bridge_main
from veen.cli.kit.exit_status import FAILED_STATUS
from veen.client import ClientDir
from veen.hub.admission_rules import Admission


class Operators:
    """The operators of both zones at the command line."""

    def __init__(self, veen: Veen, at: Zones) -> None:
        self.veen = veen
        self.at = at
        for person in PEOPLE:
            at.folders[person].close()

    def of(self, person: str, hub: str) -> tuple[object, ...]:
        where = self.at.online if hub == "online" else self.at.offline
        return "--client", self.at.root / person, "--hub", f"http://127.0.0.1:{where.port}", "--pin", where.data_dir

    def produce(self, *bodies: str) -> None:
        for body in bodies:
            self.veen.done("send", "--stream", EXPORT, "--body", body, *self.of("producer", "online"))

    def export(self, *options: object) -> Ran:
        return self.veen.done(
            "bridge", "export", EXPORT, "--out", self.at.drop, *options, *self.of("exporter", "online")
        )

    def take(self, *files: object) -> Ran:
        return self.veen("bridge", "import", *files, *self.trust, *self.of("importer", "offline"))

    def reconcile(self, *options: object) -> Ran:
        return self.veen("bridge", "reconcile", *options, *self.of("analyst", "offline"))

    @property
    def trust(self) -> tuple[object, ...]:
        return "--trust", self.at.source_id.hex()

    @property
    def bundles(self) -> list[Path]:
        return sorted(self.at.drop.glob("*.bundle"))


@pytest.fixture
def operators(veen: Veen, tmp_path: Path) -> Iterator[Operators]:
    with zones(tmp_path) as at:
        yield Operators(veen, at)


def test_events_go_from_zone_to_zone_and_both_agree(operators: Operators) -> None:
    operators.produce("one", "two", "three")
    made = operators.export("--max-events", 2, "--json").json()
    assert [(one["export_seq_from"], one["export_seq_to"]) for one in made] == [(1, 2), (3, 3)]
    for one in made:
        shown = operators.veen.done("bridge", "verify", one["file"], *operators.trust, "--json").json()
        assert (shown["bundle_id"], shown["verified"]) == (one["bundle_id"], True)
    ran = operators.take(*(one["file"] for one in made), "--json")
    assert ran.status == 0, ran.err
    assert [(one["result"], one["written"]) for one in ran.json()] == [("success", 2), ("success", 1)]
    bodies = operators.veen.done("stream", "--stream", IMPORT, "--json", *operators.of("analyst", "offline"))
    assert [bytes.fromhex(json.loads(line)["body"]).decode() for line in bodies.out.splitlines()] == [
        "one",
        "two",
        "three",
    ]
    source = (
        "--source-hub",
        f"http://127.0.0.1:{operators.at.online.port}",
        "--source-pin",
        operators.at.source_id.hex(),
    )
    for options in (("--bundles", operators.at.drop, *operators.trust), source):
        ran = operators.reconcile(*options, "--json")
        assert ran.status == 0, ran.err
        assert ran.json()["clean"] is True
        assert ran.json()["regions"][0]["consistent_upto_seq"] == 3
    offline = ("--data-dir", operators.at.offline.data_dir, "--client", operators.at.root / "analyst")
    copies = ("--source-data-dir", operators.at.online.data_dir, *offline)
    assert operators.veen.done("bridge", "reconcile", *copies, "--json").json()["clean"] is True


def test_a_changed_bundle_is_refused_recorded_and_reported_as_missing(operators: Operators) -> None:
    operators.produce("one")
    operators.export()
    (file,) = operators.bundles
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    bad = operators.at.root / "bad.bundle"
    bad.write_bytes(data)
    refused = operators.veen("bridge", "verify", bad, *operators.trust)
    assert refused.status in (3, 4)
    assert str(bad) in refused.error
    ran = operators.take(bad, "--json")
    assert ran.status == 4
    assert ran.json()[0]["error_code"] == "bundle_id"
    ran = operators.reconcile("--bundles", operators.at.drop, *operators.trust, "--json")
    assert ran.status == FAILED_STATUS
    assert [one["bundle_id"] for one in ran.json()["missing"]] == [file.stem]
    shown = operators.reconcile("--bundles", operators.at.drop, *operators.trust)
    assert "missing" in shown.out
    assert "gaps" in shown.out


def test_bundles_are_verified_in_order_until_the_first_failure(operators: Operators) -> None:
    operators.produce("one", "two")
    operators.export("--max-events", 1)
    first, second = operators.bundles
    ran = operators.veen.done("bridge", "verify", first, second, *operators.trust, "--json")
    assert [json.loads(line)["file"] for line in ran.out.splitlines()] == [str(first), str(second)]
    for junk in (b"", b"junk"):
        second.write_bytes(junk)
        ran = operators.veen("bridge", "verify", first, second, *operators.trust)
        assert (ran.status, str(second) in ran.error) == (3, True)
        assert "evidence" not in ran.err
        assert ran.out.startswith(f"file\t{first}\n")


def test_a_bundle_that_was_imported_before_is_known_and_not_a_failure(operators: Operators) -> None:
    operators.produce("one")
    operators.export()
    (file,) = operators.bundles
    assert operators.take(file).out.split("\t")[1] == "success"
    again = operators.take(file)
    assert (again.status, again.out.split("\t")[1]) == (0, "known")
    assert operators.take(file, "--json").json()[0]["ok"] is True


def test_bundles_in_a_watched_folder_are_imported_and_moved(operators: Operators) -> None:
    operators.produce("one", "two", "three")
    operators.export("--max-events", 1)
    names = [path.name for path in operators.bundles]
    (operators.at.drop / "junk.bundle").write_bytes(b"junk")
    watch = ("bridge", "watch", operators.at.drop, *operators.trust, "--once", *operators.of("importer", "offline"))
    ran = operators.veen(*watch, "--json")
    assert ran.status == 4
    assert [one["result"] for one in ran.json()] == ["success", "success", "success", "failure"]
    assert sorted(path.name for path in (operators.at.drop / "imported").iterdir()) == names
    assert [path.name for path in (operators.at.drop / "refused").iterdir()] == ["junk.bundle"]
    assert operators.bundles == []
    bodies = operators.veen.done("stream", "--stream", IMPORT, "--json", *operators.of("analyst", "offline"))
    assert [bytes.fromhex(json.loads(line)["body"]).decode() for line in bodies.out.splitlines()] == [
        "one",
        "two",
        "three",
    ]
    assert operators.veen.done(*watch, "--json").json() == []


def test_a_bundle_can_be_printed_and_scanned(operators: Operators) -> None:
    operators.produce("one")
    operators.export()
    (file,) = operators.bundles
    codes = operators.at.root / "codes"
    codes.mkdir()
    printed = operators.veen.done("bridge", "print", file, "--out", codes, "--json").json()
    images = [one["image"] for one in printed]
    again = operators.at.root / "again.bundle"
    missing = operators.veen("bridge", "scan", *images[1:], "--out", again)
    assert missing.status == 3
    assert "missing: 1" in missing.error
    assert "hint: scan the named parts again" in missing.err
    assert not again.exists()
    operators.veen.done("bridge", "scan", *reversed(images), "--out", again)
    assert again.read_bytes() == file.read_bytes()
    assert operators.take(again).status == 0


def test_a_lost_bundle_can_be_exported_again_with_the_same_bytes(operators: Operators) -> None:
    operators.produce("one", "two")
    operators.export()
    (file,) = operators.bundles
    data = file.read_bytes()
    file.unlink()
    assert operators.export("--json").json() == []
    operators.export("--from", 1, "--to", 2)
    assert operators.bundles == [file]
    assert file.read_bytes() == data


def test_a_client_with_keys_of_both_zones_is_rejected(operators: Operators) -> None:
    operators.produce("one")
    both = operators.veen("bridge", "export", EXPORT, "--out", operators.at.drop, *operators.of("producer", "online"))
    assert both.status == 5
    assert "may not hold a capability" in both.error
    operators.export()
    reads = operators.veen(
        "bridge", "import", *operators.bundles, *operators.trust, *operators.of("analyst", "offline")
    )
    assert reads.status == 5
    assert "may not hold the reader key" in reads.error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", EXPORT, "--out", "nowhere"), "no folder"),
        (("export", EXPORT, "--out", ".", "--from", 1), "must be given together"),
        (("export", EXPORT, "--out", ".", "--max-events", 100_000), "bundle"),
        (("reconcile",), "exactly one source"),
        (("reconcile", "--bundles", "."), "trusted"),
        (("import", "x.bundle", "--trust", "zz"), "zz"),
        (("import", "x.bundle", "--trust", "00" * 32, "--exclude", "all"), "all"),
        (("import", "x.bundle", "--trust", "00" * 32, "--map", "export"), "FROM=TO"),
    ],
)
def test_invalid_options_are_rejected(veen: Veen, arguments: tuple[object, ...], message: str) -> None:
    ran = veen("bridge", *arguments)
    assert ran.status in (2, 6)
    assert message in ran.error or message in ran.err


def test_selftest_airgap_starts_two_hubs_and_passes(veen: Veen) -> None:
    report = veen.done("selftest", "airgap", "--count", 3, "--seed", 7, "--json").json()
    assert (report["ok"], report["counts"]) == (True, {"pass": 6, "fail": 0, "skip": 0})
    assert veen("selftest", "airgap", "--hub", "http://127.0.0.1:1").status == 2
    assert veen("selftest", "core", "--hub2", "http://127.0.0.1:1").status == 2


def test_a_stream_is_mirrored_and_compared(veen: Veen, tmp_path: Path) -> None:
    with zones(tmp_path, admission=Admission.OPEN) as at, ClientDir.create(tmp_path / "keeper", None, 1) as keeper:
        keeper.stream_keys.create("news")
        keeper.close()
        urls = [f"http://127.0.0.1:{hub.port}" for hub in (at.online, at.offline)]
        mine = ("--client", tmp_path / "keeper")
        here = (*mine, "--hub", urls[1], "--pin", at.offline.data_dir)
        there = ("--source-hub", urls[0], "--source-pin", at.online.data_dir)
        veen.done("send", "--stream", "news", "--body", "a", *mine, "--hub", urls[0], "--pin", at.online.data_dir)
        missing = veen("bridge", "compare", "news", *there, *here, "--json")
        assert missing.status == FAILED_STATUS
        assert [one["what"] for one in missing.json()[0]["differences"]] == ["missing"]
        done = veen.done("bridge", "mirror", "news", *there, *here, "--json").json()
        assert [(one["stream_seq"], one["copy_seq"], one["record_seq"]) for one in done] == [(1, 1, 2)]
        assert veen.done("bridge", "mirror", "news", *there, *here, "--json").json() == []
        assert veen.done("bridge", "compare", "news", *there, *here, "--json").json()[0]["clean"] is True
        assert veen.done("bridge", "compare", "news", *there, *here).out.startswith("same\t")
        itself = veen("bridge", "mirror", "news", "--source-hub", urls[1], *here)
        assert itself.status == 2
        assert "same hub" in itself.error
        unknown = veen("bridge", "mirror", "news", "--source-hub", "http://127.0.0.1:1", *here)
        assert unknown.status == 2
        assert "is not known to this client yet" in unknown.error


def test_the_container_entry_point_runs_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["veen-bridge", "verify", "--help"])
    with pytest.raises(SystemExit) as ended:
        bridge_main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("veen bridge verify: ")
