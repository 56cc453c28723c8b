"""Connections of strangers do not use up the files that the log needs."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from plumbing.http import HttpSettings
from tests.hub.client import make_dir
from veen.hub.config import RESERVED_FILES, HubConfig, fit_connections, hard_file_limit

CONFIG = HubConfig(Path("data"), http=HttpSettings(max_connections=1000))


@pytest.mark.parametrize("files", [None, RESERVED_FILES + 1125, RESERVED_FILES + 1126, 1 << 20])
def test_with_enough_files_a_hub_allows_the_configured_connections(files: int | None) -> None:
    assert fit_connections(CONFIG, files) is CONFIG


@pytest.mark.parametrize(
    ("files", "most"), [(RESERVED_FILES + 1124, 999), (RESERVED_FILES + 2, 1), (RESERVED_FILES, 1), (3, 1)]
)
def test_with_fewer_it_takes_fewer_and_nothing_else_changes(files: int, most: int) -> None:
    assert fit_connections(CONFIG, files) == replace(CONFIG, http=replace(CONFIG.http, max_connections=most))


@pytest.mark.parametrize("files", [*range(RESERVED_FILES + 2, RESERVED_FILES + 40), 1024, 1151, 1152, 1252, 1253, 4096])
def test_connections_and_uploads_leave_the_reserved_files(files: int) -> None:
    """Each upload has a connection and a draft open."""
    fitted = fit_connections(CONFIG, files)
    assert fitted.http.max_connections + fitted.max_uploads() + RESERVED_FILES <= files


def test_what_is_allowed_is_the_hard_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert hard_file_limit() == (None if hard == resource.RLIM_INFINITY else hard)


def started(data_dir: Path, soft: int, hard: int) -> tuple[str, dict[str, object], str]:
    """Start and stop a hub under these limits; returns its limits, its first log line, and its output."""
    program = (
        "import resource, sys; from veen.cli.__main__ import main; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); main()"
    )
    reader, writer = os.pipe()
    options = ["--listen", "127.0.0.1:0", "--admission", "open", "--workers", "0", "--ready-fd", str(writer)]
    command = [sys.executable, "-c", program, "hub", "start", "--data-dir", str(data_dir), "--foreground", *options]
    with subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.PIPE, text=True) as hub:
        os.close(writer)
        with open(reader) as ready:
            assert ready.read().startswith("http://")
        limits = Path(f"/proc/{hub.pid}/limits").read_text()
        hub.terminate()
        said = hub.communicate()[1].splitlines()
    found = next(line for line in limits.splitlines() if line.startswith("Max open files"))
    return found.split()[3], json.loads(said[0]), "\n".join(said)


def test_a_hub_asks_for_all_the_files_it_may_have(tmp_path: Path) -> None:
    soft, first, _ = started(make_dir(tmp_path), 512, 2000)
    assert (soft, first["event"]) == ("2000", "started")


def test_a_hub_that_may_have_few_says_how_many_connections_that_leaves(tmp_path: Path) -> None:
    soft, first, _ = started(make_dir(tmp_path), 256, 512)
    assert soft == "512"
    assert (first["level"], first["event"]) == ("warn", "few_open_files")
    assert (first["allowed"], first["connections"], first["wanted"]) == (512, (512 - RESERVED_FILES) * 8 // 9, 1024)
