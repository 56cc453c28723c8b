"""The second implementation, in TypeScript: its own tests, its command, and its lock file."""

import json
from pathlib import Path

import pytest

from tests.vectors_files import load
from tests.web.node_project import PROJECT, compiled, run

FILES = load("evidence.json")["files"]


def test_the_tests_of_the_typescript_verifier_pass() -> None:
    compiled()
    tests = sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "build" / "test").glob("*.test.js"))
    done = run("node", "--test", "--test-reporter=tap", *tests)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr


def test_the_lock_file_names_no_registry_and_fixes_every_package() -> None:
    packages = json.loads((PROJECT / "package-lock.json").read_text())["packages"]
    installed = {name: package for name, package in packages.items() if name}
    assert installed
    for name, package in installed.items():
        assert "resolved" not in package, name
        assert package["integrity"].startswith("sha512-"), name


def test_the_verifier_has_only_audited_libraries_and_the_compiler() -> None:
    package = json.loads((PROJECT / "package.json").read_text())
    assert set(package["dependencies"]) == {"@noble/ciphers", "@noble/curves", "@noble/hashes"}
    assert set(package["devDependencies"]) == {"@types/node", "esbuild", "typescript"}


CLI_CASES = {
    name: next(one for one in FILES if one["name"] == name)
    for name in (
        "two entries, disclosed",
        "no hub is named",
        "another hub is named",
        "two messages at one place",
        "a conflict under a retired key",
        "the reader is named",
        "another reader is named",
        "a conflict that a witness dates",
        "a conflict that a key of the hub cosigned",
        "two of three witnesses are required, and cosigned",
        "two of three witnesses are required, and one cosigned",
    )
}


@pytest.mark.parametrize("case", CLI_CASES.values(), ids=CLI_CASES)
def test_the_command_prints_the_verdict_and_exits_as_veen_does(case: dict[str, object], tmp_path: Path) -> None:
    compiled()
    file = tmp_path / "a.evidence"
    file.write_bytes(bytes.fromhex(str(case["cbor"])))
    options = [word for name in ("pin", "reader") if case[name] for word in (f"--{name}", str(case[name]))]
    options += [word for witness in case["witnesses"] for word in ("--witness", witness)]  # type: ignore[attr-defined]
    options += ["--threshold", str(case["threshold"])] if "threshold" in case else []
    done = run("node", "build/src/cli.js", str(file), *options, "--json")
    status = {"holds": 0, "malformed": 3, "unverified": 4, "contradicted": 11}[str(case["outcome"])]
    assert done.returncode == status, done.stdout + done.stderr
    shown = json.loads(done.stdout)
    if "report" in case:
        assert {name: shown[name] for name in case["report"]} == case["report"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((), 2, "give one evidence file"),
        (("a", "b"), 2, "give one evidence file"),
        (("a", "--pin", "12"), 2, "is not 64 hex digits"),
        (("a", "--what"), 2, "usage"),
        (("a", "--threshold", "1"), 2, "from 1 to 0"),
        (("a", "--witness", "11" * 32, "--witness", "11" * 32, "--threshold", "2"), 2, "from 1 to 1"),
        (("a", "--witness", "11" * 32, "--threshold", "0"), 2, "from 1 to 1"),
        (("missing.evidence",), 6, "missing.evidence"),
        (("package.json", "--pin", "00" * 32), 3, ""),
    ],
)
def test_the_command_reports_misuse_and_bad_files(arguments: tuple[str, ...], status: int, says: str) -> None:
    compiled()
    done = run("node", "build/src/cli.js", *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    assert says in done.stderr
