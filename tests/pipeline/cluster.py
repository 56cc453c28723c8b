"""A standalone Spark cluster on loopback from the installed pyspark: master and workers as processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from veen.pipeline.session import java_home

HOME = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


@dataclass
class Cluster:
    """The address and the workers, each in its own process group, so that a whole worker can be killed."""

    folder: Path
    url: str = ""
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, workers: int) -> None:
        self.url = self._spawn(_MASTER, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")[1]
        for number in range(workers):
            where = ("--work-dir", str(self.folder / f"work {number}"), "--webui-port", "0", "--host", "127.0.0.1")
            self._spawn(_REGISTERED, "worker.Worker", "--cores", "1", "--memory", "1g", *where, self.url)

    @property
    def workers(self) -> list[int]:
        return [process.pid for process in self.processes[1:]]

    def stop(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stderr
            process.stderr.close()

    def _spawn(self, ready: re.Pattern[str], kind: str, *arguments: str) -> tuple[int, str]:
        """Start a Spark daemon and wait for the line that says it is ready; returns the match."""
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        process = subprocess.Popen(
            command, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=self.folder
        )
        self.processes.append(process)
        assert process.stderr
        lines = []
        for line in process.stderr:
            lines.append(line)
            found = ready.search(line)
            if found:
                return process.pid, found[found.lastindex or 0]
        raise AssertionError("".join(lines))


def environment() -> dict[str, str]:
    """The environment in which cluster processes can run our code."""
    home = java_home()
    made = {**os.environ, "SPARK_HOME": str(HOME), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    made |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    return {**made, "JAVA_HOME": home} if home else made


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    folder.mkdir(parents=True)
    found = Cluster(folder)
    try:
        found.start(workers)
        yield found
    finally:
        found.stop()
