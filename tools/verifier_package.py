"""The npm project in `web/verify`: install its packages, compile it, and pack it for npm.

python -m tools.verifier_package [FOLDER]    write the tarball to dist/, or to FOLDER
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "web" / "verify"
PACKED = ("LICENSE", "README.md", "package.json")  # besides dist/


class CannotRun(Exception):
    """Node or a package that the project needs is missing on this machine."""


@cache
def compiled() -> Path:
    """The folder of the project with its packages installed and its code compiled. Raises `CannotRun`."""
    _require_node()
    with (PROJECT / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes share the folder
        stamp, wanted = PROJECT / "node_modules" / ".installed", (PROJECT / "package-lock.json").read_text()
        if not stamp.exists() or stamp.read_text() != wanted:
            _install()
            stamp.write_text(wanted)
        _succeed("npx", "--no-install", "tsc", folder=PROJECT)
    return PROJECT


def pack(project: Path, out: Path) -> Path:
    """Compile an installed project and pack it. The same sources give the same bytes, whatever the umask."""
    _succeed("npm", "run", "compile", folder=project)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "package"
        for path in (*(project / name for name in PACKED), *(project / "dist").iterdir()):
            target = copy / path.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o644)
        packed = _succeed("npm", "pack", "--pack-destination", str(out.resolve()), folder=copy)
    return out / packed.split()[-1]


def run(*command: str, stdin: str = "", folder: Path = PROJECT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "npm_config_loglevel": "error", **variables}
    return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, env=environment)


def _require_node() -> None:
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise CannotRun(f"{tool} is not installed, so the TypeScript verifier cannot run")


def _install() -> None:
    """Install the locked packages. Raises `CannotRun` if neither the cache of npm nor a registry has them."""
    done = run("npm", "ci", "--prefer-offline", "--no-audit", "--no-fund")
    if done.returncode:
        raise CannotRun(f"npm ci cannot install the packages of web/verify: {done.stderr.strip()[-400:]}")


def _succeed(*command: str, folder: Path) -> str:
    done = run(*command, folder=folder)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


if __name__ == "__main__":
    try:
        target = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist"
        target.mkdir(parents=True, exist_ok=True)
        print(pack(compiled(), target))
    except CannotRun as error:
        sys.exit(f"veen: error: {error}")
