"""The file lane: parcels in a folder, for nodes that never meet but share a disk, a stick or a synchronised folder.

    FOLDER/<recipient>/<sender>-<number>.parcel

A parcel is put there whole. Whoever it is for takes it in, and removes it once what was in it is on its own disk;
where it may not, it remembers what it took. What is no parcel is removed as well. A node leaves no more than so many
parcels for another: the rest waits in its queue, on its own disk.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from veil.errors import Unverified, VeilError
from veil.lanes import bounds, parcels
from veil.lanes.durable import PRIVATE_FOLDER, write_file
from veil.lanes.endpoint import Endpoint
from veil.lanes.health import Health
from veil.lanes.lane import Accept, Incoming, Pull, Session, Unavailable
from veil.sealing.signing import SigningKey

SUFFIX = ".parcel"
_READABLE = 0o644


class FileLane:
    """Looks into `folder` for what is for us. Other folders may be dialled."""

    name = "file"

    def __init__(self, key: SigningKey, folder: Path | None = None, settle: Callable[[], None] = lambda: None) -> None:
        self._key = key
        self._folder = folder
        self._settle = settle
        self._sessions: dict[tuple[Path, bytes], FileSession] = {}
        self._accept: Accept | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(self, accept: Accept) -> None:
        self._accept = accept
        if self._folder is not None:
            self._inbox(self._folder).mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._looking = asyncio.ensure_future(self._look_always())

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("file", path=str(self._folder)),) if self._folder is not None else ()

    async def dial(self, endpoint: Endpoint, peer: bytes, pin: bytes | None) -> Session:
        folder = Path(endpoint.path)
        if not folder.is_dir():
            raise Unavailable(str(endpoint), "there is no such folder now")
        return self._session(folder, peer)

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for session in list(self._sessions.values()):
            await session.close()

    def _session(self, folder: Path, peer: bytes) -> "FileSession":
        found = self._sessions.get((folder, peer))
        if found is None or found.closed.is_set():
            found = self._sessions[folder, peer] = FileSession(self._key, folder, peer, self._settle)
        return found

    def _inbox(self, folder: Path) -> Path:
        return folder / self._key.public_key.hex()

    async def _look_always(self) -> None:
        while True:
            with suppress(OSError):  # a stick that was pulled out
                self.look()
            await asyncio.sleep(bounds.LOOK_SECONDS)

    def look(self) -> None:
        """Take in what lies there for us."""
        folders = {folder for folder, _ in self._sessions} | ({self._folder} if self._folder else set())
        for folder in folders:
            inbox = self._inbox(folder)
            for path in sorted(inbox.glob(f"*{SUFFIX}"))[: bounds.MAX_PARCELS] if inbox.is_dir() else ():
                self._take(folder, path)

    def _take(self, folder: Path, path: Path) -> None:
        sender = path.name.partition("-")[0]
        try:
            peer = bytes.fromhex(sender)
        except ValueError:
            return
        if len(peer) != len(self._key.public_key):
            return
        known = self._sessions.get((folder, peer))
        session = self._session(folder, peer)
        if session is not known and self._accept is not None:
            self._accept(session)
        session.arrived(path)


class FileSession:
    """Parcels to and from one node, by way of one folder."""

    def __init__(self, key: SigningKey, folder: Path, peer: bytes, settle: Callable[[], None]) -> None:
        self.peer = peer
        self.remote = str(folder)
        self.health = Health()
        self.closed = asyncio.Event()
        self._key = key
        self._settle = settle
        self._outbox = folder / peer.hex()
        self._waiting: dict[Path, None] = {}
        # Taken in, and not ours to remove.
        self._left: dict[Path, None] = {}
        self._work = asyncio.Event()
        self._number = time.time_ns()

    def wake(self) -> None:
        self._work.set()

    def arrived(self, path: Path) -> None:
        if path not in self._left and len(self._waiting) < bounds.MAX_PARCELS:
            self._waiting[path] = None
            self._work.set()

    async def run(self, pull: Pull, incoming: Incoming) -> None:
        try:
            self._work.set()
            while not self.closed.is_set():
                await self._work.wait()
                self._work.clear()
                try:
                    self._take_in(incoming)
                    self._write_out(pull)
                except OSError as error:
                    raise Unavailable(self.remote, error.strerror or str(error)) from None
        finally:
            self.closed.set()

    async def close(self) -> None:
        self.closed.set()
        self._work.set()

    def _take_in(self, incoming: Incoming) -> None:
        """What a parcel held must be on our disk before it goes; a crash before that has it read again."""
        paths = list(self._waiting)
        self._waiting.clear()
        for path in paths:
            try:
                frames = self._frames(path)
            except FileNotFoundError:
                continue
            except (OSError, VeilError):
                self.health.strikes += 1
                frames = ()
            for frame in frames:
                self.health.frames_received += 1
                self.health.bytes_received += len(frame)
                incoming(frame)
        if paths:
            self._settle()
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError:  # not ours to remove: remembered instead
                self._left[path] = None
                while len(self._left) > bounds.MAX_PARCELS:
                    del self._left[next(iter(self._left))]

    def _frames(self, path: Path) -> tuple[bytes, ...]:
        parcel = parcels.unpack(_read(path), self._key.public_key)
        if parcel.sender != self.peer:
            raise Unverified("parcel", "its name is not its sender's")
        return parcel.frames

    def _write_out(self, pull: Pull) -> None:
        while self._room() and (frames := pull(bounds.PARCEL_BYTES)):
            self._outbox.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            self._number += 1
            name = f"{self._key.public_key.hex()}-{self._number:020d}{SUFFIX}"
            write_file(self._outbox / name, parcels.pack(self._key, self.peer, frames), _READABLE)
            self.health.frames_sent += len(frames)
            self.health.bytes_sent += sum(map(len, frames))
            self.health.delivered(len(frames), 0.0)

    def _room(self) -> bool:
        ours = self._outbox.glob(f"{self._key.public_key.hex()}-*{SUFFIX}")
        return sum(1 for _ in ours) < bounds.MAX_PARCELS


def _read(path: Path) -> bytes:
    """No more of a file than a parcel can have."""
    with path.open("rb") as file:
        return file.read(parcels.MAX_FILE_BYTES + 1)
