"""The TypeScript project in `web/verify`, installed and compiled once per run."""

import fcntl
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2] / "web" / "verify"


@cache
def compiled() -> Path:
    """The folder of the project, with its packages installed and its code compiled. Skips the test if it cannot be."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed, so the TypeScript verifier cannot run")
    with (PROJECT / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers share the folder
        _install()
        done = run("npx", "--no-install", "tsc")
    assert done.returncode == 0, done.stdout + done.stderr
    return PROJECT


def run(*command: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "npm_config_loglevel": "error", **variables}
    return subprocess.run(command, cwd=PROJECT, input=stdin, capture_output=True, text=True, env=environment)


def _install() -> None:
    """Install the locked packages, unless the installed ones are those of the lock file."""
    stamp, wanted = PROJECT / "node_modules" / ".installed", (PROJECT / "package-lock.json").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    done = run("npm", "ci", "--no-audit", "--no-fund")
    if done.returncode != 0:
        pytest.skip(f"npm ci cannot install the packages of web/verify: {done.stderr.strip()[-400:]}")
    stamp.write_text(wanted)
