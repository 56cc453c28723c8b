"""The file lane: parcels of frames in files, signed by the sender for one recipient.

    parcel   = "VEIL parcel 1\\n" || sender (32) || recipient (32) || { u32be length || frame }* || signature (64)

There is no connection to authenticate, so every parcel names its sender and recipient and is signed.
"""

import asyncio
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plumbing.durable import PRIVATE_FOLDER, in_use, replace_file
from plumbing.sodium import SigningKey
from veil import veil_limits
from veil.encryption import verify
from veil.hashing import derive, u32be
from veil.lanes.lane import Accept, Endpoint, Health, Incoming, Pull, Session
from veil.objects import PUBKEY_BYTES, SIGNATURE_BYTES
from veil.veil_errors import Malformed, Unavailable, Unverified, VeilError

MAGIC = b"VEIL parcel 1\n"
_CONTEXT = "veil parcel v1"
_LENGTH_BYTES = 4
_MIN_BYTES = len(MAGIC) + 2 * PUBKEY_BYTES + SIGNATURE_BYTES
# A pull may exceed `PARCEL_BYTES` by one frame.
MAX_FILE_BYTES = _MIN_BYTES + veil_limits.PARCEL_BYTES + veil_limits.MAX_FRAME_BYTES + 4 * _LENGTH_BYTES


@dataclass(frozen=True, slots=True)
class FileParcel:
    """Frames from one node to another."""

    sender: bytes
    recipient: bytes
    frames: tuple[bytes, ...]


def pack(key: SigningKey, recipient: bytes, frames: Sequence[bytes]) -> bytes:
    body = b"".join(u32be(len(frame)) + frame for frame in frames)
    signed = MAGIC + key.public_key + recipient + body
    return signed + key.sign(derive(_CONTEXT, signed))


def unpack(data: bytes, recipient: bytes) -> FileParcel:
    """Decode and verify a parcel. Raise `Unverified` if it is for another node or the signature fails."""
    if not _MIN_BYTES <= len(data) <= MAX_FILE_BYTES or not data.startswith(MAGIC):
        raise Malformed("parcel", "not a parcel, or truncated")
    signed, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
    at = len(MAGIC)
    sender, named = signed[at : at + PUBKEY_BYTES], signed[at + PUBKEY_BYTES : at + 2 * PUBKEY_BYTES]
    if named != recipient:
        raise Unverified("parcel", "addressed to another node")
    verify(sender, derive(_CONTEXT, signed), signature, "parcel")
    return FileParcel(sender, named, tuple(_frames(signed, at + 2 * PUBKEY_BYTES)))


def _frames(signed: bytes, at: int) -> list[bytes]:
    found = []
    while at < len(signed):
        start = at + _LENGTH_BYTES
        length = int.from_bytes(signed[at:start], "big")
        at = start + length
        if start > len(signed) or at > len(signed) or not 0 < length <= veil_limits.MAX_FRAME_BYTES:
            raise Malformed("parcel", "invalid frame length")
        found.append(signed[start:at])
    return found


SUFFIX = ".parcel"
_READABLE = 0o644


class FileLane:
    """Scans `folder` for parcels to this node. Dialling adds other folders."""

    name = "file"

    def __init__(self, key: SigningKey, folder: Path | None = None, settle: Callable[[], None] = lambda: None) -> None:
        self._key = key
        self._folder = folder
        self._settle = settle
        self._sessions: dict[tuple[Path, bytes], FileSession] = {}
        # Sessions that a received parcel started, least recently active first.
        self._accepted: dict[tuple[Path, bytes], None] = {}
        # Files that are not parcels and cannot be removed.
        self._junk: dict[Path, None] = {}
        self._accept: Accept | None = None
        self._scanner: asyncio.Task[None] | None = None

    async def start(self, accept: Accept) -> None:
        self._accept = accept
        if self._folder is not None:
            self._inbox(self._folder).mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._scanner = asyncio.ensure_future(self._scan_forever())

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("file", path=str(self._folder)),) if self._folder is not None else ()

    async def dial(self, endpoint: Endpoint, peer: bytes, pin: bytes | None) -> Session:
        folder = Path(endpoint.path)
        if not folder.is_dir():
            raise Unavailable(str(endpoint), "the folder does not exist")
        self._accepted.pop((folder, peer), None)
        return self._session(folder, peer)

    async def stop(self) -> None:
        if self._scanner is not None:
            self._scanner.cancel()
            await asyncio.gather(self._scanner, return_exceptions=True)
        for session in list(self._sessions.values()):
            await session.close()

    def _session(self, folder: Path, peer: bytes) -> "FileSession":
        found = self._sessions.get((folder, peer))
        if found is None or found.closed.is_set():
            found = self._sessions[folder, peer] = FileSession(self._key, folder, peer, self._settle)
        return found

    def _inbox(self, folder: Path) -> Path:
        return folder / self._key.public_key.hex()

    async def _scan_forever(self) -> None:
        while True:
            with suppress(OSError):  # for example a removed USB stick
                self.scan()
            await asyncio.sleep(veil_limits.SCAN_SECONDS)

    def scan(self) -> None:
        """Pass new parcels to their sessions."""
        self._sessions = {key: one for key, one in self._sessions.items() if not one.closed.is_set()}
        self._accepted = {key: None for key in self._accepted if key in self._sessions}
        folders = {folder for folder, _ in self._sessions} | ({self._folder} if self._folder else set())
        new_senders = veil_limits.NEW_SENDERS_PER_SCAN
        for folder in folders:
            inbox = self._inbox(folder)
            found = sorted(set(inbox.glob(f"*{SUFFIX}")) - self._junk.keys()) if inbox.is_dir() else []
            for path in found[: veil_limits.MAX_PARCELS]:
                key = folder, _sender(path)
                if len(key[1]) != PUBKEY_BYTES:
                    continue
                if key not in self._sessions:
                    # Verification blocks the event loop, so limit it. The rest waits for the next scan.
                    if not new_senders:
                        continue
                    new_senders -= 1
                    if not self._accept_sender(*key, path):
                        continue
                if key in self._accepted:
                    self._accepted[key] = self._accepted.pop(key)
                self._sessions[key].arrived(path)

    def _accept_sender(self, folder: Path, peer: bytes, path: Path) -> bool:
        """Start a session if the parcel is signed by the sender in its file name. Return whether it did."""
        try:
            _unpacked(path, peer, self._key.public_key)
        except OSError:
            return False
        except VeilError:
            _remove(path, self._junk)
            return False
        session = self._session(folder, peer)
        while len(self._accepted) >= veil_limits.MAX_UNAUTHENTICATED:
            oldest = next(iter(self._accepted))
            del self._accepted[oldest]
            self._sessions.pop(oldest).end()
        self._accepted[folder, peer] = None
        if self._accept is not None:
            self._accept(session)
        return True


class FileSession:
    """Parcels to and from one node through one folder."""

    def __init__(self, key: SigningKey, folder: Path, peer: bytes, settle: Callable[[], None]) -> None:
        self.peer = peer
        self.remote = str(folder)
        self.health = Health()
        self.closed = asyncio.Event()
        self._key = key
        self._settle = settle
        self._outbox = folder / peer.hex()
        self._outbox_is_durable = False
        self._waiting: dict[Path, None] = {}
        # Received parcels that cannot be removed.
        self._unremovable: dict[Path, None] = {}
        self._work = asyncio.Event()
        self._number = time.time_ns()

    def wake(self) -> None:
        self._work.set()

    def arrived(self, path: Path) -> None:
        if path not in self._unremovable and len(self._waiting) < veil_limits.MAX_PARCELS:
            self._waiting[path] = None
            self._work.set()

    async def run(self, pull: Pull, incoming: Incoming) -> None:
        try:
            self._work.set()
            while not self.closed.is_set():
                await self._work.wait()
                self._work.clear()
                try:
                    self._receive_parcels(incoming)
                    self._send_parcels(pull)
                except OSError as error:
                    raise Unavailable(self.remote, error.strerror or str(error)) from None
        finally:
            self.closed.set()

    async def close(self) -> None:
        self.end()

    def end(self) -> None:
        self.closed.set()
        self._work.set()

    def _receive_parcels(self, incoming: Incoming) -> None:
        """Process parcels. Commit their frames before removing the files; a crash before that reads them again."""
        paths = list(self._waiting)
        self._waiting.clear()
        received = []
        for path in paths:
            try:
                frames = _unpacked(path, self.peer, self._key.public_key)
            except OSError:
                continue  # unreadable now; the next scan finds it again
            except VeilError:
                self.health.strikes += 1
                frames = ()
            received.append(path)
            for frame in frames:
                self.health.frames_received += 1
                self.health.bytes_received += len(frame)
                incoming(frame)
        if received:
            self._settle()
        for path in received:
            _remove(path, self._unremovable)

    def _send_parcels(self, pull: Pull) -> None:
        while self._room() and (frames := pull(veil_limits.PARCEL_BYTES)):
            if not self._outbox_is_durable:
                in_use().make_durable_folder(self._outbox, PRIVATE_FOLDER)
                self._outbox_is_durable = True
            self._number += 1
            name = f"{self._key.public_key.hex()}-{self._number:020d}{SUFFIX}"
            replace_file(self._outbox / name, pack(self._key, self.peer, frames), _READABLE)
            self.health.frames_sent += len(frames)
            self.health.bytes_sent += sum(map(len, frames))
            self.health.delivered(len(frames), 0.0)

    def _room(self) -> bool:
        ours = self._outbox.glob(f"{self._key.public_key.hex()}-*{SUFFIX}")
        return sum(1 for _ in ours) < veil_limits.MAX_PARCELS


def _sender(path: Path) -> bytes:
    """The sender key in a file name; empty if there is none."""
    try:
        return bytes.fromhex(path.name.partition("-")[0])
    except ValueError:
        return b""


def _unpacked(path: Path, sender: bytes, recipient: bytes) -> tuple[bytes, ...]:
    """The frames of a parcel. Raise `VeilError` if it is invalid or not by the sender in its file name."""
    parcel = unpack(_read(path), recipient)
    if parcel.sender != sender:
        raise Unverified("parcel", "the file name has another sender")
    return parcel.frames


def _read(path: Path) -> bytes:
    """Read at most the maximum size of a parcel."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would block
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Malformed("parcel", "not a regular file")
        with open(handle, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(handle)


def _remove(path: Path, unremovable: dict[Path, None]) -> None:
    """Remove a file. If that fails, remember it in `unremovable`, so it is not read again."""
    try:
        in_use().unlink(path)
    except OSError:
        unremovable[path] = None
        while len(unremovable) > veil_limits.MAX_PARCELS:
            del unremovable[next(iter(unremovable))]
