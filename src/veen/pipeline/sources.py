"""Sources of entries: a data directory, on this machine or any filesystem that has a URL, or a running hub.

A data directory is read from its log files only; the index is neither needed nor trusted. A hub is read over its public
API.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from plumbing.cli import install_hint
from veen.client.read_access import READER, signer_from_environment
from veen.client.transport import HubLink, RetryPolicy, TryLater
from veen.client.tree_follower import PrunedEntries, peaks_from
from veen.client.trust import HubStatus
from veen.core import Malformed, Refused, Unavailable, Unverified, proof
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
)
from veen.core.envelopes import StreamRequest as PageRequest
from veen.core.envelopes import StreamResponse as PageResponse
from veen.core.hub_identity import ForkOrigin, HubIdentity, lineage
from veen.core.proof import Head
from veen.core.retention import PRUNED, Segment, Tombstone
from veen.storage import frame, pruned_chunk, safe_open
from veen.storage.artifacts import PeakSnapshot
from veen.storage.chunk_reader import PackedChunk, is_packed, mapped, read_blocks
from veen.storage.frame import Data
from veen.storage.metadata import HubMetadata, read_metadata
from veen.storage.paths import ChunkName, Folders, pruned_range
from veen.storage.pruned_chunk import PrunedChunk

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

T = TypeVar("T")
LOG = "log"
NAMES = Folders(Path())  # for file names only
METADATA_FILES = tuple(
    path.name for path in (NAMES.identity, NAMES.identity_sig, NAMES.key_map, NAMES.limits, NAMES.profile)
)
OPTIONAL_FILES = (NAMES.origin.name, NAMES.limit_history.name, NAMES.format.name)
CHUNK_ENTRIES = 8_192  # of a hub
_MAX_ORIGIN_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """Everything known about a chunk without reading it; enough for another machine to read it."""

    label: bytes
    start_seq: int
    end_seq: int  # for an open chunk, its last whole entry at planning time
    name: str  # of the file; empty for a hub
    size: int  # in bytes, without a partial entry at the end
    closed: bool = True
    pruned: bool = False  # the rest of a chunk after a prune; see `veen.storage.pruned_chunk`

    @property
    def entries(self) -> int:
        return self.end_seq - self.start_seq + 1


class DirectoryChunks:
    """One data directory. A hub may write to it meanwhile."""

    def __init__(self, url: str) -> None:
        # Executors run in other working directories than the caller.
        self.url = url if "://" in url else os.path.abspath(url)
        self.files: LocalFiles | RemoteFiles = open_files(self.url)
        self._measured: dict[str, tuple[int, int]] = {}  # end of the measured part of each open chunk: offset, entries

    def metadata(self) -> HubMetadata:
        """The hub metadata. Raises if it is inconsistent."""
        with self.local_copy(METADATA_FILES, OPTIONAL_FILES) as folders:
            return read_metadata(folders)

    @contextmanager
    def local_copy(self, required: Iterable[str], optional: Iterable[str] = ()) -> Iterator[Folders]:
        """A data directory on this machine that has at least these files. Optional files may be missing."""
        if isinstance(self.files, LocalFiles):
            yield Folders(self.files.root)
            return
        with tempfile.TemporaryDirectory(prefix="veen-") as folder:
            found = {path: self.files.read(path) for path in required}
            for path in optional:
                with suppress(Unavailable):
                    found[path] = self.files.read(path)
            for path, data in found.items():
                (Path(folder) / path).parent.mkdir(exist_ok=True)
                (Path(folder) / path).write_bytes(data)
            yield Folders(Path(folder))

    def names(self) -> dict[str, int]:
        """The name and size of every file in the log folder."""
        return self.files.listed(LOG)

    def chunks(self, labels: frozenset[bytes] | None = None) -> list[Chunk]:
        """The chunks of these labels, or of all, by label and start. In open chunks, entry headers are counted."""
        return self.measured(labels)[1]

    def measured(self, labels: frozenset[bytes] | None = None) -> tuple[dict[str, int], list[Chunk]]:
        """File names and chunks of the log folder. Lists the folder again if a hub closes a chunk meanwhile."""
        while True:
            names = self.names()
            try:
                return names, self.chunks_of(names, labels)
            except Unavailable:
                if self.names().keys() == names.keys():
                    raise

    def chunks_of(self, names: dict[str, int], labels: frozenset[bytes] | None = None) -> list[Chunk]:
        """The chunks among these files.

        If two chunks start at the same entry, this prefers a closed one to an open one, and a compressed one to a plain
        one. If closed chunks contradict each other, it takes the one that more artifacts refer to. It takes a pruned
        chunk only if the whole chunk is missing.
        """
        found: dict[tuple[bytes, int], tuple[ChunkName, int]] = {}
        for file_name, size in names.items():
            name = ChunkName.parse(file_name)
            if name is None or (labels is not None and name.label not in labels):
                continue
            key = (name.label, name.start_seq)
            known = found.get(key)
            if known is None or _prefers(name, known[0], names):
                found[key] = name, size
        made = [self._chunk(name, size) for _, (name, size) in sorted(found.items())]
        for file_name, size in names.items():
            left = pruned_range(file_name)
            if left and left[:2] not in found and (labels is None or left[0] in labels):
                made.append(Chunk(*left, file_name, size, pruned=True))
        return list(_without_copies(sorted(chunk for chunk in made if chunk.entries > 0), names))

    def _chunk(self, name: ChunkName, size: int) -> Chunk:
        if name.end_seq is not None:
            return Chunk(name.label, name.start_seq, name.end_seq, name.file_name(), size)
        counted, entries = self._measure(name.file_name(), size)
        return Chunk(name.label, name.start_seq, name.start_seq + entries - 1, name.file_name(), counted, closed=False)

    def _measure(self, name: str, size: int) -> tuple[int, int]:
        """Count the bytes and number of whole entries in an open chunk, continuing from the last call."""
        pos, entries = self._measured.get(name, (0, 0))
        if size > pos:
            for data, _ in self.files.blocks(f"{LOG}/{name}", size):
                while len(data) - pos >= frame.HEADER_BYTES and pos + (length := frame.length_at(data, pos)) <= size:
                    pos, entries = pos + length, entries + 1
        self._measured[name] = pos, entries
        return pos, entries

    def blocks(self, chunk: Chunk) -> Iterator[tuple[Data, int]]:
        """Blocks of whole entries, each with the offset of its first entry.

        An open chunk may have been closed, and even compressed, since it was planned.
        """
        try:
            yield from self.files.blocks(f"{LOG}/{chunk.name}", 0 if chunk.closed else chunk.size)
        except Unavailable:
            closed_name = None if chunk.closed else self._closed_since(chunk)
            if closed_name is None:
                raise
            yield from self.files.blocks(f"{LOG}/{closed_name}", 0)

    @contextmanager
    def pruned(self, chunk: Chunk, identity: HubIdentity) -> Iterator[PrunedChunk]:
        """A pruned chunk. Raises `Unverified` unless the hub signed that it was pruned."""
        with self.local_copy((f"{LOG}/{chunk.name}",), (f"{LOG}/{NAMES.manifest(chunk.label).name}",)) as folders:
            manifest = pruned_chunk.verified_manifest(folders, identity, chunk.label)
            with PrunedChunk(folders.log / chunk.name) as left:
                pruned_chunk.check_pruned(left, manifest)
                yield left

    def pruned_segments(self, identity: HubIdentity, label: bytes) -> tuple[Segment, ...]:
        """Every chunk of a label that the hub signed as pruned."""
        with self.local_copy((), (f"{LOG}/{NAMES.manifest(label).name}",)) as folders:
            manifest = pruned_chunk.verified_manifest(folders, identity, label)
        return tuple(one for one in manifest.segments if one.level) if manifest else ()

    def check_packing(self, chunk: Chunk) -> None:
        """Raise `Malformed` if a compressed chunk does not match its digest."""
        if is_packed(Path(chunk.name)):
            self.files.packed(f"{LOG}/{chunk.name}").check_digest()

    def _closed_since(self, chunk: Chunk) -> str | None:
        for file_name in self.names():
            name = ChunkName.parse(file_name)
            if name and (name.label, name.start_seq) == (chunk.label, chunk.start_seq) and name.end_seq is not None:
                return file_name
        return None

    def first_frame(self, chunk: Chunk) -> Data:
        """Bytes that begin with the chunk's first entry, if possible without the rest of the chunk."""
        return self.files.beginning(f"{LOG}/{chunk.name}")

    def peaks(self, label: bytes, size: int) -> tuple[bytes, ...]:
        """The peaks of the tree at the end of a chunk. They are unverified until the next receipt's root matches."""
        snapshot = PeakSnapshot.decode(self.artifact(NAMES.peaks(label, size).name))
        if (snapshot.label, snapshot.upto_seq) != (label, size):
            raise Unverified("peak snapshot", "it is for another place than its name")
        return snapshot.peaks

    def artifact(self, name: str) -> bytes:
        """A small file of the log folder."""
        try:
            return self.files.read(f"{LOG}/{name}")
        except Missing:
            raise Malformed("log", f"{name} is missing") from None


def _prefers(name: ChunkName, known: ChunkName, names: Container[str]) -> bool:
    """Whether to use a chunk instead of another one with the same start."""
    if known.end_seq is None or name.end_seq is None:
        return known.end_seq is None
    if name.end_seq == known.end_seq:
        return name.packed
    return _artifact_count(name.label, name.start_seq, name.end_seq, names) > _artifact_count(
        known.label, known.start_seq, known.end_seq, names
    )


def _artifact_count(label: bytes, start: int, end: int, names: Container[str]) -> int:
    """How many artifacts exist for a chunk with these ends."""
    beside = (NAMES.summary(label, start, end), NAMES.peaks(label, end), NAMES.checkpoint(label, end))
    return sum(path.name in names for path in beside)


def _without_copies(chunks: Sequence[Chunk], names: Container[str]) -> Iterator[Chunk]:
    """Leave out closed chunks that overlap another and have no summary: copies under another name."""
    before: Chunk | None = None
    for chunk, after in pairwise([*chunks, None]):
        assert chunk is not None
        overlaps = any(one is not None and _overlap(chunk, one) for one in (before, after))
        summary = NAMES.summary(chunk.label, chunk.start_seq, chunk.end_seq).name
        if not (overlaps and chunk.closed and summary not in names):
            yield chunk
            before = chunk


def _overlap(a: Chunk, b: Chunk) -> bool:
    return a.label == b.label and a.start_seq <= b.end_seq and b.start_seq <= a.end_seq


class HubChunks:
    """One hub. A stream is cut into runs that tasks can share; the hub's proofs yield their peaks.

    The caller must name the labels, because a hub does not list them.
    """

    def __init__(self, url: str, retry_policy: RetryPolicy | None = None) -> None:
        self.url = url
        self._retry_policy = retry_policy or RetryPolicy()
        self._sizes: dict[bytes, int] = {}

    def metadata(self) -> HubMetadata:
        return self._metadata

    @cached_property
    def _metadata(self) -> HubMetadata:
        return self._read_metadata()

    def _read_metadata(self) -> HubMetadata:
        """Metadata of the hub that answers at this URL. Only a pin proves that it is the intended hub."""

        async def ask(link: HubLink) -> tuple[HubStatus, ForkOrigin | None]:
            status = HubStatus.read(await link.get_json("/tooling/status"))
            if status.identity.origin is None:
                return status, None
            return status, ForkOrigin.decode(await link.get("/tooling/origin", _MAX_ORIGIN_BYTES))

        status, origin = self._ask(ask)
        status.identity.verify(status.signature, status.identity.hub_id)
        fork_lineage = lineage(status.identity, origin)
        fork_lineage.verify(status.profile)
        return HubMetadata(
            status.identity, status.signature, status.limits, status.profile, fork_lineage, status.earlier_limits
        )

    def chunks(self, labels: frozenset[bytes] | None = None) -> list[Chunk]:
        return self.chunks_since(labels, {})

    def chunks_since(self, labels: frozenset[bytes] | None, known: Mapping[bytes, int]) -> list[Chunk]:
        """The chunks from the last known entry of each label on. Earlier entries are not requested."""
        if labels is None:
            error = Malformed("selection", f"{self.url} is a hub, and hubs do not list their labels")
            error.add_note("select labels or streams")
            raise error
        made = []
        for label, (first, size) in self._ask(lambda link: self._found(link, sorted(labels), known)).items():
            for start in range(first, size + 1, CHUNK_ENTRIES):
                end = min(start + CHUNK_ENTRIES - 1, size)
                made.append(Chunk(label, start, end, "", 0, closed=False))
        return made

    def blocks(self, chunk: Chunk) -> Iterator[tuple[Data, int]]:
        """Pages of whole entries. Raises `PrunedEntries` before a range that the hub proves to have pruned."""
        seq = chunk.start_seq
        while seq <= chunk.end_seq:
            page = self._kept_page(chunk, seq, chunk.end_seq)
            if not page:
                raise Malformed("page", f"{self.url} no longer has entry {seq}")
            yield page, 0
            pos = 0
            while pos < len(page):
                pos, seq = pos + frame.length_at(page, pos), seq + 1

    def first_frame(self, chunk: Chunk) -> Data:
        return self._kept_page(chunk, chunk.start_seq, chunk.start_seq)

    def peaks(self, label: bytes, size: int) -> tuple[bytes, ...]:
        """The peaks of the tree at an entry. They are unverified until the next receipt's root matches."""

        async def ask(link: HubLink) -> tuple[ProofResponse, Head]:
            shown = await link.ask("/v1/proof", ProofRequest(label, size), ProofResponse)
            return shown, await _head(link, label, size)

        shown, head = self._ask(ask)
        return peaks_from(shown.mmr_proof, head)

    def head(self, label: bytes, size: int) -> Head:
        """The verified receipt of an entry, or a checkpoint that ends with it if its receipt was pruned."""
        head = self._ask(lambda link: _head(link, label, size))
        if (proof.label_of(head), proof.size_of(head)) != (label, size):
            raise Unverified(self.url, f"the receipt of entry {size} belongs to another place")
        self._verified(lambda known: known.lineage.verify_head(head, known.profile))
        return head

    def _verified(self, check: Callable[[HubMetadata], T]) -> T:
        """The result of a check of a signature. If it fails, a key may be new: the metadata is read again, once."""
        try:
            return check(self._metadata)
        except Unverified:
            found = self._read_metadata()
            if found.identity.hub_id != self._metadata.identity.hub_id or found.identity == self._metadata.identity:
                raise
            self._metadata = found
        return check(found)

    def _kept_page(self, chunk: Chunk, first: int, last: int) -> bytes:
        try:
            with _at(chunk.label, first):
                return self._page(chunk.label, first, last)
        except Refused as refused:
            if refused.detail_enum != PRUNED:
                raise
            raise self._pruned(chunk, first, refused) from None

    def _pruned(self, chunk: Chunk, first: int, refused: Refused) -> PrunedEntries:
        """The error for the pruned entries from `first` on, at most to the end of the chunk.

        Raises `Unverified` if the hub has not signed that it pruned them, or pruned them from another history.
        """
        seq: int = first
        try:
            while True:
                tombstone = self._tombstone(chunk.label, seq, refused)
                end = tombstone.segment.end_seq
                if end >= chunk.end_seq:
                    break
                try:
                    self._page(chunk.label, end + 1, end + 1)
                except Refused as more:
                    if more.detail_enum != PRUNED:
                        raise
                    seq, refused = end + 1, more
                else:
                    break
            if self.head(chunk.label, end).mmr_root != tombstone.segment.mmr_root_end:
                raise Unverified("tombstone", "its root differs from that of the log")
        except (Malformed, Unverified) as error:
            what = f"the hub says that entry {seq} was pruned, without proof: {error}"
            raise Unverified("pruned range", what) from None
        return PrunedEntries(tombstone, first=first)

    def _tombstone(self, label: bytes, seq: int, refused: Refused) -> Tombstone:
        return self._verified(lambda known: Tombstone.of_answer(refused, known.identity, label, seq))

    def _page(self, label: bytes, first: int, last: int) -> bytes:
        """Request entries, and frame them as in a chunk file."""
        request = PageRequest(label, first, last, with_receipts=True)

        async def ask(link: HubLink) -> bytes:
            return await link.page(request)

        frames = []
        for item in PageResponse.decode(self._ask(ask)).items:
            if item.receipt is None:
                raise Malformed("page", f"entry {item.stream_seq} has no receipt")
            frames.append(frame.write(label, item.stream_seq, item.msg.encode(), item.receipt.encode())[0])
        return b"".join(frames)

    async def _found(
        self, link: HubLink, labels: Sequence[bytes], known: Mapping[bytes, int]
    ) -> dict[bytes, tuple[int, int]]:
        """The first entry to read and the last entry of each label."""
        found = {}
        for label in labels:
            first = known.get(label, 0)
            if first and not await _has(link, label, first):
                first = 0  # the hub lost entries; the reader reports that
            self._sizes[label] = await _size(link, label, max(first, self._sizes.get(label, 0)))
            found[label] = max(1, first), self._sizes[label]
        return found

    def _ask(self, work: Callable[[HubLink], Awaitable[T]]) -> T:
        async def run() -> T:
            link = HubLink(self.url, retry_policy=self._retry_policy)
            try:
                if os.environ.get(READER):
                    status = HubStatus.read(await link.get_json("/tooling/status"))
                    link.reads = signer_from_environment(status.identity.hub_id, status.hub_ts)
                return await work(link)
            finally:
                await link.close()

        return asyncio.run(run())


async def _size(link: HubLink, label: bytes, low: int) -> int:
    """Find the last entry: double the distance until there is none, then bisect."""
    step = 1
    while await _has(link, label, low + step):
        low, step = low + step, step * 2
    while step > 1:
        step //= 2
        if await _has(link, label, low + step):
            low += step
    return low


async def _head(link: HubLink, label: bytes, size: int) -> Head:
    try:
        return (await link.ask("/v1/receipt", ReceiptRequest(label, size), ReceiptResponse)).receipt
    except Refused as refused:
        if refused.detail_enum != PRUNED:
            raise
    return (await link.ask("/v1/checkpoint", CheckpointRequest(label, size), CheckpointResponse)).checkpoint


async def _has(link: HubLink, label: bytes, stream_seq: int) -> bool:
    try:
        with _at(label, stream_seq):
            await link.ask("/v1/receipt", ReceiptRequest(label, stream_seq), ReceiptResponse)
    except Refused as refused:
        if refused.code == "E.NOT_FOUND":
            return refused.detail_enum == PRUNED
        raise
    return True


@contextmanager
def _at(label: bytes, stream_seq: int) -> Iterator[None]:
    """Add the place to the error of a hub that cannot read an entry."""
    try:
        yield
    except TryLater as error:
        raise Unavailable(f"label {label.hex()}, entry {stream_seq}: {error}") from None


def by_label(chunks: Iterable[Chunk]) -> dict[bytes, list[Chunk]]:
    """The chunks of each label, from a sorted list."""
    return {label: list(found) for label, found in groupby(chunks, key=lambda chunk: chunk.label)}


ChunkSource: TypeAlias = DirectoryChunks | HubChunks


def open_source(url: str) -> ChunkSource:
    """Open a hub by its http address; anything else is a data directory."""
    return HubChunks(url) if url.startswith(("http://", "https://")) else DirectoryChunks(url)


class Missing(Unavailable):
    """The file does not exist. Other `Unavailable` errors may be temporary."""


class LocalFiles:
    """The files of one data directory on this machine, by path within it. Chunks are memory-mapped."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def listed(self, folder: str) -> dict[str, int]:
        """Names and sizes of the files in a folder. Raises `Unavailable` if it cannot be listed."""
        found = {}
        with _reachable(str(self.root / folder)):
            for path in (self.root / folder).iterdir():
                with suppress(FileNotFoundError):  # a hub may rename it meanwhile
                    if path.is_file():
                        found[path.name] = path.lstat().st_size
        return found

    def read(self, path: str) -> bytes:
        """The content of a small file. Raises `Unavailable` if it cannot be read."""
        with _reachable(str(self.root / path)):
            return safe_open.read(self.root / path)

    def blocks(self, path: str, size: int) -> Iterator[tuple[Data, int]]:
        """The entries of a chunk, compressed or not. `size` limits an uncompressed one to its first bytes."""
        yield from read_blocks(self.root / path, size=size)

    def beginning(self, path: str) -> Data:
        """Bytes that begin with a chunk's first entry."""
        return next(self.blocks(path, 0))[0]

    def packed(self, path: str) -> PackedChunk:
        """The raw compressed chunk."""
        return PackedChunk(mapped(self.root / path))


class RemoteFiles:
    """The same on another filesystem. A chunk is fetched whole, since all its entries are hashed anyway."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._system, self._root = _filesystem(url)

    def listed(self, folder: str) -> dict[str, int]:
        from pyarrow.fs import FileSelector, FileType

        with _reachable(f"{self._url}/{folder}"):
            found = self._system.get_file_info(FileSelector(f"{self._root}/{folder}"))
            return {one.base_name: one.size for one in found if one.type == FileType.File}

    def read(self, path: str) -> bytes:
        with _reachable(f"{self._url}/{path}"), self._system.open_input_stream(f"{self._root}/{path}") as file:
            return bytes(file.read())

    def blocks(self, path: str, size: int) -> Iterator[tuple[Data, int]]:
        if is_packed(Path(path)):
            yield from self.packed(path).blocks()
        else:
            data = self.read(path)
            yield data[:size] if size else data, 0

    def packed(self, path: str) -> PackedChunk:
        return PackedChunk(self.read(path))

    def beginning(self, path: str) -> Data:
        if is_packed(Path(path)):
            return next(self.blocks(path, 0))[0]
        with _reachable(f"{self._url}/{path}"), self._system.open_input_file(f"{self._root}/{path}") as file:
            head = bytes(file.read(frame.HEADER_BYTES))
            return head + bytes(file.read(frame.length_at(head, 0) - len(head)))


def open_files(url: str) -> LocalFiles | RemoteFiles:
    """Open a path, a file: URL, or a URL of another filesystem."""
    where = urlsplit(url)
    if where.scheme == "file":
        return LocalFiles(Path(unquote(where.path)))
    return RemoteFiles(url.rstrip("/")) if "://" in url else LocalFiles(Path(url))


def _filesystem(url: str) -> "tuple[FileSystem, str]":
    """The filesystem for a URL: pyarrow's own, else fsspec's if installed."""
    try:
        from pyarrow import ArrowException
        from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
    except ImportError:
        raise _missing(url, "pyarrow") from None
    try:
        system, root = FileSystem.from_uri(url)
        return system, root.rstrip("/")
    except (ArrowException, ValueError, OSError) as error:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            unreachable = Unavailable(f"{url} cannot be reached: {error}")
            unreachable.add_note("install fsspec with support for this kind of URL: pip install fsspec")
            raise unreachable from None
    try:
        found, root = url_to_fs(url)
    except (ValueError, ImportError, OSError) as error:
        raise Unavailable(f"{url} cannot be reached: {error}") from None
    return PyFileSystem(FSSpecHandler(found)), root.rstrip("/")


def _missing(url: str, package: str) -> Unavailable:
    error = Unavailable(f"{url} cannot be reached without {package}")
    error.add_note(install_hint("spark"))
    return error


@contextmanager
def _reachable(where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Missing(f"{where} does not exist") from None
    except OSError as error:
        raise Unavailable(f"{where} cannot be read: {error.strerror or error}") from None
