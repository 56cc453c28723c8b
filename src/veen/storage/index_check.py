"""Compare the index and the node files with the log.

LMDB does not check its pages: one wrong bit can crash the process that reads them. An untrusted index is therefore
dumped row by row in a separate process, and only the dump is read here.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import lmdb

from veen.core import Malformed, Unavailable, VeenError, mmr
from veen.core.hashing import HASH_BYTES
from veen.storage import safe_open
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.index import FORMAT, MARKED, SUM, SUMMED, TABLES, Index, LabelHead, check_files, share
from veen.storage.paths import Folders

Row = tuple[bytes, bytes]

_ROW = struct.Struct(">BHI")
_END = len(TABLES)
_NUMBER_BYTES = 8
# Damaged pages can form a cycle. An intact index never dumps to more than this many bytes per byte of its file.
_MAX_GROWTH = 4
_MIN_DUMP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class IndexDump:
    """The rows of an index in a file that is safe to read."""

    path: Path
    numbers: dict[str, int]
    heads: dict[bytes, LabelHead]

    @property
    def is_marked(self) -> bool:
        return bool(self.numbers.get(MARKED))

    @property
    def applied(self) -> int:
        return self.numbers.get("applied", 0)

    def tables(self) -> Iterator[tuple[str, Iterator[Row]]]:
        """Every table with its rows. Read each table before the next."""
        groups = groupby(_rows_in(self.path), key=lambda row: row[0])
        found = next(groups, None)
        for number, table in enumerate(TABLES):
            if found is None or found[0] != number:
                yield table, iter(())
            else:
                yield table, ((key, value) for _, key, value in found[1])
                found = next(groups, None)


def write_rows(folder: Path, target: Path) -> None:
    """Dump every row of an index that has no writer."""
    bound = _MAX_GROWTH * (folder / "data.mdb").stat().st_size + _MIN_DUMP_BYTES
    index = Index(folder, readonly=True, lock=False)
    try:
        with index.read() as rows, target.open("wb") as file:
            for number, table in enumerate(TABLES):
                for key, value in rows.all_rows(table):
                    file.write(_ROW.pack(number, len(key), len(value)) + key + value)
                    if file.tell() > bound:
                        raise Malformed("index", "its pages form a cycle")
            file.write(_ROW.pack(_END, 0, 0))
    except lmdb.Error as error:
        raise Malformed("index", str(error)) from None
    finally:
        index.close()


def read_index(folders: Folders, scratch: Path, report: FsckReport, *, isolated: bool) -> IndexDump | None:
    """Dump the index; None with a finding if it cannot be read."""
    data = folders.index / "data.mdb"
    artifact = str(data.relative_to(folders.root))
    target = scratch / "rows"
    try:
        check_files(folders.index)
        if not data.exists():
            raise Unavailable("data.mdb is missing")
        if isolated:
            _write_rows_in_subprocess(folders.index, target)
        else:
            write_rows(folders.index, target)
        dump = _opened(target)
    except VeenError as error:
        report.add(Finding(Severity.REPAIRABLE, artifact, f"the index is unusable: {error}"))
        return None
    return dump


def compare_rows(dump: IndexDump, truth: Index, folders: Folders, report: FsckReport) -> None:
    """Compare the index with one built from the log, in both directions."""
    artifact = str((folders.index / "data.mdb").relative_to(folders.root))
    with truth.read() as rows:
        for table, stored in dump.tables():
            for kind, (key, _) in _differences(stored, rows.all_rows(table)):
                if table != "meta" or key.decode(errors="replace") not in _NOT_OF_THE_LOG:
                    what = f"a row of {table} {kind}"
                    label = key[-HASH_BYTES:] if len(key) % HASH_BYTES == 0 and table not in _BY_OTHERS else None
                    report.add(Finding(Severity.REPAIRABLE, artifact, what, label))


_BY_OTHERS = ("meta", "caps", "streams")
_NOT_OF_THE_LOG = ("applied", "format", MARKED, SUM)  # history of the index, and its sum, which is already verified


class ShadowFiles:
    """Stands in for log files while an index is built for comparison: writes nothing, compares nodes."""

    def __init__(self, folders: Folders, report: FsckReport) -> None:
        self._folders = folders
        self._report = report
        self._faulty: set[bytes] = set()
        self.closed: list[tuple[int, int]] = []

    def append(self, label: bytes, start_seq: int, at: int, frames: bytes, *, sync: bool) -> None:
        """Nothing to do: the entries were read from the chunk."""

    def close(self, label: bytes, head: LabelHead) -> None:
        """Record where the limits end a chunk."""
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
            what = "its nodes do not match the log" if path.exists() else "missing"
            self._report.add(Finding(Severity.REPAIRABLE, artifact, what, label))


def check_node_names(folders: Folders, sizes: dict[bytes, int], behind: Collection[bytes], report: FsckReport) -> None:
    """Report node files without a log or longer than their log, except after an interrupted catch-up."""
    for path in sorted(folders.nodes.glob("*")):
        label = _label_of(path)
        if label in behind:
            continue
        expected = mmr.node_count(sizes.get(label, 0)) * HASH_BYTES if label else 0
        if not safe_open.is_file(path) or path.stat().st_size > expected:
            artifact = str(path.relative_to(folders.root))
            report.add(Finding(Severity.REPAIRABLE, artifact, "it has more nodes than the log", label))


def _label_of(path: Path) -> bytes | None:
    try:
        return bytes.fromhex(path.stem) if path.suffix == ".mmr" else None
    except ValueError:
        return None


def _write_rows_in_subprocess(folder: Path, target: Path) -> None:
    """Dump the index in a separate process, which may crash."""
    command = [sys.executable, "-m", "veen.storage.index_check", str(folder), str(target)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode < 0:
        raise Malformed("index", f"reading it crashes the process (signal {-done.returncode})")
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise Malformed("index", lines[-1] if lines else "cannot be read")


def _opened(path: Path) -> IndexDump:
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
        raise Malformed("index", "its sum does not match its rows")
    return IndexDump(path, numbers, heads)


def _rows_in(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    with path.open("rb") as file:
        while (row := _next_row(file))[0] != _END:
            yield row


def _next_row(file: BinaryIO) -> tuple[int, bytes, bytes]:
    header = file.read(_ROW.size)
    if len(header) != _ROW.size:
        raise Malformed("index", "the dump is incomplete")
    table, key_len, value_len = _ROW.unpack(header)
    return table, file.read(key_len), file.read(value_len)


def _differences(stored: Iterator[Row], expected: Iterator[Row]) -> Iterator[tuple[str, Row]]:
    """Rows that only one of two sorted sequences has."""
    a, b = next(stored, None), next(expected, None)
    while a is not None or b is not None:
        if a == b:
            a, b = next(stored, None), next(expected, None)
        elif b is None or (a is not None and a < b):
            assert a is not None
            yield "does not match the log", a
            a = next(stored, None)
        else:
            yield "is missing", b
            b = next(expected, None)


if __name__ == "__main__":
    try:
        write_rows(Path(sys.argv[1]), Path(sys.argv[2]))
    except VeenError as error:
        sys.exit(str(error))
