"""`veen hub upgrade` on a data directory of an earlier version, and the client that sent what it has."""

import tarfile
from pathlib import Path

from tests.cli.runner import Veen
from tests.cli.test_hub_lifecycle import background
from tests.storage.test_upgrade import ARCHIVE, ENTRIES, STREAM


def test_a_directory_and_a_client_of_an_earlier_version_go_on_after_the_upgrade(veen: Veen, tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    data_dir, alice = tmp_path / "hub", tmp_path / "alice"
    for path in (alice, *alice.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)  # the archive does not keep it
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file() and path.name != "lock"}
    planned = veen.done("hub", "upgrade", "--data-dir", data_dir, "--check", "--json").json()
    assert (planned["format"], planned["present_format"], planned["entries"]) == (1, 2, ENTRIES)
    assert {path: path.read_bytes() for path in before} == before
    done = veen.done("hub", "upgrade", "--data-dir", data_dir, "--json").json()
    assert done["steps"] == planned["steps"]
    again = veen.done("hub", "upgrade", "--data-dir", data_dir, "--check", "--json").json()
    assert (again["format"], "steps" in again) == (2, False)
    veen.done("fsck", data_dir)
    with background(veen, data_dir, "--admission", "open") as shown:
        given = ("--hub", shown["url"], "--client", alice, "--stream", STREAM, "--pin", data_dir)
        read = veen.done("verify", *given, "--json").json()
        assert (read["entries"], read["opened"]) == (ENTRIES, ENTRIES)
        refused = veen("hub", "upgrade", "--data-dir", data_dir)
        assert refused.status == 6
        assert "veen hub stop" in refused.err
        sent = veen.done("send", *given, "--body", "after the upgrade", "--json").json()
        assert sent["stream_seq"] == ENTRIES + 1
        assert veen.done("verify", *given, "--json").json()["opened"] == ENTRIES + 1
