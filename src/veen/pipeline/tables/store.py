"""The folder of the tables, with atomic commits: after a crash, a commit has happened entirely or not at all.

A commit is prepared in `_veen/staging`. Then its intent is written and synced. From then on it will complete, now or
at the next write: staged files get their final names, the commit is listed, and replaced files are removed. A crash
before the intent leaves no trace, and recovery after the intent finishes the commit.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from veen.client import local_files
from veen.client.local_files import Disk
from veen.core import Malformed, Unavailable
from veen.pipeline.tables import commit as commits
from veen.pipeline.tables.commit import Commit, TablesView
from veen.pipeline.tables.layout import OWN, need_pyarrow

_PLAIN_FILE = 0o644
_COMMITS, _STAGING, _PENDING, _LOCK, FOLDS, CHECKPOINT = "commits", "staging", "pending.json", "lock", "folds", "stream"
_NAME_BYTES = 8
_MERGING, _MERGE_LOCK = "merging", "merge.lock"


class Tables:
    """The tables in one folder."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        """Raises `Malformed` for a URL: locks and renames need a folder; on a cluster, one that all workers share."""
        local_files.check_local(root)
        self.root = root
        self.own = root / OWN
        self._disk = disk or Disk()
        self._known: dict[tuple[str, int, int], Commit] = {}  # by name, inode and mtime: each commit is read once
        self._turn = threading.Lock()  # between threads; a file lock serves between processes

    @property
    def exist(self) -> bool:
        return (self.own / _COMMITS).is_dir()

    @property
    def unfinished(self) -> bool:
        """Whether a commit is in progress, or was when its process died."""
        return (self.own / _PENDING).exists()

    def view(self) -> TablesView:
        """The current content. Raises `Unavailable` if there are no tables."""
        if not self.exist:
            raise Unavailable(f"there are no tables in {self.root}; create them with veen pipeline run")
        while True:
            paths = self._listed()
            try:
                return self._view(paths)
            except (Malformed, Unavailable):
                if self._listed() == paths:
                    raise  # otherwise a base commit replaced the listed ones meanwhile

    def _listed(self) -> list[Path]:
        return sorted((self.own / _COMMITS).glob("*.json"))

    def _view(self, paths: list[Path]) -> TablesView:
        found: dict[tuple[str, int, int], Commit] = {}
        last: Commit | None = None
        for path in reversed(paths):
            key = _key(path)
            last = found[key] = self._known.get(key) or _commit(path)
            if last.base:
                break
        view = TablesView()
        for commit in reversed(found.values()):
            if view.number and commit.number != view.number + 1:
                raise Malformed(str(self.own / _COMMITS), f"commit {view.number + 1} is missing")
            view.take(commit)
        if last and not last.base and last.number != 1:
            raise Malformed(str(self.own / _COMMITS), f"commit {last.number - 1} is missing")
        self._known = found
        return view

    @contextmanager
    def writing(self) -> Iterator[TablesView]:
        """Lock the tables for writing, and finish an interrupted commit first."""
        need_pyarrow()
        self._make()
        with self._turn, local_files.locked(self.own / _LOCK, str(self.root)):
            self._recover()
            yield self.view()

    @contextmanager
    def merging(self) -> Iterator[Path]:
        """A folder for merged files. One process at a time may merge, while others continue to write."""
        self._make()
        with local_files.locked(self.own / _MERGE_LOCK, f"{self.root}, to merge files,"):
            folder = self.own / _MERGING
            with self.writing():  # finish an interrupted commit first: it may need the files in the folder
                self._disk.remove_folder(folder)
                self._disk.make_shared_folder(folder)
            try:
                yield folder
            finally:
                if not (self.own / _PENDING).exists():
                    self._disk.remove_folder(folder)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A folder for files to commit. Leftovers are removed unless an intent still needs them."""
        folder = self.own / _STAGING / os.urandom(_NAME_BYTES).hex()
        self._disk.make_shared_folder(folder)
        folder.chmod(local_files.SHARED_FOLDER)  # whatever the umask is: workers of other users write here
        try:
            yield folder
        finally:
            if not (self.own / _PENDING).exists():
                self._disk.remove_folder(folder)

    def publish(self, commit: Commit, moves: Mapping[str, Path]) -> None:
        """Commit. `moves` maps final paths to staged files. The caller must hold `writing`."""
        staged = {target: str(path.relative_to(self.own)) for target, path in moves.items()}
        intent = commits.encode({"commit": commits.decode(commit.encode()), "moves": staged})
        for folder in sorted({path.parent for path in moves.values()}):
            self._disk.sync_folder(folder)  # the intent may only refer to files whose names are on disk
        self._disk.write_file(self.own / _PENDING, intent, _PLAIN_FILE)
        self._disk.sync_folder(self.own)
        self._finish()

    def forget(self, number: int) -> None:
        """Remove the commits before a base commit."""
        for path in (self.own / _COMMITS).glob("*.json"):
            if int(path.stem) < number:
                self._disk.unlink(path)

    def _finish(self) -> None:
        """Carry out the intent, or the rest of it after a crash."""
        pending = self.own / _PENDING
        intent = commits.decode(pending.read_bytes())
        commit = Commit.decode(commits.encode(intent["commit"]))
        folders = sorted({(self.root / target).parent for target in intent["moves"]})
        for folder in folders:
            self._disk.make_shared_folder(folder)
        for target, staged in sorted(intent["moves"].items()):
            if (self.own / staged).exists():
                self._disk.copy_name(self.own / staged, self.root / target)
        for folder in folders:
            self._disk.sync_folder(folder)
        self._disk.write_file(self.own / _COMMITS / f"{commit.number:08}.json", commit.encode(), _PLAIN_FILE)
        self._disk.sync_folder(self.own / _COMMITS)
        for name in commit.removes:  # after the commit is listed, so that every listed file exists
            self._disk.unlink(self.root / name)
        for folder in sorted({(self.root / name).parent for name in commit.removes}):
            if folder.is_dir():
                self._disk.sync_folder(folder)  # a file that comes back would double its rows
        for staged in intent["moves"].values():
            self._disk.unlink(self.own / staged)
        self._disk.unlink(pending)
        self._disk.sync_folder(self.own)

    def _recover(self) -> None:
        if (self.own / _PENDING).exists():
            self._finish()
        for left in (self.own / _STAGING).iterdir():
            self._disk.remove_folder(left)

    def _make(self) -> None:
        for folder in (self.root, self.own, self.own / _COMMITS, self.own / _STAGING):
            self._disk.make_shared_folder(folder)


def _key(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None
    return path.name, found.st_ino, found.st_mtime_ns


def _commit(path: Path) -> Commit:
    try:
        found = Commit.decode(path.read_bytes())
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None
    if path.stem != f"{found.number:08}":
        raise Malformed(str(path), f"it contains commit {found.number}")
    return found
