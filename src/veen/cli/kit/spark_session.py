"""Start Spark for a command, so that Ctrl-C ends the command with one line instead of a py4j traceback."""

import logging
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start(master: str | None, remote: str | None, config: Path | None) -> "SparkSession":
    """Start a session. The caller stops it, which also ends its jobs."""
    from veen.pipeline import session

    logging.getLogger().addHandler(logging.NullHandler())  # drops py4j's traceback after an interrupt
    before = signal.getsignal(signal.SIGINT)
    made = session(master=master, remote=remote, config=config, in_python=True)
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler calls the JVM while another call is in progress.
        signal.signal(signal.SIGINT, before)
    return made
