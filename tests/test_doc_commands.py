"""Every command of README and docs is run, page by page, and its output is compared with the page."""

import re
import socket
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools import doc_commands
from tools.doc_commands import Command, Outcome

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text("utf-8") for page in PAGES}
SESSIONS = {page: found for page, text in TEXTS.items() if (found := doc_commands.commands(text))}
BRIEF = {
    "run-a-hub",
    "send-and-read",
    "capabilities",
    "evidence",
    "key-rotation",
    "backup-and-clone",
    "limits",
    "state",
}
# The other pages take longer and are run by `make test-slow`.
TASKS = BRIEF | {
    "administration",
    "anchoring",
    "witnesses",
    "bridge",
    "discovery",
    "operations",
    "veil",
    "veil-carriage",
    "query",
    "recorder",
    "retention",
}

# Commands that cannot run in a session, and where each is run instead.
RUN_ELSEWHERE = {
    "pip install .": "the Makefile, for every other command",
    "make demo": "tests/cli/test_demo.py, which runs what it runs",
    "make test": ".ci/run",
    "make dist": ".ci/run",
    "pip install --require-hashes -r requirements/build.txt": "the Makefile, for every other command",
    "pip install --require-hashes -r requirements/all.txt": "the same, with dev.txt, which has all its lines",
    "pip install --no-deps --no-build-isolation .": "the same, with --editable",
    "git checkout COMMIT": "tests/test_supply_chain.py, which builds from clones",
    "sha256sum --check SHA256SUMS": "tests/test_supply_chain.py",
    "veil sim sweep --seed 1 --seeds 5 --objects 5 --svg docs/veil-delivery.svg \\": "tests/veil/sim, in small",
    "--losses 0,0.05,0.1,0.15,0.2,0.25,0.3,0.35,0.4,0.45,0.5,0.55,0.6": "the same",
}
# They need root, systemd or a container runtime.
RUN_ELSEWHERE |= {
    "useradd --system veen": "nowhere, as it changes the machine",
    "chown -R veen: /var/lib/veen/hub": "nowhere, as it changes the machine",
    "veen hub init --data-dir /var/lib/veen/hub --root /media/stick/hub.root "
    "--key-passphrase-file /etc/veen/hub-passphrase": "tests/cli/test_service_unit.py, in other folders",
    "veen hub install-service --data-dir /var/lib/veen/hub": "tests/cli/test_service_unit.py, in other folders",
    """echo 'OPTIONS="--config /etc/veen/hub.toml"' > /etc/veen/veen-hub.env""": "nowhere, as it changes the machine",
    "systemctl daemon-reload && systemctl enable --now veen-hub": "nowhere: it needs systemd as pid 1",
    "ctr --namespace k8s.io images import dist/veen-0.0.1-image.tar": "nowhere: it needs containerd",
    "skopeo copy oci-archive:dist/veen-0.0.1-image.tar docker://registry.example/veen:0.0.1": "nowhere: a registry",
    "podman load --input dist/veen-0.0.1-image.tar": "nowhere: it needs podman",
    "docker run --read-only --cap-drop ALL --volume hub:/var/lib/veen veen:0.0.1 veen-hub init --data-dir "
    "/var/lib/veen/hub --no-root": "tests/test_container_image.py, without docker",
    "docker run --read-only --cap-drop ALL --volume hub:/var/lib/veen --publish 37411:37411 veen:0.0.1 \\": "the same",
    "veen-hub --data-dir /var/lib/veen/hub --listen 0.0.0.0:37411": "the same",
}
RUN_BY_THE_LAB = ("make lab", "python -m lab")  # tests/lab runs the same with other seeds
# tests/cli/test_command_tree.py checks the examples of this page.
WRITTEN_BY_TOOLS = {"docs/cli.md"}


def test_the_readme_and_every_task_page_have_commands() -> None:
    assert set(SESSIONS) >= {"README.md", *(f"docs/{task}.md" for task in TASKS)}


def _marked(page: str) -> Any:
    brief = page == "README.md" or page.removeprefix("docs/").removesuffix(".md") in BRIEF
    return pytest.param(page, marks=() if brief else pytest.mark.slow)


@pytest.mark.parametrize("page", [_marked(page) for page in sorted(SESSIONS)])
def test_a_page_shows_the_output_of_its_commands(page: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # a short path, so no output line wraps
        outcomes = doc_commands.run(SESSIONS[page], Path(folder))
    faults = list(doc_commands.faults(page, SESSIONS[page], outcomes))
    assert not faults, "\n\n".join(faults)


@pytest.mark.parametrize("page", sorted(TEXTS.keys() - WRITTEN_BY_TOOLS))
def test_every_command_block_is_run_here_or_elsewhere(page: str) -> None:
    lines = [line for language, _, block in doc_commands.blocks(TEXTS[page]) if language == "sh" for line in block]
    commands = {line.partition("#")[0].strip() for line in lines}
    assert {one for one in commands if not one.startswith(RUN_BY_THE_LAB)} - RUN_ELSEWHERE.keys() == set()


@pytest.mark.parametrize("page", sorted(TEXTS.keys() - WRITTEN_BY_TOOLS))
def test_a_block_without_a_language_has_no_command(page: str) -> None:
    lines = [line for language, _, block in doc_commands.blocks(TEXTS[page]) if not language for line in block]
    assert [line for line in lines if re.match(r"(\$ |veen |veil (?!->)|make |pip )", line.strip())] == []


def test_a_page_is_split_into_commands() -> None:
    page = "text\n```console\n$ a \\\n    b\nout 1\n\nout 2\n$ cat <<END\n> x\n> END\n```\n```sh\n$ no\n```\n"
    assert doc_commands.commands(page) == [
        Command(3, "a \\\n    b", ("out 1", "", "out 2")),
        Command(8, "cat <<END\nx\nEND", ()),
    ]


@pytest.mark.parametrize("block", ["", "out\n", "$no\n", "> x\n"])
def test_a_console_block_that_starts_with_no_command_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="must start with a command"):
        doc_commands.commands(f"```console\n{block}```\n")


SAME = [
    ("a  b", "a b"),
    ("a\n\nb", "a\nb"),
    ("id 0a1b2c…", "id 99ff"),
    ("id 0a1b2c…", "id 99ff00aa…"),
    ("at 2026-01-02 03:04:05 UTC", "at 2031-11-12 13:14:15 UTC"),
    ("in … s", "in 0.4 s"),
    ("a\n…", "a"),
    ("a\n…\nd", "a\nb\nc\nd"),
]
DIFFERENT = [
    ("a", "a\nb"),
    ("a\nb", "a"),
    ("a\nb", "b\na"),
    ("a b", "ab"),
    ("id 0a1b2c…", "id xyz"),
    ("id 0a1b2c… end", "id 99ff"),
    ("at 2026-01-02 03:04:05 UTC", "at noon UTC"),
    ("in … s", "in 0.4\ns"),
    ("a\n…\nd", "a\nb\nc"),
    ("…\na", "a\nb"),
    ("it holds", "it does not hold"),
    ("1.5", "115"),
]


@pytest.mark.parametrize(("shown", "printed"), SAME)
def test_ids_times_and_ellipses_may_differ(shown: str, printed: str) -> None:
    assert doc_commands.is_as_shown(tuple(shown.splitlines()), printed)


@pytest.mark.parametrize(("shown", "printed"), DIFFERENT)
def test_other_text_must_be_as_shown(shown: str, printed: str) -> None:
    assert not doc_commands.is_as_shown(tuple(shown.splitlines()), printed)


def session(page: str, folder: Path) -> tuple[list[Outcome], list[str]]:
    found = doc_commands.commands(f"```console\n{page}```\n")
    outcomes = doc_commands.run(found, folder)
    return outcomes, list(doc_commands.faults("page.md", found, outcomes))


def test_a_session_keeps_its_folder_and_variables(tmp_path: Path) -> None:
    _, faults = session("$ X=1\n$ mkdir a && cd a\n$ basename $PWD$X\na1\n$ false\n$ echo $?\n1\n", tmp_path)
    assert faults == []


def test_output_goes_to_a_terminal(tmp_path: Path) -> None:
    _, faults = session("$ test -t 1 && test -t 2\n$ test -t 0\n$ echo $?\n1\n", tmp_path)
    assert faults == []


def test_a_failed_command_is_named_and_ends_the_session(tmp_path: Path) -> None:
    outcomes, faults = session("$ echo a\n$ (echo no; exit 3)\n$ touch reached\n", tmp_path)
    assert faults == ["page.md:3: $ (echo no; exit 3)\nexited with 3; it printed:\nno\n"]
    assert len(outcomes) == 2
    assert not (tmp_path / "here" / "reached").exists()


def test_a_command_with_other_output_is_named(tmp_path: Path) -> None:
    _, faults = session("$ echo a\na\n$ echo b\nc\n", tmp_path)
    assert faults == ["page.md:4: $ echo b\nthe page shows:\nc\nit printed:\nb\n"]


@pytest.mark.parametrize("broken", ["$ echo (\n", "$ exit 0\n"])
def test_an_aborted_session_is_an_error(broken: str, tmp_path: Path) -> None:
    _, faults = session(f"$ true\n{broken}$ true\n", tmp_path)
    assert [fault.splitlines()[-1] for fault in faults] == ["was not reached"]


def test_a_hub_that_a_page_leaves_running_is_stopped(tmp_path: Path) -> None:
    init = "$ veen hub init --data-dir hub --no-root\n$ veen hub start --data-dir hub --admission open > started\n"
    _, faults = session(f"{init}$ grep url started\nurl http://127.0.0.1:37411\n$ false\n", tmp_path)
    assert [fault.split("\n")[0] for fault in faults] == ["page.md:6: $ false"]
    started = dict(line.split("\t") for line in (tmp_path / "here" / "started").read_text().splitlines())
    host, _, port = started["url"].removeprefix("http://").partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_the_readme_lists_the_dependencies() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {re.split(r"[<>=~]", dependency)[0] for dependency in settings["project"]["dependencies"]}
    listed = re.search(r"The core needs only (\w+) and (\w+)\.[^:]*:([^.]*)\.", TEXTS["README.md"])
    assert listed is not None
    assert {listed[1].lower(), listed[2].lower(), *re.split(r",\s+|\s+and\s+", listed[3].strip())} == needed


def test_the_core_imports_only_the_dependencies_that_the_readme_names() -> None:
    listing = (
        "import importlib.metadata as m, sys, veen.core\n"
        "of = m.packages_distributions()\n"
        "print(*{name for top in {name.split('.')[0] for name in sys.modules} for name in of.get(top, [])})"
    )
    src = str(ROOT / "src")
    ran = subprocess.run(
        [sys.executable, "-P", "-c", listing], env={"PYTHONPATH": src}, capture_output=True, text=True, check=True
    )
    loaded = {name.lower() for name in ran.stdout.split()}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {re.split(r"[<>=~]", dependency)[0] for dependency in settings["project"]["dependencies"]}
    assert loaded & needed == {"pynacl", "cryptography"}
