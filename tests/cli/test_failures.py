"""Error messages, hints and exit statuses for every error class."""

import errno
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import veen as package
from plumbing.cli.command import Misuse
from tests.cli.runner import Veen
from veen.cli.kit import exit_status
from veen.core import Malformed, Refused, Unavailable, Unverified, VeenError
from veen.core.admission import ADMISSION, API_STATUS, AdmissionRow
from veen.storage.journal import JournalBroken


def descendants(kind: type[Exception]) -> set[type[Exception]]:
    return {found for child in kind.__subclasses__() for found in {child, *descendants(child)}}


def every_error() -> list[type[Exception]]:
    """The whole error tree. Every module is imported first, so no class is missing."""
    for module in pkgutil.walk_packages(package.__path__, "veen."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:
            # A package of an optional extra may be missing, a module of ours may not.
            if str(missing.name).startswith("veen"):
                raise
    return sorted((kind for kind in descendants(VeenError)), key=lambda kind: kind.__name__)


def test_the_tables_are_total_over_the_error_tree() -> None:
    kinds = every_error()
    assert {Malformed, Unverified, Refused, Unavailable} <= set(kinds)
    for kind in kinds:
        row = next((one for one in kind.__mro__ if one in exit_status.STATUS), None)
        assert row is not None, kind
        assert row in exit_status.HINTS or row is Refused, kind


def test_each_class_has_a_status_of_its_own() -> None:
    ours = [exit_status.STATUS[kind][0] for kind in (Malformed, Unverified, Refused, Unavailable, JournalBroken)]
    assert len(set(ours)) == len(ours)
    taken = {0, 1, 2, 130, 141, exit_status.REPAIRABLE_STATUS, exit_status.DAMAGED_STATUS, exit_status.MISSED_STATUS}
    assert len(taken) == 8
    assert not taken & set(ours)


class Worse(Unverified):
    """A subclass that a client might add."""


CASES: list[tuple[Exception, int, str, list[str]]] = [
    (Malformed("receipt", "no"), 3, "receipt: no", [exit_status.HINTS[Malformed]]),
    (Unavailable("cannot listen on here:1: x"), 6, "cannot listen on here:1: x", [exit_status.LISTEN_HINT]),
    (OSError(errno.EADDRINUSE, "Address already in use"), 6, "address already in use", [exit_status.LISTEN_HINT]),
    (
        OSError(13, "error while attempting to bind on x"),
        6,
        "error while attempting to bind on x",
        [exit_status.LISTEN_HINT],
    ),
    (Unverified("proof", "no"), 4, "proof: no", [exit_status.HINTS[Unverified]]),
    (Worse("proof", "no"), 4, "proof: no", [exit_status.HINTS[Unverified]]),
    (Unavailable("gone"), 6, "gone", [exit_status.HINTS[Unavailable]]),
    (exit_status.hinted(Unavailable("gone"), "a", "b"), 6, "gone", ["a", "b"]),
    (JournalBroken("broken"), 70, "broken", [exit_status.HINTS[JournalBroken]]),
    (Misuse("no", "do"), 2, "no", ["do"]),
    (typer.BadParameter("It is wrong."), 2, "invalid value: it is wrong", ["veen --help shows how it is used"]),
    (
        FileNotFoundError(2, "No such file or directory", "x"),
        6,
        "x: no such file or directory",
        [exit_status.HINTS[OSError]],
    ),
    (PermissionError("Custom"), 6, "custom", [exit_status.HINTS[OSError]]),
]


@pytest.mark.parametrize(("error", "status", "message", "hints"), CASES, ids=lambda case: str(case)[:24])
def test_every_error_is_printed_in_one_format(
    error: Exception, status: int, message: str, hints: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status.report_error(error) == status
    printed = capsys.readouterr()
    assert printed.err == "".join([f"veen: error: {message}\n", *(f"veen: hint: {hint}\n" for hint in hints)])
    assert printed.out == ""


@pytest.mark.parametrize("row", ADMISSION, ids=lambda row: row.detail_enum)
def test_a_refusal_comes_with_the_advice_of_its_row(row: AdmissionRow, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status.report_error(row.refused("why")) == 5
    name = f"{row.code}/{row.detail_enum}"
    assert capsys.readouterr().err == (
        f"veen: error: {name}: why\nveen: hint: {row.advice}\nveen: hint: veen explain {name} describes this error\n"
    )


@pytest.mark.parametrize("code", [*API_STATUS, "E.NEW"])
def test_a_refusal_of_an_endpoint_has_advice_too(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status.report_error(Refused(code, "why")) == 5
    assert len(capsys.readouterr().err.splitlines()) == 3


@pytest.mark.parametrize("mistake", [ValueError("x"), AssertionError(), KeyError("y"), VeenError("bare")])
def test_a_bug_is_not_reported_as_an_error_of_the_user(mistake: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status.report_error(mistake) is None
    assert capsys.readouterr().err == ""


USAGE = [
    (["hbu"], "veen has no command 'hbu'"),
    (["hub", "strat"], "veen hub has no command 'strat'"),
    (["hub", "init"], "missing option '--data-dir'"),
    (["hub", "init", "--data-dri", "x"], "no such option: --data-dri"),
    (["hub", "init", "--data-dir", "x", "more"], "got unexpected extra argument(s) (more)"),
    (["hub", "init", "--data-dir"], "option '--data-dir' requires an argument"),
    (["hub", "init", "--data-dir", "x", "--epoch-sec", "soon"], None),
    (["hub", "init", "--data-dir", "x", "--epoch-sec", "-1"], None),
    (["hub", "init", "--data-dir", "x", "--limit", "a"], "invalid value for '--limit': 'a' is not NAME=NUMBER"),
    (["hub", "start", "--data-dir", "x", "--listen", "y"], "invalid value for '--listen': 'y' is not HOST:PORT"),
    (["hub", "start", "--data-dir", "x", "--admission", "some"], None),
    (["hub", "start", "--data-dir", "x", "--issuer", "zz"], None),
    (["fsck"], "missing argument 'DIR'"),
    (["top", "--interval", "0"], None),
    (["explain", "E.NONE"], "there is no error code 'E.NONE'"),
    (["--nonsense"], "no such option: --nonsense"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE, ids=lambda case: " ".join(case) if case else "any")
def test_usage_errors_are_printed_in_the_same_format(arguments: list[str], message: str | None, veen: Veen) -> None:
    ran = veen(*arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert ran.error == message or (message is None and ran.error.startswith("invalid value for "))
    assert "Value error" not in ran.error


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["hbu"], "veen hub"),
        (["hub", "strat"], "veen hub start"),
        (["hub", "init", "--data-dri", "x"], "--data-dir"),
        (["hub", "top"], "veen top"),
        (["stream-key", "list"], "veen stream-key show"),
    ],
)
def test_a_typo_gets_a_suggestion(arguments: list[str], meant: str, veen: Veen) -> None:
    assert f"veen: hint: did you mean {meant}\n" in veen(*arguments).err


@pytest.mark.parametrize("arguments", [["evidence", "verify"], ["fsck"], ["card"]])
def test_a_missing_file_gets_no_hint_to_retry(arguments: list[str], veen: Veen, tmp_path: Path) -> None:
    ran = veen(*arguments, tmp_path / "nofile")
    assert ran.status == 6
    assert "may work later" not in ran.err


def test_only_path_errors_get_the_hint_about_paths() -> None:
    def hints_for(reason: OSError) -> list[str]:
        try:
            try:
                raise reason
            except OSError:
                raise Unavailable("x") from None
        except Unavailable as error:
            return exit_status.hints(error, Unavailable)

    assert hints_for(FileNotFoundError()) == hints_for(IsADirectoryError()) == [exit_status.HINTS[OSError]]
    assert hints_for(ConnectionRefusedError()) == hints_for(TimeoutError()) == [exit_status.HINTS[Unavailable]]


@pytest.mark.parametrize("kind", [Unavailable, lambda text: Refused("E.UNAVAILABLE", text)])
def test_damage_at_the_hub_gets_a_hint_for_its_operator(kind: Callable[[str], VeenError]) -> None:
    error = kind("stored data of the hub is damaged: entry: no")
    row = exit_status.kind_of(error)
    assert row is not None
    hints = exit_status.hints(error, row)
    assert "veen fsck" in hints[0]
    assert not any("again" in hint or "later" in hint for hint in hints)
