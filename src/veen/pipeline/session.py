"""The one place where Spark is started: here, on a cluster, or over Spark Connect, by settings alone."""

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plumbing.cli.extras import install_hint
from veen.core import Malformed, Unavailable
from veen.pipeline import java_runtime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = "veen"
_LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()
# Nothing of it weakens a cluster: it is what one machine needs to be quick and quiet.
LIGHT: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.shuffle.compress": "false",
    "spark.rdd.compress": "false",
    # Much of the work is done in Python; a collector that runs beside it takes its cores.
    "spark.driver.extraJavaOptions": f"-XX:+UseParallelGC -XX:MetaspaceSize=256m -Dlog4j2.configurationFile={_LOGGING}",
}
# For jobs of ours alone, all of whose work is done in Python: what Java would compile at length is run for seconds.
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


def session(
    master: str | None = None,
    remote: str | None = None,
    config: Path | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    in_python: bool = False,
) -> "SparkSession":
    """The session there is, or a new one; with `in_python`, one for jobs that leave Java nothing to do.

    `remote` is a Spark Connect address, else SPARK_REMOTE. Otherwise `master`, else VEEN_SPARK_MASTER, else what the
    configuration says, else every core of this machine. `config`, else VEEN_SPARK_CONFIG, is a TOML or JSON file of
    Spark's own settings. Whatever is given in `settings` comes last.
    """
    conf = {**_configured(config), **(settings or {})}
    remote = remote or (None if master else os.environ.get(_REMOTE_ENV))
    builder = _pyspark().builder.appName(APP)
    if remote:
        if remote.startswith("local"):  # pyspark then starts a server itself
            _prepare()
        for name, value in conf.items():
            builder = builder.config(name, value)
        return builder.remote(remote).getOrCreate()
    master = master or os.environ.get(_MASTER_ENV) or conf.pop("spark.master", None) or _submitted() or "local[*]"
    _prepare()
    local = {**LIGHT, **(IN_PYTHON if in_python else {})} if master.startswith("local") else {}
    for name, value in {**ALWAYS, **local, **conf}.items():
        builder = builder.config(name, value)
    return builder.master(master).getOrCreate()


def _prepare() -> None:
    """Java, and the Python that runs our code on this machine; elsewhere the cluster's settings say which."""
    home = java_runtime.java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
    for name in _PYTHON_ENVS:
        os.environ.setdefault(name, sys.executable)


def _submitted() -> str | None:
    """The master that spark-submit was told, which is then not ours to choose."""
    words = os.environ.get("PYSPARK_SUBMIT_ARGS", "").split()
    return words[words.index("--master") + 1] if "--master" in words[:-1] else None


def _pyspark() -> "type[SparkSession]":
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        missing = Unavailable(f"Spark cannot be used: {error}")
        missing.add_note(install_hint("spark"))
        raise missing from None
    return SparkSession


def _configured(path: Path | None) -> dict[str, str]:
    """Spark's settings from a file: names with dots, or tables of them."""
    if path is None and (named := os.environ.get(_CONFIG_ENV)):
        path = Path(named)
    if path is None:
        return {}
    try:
        text = path.read_text("utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Malformed(str(path), f"it is neither TOML nor JSON: {error}") from None
    if not isinstance(found, dict):
        raise Malformed(str(path), "it is not a table of settings")
    return dict(_flat(found, ""))


def _flat(table: Mapping[str, object], prefix: str) -> "list[tuple[str, str]]":
    made: list[tuple[str, str]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            made += _flat(value, f"{prefix}{name}.")
        else:
            made.append((f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)))
    return made
