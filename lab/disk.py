"""A simulated disk: real files in a scratch folder, and a record of what a power cut would leave of them.

A `Platter` is one machine's storage. It knows the durable content of every file and the durable names of every folder,
and all writes and names since their last sync. A `SimulatedDisk` is what one process sees of it. It executes each call
on the real files, so that all code that reads is the real one, and can fail or die at any call:

    kill         everything that was written stays, and is still not durable
    power cut    of every file any part of its unsynced writes stays, of every folder any part of its unsynced names
    failed sync  the unsynced writes stay readable, but no later sync makes them durable
    EIO, ENOSPC  the call fails; a failed write leaves half of its data

`Platter.damage` changes durable data on command: these are the faults that no order of writes prevents.

Changes that code makes without the disk, such as the removal of a folder tree, are durable at once.
"""

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fcntl import F_GETFL, fcntl
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from random import Random

from lab.world import ProcessEnded
from plumbing.durable import PLAIN_FILE, PRIVATE_FILE, PRIVATE_FOLDER, Disk, remove_all
from veen.storage.paths import ChunkName, pruned_range

SECTOR_BYTES = 512
LMDB_FILE = "data.mdb"
_UNTRACKED = ("lock", "lock.mdb")  # their content has no meaning
_DRAFT = ".draft"
_DIGEST_BYTES = 16
_RANDOM_NAME = re.compile("[0-9a-f]{16}")


class Died(ProcessEnded):
    """The process ended at this call of the disk."""


class Fault(StrEnum):
    """What happens at one call."""

    DIE_BEFORE = "dies before"
    DIE_DURING = "dies during"  # a write is half done; other calls are atomic, so that they are not done
    DIE_AFTER = "dies after"
    EIO = "EIO"
    ENOSPC = "ENOSPC"
    FAILED_SYNC = "failed sync"


DEATHS = (Fault.DIE_BEFORE, Fault.DIE_DURING, Fault.DIE_AFTER)


class Damage(StrEnum):
    """What happens to durable data without any call."""

    BIT_ROT = "bit rot"
    MISDIRECTED = "misdirected write"  # a sector went to another place of the file
    LOST_WRITE = "lost write"  # a synced write is not there
    ROLLED_BACK = "rolled back"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a process."""

    number: int
    name: str
    artifact: str
    path: Path
    size: int = 0


Plan = Callable[[Call], Fault | None]

_WRITES = ("write", "write_at")
# The errors that each call can have. Every call can also be the one at which the process dies.
ERRORS: dict[str, tuple[Fault, ...]] = {
    "open": (Fault.EIO, Fault.ENOSPC),
    "write": (Fault.EIO, Fault.ENOSPC),
    "write_at": (Fault.EIO, Fault.ENOSPC),
    "truncate": (Fault.EIO,),
    "sync": (Fault.FAILED_SYNC,),
    "sync_folder": (Fault.EIO,),
    "sync_filesystem": (Fault.EIO,),
    "replace": (Fault.EIO, Fault.ENOSPC),
    "link": (Fault.EIO, Fault.ENOSPC),
    "unlink": (Fault.EIO,),
    "make_folder": (Fault.EIO, Fault.ENOSPC),
    "remove_tree": (),  # its errors are ignored
    "commit": (Fault.EIO, Fault.ENOSPC),
}


def at_call(number: int, fault: Fault) -> Plan:
    """A plan with one fault."""
    return lambda call: fault if call.number == number else None


@dataclass
class Coverage:
    """How often each fault met each call of each artifact, and which crash points occurred."""

    cells: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    crash_points: set[bytes] = field(default_factory=set)

    def count(self, artifact: str, call: str, fault: str) -> None:
        self.cells[artifact, call, fault] += 1

    def merge(self, other: "Coverage") -> None:
        self.cells += other.cells
        self.crash_points |= other.crash_points

    def missing(self, expected: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
        """The cells that should have occurred and did not."""
        return sorted(cell for cell in expected if not self.cells[cell])

    def table(self) -> list[str]:
        """One line for each artifact and call, with its faults."""
        found: dict[tuple[str, str], list[str]] = {}
        for (artifact, call, fault), times in sorted(self.cells.items()):
            found.setdefault((artifact, call), []).append(f"{fault} {times}")
        return [f"{artifact:18} {call:16} {', '.join(faults)}" for (artifact, call), faults in found.items()]


_BY_NAME = {
    "journal.mark": "journal mark",
    "checkpoint-binding.cbor": "binding",
    "hub-clock.json": "clock",
    "limits.json": "limits",
    "limit-history.json": "limits",
    "scrub.json": "scrub position",
    "fault.txt": "fault record",
    "lock": "lock",
    "keystore.key": "client keys",
    "card.cbor": "client card",
    "witness.key": "witness key",
    LMDB_FILE: "index",
}
_BY_FOLDER = {
    "journal": "journal",
    "keys": "key",
    "attachments": "attachment",
    "drafts": "attachment",
    "evidence": "evidence",
    "witnesses": "witness keys",
    "handovers": "hand-over",
    "recoveries": "recovery",
    "requested": "requested checkpoint",
    "uploads": "upload record",
    "nodes": "nodes",
    "state": "client state",
}


def artifact_of(path: Path) -> str:
    """The kind of file, for coverage."""
    name = path.name.removesuffix(_DRAFT)
    if name != path.name and name.startswith("."):  # the draft of a file that several processes write
        name = name[1:].rpartition(".")[0] or name[1:]
    if name.startswith(".") and ".scaffold-" in name:  # a directory before it has its name
        return f"folder {name[1:].partition('.scaffold-')[0]}"
    if "backups" in path.parts[-4:]:
        is_statement = path.parent.name == "backups" and name.endswith(".json")
        return "folder backups" if name == "backups" else "backup statement" if is_statement else "backup"
    if name.endswith(".wal"):
        return "journal"
    if "attachments" in path.parts[-4:-1]:
        return "attachment"
    if path.parent.name == "log":
        chunk = ChunkName.parse(name)
        if chunk:
            return "open chunk" if chunk.end_seq is None else "chunk"
        if pruned_range(name):
            return "pruned chunk"
        for prefix in ("checkpoint-index", "checkpoint", "peaks", "manifest"):
            if name.startswith(prefix):
                return prefix.replace("-", " ")
        if name.endswith(".summary"):
            return "summary"
    if name == LMDB_FILE and path.parent.name == "state":
        return "client state"
    if "hubs" in path.parts[-3:] or name == "forks" or path.parent.name == "forks":
        return "witness state" if path.suffix else "folder of a witness"
    if name.startswith("hub-") or name in (
        "profile.json",
        "admission.json",
        "format.json",
        "origin.cbor",
        "root-request.json",
    ):
        return _BY_NAME.get(name, "metadata")
    if "=" in name and not path.suffix:
        return "folder of a partition"
    if _RANDOM_NAME.fullmatch(name):
        return f"folder in {path.parent.name}"
    return _BY_NAME.get(name) or _BY_FOLDER.get(path.parent.name) or (f"folder {name}" if "." not in name else "other")


# What a power cut leaves.


@dataclass(frozen=True, slots=True)
class _Write:
    """An unsynced write; `at` None replaces the whole file at once, as a commit of LMDB does."""

    at: int | None
    data: bytes


@dataclass(frozen=True, slots=True)
class _Truncate:
    size: int


@dataclass(frozen=True, slots=True)
class _File:
    """`durable` is on the platter; `pending` is what was written since."""

    durable: bytes = b""
    pending: tuple[_Write | _Truncate, ...] = ()
    earlier: tuple[bytes, ...] = ()  # older durable contents, for damage
    mode: int = PLAIN_FILE
    has_dropped: bool = False  # processes see writes that are neither durable nor pending


@dataclass(frozen=True, slots=True)
class _Name:
    """An unsynced change of a folder: `name` is now `node`, or gone; `source` is the old name if it was renamed."""

    name: str
    node: int | None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class _Folder:
    names: dict[str, int] = field(default_factory=dict)  # durable; never changed in place
    pending: tuple[_Name, ...] = ()


Kept = Sequence[tuple[int, int]]  # the ranges of a write that survive


class Survival:
    """Nothing unsynced survives a power cut."""

    def write(self, change: _Write) -> tuple[Kept, bool]:
        """The parts of a write that survive, and whether the file is as long as if all of it did."""
        return (), False

    def truncate(self) -> bool:
        return False

    def names(self, changes: tuple[_Name, ...]) -> Sequence[bool]:
        """Which changes of a folder survive."""
        return [False] * len(changes)


class EverythingSurvives(Survival):
    """All writes and names survive, as when a process is killed."""

    def write(self, change: _Write) -> tuple[Kept, bool]:
        return ((0, len(change.data)),), True

    def truncate(self) -> bool:
        return True

    def names(self, changes: tuple[_Name, ...]) -> Sequence[bool]:
        return [True] * len(changes)


class RemovalsSurvive(Survival):
    """Removed names are gone, and all else that was not synced is lost: the worst order."""

    def names(self, changes: tuple[_Name, ...]) -> Sequence[bool]:
        return [change.node is None for change in changes]


class SeededSurvival(Survival):
    """A random part survives: whole writes, torn ones, sectors of zeros, and any selection of the names."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def write(self, change: _Write) -> tuple[Kept, bool]:
        how = self._rng.randrange(8)
        if how < 3 or (change.at is None and how < 5):
            return (), False
        if how < 5 or change.at is None:
            return ((0, len(change.data)),), True
        cuts = [0, *range(SECTOR_BYTES - change.at % SECTOR_BYTES, len(change.data), SECTOR_BYTES), len(change.data)]
        parts = list(pairwise(cuts))
        if how == 5:  # the first sectors
            return parts[: self._rng.randrange(len(parts) + 1)], False
        return [part for part in parts if self._rng.random() < 0.5], how == 7

    def truncate(self) -> bool:
        return self._rng.random() < 0.5

    def names(self, changes: tuple[_Name, ...]) -> Sequence[bool]:
        how = self._rng.randrange(4)
        if how == 0:
            end = self._rng.randrange(len(changes) + 1)
            return [number < end for number in range(len(changes))]
        if how == 1:
            return [self._rng.random() < 0.5 for _ in changes]
        return [how == 2] * len(changes)


@dataclass(frozen=True, slots=True)
class Survivors:
    """The content of the storage after a power cut: files and folders by relative path."""

    files: dict[str, tuple[bytes, int]]  # content and mode
    folders: tuple[str, ...]
    choices: bytes  # which of the unsynced changes survived

    def write(self, root: Path) -> None:
        """Write everything into an empty folder."""
        for folder in self.folders:
            os.mkdir(f"{root}/{folder}", PRIVATE_FOLDER)
        for path, (content, mode) in self.files.items():
            fd = os.open(f"{root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            try:
                os.write(fd, content)
            finally:
                os.close(fd)


@dataclass(frozen=True, slots=True)
class PlatterState:
    """Everything that is known about the storage at one moment. Power cuts can be tried on it."""

    files: dict[int, _File]
    folders: dict[int, _Folder]

    def after_power_cut(self, survival: Survival) -> Survivors:
        """What survives. The folders are visited in a fixed order, so that a seed always gives the same."""
        found: dict[str, tuple[bytes, int]] = {}
        made: list[str] = []
        choices: list[object] = []
        waiting = [("", 0)]
        while waiting:
            prefix, number = waiting.pop()
            folder = self.folders[number]
            kept = survival.names(folder.pending)
            choices.append(tuple(kept))
            for name, node in sorted(_applied(folder, kept).items()):
                if node in self.folders:
                    made.append(prefix + name)
                    waiting.append((f"{prefix}{name}/", node))
                else:
                    file = self.files[node]
                    found[prefix + name] = _content(file, survival, choices), file.mode
        return Survivors(found, tuple(made), repr(choices).encode())


def _applied(folder: _Folder, kept: Sequence[bool]) -> dict[str, int]:
    if not folder.pending:
        return folder.names
    names = dict(folder.names)
    for change, survives in zip(folder.pending, kept, strict=True):
        if not survives:
            continue
        if change.node is None:
            names.pop(change.name, None)
            continue
        if change.source is not None and names.get(change.source) == change.node:
            del names[change.source]
        names[change.name] = change.node
    return names


def _content(file: _File, survival: Survival, choices: list[object]) -> bytes:
    if not file.pending:
        return file.durable
    content = bytearray(file.durable)
    for change in file.pending:
        if isinstance(change, _Truncate):
            is_cut = survival.truncate()
            choices.append(is_cut)
            if is_cut:
                _resize(content, change.size)
            continue
        kept, extended = survival.write(change)
        choices.append((tuple(kept), extended))
        if change.at is None:
            content[:] = change.data if kept else bytes(content)
            continue
        for start, end in kept:
            _put(content, change.at + start, change.data[start:end])
        if extended and len(content) < change.at + len(change.data):
            _resize(content, change.at + len(change.data))
    return bytes(content)


def _put(content: bytearray, at: int, data: bytes) -> None:
    if len(content) < at:
        _resize(content, at)
    content[at : at + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    else:
        del content[size:]


_NONE, _ALL = Survival(), EverythingSurvives()
_MAX_EARLIER = 8


class Platter:
    """The storage of one machine, below one folder. What is there at the beginning is durable."""

    def __init__(self, root: Path, coverage: Coverage | None = None) -> None:
        self.root = root
        self.coverage = coverage or Coverage()
        self.process: SimulatedDisk | None = None  # the one that was started last
        self._files: dict[int, _File] = {}
        self._folders: dict[int, _Folder] = {0: _Folder()}
        self._names: dict[int, dict[str, int]] = {0: {}}  # what processes see now, by folder
        self._nodes: dict[int, int] = {}  # by inode
        self._inodes: dict[int, int] = {}  # by node
        self._last = 0
        self._replaced: dict[Path, tuple[bytes, ...]] = {}  # older durable contents by path
        self.adopt()

    def state(self) -> PlatterState:
        """A copy, to try power cuts on."""
        self.adopt()
        return PlatterState(dict(self._files), dict(self._folders))

    def adopt(self) -> None:
        """Take over what was changed without the disk, as durable."""
        self._adopt(self.root, 0)

    def cut_power(self, survival: Survival) -> None:
        """Leave on the real files what survives. The process that was running has ended."""
        self._adopt_contents()
        survivors = self.state().after_power_cut(survival)
        self.note_crash(survivors.choices)
        earlier = {path: self._earlier(self.root / path) for path in survivors.files}
        for found in self.root.iterdir():
            remove_all(found)
        survivors.write(self.root)
        self._files, self._folders, self._names = {}, {0: _Folder()}, {0: {}}
        self._nodes, self._inodes = {}, {}
        self.adopt()
        self._replaced = {self.root / path: contents for path, contents in earlier.items() if contents}

    def note_crash(self, choices: bytes) -> bytes:
        """Count a crash point: the last call, the unsynced writes and names, and which of them survived.

        Contents and the history before do not count. Two crashes at one point differ at most in bytes that were synced.
        """
        call = self.process.last_call if self.process else None
        point = blake2b(
            repr((call.artifact, call.name, call.size) if call else None).encode(), digest_size=_DIGEST_BYTES
        )
        point.update(repr(self._unsynced(self.root, 0)).encode() + choices)
        self.coverage.crash_points.add(point.digest())
        return point.digest()

    def _unsynced(self, path: Path, node: int) -> list[object]:
        """The shape of everything below a folder that is not durable, and the number of files of each kind."""
        found: list[object] = [
            [(artifact_of(path / one.name), one.node is None) for one in self._folders[node].pending]
        ]
        kinds: Counter[str] = Counter()
        for name, number in sorted(self._names[node].items()):
            kinds[artifact_of(path / name)] += 1
            if number in self._folders:
                found += self._unsynced(path / name, number)
            elif self._files[number].pending:
                file = self._files[number]
                shapes = [
                    (one.size,) if isinstance(one, _Truncate) else (one.at, len(one.data)) for one in file.pending
                ]
                found.append((artifact_of(path / name), len(file.durable), shapes))
        return [*found, sorted(kinds.items())]

    def paths(self) -> list[Path]:
        """All files, in a fixed order."""
        return sorted(path for path in self.root.rglob("*") if path.is_file() and path.name not in _UNTRACKED)

    def damage(self, path: Path, kind: Damage, rng: Random) -> bool:
        """Damage a file while no process runs. Returns False if it has no content or history for that kind."""
        self.adopt()
        node = self._find(path)
        if node is None or node not in self._files:
            return False
        content = path.read_bytes()
        damaged = self._damaged(path, content, kind, rng)
        if damaged is None or damaged == content:
            return False
        self.coverage.count(artifact_of(path), "stored", kind)
        if kind is Damage.MISSING:
            path.unlink()
        else:
            path.write_bytes(damaged)
            self._files[node] = replace(self._files[node], durable=damaged, pending=())
        self.adopt()
        return True

    def _damaged(self, path: Path, content: bytes, kind: Damage, rng: Random) -> bytes | None:
        earlier = self._earlier(path)
        if kind is Damage.MISSING:
            return b""
        if kind is Damage.ROLLED_BACK:
            older = [one for one in earlier if one != content]
            return rng.choice(older) if older else None
        if kind is Damage.LOST_WRITE:
            return _without_last_write(content, earlier)
        if not content:
            return None
        if kind is Damage.BIT_ROT:
            at = rng.randrange(len(content))
            return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        source, target = rng.randrange(len(content)), rng.randrange(len(content))
        size = min(SECTOR_BYTES, len(content) - max(source, target))
        return content[:target] + content[source : source + size] + content[target + size :]

    def _earlier(self, path: Path) -> tuple[bytes, ...]:
        """Older durable contents of a path, newest last."""
        node = self._find(path)
        here = self._files.get(-1 if node is None else node, _File()).earlier
        return self._replaced.get(path, ()) + here

    # Calls of a process.

    def created(self, path: Path, inode: int) -> int:
        """A new file has a name that is not durable yet."""
        folder = self._folder_of(path)
        node = self._new(inode)
        self._files[node] = _File(mode=path.stat().st_mode & 0o777)
        self._rename(folder, _Name(path.name, node))
        return node

    def made_folder(self, path: Path) -> None:
        node = self._new(path.stat().st_ino)
        self._folders[node], self._names[node] = _Folder(), {}
        self._rename(self._folder_of(path), _Name(path.name, node))

    def changed(self, node: int, change: _Write | _Truncate) -> None:
        file = self._files[node]
        self._files[node] = replace(file, pending=(*file.pending, change))

    def synced(self, node: int) -> None:
        file = self._files[node]
        if file.pending:
            content = _content(file, _ALL, [])
            earlier = (*file.earlier, file.durable)[-_MAX_EARLIER:]
            self._files[node] = replace(file, durable=content, pending=(), earlier=earlier)

    def dropped(self, node: int, survival: Survival) -> None:
        """A sync failed: some of the writes are durable, and the others never will be."""
        file = self._files[node]
        self._files[node] = replace(file, durable=_content(file, survival, []), pending=(), has_dropped=True)

    def replaced(self, source: Path, target: Path) -> None:
        """The name of a file or folder changed. Called before the real change.

        A rename within a folder is one change; one into another folder is a new name there and a removal here.
        """
        node, old = self._find(source), self._find(target)
        if node is None:
            self.adopt()
            node = self._find(source)
        assert node is not None, source
        if old is not None and old in self._files:
            self._replaced[target] = (*self._earlier(target), self._files[old].durable)[-_MAX_EARLIER:]
            self._nodes.pop(self._inodes[old], None)
        if source.parent == target.parent:
            self._rename(self._folder_of(target), _Name(target.name, node, source.name))
        else:
            self._rename(self._folder_of(target), _Name(target.name, node))
            self._rename(self._folder_of(source), _Name(source.name, None))

    def linked(self, source: Path, target: Path) -> None:
        node = self.known(source, source.stat().st_ino)
        self._rename(self._folder_of(target), _Name(target.name, node))

    def unlinked(self, path: Path) -> None:
        node = self._find(path)
        if node is not None:
            self._rename(self._folder_of(path), _Name(path.name, None))
            if not any(node in names.values() for names in self._names.values()):
                self._nodes.pop(self._inodes.get(node, -1), None)

    def synced_folder(self, path: Path) -> None:
        node = self._find(path)
        if node is not None and node in self._folders:
            self._folders[node] = _Folder(dict(self._names[node]))

    def synced_all(self) -> None:
        for node in list(self._files):
            self.synced(node)
        for node, names in self._names.items():
            self._folders[node] = _Folder(dict(names))

    def node_of(self, fd: int) -> int | None:
        """The node of an open file; None if it is not below the root or has no name any more."""
        inode = os.fstat(fd).st_ino
        if inode in self._nodes:
            return self._nodes[inode]
        path = self.path_of(fd)
        return self.created(path, inode) if self.is_below(path) and path.exists() else None

    def known(self, path: Path, inode: int) -> int:
        """The node of an existing file. If it was made without the disk, it is durable."""
        if inode not in self._nodes:
            self.adopt()
        return self._nodes[inode]

    def committed(self, path: Path, data: bytes, *, is_new: bool, durable: bool) -> None:
        """A file was replaced as a whole, at once. A sync of a new one also makes its name durable."""
        inode = path.stat().st_ino
        node = self.created(path, inode) if is_new else self.known(path, inode)
        self.changed(node, _Write(None, data))
        if durable:
            self.synced_environment(path)

    def synced_environment(self, path: Path) -> None:
        node = self.known(path, path.stat().st_ino)
        self.synced(node)
        self._make_durable(self._folder_of(path), path.name, node)

    def path_of(self, fd: int) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))

    def is_below(self, path: Path) -> bool:
        return path.is_relative_to(self.root)

    def _new(self, inode: int) -> int:
        self._last += 1
        self._nodes[inode], self._inodes[self._last] = self._last, inode
        return self._last

    def _rename(self, folder: int, change: _Name) -> None:
        before = self._folders[folder]
        self._folders[folder] = _Folder(before.names, (*before.pending, change))
        names = self._names[folder]
        if change.node is None:
            names.pop(change.name, None)
        else:
            names[change.name] = change.node
            if change.source is not None:
                names.pop(change.source, None)

    def _find(self, path: Path) -> int | None:
        node: int | None = 0
        for name in path.relative_to(self.root).parts:
            node = self._names.get(-1 if node is None else node, {}).get(name)
        return node

    def _folder_of(self, path: Path) -> int:
        if self._find(path.parent) is None:
            self.adopt()
        node = self._find(path.parent)
        assert node is not None, f"{path.parent} is not a folder"
        return node

    def _adopt(self, path: Path, node: int) -> None:
        names, found = self._names[node], dict[str, int]()
        changed = False
        with os.scandir(path) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            if entry.name in _UNTRACKED:
                continue
            inode = entry.inode()
            known = names.get(entry.name)
            if known is None or self._inodes.get(known) != inode:
                known = self._new(inode)
                changed = True
                if entry.is_dir(follow_symlinks=False):
                    self._folders[known], self._names[known] = _Folder(), {}
                else:
                    mode = entry.stat(follow_symlinks=False).st_mode & 0o777
                    self._files[known] = _File(Path(entry.path).read_bytes(), mode=mode)
                self._make_durable(node, entry.name, known)
            found[entry.name] = known
            if known in self._folders:
                self._adopt(Path(entry.path), known)
        for name in names.keys() - found.keys():
            changed = True
            self._make_durable(node, name, None)
        if changed:
            self._names[node] = found

    def _adopt_contents(self) -> None:
        """Take over contents that were written without the disk, such as those of a real LMDB file."""
        for path in self.paths():
            node = self._find(path)
            file = self._files.get(-1 if node is None else node)
            if node is None or file is None or file.has_dropped:
                continue
            content = path.read_bytes()
            if content != _content(file, _ALL, []):
                self._files[node] = replace(file, durable=content, pending=())

    def _make_durable(self, folder: int, name: str, node: int | None) -> None:
        before = self._folders[folder]
        names = {known: number for known, number in before.names.items() if known != name}
        if node is not None:
            names[name] = node
        pending = tuple(change for change in before.pending if change.name != name)
        self._folders[folder] = _Folder(names, pending)


def _without_last_write(content: bytes, earlier: tuple[bytes, ...]) -> bytes | None:
    """The content without the last synced write: the older bytes where they differ, or zeros behind them."""
    older = next((one for one in reversed(earlier) if one != content), None)
    if older is None:
        return None
    return older[: len(content)] + bytes(max(len(content) - len(older), 0))


class SimulatedDisk(Disk):
    """What one process sees of a platter. `plan` says at which calls it fails or dies."""

    def __init__(
        self,
        platter: Platter,
        plan: Plan | None = None,
        rng: Random | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        """`on_death` is called once, when the process dies at a call."""
        self.platter = platter
        self.plan = plan
        self._on_death = on_death
        self.calls = 0
        self.is_dead = False
        self.last_call: Call | None = None
        self._rng = rng or Random(0)
        self._fds: dict[int, int] = {}  # descriptors that this process opened, with their inodes
        platter.process = self

    # The end of the process.

    def exit(self) -> None:
        """The process ended by itself."""
        self._end(None)

    def kill(self) -> None:
        """End the process. What it wrote stays, but is not durable."""
        self._end("kill")
        self.platter.note_crash(b"kill")

    def cut_power(self, survival: Survival) -> None:
        """End the process and the machine."""
        self._end("power cut")
        self.platter.cut_power(survival)

    def _end(self, how: str | None) -> None:
        self.is_dead = True
        call = self.last_call
        if call and how:
            self.platter.coverage.count(call.artifact, call.name, how)
        for fd, inode in self._fds.items():
            with suppress(OSError):  # the process closed it
                if os.fstat(fd).st_ino == inode and fcntl(fd, F_GETFL) & os.O_WRONLY:
                    os.close(fd)
        self._fds.clear()

    # Calls.

    def open_append(self, path: Path, mode: int = PLAIN_FILE) -> int:
        return self._open(path, lambda: super(SimulatedDisk, self).open_append(path, mode))

    def open_update(self, path: Path, mode: int = PLAIN_FILE) -> int:
        return self._open(path, lambda: super(SimulatedDisk, self).open_update(path, mode))

    def open_new(self, path: Path, mode: int = PRIVATE_FILE) -> int:
        return self._open(path, lambda: super(SimulatedDisk, self).open_new(path, mode))

    def _open(self, path: Path, act: Callable[[], int]) -> int:
        is_new = not os.path.lexists(path)
        found = [-1]

        def done() -> None:
            fd = found[0] = act()
            if self.platter.is_below(path):
                inode = os.fstat(fd).st_ino
                self._fds[fd] = inode
                if is_new:
                    self.platter.created(path, inode)
                else:
                    self.platter.known(path, inode)

        self._call("open", path, done)
        return found[0]

    def write(self, fd: int, data: bytes) -> None:
        size = os.fstat(fd).st_size
        self._write("write", fd, data, size, lambda part: super(SimulatedDisk, self).write(fd, part))

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        self._write("write_at", fd, data, at, lambda part: super(SimulatedDisk, self).write_at(fd, part, at))

    def _write(self, name: str, fd: int, data: bytes, at: int, act: Callable[[bytes], None]) -> None:
        node = self.platter.node_of(fd)

        def write(part: bytes) -> None:
            act(part)
            if node is not None and part:
                self.platter.changed(node, _Write(at, bytes(part)))

        half = data[: len(data) // 2]
        self._call(name, self.platter.path_of(fd), lambda: write(data), lambda: write(half), size=len(data))

    def truncate(self, fd: int, size: int) -> None:
        node = self.platter.node_of(fd)

        def act() -> None:
            super(SimulatedDisk, self).truncate(fd, size)
            if node is not None:
                self.platter.changed(node, _Truncate(size))

        self._call("truncate", self.platter.path_of(fd), act)

    def sync(self, fd: int) -> None:
        node = self.platter.node_of(fd)

        def act() -> None:
            if node is not None:
                self.platter.synced(node)

        def fail() -> None:
            if node is not None:
                self.platter.dropped(node, SeededSurvival(self._rng))

        self._call("sync", self.platter.path_of(fd), act, failed=fail)

    def sync_folder(self, folder: Path) -> None:
        def act() -> None:
            folder.stat()
            self.platter.synced_folder(folder)

        self._call("sync_folder", folder, act)

    def sync_filesystem(self, folder: Path) -> None:
        self._call("sync_filesystem", folder, self.platter.synced_all)

    def replace(self, source: Path, target: Path) -> None:
        def act() -> None:
            if source.exists() and self.platter.is_below(target):
                self.platter.replaced(source, target)
            super(SimulatedDisk, self).replace(source, target)

        self._call("replace", target, act)

    def link(self, source: Path, target: Path) -> None:
        def act() -> None:
            super(SimulatedDisk, self).link(source, target)
            if self.platter.is_below(target):
                self.platter.linked(source, target)

        self._call("link", target, act)

    def unlink(self, path: Path) -> None:
        def act() -> None:
            super(SimulatedDisk, self).unlink(path)
            if self.platter.is_below(path):
                self.platter.unlinked(path)

        self._call("unlink", path, act)

    def make_folder(self, path: Path, mode: int = PRIVATE_FOLDER) -> None:
        def act() -> None:
            missing = [one for one in (path, *path.parents) if self.platter.is_below(one) and not one.exists()]
            super(SimulatedDisk, self).make_folder(path, mode)
            for one in reversed(missing):
                self.platter.made_folder(one)

        self._call("make_folder", path, act)

    def remove_tree(self, path: Path) -> None:
        def act() -> None:
            super(SimulatedDisk, self).remove_tree(path)
            if self.platter.is_below(path):
                self.platter.unlinked(path)

        self._call("remove_tree", path, act)

    def commit(self, path: Path, data: bytes, act: Callable[[], None], *, durable: bool) -> None:
        """A commit of an LMDB environment: `act` writes `data` as the new content of its file."""

        def commit() -> None:
            is_new = not path.exists()
            act()
            self.platter.committed(path, data, is_new=is_new, durable=durable)

        self._call("commit", path, commit, size=len(data))

    def sync_environment(self, path: Path) -> None:
        """A sync of an LMDB environment, by the path of its file."""
        self._call("sync", path, lambda: self.platter.synced_environment(path))

    def _call(
        self,
        name: str,
        path: Path,
        act: Callable[[], None],
        half: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
        size: int = 0,
    ) -> None:
        if self.is_dead:
            raise Died
        self.calls += 1
        artifact = "data directory" if path == self.platter.root else artifact_of(path)
        call = self.last_call = Call(self.calls, name, artifact, path, size)
        fault = self.plan(call) if self.plan else None
        self.platter.coverage.count(call.artifact, name, fault or "none")
        if fault is None:
            act()
            return
        if fault in DEATHS:
            if fault is Fault.DIE_AFTER:
                act()
            elif fault is Fault.DIE_DURING and half:
                half()
            self.is_dead = True
            if self._on_death:
                self._on_death()
            raise Died
        if half:
            half()
        if failed:
            failed()
        number = errno.ENOSPC if fault is Fault.ENOSPC else errno.EIO
        raise OSError(number, os.strerror(number))
