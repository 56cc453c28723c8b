"""The import map in pyproject.toml is enforced, and violations are reported with their place."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from grimp import ImportGraph
from importlinter import ContractCheck
from importlinter.domain.contract import InvalidContractOptions

from tools.import_map import ImportMapContract

ROOT = Path(__file__).parents[1]
PURE = ("plumbing/cbor_heads.py", "plumbing/sodium.py")  # of plumbing, the modules that the core may import
ARROWS = ["sea.core -> nothing", "sea.hub -> sea.core", "sea.cli -> sea.core, sea.hub", "sky -> nothing"]


def contract(source: Path, arrows: list[str] = ARROWS) -> ImportMapContract:
    """A small map: `sea` is divided into packages, `sky` is one package."""
    return ImportMapContract("map", {}, {"source": str(source), "arrows": arrows})


def check(source: Path, *imports: tuple[str, str]) -> ContractCheck:
    """Check a graph of these imports, each on line 7 of its importer."""
    for root in ("sea", "sky"):
        (source / root).mkdir()
        (source / root / "__init__.py").touch()
    graph = ImportGraph()
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported, line_number=7, line_contents="")
    return contract(source).check(graph, verbose=False)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("sea.hub.http", "sea.core.msg"),
        ("sea.hub.http", "sea.hub.queue"),
        ("sea.hub.http", "sea"),
        ("sea.cli", "sea.hub.http"),
        ("sea.core.msg", "hashlib"),
        ("sky.node", "sky"),
    ],
)
def test_an_import_along_an_arrow_is_accepted(tmp_path: Path, importer: str, imported: str) -> None:
    assert check(tmp_path, (importer, imported)).kept


@pytest.mark.parametrize(
    ("importer", "imported", "arrow"),
    [
        ("sea.core.msg", "sea.hub.http", "sea.core -> sea.hub"),
        ("sea.hub.http", "sea.cli", "sea.hub -> sea.cli"),
        ("sea", "sea.core.msg", "sea -> sea.core"),
        ("sky.node", "sea.core.msg", "sky -> sea.core"),
        ("sky", "sea", "sky -> sea"),
        ("sea.hub.http", "sky.node", "sea.hub -> sky"),
    ],
)
def test_an_import_without_an_arrow_is_reported(tmp_path: Path, importer: str, imported: str, arrow: str) -> None:
    verdict = check(tmp_path, (importer, imported))
    assert verdict.metadata["broken"] == [f"{importer}:7 imports {imported}: no arrow {arrow}"]
    assert not verdict.kept


def test_an_import_without_a_known_line_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sea").mkdir()
    graph = ImportGraph()
    graph.add_import(importer="sea.core", imported="sea.hub")
    verdict = contract(tmp_path).check(graph, verbose=False)
    assert verdict.metadata["broken"] == ["sea.core imports sea.hub: no arrow sea.core -> sea.hub"]


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("sea/attic/__init__.py", "sea.attic"),
        ("sea/attic/deep/box.py", "sea.attic"),
        ("sea/attic.py", "sea.attic"),
        ("attic/__init__.py", "attic"),
        ("attic.py", "attic"),
    ],
)
def test_a_package_without_an_arrow_is_reported(tmp_path: Path, path: str, package: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    for root in ("sea", "sky"):
        (tmp_path / root).mkdir(exist_ok=True)
    verdict = contract(tmp_path).check(ImportGraph(), verbose=False)
    assert verdict.metadata["broken"] == [f"{package} is not on the map: add an arrow"]


@pytest.mark.parametrize(
    ("arrows", "fault"),
    [
        (["sea.core"], "is not of the form"),
        (["sea.core ->"], "is not of the form"),
        (["-> sea.core"], "is not of the form"),
        (["sea.hub -> sea.core,"], "is not of the form"),
        (["sea.hub -> sea.core"], "which has no arrow"),
        (["sea.core -> nothing", "sea.core -> nothing"], "two arrows"),
        (["sea.core -> sea.hub", "sea.hub -> sea.core"], "a cycle"),
    ],
)
def test_a_contradictory_map_is_rejected(tmp_path: Path, arrows: list[str], fault: str) -> None:
    with pytest.raises(InvalidContractOptions) as caught:
        contract(tmp_path, arrows)
    assert fault in str(caught.value.errors["arrows"])


@pytest.mark.parametrize(
    ("module", "line", "report"),
    [
        ("veen/core/msg.py", "import veen.hub.http", "veen.core.msg:2 imports veen.hub.http"),
        ("veen/hub/http.py", "from ..cli import main", "veen.hub.http:2 imports veen.cli.main"),
        ("veil/node.py", "from veen.core import msg", "veil.node:2 imports veen.core.msg"),
        ("veen/attic/box.py", "", "veen.attic is not on the map"),
        ("veen/core/msg.py", "import socket", "veen.core.msg -> socket (l.2)"),
        ("veen/core/msg.py", "from pathlib import Path", "veen.core.msg -> pathlib (l.2)"),
        ("veen/core/msg.py", "import plumbing.http", "veen.core.msg -> plumbing.http (l.2)"),
        ("plumbing/sodium.py", "import socket", "plumbing.sodium -> socket (l.2)"),
    ],
)
def test_the_contracts_of_pyproject_reject_a_bad_tree(tmp_path: Path, module: str, line: str, report: str) -> None:
    assert "KEPT" in (clean := lint(tmp_path)).stdout
    assert clean.returncode == 0
    (tmp_path / "src" / module).write_text(f"pass\n{line}\n")
    broken = lint(tmp_path)
    assert report in broken.stdout
    assert broken.returncode != 0


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter, with this project's configuration, over a small project in `tree`."""
    if not (tree / "src").exists():
        shutil.copy(ROOT / "pyproject.toml", tree)
        shutil.copytree(ROOT / "tools", tree / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        for package in (
            "veen",
            "veen/core",
            "veen/hub",
            "veen/cli",
            "veen/attic",
            "veil",
            "pyspark_veen",
            "plumbing",
            "plumbing/http",
        ):
            (tree / "src" / package).mkdir(parents=True)
            if package != "veen/attic":
                (tree / "src" / package / "__init__.py").touch()
        for module in ("veen/core/msg.py", "veen/hub/http.py", "veen/cli/main.py", *PURE):
            (tree / "src" / module).touch()
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
