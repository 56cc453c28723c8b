"""A node's folder: what is in it, who may read it, and that one process has it at a time.

identity.json   0600   the secret keys, and the secrets of groups
lanes.pem       0600   the certificate of the lanes, and its key
settings.json   0600   where it listens, and what else was chosen when it was made
contacts.json   0600   the nodes it knows
api.token       0600   who has this may use the local API
api.json        0600   where that is, while the node runs
store/          0700   what the node has, owes and heard
lock                   held by the process that runs it
"""

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import Any

from veil.lanes.durable import PRIVATE_FOLDER, write_file
from veil.veil_errors import Malformed, Refused, Unavailable

_TOKEN_BYTES = 32


class DataDirectory:
    """Where a node lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def make(self) -> None:
        """A new folder. Raise `Refused` where a node lives already."""
        if self.exists():
            living = Refused(str(self.path), "a node lives here already")
            living.add_note("choose another folder with --data-dir, or remove this one with veil node destroy")
            raise living
        self.path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise Refused(str(self.path), "it is not empty")
        self.path.chmod(PRIVATE_FOLDER)
        write_file(self.path / "api.token", secrets.token_hex(_TOKEN_BYTES).encode() + b"\n")

    def exists(self) -> bool:
        return (self.path / "identity.json").exists()

    def check(self) -> None:
        if not self.exists():
            missing = Unavailable(str(self.path), "no node lives here")
            missing.add_note(f"make one with: veil node init --data-dir {self.path}")
            raise missing

    @property
    def certificate(self) -> Path:
        return self.path / "lanes.pem"

    @property
    def store(self) -> Path:
        return self.path / "store"

    def token(self) -> str:
        try:
            return (self.path / "api.token").read_text("ascii").strip()
        except OSError as error:
            raise Unavailable(str(self.path), f"its token cannot be read: {error.strerror}") from None

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of it: empty where there is none."""
        path = self.path / name
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Unavailable(str(path), error.strerror or str(error)) from None
        except ValueError:
            raise Malformed(str(path), "not JSON") from None
        if not isinstance(found, dict):
            raise Malformed(str(path), "not a JSON object")
        return found

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Put a JSON file in its place. Raise `Unavailable`, with the old one still there, if that fails."""
        path = self.path / name
        try:
            write_file(path, json.dumps(data, indent=1).encode() + b"\n")
        except OSError as error:
            raise Unavailable(str(path), f"cannot write: {error.strerror or error}") from None

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def lock(self) -> None:
        """Have it alone until this process ends. Raise `Refused` where another one has it."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            running = Refused(str(self.path), "its node is running already")
            running.add_note(f"stop it with: veil node stop --data-dir {self.path}")
            raise running from None
        self._lock = handle

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
