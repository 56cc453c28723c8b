"""The second implementation, in TypeScript: its own tests, its command, and its lock file."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import verifier
from tests.vectors_files import FOLDER, load
from tests.web.node_project import PROJECT, compiled, run
from tests.web.test_differential import asked_of_typescript
from tools.verifier_package import pack
from vectors.evidence_files import OLD, YOUNG, Log, record
from veen.cli.kit import message_content, sanitize
from veen.client.evidence import make_evidence
from veen.client.sender import DEFAULT_SCHEMA
from veen.core import PayloadHdr

FILES = load("evidence.json")["files"]


# Every vector file is in one of these, so that a new one is not forgotten.
VERIFIED = {
    *("captoken", "ciphertext", "ed25519", "evidence", "identity", "known-answers", "malformed", "mmr"),
    *("query-results", "retention", "scenario-a", "scenario-b", "scenario-c", "scenario-d", "statements", "upload"),
}
OUTSIDE = {"bundle", "read"}  # what a bridge imports, and what a hub checks of a request


def test_the_tests_of_the_typescript_verifier_pass_and_read_every_vector_file(tmp_path: Path) -> None:
    compiled()
    names = tmp_path / "read"
    tests = sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "build" / "test").glob("*.test.js"))
    done = run("node", "--test", "--test-reporter=tap", *tests, VECTORS_READ=str(names))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert set(names.read_text().split()) == {f"{name}.json" for name in VERIFIED}


def test_each_vector_file_is_verified_by_the_typescript_verifier_or_stated_to_be_outside_of_it() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == VERIFIED | OUTSIDE
    assert not VERIFIED & OUTSIDE
    for page in (FOLDER / "README.md", PROJECT / "README.md"):
        (stated,) = (one for one in page.read_text().split("\n\n") if "outside of what" in one)
        assert set(re.findall(r"`([\w/-]+)(?:\.json)?`", stated)) == {*OUTSIDE, "overlays/", "veil/", "web/verify"}


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
        for entry in shown["entries"]:
            for name in ("text", "event", "attachments"):
                entry.pop(name, None)
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


# Content


def overlay_bodies() -> Iterator[tuple[bytes, bytes]]:
    for path in sorted((FOLDER / "overlays").glob("*.json")):
        for entry in load(f"overlays/{path.name}").get("entries", ()):
            if entry.get("body") and entry.get("payload_hdr"):
                yield bytes.fromhex(entry["payload_hdr"]["schema"]), bytes.fromhex(entry["body"])


def test_events_have_the_names_and_fields_that_veen_prints() -> None:
    bodies = list(overlay_bodies())
    names = set()
    answers = asked_of_typescript({"schema": schema.hex(), "body": body.hex()} for schema, body in bodies)
    for (schema, body), shown in zip(bodies, answers, strict=True):
        assert (shown["schema"], shown["body"], shown["text"]) == (schema.hex(), body.hex(), sanitize.text_of(body))
        expected: Any = message_content.event_data(schema, body)
        if expected is None or "fault" in expected:
            continue
        assert shown["event"]["name"] == expected["name"]
        mine, theirs = expected["fields"], shown["event"]["fields"]
        if "1" not in theirs:  # the keys of capabilities are integers, whose names only Python knows
            assert mine.keys() == theirs.keys()
            nested = {name for name, value in mine.items() if isinstance(value, list)}  # Python names their fields too
            assert all(theirs[name] == value for name, value in mine.items() if name not in nested)
        names.add(expected["name"])
    assert len(names) > 50


def test_plain_bytes_are_no_event_although_they_are_a_map() -> None:
    question = {"schema": DEFAULT_SCHEMA.hex(), "body": "a16161" + "01"}
    (shown,) = asked_of_typescript([question])
    assert (shown["event"], shown["text"]) == (None, None)


def test_the_command_prints_an_event_with_its_fields(tmp_path: Path) -> None:
    compiled()
    entry = next(one for one in load("overlays/kv.json")["entries"] if one.get("body"))
    header = PayloadHdr(bytes.fromhex(entry["payload_hdr"]["schema"]))
    log = Log("kv", (bytes.fromhex(entry["body"]),), header)
    made = make_evidence(record(YOUNG, OLD), "", log.receipts, exhibits=[log.disclosed(1)])
    file = tmp_path / "kv.evidence"
    file.write_bytes(made.encode())
    command = ("node", "build/src/cli.js", str(file), "--pin", YOUNG.hub_id.hex())
    assert "  crdt.lww.v1 key=k ts=0 value=1\n" in run(*command).stdout
    (shown,) = json.loads(run(*command, "--json").stdout)["entries"]
    assert shown["event"] == {"name": "crdt.lww.v1", "fields": {"key": "6b", "ts": 0, "value": "31"}}
    assert shown["client_id"] == log.messages[0].client_id.hex()


# The npm package


def test_the_package_has_a_licence_and_no_links_that_leave_it() -> None:
    assert (PROJECT / "LICENSE").read_bytes() == (PROJECT.parents[1] / "LICENSE").read_bytes()
    for place in re.findall(r"\]\(([^)]*)\)|\bhref=[\"']([^\"']*)", (PROJECT / "README.md").read_text()):
        assert place == "", "the page is read outside of the project too, where this link leads nowhere"


def test_the_package_is_installed_in_an_empty_folder_and_runs(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    tarball = pack(compiled(), tmp_path / "out")
    place = tmp_path / "elsewhere"
    place.mkdir()
    options = ("--offline", "--no-audit", "--no-fund", "--prefix", str(place))
    done = run("npm", "install", *options, str(tarball), folder=place)
    if "ENOTCACHED" in done.stderr:
        pytest.skip(f"the cache of npm does not have the noble libraries: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    case = CLI_CASES["two entries, disclosed"]
    file = place / "a.evidence"
    file.write_bytes(bytes.fromhex(str(case["cbor"])))
    program = str(place / "node_modules" / ".bin" / "veen-verify")
    shown = run(program, str(file), "--pin", str(case["pin"]), folder=place)
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, "verdict     it holds")
    script = "import('veen-verify').then((verifier) => console.log(typeof verifier.retention.verifyPruned))"
    assert run("node", "-e", script, folder=place).stdout == "function\n"
    installed = {path.name for path in (place / "node_modules" / "veen-verify").iterdir()}
    assert installed == {"LICENSE", "README.md", "dist", "package.json"}


def test_the_bench_measures_sealed_and_disclosed_entries_with_the_promise() -> None:
    compiled()
    report = verifier.measure((2,))
    promised = {row.what: row.most for row in report.rows if row.most is not None}
    assert promised == {f"2 entries, {kind}: of the bare checks": 1.3 for kind in ("sealed", "disclosed")}
    assert all(row.value > 0 for row in report.rows if row.unit == "ms")
    assert report.row("2 entries, disclosed: of the bare checks, with the proofs").value > 1
