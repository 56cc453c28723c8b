"""Write and read the lock files in `requirements/`: one version of every package, with the hashes of its files.

python -m tools.lock_files                       lock what pyproject.toml requires; keep pinned versions that fit
python -m tools.lock_files --upgrade             pin the newest versions that fit
python -m tools.lock_files --upgrade-package h2  the same for one package
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
PROJECT = ROOT / "pyproject.toml"

# The extras of each set; `build` has what builds the project, `image` what builds the container image. `dev` comes
# first and has the packages of all sets, and the others take over its versions.
SETS: Mapping[str, tuple[str, ...] | None] = {
    "dev": ("dev",),
    "all": ("all",),
    "base": (),
    "build": None,
    "image": None,
}
# The development tools that `tools.image` imports.
IMAGE_TOOLS = ("cyclonedx-python-lib", "packaging")
# Builds pycryptodome-test-vectors, the one pinned package without a wheel.
SDIST_BACKENDS = ("setuptools",)

HEAD = """\
# Written by `make lock` from pyproject.toml; docs/supply-chain.md says how to update it.
# It names no index: pip takes the files from yours, and rejects those with another hash.
"""
# uv does not read the settings of pip.
SETTINGS_OF_PIP = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS", "PIP_CERT": "SSL_CERT_FILE"}


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of a package, for the machines that its marker selects."""

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]
    required_by: tuple[str, ...]  # names of packages; empty for what only pyproject.toml requires

    def applies(self, environment: Mapping[str, str]) -> bool:
        return self.marker is None or self.marker.evaluate(dict(environment))


def read(name: str) -> tuple[Pin, ...]:
    """The pins of one lock file."""
    return tuple(parse((FOLDER / f"{name}.txt").read_text("utf-8")))


def parse(text: str) -> Iterator[Pin]:
    """The pins of the text of a lock file; ValueError for any other line."""
    lines = re.sub(r"\n +# via", " # via", text.replace("\\\n", " ")).splitlines()
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        pin, _, required_by = line.partition(" # via ")
        stated, *hashes = re.split(r"\s+--hash=", pin.strip())
        requirement = Requirement(stated)
        versions = [clause.version for clause in requirement.specifier if clause.operator == "=="]
        if len(versions) != 1 or len(requirement.specifier) != 1 or requirement.url:
            raise ValueError(f"not pinned to one version: {stated}")
        if not hashes or not all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes):
            raise ValueError(f"no SHA-256 hash: {stated}")
        name = canonicalize_name(requirement.name)
        names = tuple(one for one in required_by.split(", ") if re.fullmatch(r"[a-z0-9-]*[a-z0-9]", one))
        yield Pin(name, versions[0], requirement.marker, tuple(hashes), names)


def build_requirements() -> list[str]:
    return [*tomllib.loads(PROJECT.read_text("utf-8"))["build-system"]["requires"], *SDIST_BACKENDS]


def tool_requirements(name: str) -> list[str]:
    """What a set without extras requires: the build backend, and for `image` its tools, as `dev` states them."""
    stated = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]["dev"]
    tools = [one for one in stated if Requirement(one).name in IMAGE_TOOLS] if name == "image" else []
    return [*build_requirements(), *tools]


def extras() -> tuple[str, ...]:
    """The names of all extras."""
    return tuple(tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"])


def project_requirements(wanted_extras: Sequence[str]) -> list[Requirement]:
    """What pyproject.toml requires to run the project with these extras; extras of extras are resolved."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    found, wanted, seen = list(project["dependencies"]), list(wanted_extras), set[str]()
    while wanted:
        extra = wanted.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for stated in project["optional-dependencies"][extra]:
            requirement = Requirement(stated)
            if canonicalize_name(requirement.name) == project["name"]:
                wanted += requirement.extras
            else:
                found.append(stated)
    return [Requirement(stated) for stated in found]


def write(options: Sequence[str]) -> None:
    environment = {theirs: os.environ[ours] for ours, theirs in SETTINGS_OF_PIP.items() if ours in os.environ}
    for name, extras in SETS.items():
        page = FOLDER / f"{name}.txt"
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
        command += ["--no-header", "--annotation-style=line", "--python-version", "3.11", "--output-file", str(page)]
        command += options if name == "dev" else [f"--constraint={FOLDER / 'dev.txt'}"]
        command += ["-"] if extras is None else [PROJECT.name, *(f"--extra={extra}" for extra in extras)]
        command += ["-"] if name == "dev" else []
        stated = "\n".join(tool_requirements(name))
        settings = environment | os.environ
        done = subprocess.run(command, cwd=ROOT, env=settings, input=stated, text=True, stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(f"veen: error: uv could not write {page.relative_to(ROOT)}\nveen: hint: it needs a package index")
        # The constraint is how the sets agree; it is no reason why a package is there.
        page.write_text(
            HEAD + re.sub(r", -c [^\s,]+|-c [^\s,]+, | +# via -c \S+\n", "", page.read_text("utf-8")), "utf-8"
        )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    write(sys.argv[1:])
