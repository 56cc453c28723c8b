"""The index and the node files against what the log says of them.

LMDB believes its own pages: one wrong bit in them can end the process that reads them. So an index that is not trusted
is written out row by row by a process of its own, and only what that one wrote is read here.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import lmdb

from veen.core import Malformed, Unavailable, VeenError, mmr
from veen.core.hashing import HASH_BYTES
from veen.storage import safe_open
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.index import FORMAT, SUM, SUMMED, TABLES, Index, share
from veen.storage.index_faults import check_files
from veen.storage.label_head import LabelHead
from veen.storage.paths import Folders

Row = tuple[bytes, bytes]

_ROW = struct.Struct(">BHI")
_END = len(TABLES)
_NUMBER_BYTES = 8
# A damaged index can send its reader in circles: no sound one comes near this many bytes per byte of file.
_MAX_GROWTH = 4
_ROOM = 1 << 20


@dataclass(frozen=True, slots=True)
class Dump:
    """What an index says, in a file that can be read without trusting it."""

    path: Path
    numbers: dict[str, int]
    heads: dict[bytes, LabelHead]

    @property
    def applied(self) -> int:
        return self.numbers.get("applied", 0)

    def tables(self) -> Iterator[tuple[str, Iterator[Row]]]:
        """Every table with its rows, each to be read before the next."""
        groups = groupby(_rows_in(self.path), key=lambda row: row[0])
        found = next(groups, None)
        for number, table in enumerate(TABLES):
            if found is None or found[0] != number:
                yield table, iter(())
            else:
                yield table, ((key, value) for _, key, value in found[1])
                found = next(groups, None)


def write_rows(folder: Path, target: Path) -> None:
    """Write every row of an index that no one writes to."""
    bound = _MAX_GROWTH * (folder / "data.mdb").stat().st_size + _ROOM
    index = Index(folder, readonly=True, lock=False)
    try:
        with index.read() as rows, target.open("wb") as file:
            for number, table in enumerate(TABLES):
                for key, value in rows.all_rows(table):
                    file.write(_ROW.pack(number, len(key), len(value)) + key + value)
                    if file.tell() > bound:
                        raise Malformed("index", "it has no end")
            file.write(_ROW.pack(_END, 0, 0))
    except lmdb.Error as error:
        raise Malformed("index", str(error)) from None
    finally:
        index.close()


def read_index(folders: Folders, scratch: Path, report: FsckReport, *, isolated: bool) -> Dump | None:
    """What the index says; None with a finding where it cannot be read."""
    data = folders.index / "data.mdb"
    artifact = str(data.relative_to(folders.root))
    target = scratch / "rows"
    try:
        check_files(folders.index)
        if not data.exists():
            raise Unavailable("there is none")
        if isolated:
            _write_rows_apart(folders.index, target)
        else:
            write_rows(folders.index, target)
        dump = _opened(target)
    except VeenError as error:
        report.add(Finding(Severity.REPAIRABLE, artifact, f"the index cannot be used: {error}"))
        return None
    return dump


def compare_rows(dump: Dump, truth: Index, folders: Folders, report: FsckReport) -> None:
    """Every row of the index against those of one made from the log, both ways."""
    artifact = str((folders.index / "data.mdb").relative_to(folders.root))
    with truth.read() as rows:
        for table, said in dump.tables():
            for kind, (key, _) in _differences(said, rows.all_rows(table)):
                if table != "meta" or key.decode(errors="replace") not in _NOT_OF_THE_LOG:
                    what = f"a row of {table} {kind}"
                    label = key[-HASH_BYTES:] if len(key) % HASH_BYTES == 0 and table not in _BY_OTHERS else None
                    report.add(Finding(Severity.REPAIRABLE, artifact, what, label))


_BY_OTHERS = ("meta", "caps", "streams")
_NOT_OF_THE_LOG = ("applied", "format", SUM)  # how an index came about, and the sum that covers it, which held


class ShadowFiles:
    """The files behind an index that is made for comparison: nothing is written, nodes are compared."""

    def __init__(self, folders: Folders, report: FsckReport) -> None:
        self._folders = folders
        self._report = report
        self._faulty: set[bytes] = set()
        self.closed: list[tuple[int, int]] = []

    def append(self, label: bytes, start_seq: int, at: int, frames: bytes, *, sync: bool) -> None:
        """The chunk was read."""

    def close(self, label: bytes, head: LabelHead) -> None:
        """What the limits say a chunk is."""
        self.closed.append((head.chunk_start, head.size))

    def settle(self, *, everything: bool) -> None:
        """Nothing was written."""

    def add_nodes(self, label: bytes, at: int, nodes: bytes, *, sync: bool) -> None:
        path = self._folders.node_file(label)
        try:
            with open(safe_open.open_file(path), "rb") as file:
                file.seek(at)
                same = file.read(len(nodes)) == nodes
        except (OSError, Malformed):
            same = False
        if not same and label not in self._faulty:
            self._faulty.add(label)
            artifact = str(path.relative_to(self._folders.root))
            what = "its nodes are not those of the log" if path.exists() else "it is missing"
            self._report.add(Finding(Severity.REPAIRABLE, artifact, what, label))


def check_node_names(folders: Folders, sizes: dict[bytes, int], behind: set[bytes], report: FsckReport) -> None:
    """No node file without a log, and none longer than its log, but where a catch-up was interrupted."""
    for path in sorted(folders.nodes.glob("*")):
        label = _label_of(path)
        if label in behind:
            continue
        expected = mmr.node_count(sizes.get(label, 0)) * HASH_BYTES if label else 0
        if not safe_open.is_file(path) or path.stat().st_size > expected:
            artifact = str(path.relative_to(folders.root))
            report.add(Finding(Severity.REPAIRABLE, artifact, "the log has no such nodes", label))


def _label_of(path: Path) -> bytes | None:
    try:
        return bytes.fromhex(path.stem) if path.suffix == ".mmr" else None
    except ValueError:
        return None


def _write_rows_apart(folder: Path, target: Path) -> None:
    """In a process of its own, which may end in any way."""
    command = [sys.executable, "-m", "veen.storage.index_check", str(folder), str(target)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode < 0:
        raise Malformed("index", f"reading it ends the process (signal {-done.returncode})")
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise Malformed("index", lines[-1] if lines else "it cannot be read")


def _opened(path: Path) -> Dump:
    numbers: dict[str, int] = {}
    heads: dict[bytes, LabelHead] = {}
    total = 0
    for table, key, value in _rows_in(path):
        if TABLES[table] in SUMMED:
            total ^= share(TABLES[table], key, value)
        if TABLES[table] == "meta" and len(value) == _NUMBER_BYTES:
            numbers[key.decode(errors="replace")] = int.from_bytes(value, "big")
        elif TABLES[table] == "heads":
            heads[key] = LabelHead.decode(value)
    if numbers.get("format") != FORMAT:
        raise Malformed("index", f"format {numbers.get('format', 0)}, not {FORMAT}")
    if numbers.get(SUM, 0) != total:
        raise Malformed("index", "its sum is not that of its rows")
    return Dump(path, numbers, heads)


def _rows_in(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    with path.open("rb") as file:
        while (row := _next_row(file))[0] != _END:
            yield row


def _next_row(file: BinaryIO) -> tuple[int, bytes, bytes]:
    header = file.read(_ROW.size)
    if len(header) != _ROW.size:
        raise Malformed("index", "its rows end early")
    table, key_len, value_len = _ROW.unpack(header)
    return table, file.read(key_len), file.read(value_len)


def _differences(said: Iterator[Row], true: Iterator[Row]) -> Iterator[tuple[str, Row]]:
    """What only one of two sorted sequences has."""
    a, b = next(said, None), next(true, None)
    while a is not None or b is not None:
        if a == b:
            a, b = next(said, None), next(true, None)
        elif b is None or (a is not None and a < b):
            assert a is not None
            yield "says what the log does not", a
            a = next(said, None)
        else:
            yield "is missing", b
            b = next(true, None)


if __name__ == "__main__":
    try:
        write_rows(Path(sys.argv[1]), Path(sys.argv[2]))
    except VeenError as error:
        sys.exit(str(error))
