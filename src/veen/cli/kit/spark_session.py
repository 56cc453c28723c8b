"""Spark as a command starts it: an interrupt is the command's own, and told in one line."""

import logging
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start(master: str | None, remote: str | None, config: Path | None) -> "SparkSession":
    """A session. Whoever begins it stops it, which ends its jobs, too."""
    from veen.pipeline import session

    logging.getLogger().addHandler(logging.NullHandler())  # where py4j says at length that it was interrupted
    before = signal.getsignal(signal.SIGINT)
    made = session(master=master, remote=remote, config=config, in_python=True)
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler asks Spark something in the middle of another question.
        signal.signal(signal.SIGINT, before)
    return made
