"""The files of a data directory: local, or on any filesystem that pyarrow or fsspec can open by URL."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from plumbing.cli.extras import install_hint
from veen.core import Unavailable
from veen.storage import frame, safe_open
from veen.storage.chunk_reader import PackedChunk, is_packed, mapped, read_blocks
from veen.storage.frame import Data

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


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
