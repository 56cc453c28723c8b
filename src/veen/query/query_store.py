"""Queries and their results on disk. 001, query-api-spec §8.1.

    jobs/RESULT_ID.json     state of the job; replaced atomically
    rows/RESULT_ID.rows     one line of canonical JSON per row; written before the job refers to it
    rows/RESULT_ID.at       offset of each line
    rows/RESULT_ID.evidence evidence summary

A completed or failed job never changes.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import islice
from os import SEEK_END
from pathlib import Path
from typing import Any, Self

from veen.client import local_files
from veen.client.local_files import DISK
from veen.core import Malformed, Unavailable, canonical_json
from veen.core.canonical_json import Plain
from veen.query import digest as digests

_JOBS, _ROWS = "jobs", "rows"
_OFFSET = struct.Struct("<Q")
_MAX_JOB_BYTES = 1 << 20


class QueryStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


MOVES: dict[QueryStatus, frozenset[QueryStatus]] = {
    QueryStatus.PENDING: frozenset({QueryStatus.PENDING, QueryStatus.RUNNING, QueryStatus.FAILED}),
    QueryStatus.RUNNING: frozenset({QueryStatus.RUNNING, QueryStatus.COMPLETED, QueryStatus.FAILED}),
    QueryStatus.COMPLETED: frozenset(),
    QueryStatus.FAILED: frozenset(),
}


class QueryEnded(ValueError):
    """An attempt to change a job that has ended."""


@dataclass(frozen=True, slots=True)
class RecordedPlace:
    """The place of a record event in the log."""

    stream: str
    seq: int
    hub_id: str
    receipt_id: str


@dataclass(frozen=True, slots=True)
class QueryJob:
    """One query and its outcome. `digest` is set once the result exists, before the digest is recorded."""

    query_id: str
    result_id: str
    principal: str
    subject_id: str
    submitted_at: int  # milliseconds
    descriptor: str
    status: QueryStatus = QueryStatus.PENDING
    request: RecordedPlace | None = None
    digest: str | None = None
    result: RecordedPlace | None = None
    error_code: str | None = None
    message: str | None = None

    @property
    def ended(self) -> bool:
        return not MOVES[self.status]

    @classmethod
    def decode(cls, data: bytes, what: str) -> Self:
        found: Any = canonical_json.parse(data, what)
        try:
            recorded = {name: found[name] and RecordedPlace(**found[name]) for name in ("request", "result")}
            return cls(**{**found, **recorded, "status": QueryStatus(found["status"])})
        except (KeyError, TypeError, ValueError):
            raise Malformed(what, "it is not a query of this version") from None


class JobStore:
    """The stored jobs and results, as a context manager that locks the folder."""

    def __init__(self, folder: Path) -> None:
        self._jobs, self._rows = folder / _JOBS, folder / _ROWS
        self._folder = folder
        self._stack = ExitStack()
        self._by_result: dict[str, QueryJob] = {}
        self._by_query: dict[str, str] = {}
        self._checked: set[str] = set()

    def __enter__(self) -> Self:
        for path in (self._folder, self._jobs, self._rows):
            DISK.make_folder(path)
        self._stack.enter_context(local_files.locked_folder(self._folder))
        for left in [*self._jobs.glob(".*.draft"), *self._rows.glob(".*.draft")]:
            left.unlink()
        for path in sorted(self._jobs.glob("*.json")):
            self._index(QueryJob.decode(local_files.read_file(path, _MAX_JOB_BYTES), str(path)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[QueryJob]:
        return iter(list(self._by_result.values()))

    def job(self, result_id: str) -> QueryJob | None:
        return self._by_result.get(result_id)

    def of_query(self, query_id: str) -> QueryJob | None:
        found = self._by_query.get(query_id)
        return None if found is None else self._by_result[found]

    def add(self, job: QueryJob) -> None:
        if job.query_id in self._by_query or job.result_id in self._by_result:
            raise ValueError(f"query id {job.query_id} is already in use")
        self._write(job)

    def move(self, result_id: str, status: QueryStatus, **changes: Any) -> QueryJob:
        """Advance a job. Raises `QueryEnded` if it has ended or cannot get this status."""
        job = self._by_result[result_id]
        if status not in MOVES[job.status]:
            raise QueryEnded(f"{result_id} is {job.status} and cannot become {status}")
        made = replace(job, status=status, **changes)
        self._write(made)
        return made

    def _write(self, job: QueryJob) -> None:
        DISK.write_file(self._jobs / f"{job.result_id}.json", json.dumps(asdict(job)).encode())
        DISK.sync_folder(self._jobs)
        self._index(job)

    def _index(self, job: QueryJob) -> None:
        self._by_result[job.result_id] = job
        self._by_query[job.query_id] = job.result_id

    # Rows

    def put_rows(self, result_id: str, texts: Sequence[bytes], evidence: bytes) -> None:
        """Store the rows, each as canonical JSON, and the evidence summary."""
        offsets, at = [], 0
        for text in texts:
            offsets.append(_OFFSET.pack(at))
            at += len(text) + 1
        DISK.write_file(self._rows / f"{result_id}.rows", (text + b"\n" for text in texts))
        DISK.write_file(self._rows / f"{result_id}.at", b"".join(offsets))
        DISK.write_file(self._rows / f"{result_id}.evidence", evidence)
        DISK.sync_folder(self._rows)

    def rows(self, result_id: str, rows_hash: str, offset: int, limit: int, max_bytes: int) -> list[bytes]:
        """Some rows, up to `max_bytes` but at least one if there is one.

        Raises `Malformed` if the stored rows do not match their hash.
        """
        self._check(result_id, rows_hash)
        path, offsets = self._rows / f"{result_id}.rows", self._rows / f"{result_id}.at"
        with local_files.named(path), offsets.open("rb") as index, path.open("rb") as lines:
            if offset >= index.seek(0, SEEK_END) // _OFFSET.size:
                return []
            index.seek(offset * _OFFSET.size)
            lines.seek(_OFFSET.unpack(index.read(_OFFSET.size))[0])
            found, size = list[bytes](), 0
            for line in islice(lines, limit):
                size += len(line)
                if found and size > max_bytes:
                    break
                found.append(line.removesuffix(b"\n"))
        return found

    def evidence(self, result_id: str) -> dict[str, Plain]:
        path = self._rows / f"{result_id}.evidence"
        with local_files.named(path):
            found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise Malformed(str(path), "it is not an evidence summary")
        return found

    def _check(self, result_id: str, rows_hash: str) -> None:
        """Check the hash once per process: a changed file is not served as the result."""
        if result_id in self._checked:
            return
        path = self._rows / f"{result_id}.rows"
        try:
            texts = path.read_bytes().split(b"\n")[:-1]
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {error.strerror}") from None
        if digests.rows_hash(texts) != rows_hash:
            raise Malformed(str(path), "the stored rows do not match their hash")
        self._checked.add(result_id)
