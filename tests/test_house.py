"""House rules: every module follows them, and every rule is tested with code that breaks it."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import house

ROOT = Path(__file__).parents[1]
MODULES = house.modules(ROOT / "src")
# Folders with our own files; caches of tools are in folders that start with a dot.
OUR_FOLDERS = ("src", "tests", "tools", "bench", "fuzz", "lab", "examples", "vectors", "docs", ".ci")
MACHINE_PATH = re.compile(r"(?<![\w./])/(root|home|work|Users)(?![\w.])")

Rule = Callable[[house.Module], Iterator[str]]

BROKEN: list[tuple[Rule, str, str]] = [
    (house.vague_name, "veen/core/utils.py", ""),
    (house.vague_name, "veen/common/log.py", ""),
    (house.idiom, "veen/a.py", '"""Whoever reads this."""\n'),
    (house.idiom, "veen/a.py", "# the hub's word on it\n"),
    (house.clause_first, "veen/a.py", '"""What a hub stores."""\n'),
    (house.clause_first, "veen/a.py", 'def f():\n    """Read it. Of two copies, one is read."""\n'),
    (house.clause_first, "veen/a.py", "# Who may read. Is that right?\n"),
    (house.no_docstring, "veen/a.py", "x = 1\n"),
    (house.no_docstring, "veen/a.py", '""""""\n'),
    (house.sync_outside_durable, "veen/storage/a.py", "import os\nos.fsync(1)\n"),
    (house.sync_outside_durable, "veen/storage/a.py", "from os import fdatasync as flush\n"),
    (house.sync_outside_durable, "veen/client/durable.py", "os.fsync(1)\n"),
    (house.print_outside_cli, "veen/client/a.py", "print()\n"),
    (house.print_outside_cli, "veen/client/cli/a.py", "print()\n"),
    (house.swallowed_exception, "veen/a.py", "try: f()\nexcept Exception: pass\n"),
    (house.swallowed_exception, "veen/a.py", "try: f()\nexcept (OSError, BaseException): ...\n"),
    (house.swallowed_exception, "veen/a.py", "try: f()\nexcept: 'never mind'\n"),
    (house.swallowed_exception, "veen/a.py", "with contextlib.suppress(Exception): f()\n"),
    (house.silencer_without_code, "veen/a.py", "x = 1  # noqa\n"),
    (house.silencer_without_code, "veen/a.py", "x = 1  # type: ignore\n"),
    (house.silencer_without_code, "veen/a.py", "x = 1  # type:ignore  # why not\n"),
    (house.unsorted_all, "veen/__init__.py", "__all__ = ['b', 'a']\n"),
    (house.unsorted_all, "veen/__init__.py", "__all__: tuple[str, ...] = ('b', 'a')\n"),
    (house.loose_dataclass, "veen/core/a.py", "@dataclass\nclass A: pass\n"),
    (house.loose_dataclass, "veen/core/a.py", "@dataclasses.dataclass(frozen=True)\nclass A: pass\n"),
    (house.loose_dataclass, "veen/core/a.py", "@dataclass(frozen=True, slots=False)\nclass A: pass\n"),
    (house.bound_outside_limits, "veen/core/a.py", f"x = {house.FIRST_BOUND}\n"),
    (house.bound_outside_limits, "veen/core/a.py", "x = 1_000_000\n"),
    (house.bound_outside_limits, "veen/core/a.py", "x = 1 << 20\n"),
    (house.bound_outside_limits, "veen/core/a.py", "x = 2**20\n"),
    (house.os_beyond_urandom, "veen/core/a.py", "os.open('x', 0)\n"),
    (house.os_beyond_urandom, "veen/core/a.py", "from os import environ, urandom\n"),
]

KEPT: list[tuple[Rule, str, str]] = [
    (house.clause_first, "veen/a.py", '"""Ask the hub. What does it store?"""\n# A hub of a\n# What-if run.\n'),
    (house.sync_outside_durable, "plumbing/durable.py", "os.fsync(1)\n"),
    (house.print_outside_cli, "veen/cli/main.py", "print()\n"),
    (house.print_outside_cli, "veil/cli.py", "print()\n"),
    (house.swallowed_exception, "veen/a.py", "try: f()\nexcept OSError: pass\n"),
    (house.silencer_without_code, "veen/a.py", "x = 1  # noqa: E501\ny = 2  # type: ignore[arg-type]\nz = '# noqa'\n"),
    (house.loose_dataclass, "veen/hub/a.py", "@dataclass\nclass A: pass\n"),
    (house.bound_outside_limits, house.LIMITS, "x = 1_048_576\n"),
    (house.bound_outside_limits, "veen/core/a.py", f"x = {house.FIRST_BOUND - 1}\ny = n << 20\n"),
    (house.bound_outside_limits, "veen/core/a.py", "x = 0xFFFF\ny = 1 << 64\nz = 2**32\n"),
    (house.os_beyond_urandom, "veen/core/a.py", "import os\nos.urandom(32)\n"),
]


def offences(rule: Rule) -> list[str]:
    return [offence for module in MODULES for offence in rule(module)]


def test_no_module_has_a_vague_name() -> None:
    assert offences(house.vague_name) == []


def test_modules_and_pages_are_written_in_plain_words() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = [house.Module(page.name, page.read_text("utf-8"), house.parse("", "").tree) for page in pages]
    in_pages = [place for text in texts for place in house.idiom(text)]
    assert offences(house.idiom) + in_pages == []


def test_sentences_start_with_their_subject() -> None:
    assert offences(house.clause_first) == []


def test_every_module_has_a_docstring() -> None:
    assert offences(house.no_docstring) == []


def test_only_one_module_syncs() -> None:
    assert offences(house.sync_outside_durable) == []


def test_only_the_command_line_prints() -> None:
    assert offences(house.print_outside_cli) == []


def test_no_handler_swallows_every_exception() -> None:
    assert offences(house.swallowed_exception) == []


def test_every_silenced_check_is_named() -> None:
    assert offences(house.silencer_without_code) == []


def test_public_names_are_sorted() -> None:
    assert offences(house.unsorted_all) == []


def test_a_dataclass_of_the_core_is_frozen_and_slotted() -> None:
    assert offences(house.loose_dataclass) == []


def test_a_bound_of_the_core_comes_from_limits() -> None:
    assert offences(house.bound_outside_limits) == []


def test_the_core_uses_only_urandom_of_os() -> None:
    assert offences(house.os_beyond_urandom) == []


def test_a_folder_with_modules_is_a_package() -> None:
    folders = {module.path.rpartition("/")[0] for module in MODULES}
    assert [folder for folder in sorted(folders) if not (ROOT / "src" / folder / "__init__.py").exists()] == []


def test_no_modules_import_each_other() -> None:
    assert house.import_cycle(MODULES) == []


def test_a_cycle_of_imports_is_detected() -> None:
    circle = {
        "sea/__init__.py": "",
        "sea/a.py": "from sea import b\n",
        "sea/b.py": "try:\n    from sea.c import x\nexcept ImportError: pass\n",
        "sea/c.py": "import sea.a\nx = 1\n",
    }
    assert set(house.import_cycle([house.parse(path, text) for path, text in circle.items()])) == {
        "sea.a",
        "sea.b",
        "sea.c",
    }
    late = {**circle, "sea/c.py": "if TYPE_CHECKING:\n    import sea.a\ndef f(): import sea.a\n"}
    assert house.import_cycle([house.parse(path, text) for path, text in late.items()]) == []


def test_no_file_contains_a_machine_path() -> None:
    files = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".coverage")]
    files = [path for path in files if path.name != ".git"]  # a file in a linked work tree
    files += [path for folder in OUR_FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = {path: path.read_text("utf-8", errors="replace") for path in files if path.suffix != ".pyc"}
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if MACHINE_PATH.search(text)] == []


@pytest.mark.parametrize("folder", ["root", "home", "work", "Users"])
@pytest.mark.parametrize("text", ["/{}", "cd /{}/x", "'/{}/x'", "file:/{}/x"])
def test_machine_paths_are_detected(folder: str, text: str) -> None:
    assert MACHINE_PATH.search(text.format(folder))


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN)
def test_each_rule_detects_code_that_breaks_it(rule: Rule, path: str, text: str) -> None:
    assert len(list(rule(house.parse(path, text)))) == 1


@pytest.mark.parametrize(("rule", "path", "text"), KEPT)
def test_each_rule_accepts_code_that_follows_it(rule: Rule, path: str, text: str) -> None:
    assert list(rule(house.parse(path, text))) == []


def test_every_rule_has_code_that_breaks_it() -> None:
    rules = {function for _, function in inspect.getmembers(house, inspect.isgeneratorfunction)}
    assert rules == {rule for rule, _, _ in BROKEN}
