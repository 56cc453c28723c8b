"""`python -m veen.hub` says what is wrong in one line and a hint, and never with a traceback."""

import socket
from pathlib import Path

import pytest

from veen.hub.__main__ import main


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    assert main(["init", "--data-dir", str(tmp_path / "hub")]) == 0
    return tmp_path / "hub"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What it says on its way out."""
    assert main(list(arguments)) == 1
    error = capsys.readouterr().err
    assert "veen: error: " in error
    assert "veen: hint: " in error
    return error


def test_a_folder_that_has_something_in_it_is_left_alone(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not empty" in said(capsys, "init", "--data-dir", str(data_dir))


def test_a_folder_that_is_no_hub_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a hub's data directory" in said(capsys, "start", "--data-dir", str(tmp_path / "none"))


def test_a_port_that_is_taken_is_named(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["start", "--data-dir", str(data_dir), "--listen", where, "--workers", "0"]
        assert f"cannot listen on {where}" in said(capsys, *arguments)


@pytest.mark.parametrize(
    "option", [["--listen", "nowhere"], ["--listen", ":1"], ["--issuer", "zz"], ["--witness", "00"]]
)
def test_an_option_that_makes_no_sense_is_a_usage_error(data_dir: Path, option: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["start", "--data-dir", str(data_dir), *option])
    assert caught.value.code == 2
