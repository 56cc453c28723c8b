"""A hub of this command's own: a process on this machine that ends when the command does."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from veen.core import Unavailable

_VOICE = "veen: "
_STOP_S = 30.0


class LocalHub:
    """One run of a hub on a data directory, from start to stop."""

    def __init__(self, data_dir: Path, log: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        """Returns when it serves; raises `Unavailable` with the hub's words where it never does."""
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "veen.cli", "hub", "start", "--foreground", "--data-dir", str(data_dir)]
        try:
            with log.open("ab") as kept:
                self._process = subprocess.Popen(
                    [*command, *options, "--ready-fd", str(writer)],
                    stdin=subprocess.DEVNULL,
                    stdout=kept,
                    stderr=kept,
                    pass_fds=[writer],
                    env=env,
                )
        finally:
            os.close(writer)
        with open(reader, "rb") as answer:
            try:
                self.url = answer.read().decode()  # there once the hub has closed its end: it serves, or has ended
            except BaseException:
                self.stop()
                raise
        if not self.url:
            self.stop()
            said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(_VOICE)]
            raise Unavailable(f"the hub did not start: {' '.join(said) or 'it said nothing'}")

    def __enter__(self) -> "LocalHub":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask it to end, and wait until it has; one that does not is killed."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
