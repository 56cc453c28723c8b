"""Build the files of a release from the last commit: wheel, sdist, bill of materials, npm package and SHA256SUMS.

python -m tools.release_files [FOLDER]    write them to dist/, or to FOLDER

Each file is built twice, from clones in different folders, with different time zones, umasks and hash seeds, and the
wheel once more from the sdist. A difference is an error, and then nothing is written. The npm package is left out, with
a warning, where Node or the packages that its build needs are missing.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tools import verifier_package
from tools.bill_of_materials import sha256

ROOT = Path(__file__).parents[1]

# What differs between two machines and must not reach the files.
MACHINES: tuple[tuple[str, int, Mapping[str, str]], ...] = (
    ("one", 0o022, {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
    ("a longer name/for the other clone", 0o077, {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}),
)


class Difference(Exception):
    """Two builds of one commit are not the same."""


def same(one: Path, other: Path) -> list[Path]:
    """The files of a folder; Difference unless the other folder has the same names with the same bytes."""
    names = [sorted(path.name for path in folder.iterdir()) for folder in (one, other)]
    if names[0] != names[1]:
        raise Difference(f"one build has {', '.join(names[0])}, the other {', '.join(names[1])}")
    for name in names[0]:
        if (one / name).read_bytes() != (other / name).read_bytes():
            raise Difference(f"{name} differs: {sha256(one / name)} and {sha256(other / name)}")
    return [one / name for name in names[0]]


def run(command: list[str], folder: Path, environment: Mapping[str, str], umask: int = -1) -> str:
    settings = {**os.environ, **environment}
    done = subprocess.run(command, cwd=folder, env=settings, umask=umask, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"veen: error: {' '.join(command)} failed\n{done.stdout}{done.stderr}")
    return done.stdout


def build(
    repository: Path, clone: Path, out: Path, umask: int, environment: Mapping[str, str], *, with_npm: bool
) -> None:
    """Wheel, sdist, bill of materials and npm package of the last commit."""
    clone.parent.mkdir(parents=True, exist_ok=True)
    run(["git", "clone", "--quiet", "--shared", str(repository), str(clone)], repository, {}, umask)
    run([sys.executable, "-m", "hatchling", "build", "-d", str(out)], clone, environment, umask)
    files = sorted(out.iterdir())
    bill = [sys.executable, "-m", "tools.bill_of_materials", *map(str, files)]
    listed = run(bill, clone, {**environment, "PYTHONPATH": str(clone / "src")})
    (out / files[1].name.replace(".tar.gz", ".cdx.json")).write_text(listed, "utf-8")
    if with_npm:
        run([sys.executable, "-m", "tools.verifier_package", str(out)], clone, environment, umask)


def build_from_sdist(files: Path, scratch: Path, environment: Mapping[str, str]) -> None:
    """Difference unless the sdist builds the same wheel."""
    with tarfile.open(next(files.glob("*.tar.gz"))) as sdist:
        sdist.extractall(scratch, filter="data")
    out = scratch / "wheel"
    run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        next(scratch.iterdir()),
        environment,
    )
    (wheel,) = out.iterdir()
    if wheel.read_bytes() != (files / wheel.name).read_bytes():
        raise Difference(f"{wheel.name} is different when it is built from the sdist")


def release(repository: Path, folder: Path) -> list[Path]:
    """Build the last commit of a repository into a folder; returns the files."""
    if run(["git", "status", "--porcelain"], repository, {}):
        print("veen: warning: uncommitted changes are not in the files", file=sys.stderr)
    try:
        verifier_package.compiled()
        with_npm = True
    except verifier_package.CannotRun as error:
        print(f"veen: warning: the files have no npm package: {error}", file=sys.stderr)
        with_npm = False
    epoch = {"SOURCE_DATE_EPOCH": run(["git", "log", "-1", "--format=%ct"], repository, {}).strip()}
    with tempfile.TemporaryDirectory() as scratch:
        built = [Path(scratch, "out", str(number)) for number in range(len(MACHINES))]
        for out, (name, umask, settings) in zip(built, MACHINES, strict=True):
            build(repository, Path(scratch, name), out, umask, {**epoch, **settings}, with_npm=with_npm)
        files = same(*built)
        build_from_sdist(built[0], Path(scratch, "sdist"), epoch)
        folder.mkdir(parents=True, exist_ok=True)
        made = [Path(shutil.copyfile(path, folder / path.name)) for path in files]
    sums = folder / "SHA256SUMS"
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in made), "utf-8")
    return [*made, sums]


if __name__ == "__main__":
    try:
        made = release(ROOT, Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist")
    except Difference as error:
        sys.exit(f"veen: error: the build is not reproducible: {error}")
    for path in made[:-1]:
        print(f"{sha256(path)}  {path}")
