"""The hub's side of the signer process: which key signs at which time, and how requests reach the process. Spec §8.4.

The loop sends the digests of a group and goes on; the answer comes as a callback. Every other caller waits for its
answer on a second channel. A signer that dies is replaced, and unanswered requests are sent again: a repeated signature
is the same signature.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock

from veen.core import HubIdentity, Malformed, Unavailable
from veen.core.hub_identity import HubKey
from veen.core.signing import PUBLIC_KEY_BYTES, SIGNATURE_BYTES
from veen.hub.conditions import Conditions, Reason
from veen.hub.signer_process import ANSWER, MALFORMED, REQUEST, SIGNED
from veen.storage import metadata
from veen.storage.paths import Folders

Signatures = list[bytes]
_READ_BYTES = 1 << 16
_MAX_RESTARTS = 20
# A hardware token may be slow. The hub does not wait for ever.
CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class RemoteKey:
    """A key whose secret half is in the signer process."""

    public_key: bytes
    name: str
    _call: Callable[[str, Sequence[bytes]], tuple[bytes, Signatures]]

    def sign(self, message: bytes) -> bytes:
        """`message` is a digest of 32 bytes."""
        return self.sign_many([message])[0]

    def sign_many(self, digests: Sequence[bytes]) -> Signatures:
        return self._call(self.name, digests)[1]


@dataclass(eq=False, slots=True)
class _Process:
    """One signer process and the two channels to it."""

    process: subprocess.Popen[bytes]
    calls: socket.socket
    groups: socket.socket

    def end(self) -> int:
        """End the process. Returns its exit status. The loop closes `groups`, after it stopped reading it."""
        self.calls.close()
        self.process.kill()
        return self.process.wait()


@dataclass(slots=True)
class _Pending:
    """The request of the loop that has no answer yet."""

    number: int
    request: bytes
    done: Callable[[Signatures], None]


class Signer:
    """The hub's keys by time: the same time always gives the same key, so signatures are reproducible."""

    def __init__(self, folders: Folders, identity: HubIdentity) -> None:
        self.identity = identity
        self._folder = folders.keys
        self._keys: dict[bytes, RemoteKey] = {}
        self._last: tuple[int, RemoteKey] | None = None
        self._call_lock = Lock()
        self._restarts = 0  # since the last answer
        self._numbers = count(1)
        self._pending: _Pending | None = None
        self._received = b""  # of the process whose answers the loop reads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = self._start()

    def attach(
        self, loop: asyncio.AbstractEventLoop, conditions: Conditions, on_broken: Callable[[BaseException], None]
    ) -> None:
        """Let the loop read answers. `on_broken` gets an error after which no group can be signed."""
        self._loop, self._conditions, self._on_broken = loop, conditions, on_broken
        self._read()

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop:
            loop.remove_reader(self._process.groups)
        self._process.end()
        self._process.groups.close()

    @property
    def pid(self) -> int:
        return self._process.process.pid

    def at(self, hub_ts: int) -> RemoteKey:
        """The key that signs at that time.

        Raises `Unverified` if no key is active then, `Unavailable` or `Malformed` if it cannot be used.
        """
        last = self._last
        if last and last[0] == hub_ts:
            return last[1]
        key = self.key(self.identity.signing_key_at(hub_ts))
        self._last = (hub_ts, key)
        return key

    def follow(self, identity: HubIdentity) -> None:
        """Sign with the keys of a record that continues the known one."""
        self.identity = identity
        self._last = None

    @property
    def newest(self) -> RemoteKey:
        """The newest key, which signs the checkpoints. Thread-safe."""
        return self.key(self.identity.newest)

    def key(self, wanted: HubKey) -> RemoteKey:
        """A key of the hub. Raises `Unavailable` or `Malformed` if it cannot be used."""
        key = self._keys.get(wanted.key_id)
        if key is None:
            key = self._keys[wanted.key_id] = self._load(metadata.key_name(wanted.key_id), wanted.hub_pk)
        return key

    def control_key(self) -> RemoteKey:
        """The key that signs the hub's entries of the control stream."""
        return self._load(metadata.CONTROL_KEY, None)

    def sign_later(self, key: RemoteKey, digests: Sequence[bytes], done: Callable[[Signatures], None]) -> None:
        """Sign digests, and call `done` on the loop. Only one such request at a time."""
        assert self._pending is None, "a request has no answer yet"
        number = next(self._numbers)
        self._pending = _Pending(number, _request(number, key.name, digests), done)
        self._send_pending()

    def _load(self, name: str, expected: bytes | None) -> RemoteKey:
        public_key, _ = self._call(name, ())
        if expected is not None and public_key != expected:
            raise Malformed(name, "it does not match the public key in hub-identity.json")
        return RemoteKey(public_key, name, self._call)

    # Calls that wait.

    def _call(self, name: str, digests: Sequence[bytes]) -> tuple[bytes, Signatures]:
        """Send a request and wait for its answer. Thread-safe."""
        number = next(self._numbers)
        request = _request(number, name, digests)
        with self._call_lock:
            while True:
                used = self._process
                try:
                    used.calls.sendall(request)
                    answered, status, length = ANSWER.unpack(_receive(used.calls, ANSWER.size))
                    content = _receive(used.calls, length)
                except TimeoutError:
                    self._replace(used)  # a late answer would be taken for that of the next request
                    raise Unavailable(f"the signer did not answer within {CALL_TIMEOUT_S:g} s") from None
                except OSError:
                    self._replace(used)
                    continue
                self._restarts = 0
                assert answered == number, "the signer answered another request"
                return _answered(name, status, content)

    def _replace(self, dead: _Process) -> None:
        """Start a new process. The caller holds the lock of calls. Raises `Unavailable` if that never works."""
        self._restarts += 1
        status = dead.end()
        if self._restarts > _MAX_RESTARTS:
            raise Unavailable(f"the signer process exits right after its start, with status {status}")
        self._process = self._start()
        if self._loop:
            self._loop.call_soon_threadsafe(self._follow, dead, status)
        else:
            dead.groups.close()

    def _start(self) -> _Process:
        calls, their_calls = socket.socketpair()
        groups, their_groups = socket.socketpair()
        calls.settimeout(CALL_TIMEOUT_S)
        groups.setblocking(False)
        with their_calls, their_groups:
            descriptors = [their_calls.fileno(), their_groups.fileno()]
            command = [sys.executable, "-m", "veen.hub.signer_process", str(self._folder), *map(str, descriptors)]
            try:
                process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
            except OSError as error:
                raise Unavailable(f"the signer process cannot be started: {error.strerror}") from error
        return _Process(process, calls, groups)

    # Groups, on the loop.

    def _read(self) -> None:
        assert self._loop is not None
        self._received = b""
        self._loop.add_reader(self._process.groups, self._readable, self._process)
        self._send_pending()

    def _follow(self, dead: _Process, status: int) -> None:
        """Read answers from the successor of a process."""
        if self._loop:
            self._conditions.enter(
                Reason.SIGNER, source=self, refused=0, pid=dead.process.pid, exit_status=status, recheck=self._is_silent
            )
            self._loop.remove_reader(dead.groups)
            self._read()
        dead.groups.close()

    def _is_silent(self) -> bool:
        """Whether the successor does not answer."""
        try:
            self.control_key()
        except (Malformed, Unavailable):
            return True
        return False

    def _send_pending(self) -> None:
        """Send the pending request. It fits into the buffer of the socket, also if it is sent twice."""
        if self._pending is None:
            return
        try:
            self._process.groups.sendall(self._pending.request)
        except OSError:
            return  # it died: the reader notices it too, and replaces it

    def _readable(self, source: _Process) -> None:
        assert self._loop is not None
        try:
            received = source.groups.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._loop.remove_reader(source.groups)
            self._restart(source)
        elif source is self._process:
            self._received += received
            while self._take_answer():
                pass

    def _restart(self, dead: _Process) -> None:
        with self._call_lock:
            if self._process is dead:  # otherwise a call that waited has replaced it
                try:
                    self._replace(dead)
                except Unavailable as error:
                    self._on_broken(error)

    def _take_answer(self) -> bool:
        """Handle the next complete answer. Returns False if there is none.

        A request that was sent again to a new process may be answered twice; the number tells.
        """
        if len(self._received) < ANSWER.size:
            return False
        number, status, length = ANSWER.unpack_from(self._received)
        end = ANSWER.size + length
        if len(self._received) < end:
            return False
        content, self._received = self._received[ANSWER.size : end], self._received[end:]
        self._restarts = 0
        pending = self._pending
        if pending is not None and pending.number == number:
            self._pending = None
            try:
                _, signatures = _answered("signing key", status, content)
            except (Malformed, Unavailable) as error:
                self._on_broken(error)
                return False
            pending.done(signatures)
        return True


def _request(number: int, name: str, digests: Sequence[bytes]) -> bytes:
    return REQUEST.pack(number, name.encode("ascii"), len(digests)) + b"".join(digests)


def _answered(name: str, status: int, content: bytes) -> tuple[bytes, Signatures]:
    """The public key and the signatures of an answer. Raises the error that it states."""
    if status == SIGNED:
        starts = range(PUBLIC_KEY_BYTES, len(content), SIGNATURE_BYTES)
        return content[:PUBLIC_KEY_BYTES], [content[at : at + SIGNATURE_BYTES] for at in starts]
    text = content.decode(errors="replace")
    if status == MALFORMED:
        raise Malformed(name, text)
    number, _, text = text.partition(" ")
    raise Unavailable(text) from (OSError(int(number), os.strerror(int(number))) if number != "0" else None)


def _receive(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        received = channel.recv(size - len(data))
        if not received:
            raise ConnectionResetError
        data += received
    return bytes(data)
