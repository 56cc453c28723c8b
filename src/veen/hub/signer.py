"""The hub's side of the signer process: which key signs at which time, and how requests reach the process. Spec §8.4.

The loop sends the digests of a group and goes on; the answers come as callbacks, in the order of the requests. Every
other caller waits for its answer on a second channel. A signer that dies is replaced, and unanswered requests are sent
again in the same order: a repeated signature is the same signature.
"""

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock

from veen.core import HubIdentity, Malformed, Unavailable, Unverified
from veen.core.hub_identity import HubKey
from veen.core.signing import PUBLIC_KEY_BYTES, SIGNATURE_BYTES
from veen.hub.conditions import Conditions, Reason
from veen.hub.signer_process import ANSWER, CHECK_FILE, MALFORMED, REQUEST, SIGNED, receive
from veen.storage import metadata
from veen.storage.paths import Folders

Signatures = list[bytes]
SigningDone = Callable[[Signatures | Malformed | Unavailable], None]
_READ_BYTES = 1 << 16
_MAX_RESTARTS = 20
# A hardware token may be slow. The hub does not wait for ever.
CALL_TIMEOUT_S = 60.0
# Errors of a key file itself: not a file, or one that the hub must not read.
_FILE_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class RemoteKey:
    """A key whose secret half is in the signer process."""

    public_key: bytes
    name: str
    _call: Callable[[str, Sequence[bytes], bytes | None], tuple[bytes, Signatures]]

    def sign(self, message: bytes) -> bytes:
        """`message` is a digest of 32 bytes."""
        return self.sign_many([message])[0]

    def sign_many(self, digests: Sequence[bytes]) -> Signatures:
        """Raises `Unavailable` if the key, which was usable before, cannot be used now."""
        try:
            return self._call(self.name, digests, self.public_key)[1]
        except Malformed as error:
            raise Unavailable(str(error)) from None


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
    """A request of the loop that has no answer yet."""

    number: int
    request: bytes
    name: str
    public_key: bytes | None  # of the key that must answer; None if any may
    done: SigningDone


class Signer:
    """The hub's keys by time: the same time always gives the same key, so signatures are reproducible."""

    def __init__(self, folders: Folders, identity: HubIdentity) -> None:
        self.identity = identity
        self._folder = folders.keys
        self._keys: dict[bytes, RemoteKey] = {}
        self._last: tuple[int, RemoteKey] | None = None
        self._control_pk: bytes | None = None
        self._call_lock = Lock()
        self._restarts = 0  # since the last answer
        self._numbers = count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = self._start()
        # Only the loop uses these.
        self._pending: deque[_Pending] = deque()  # oldest first
        self._source = self._process  # gets the requests, until the loop knows that it was replaced
        self._received = b""  # the start of an answer
        self._is_asking = False  # whether a new process has a key

    def attach(
        self, loop: asyncio.AbstractEventLoop, conditions: Conditions, on_broken: Callable[[BaseException], None]
    ) -> None:
        """Let the loop read answers. `on_broken` gets an error after which no group can be signed."""
        self._loop, self._conditions, self._on_broken = loop, conditions, on_broken
        self._read()

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop:
            loop.remove_reader(self._source.groups)
        self._process.end()
        self._source.groups.close()
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

    def forget(self) -> None:
        """Replace the process, so that no process has a key in its memory that does not sign any more. Thread-safe."""
        self._last, self._keys = None, {}
        with self._call_lock:
            self._replace(self._process)

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
        key = self._load(metadata.CONTROL_KEY, None)
        self._control_pk = key.public_key
        return key

    def check_file(self, path: Path, public_key: bytes | None) -> None:
        """Let the process read a key file again: the hub never opens it. Without `public_key` it is the control key.

        Raises `Malformed` or `Unverified` if the file is damaged, and an `OSError` if it cannot be read now: too many
        open files are no damage. Thread-safe.
        """
        try:
            found, _ = self._call(path.stem, None)
        except Unavailable as error:
            cause = error.__cause__
            if not isinstance(cause, OSError):
                raise
            if cause.errno in _FILE_ERRORS:
                raise Malformed(path.name, cause.strerror or str(cause)) from None
            raise cause from None
        if found != (public_key or self._control_pk):
            raise Unverified(path.name, "the hub uses another key")

    def sign_later(self, key: RemoteKey | None, digests: Sequence[bytes], done: SigningDone) -> None:
        """Sign digests, and call `done` on the loop, after the callbacks of earlier requests.

        It gets the signatures, or the error of the source of the key. Without a key, nothing is signed: the answer only
        shows that the process runs.
        """
        number = next(self._numbers)
        name, public_key = (key.name, key.public_key) if key else (metadata.CONTROL_KEY, None)
        request = _request(number, name, digests)
        self._pending.append(_Pending(number, request, name, public_key, done))
        self._send(request)

    def _load(self, name: str, expected: bytes | None) -> RemoteKey:
        public_key, _ = self._call(name, (), expected)
        return RemoteKey(public_key, name, self._call)

    # Calls that wait.

    def _call(
        self, name: str, digests: Sequence[bytes] | None, expected: bytes | None = None
    ) -> tuple[bytes, Signatures]:
        """Send a request and wait for its answer, from the key with the expected public half. Thread-safe."""
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
                return _answered(name, status, content, expected)

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
        """Read answers from the current process, and send it what has no answer yet."""
        assert self._loop is not None
        self._source, self._received = self._process, b""
        self._loop.add_reader(self._source.groups, self._readable, self._source)
        for pending in self._pending:
            self._send(pending.request)

    def _follow(self, dead: _Process, status: int) -> None:
        """Read answers from the successor of a process, unless that was replaced as well."""
        if self._loop:
            self._conditions.enter(
                Reason.SIGNER, source=self, refused=0, pid=dead.process.pid, exit_status=status, recheck=self._is_silent
            )
            self._loop.remove_reader(dead.groups)
            if self._source is not self._process:
                self._read()
        dead.groups.close()

    def _is_silent(self) -> bool:
        """Ask the successor for a key, without waiting. Its answer ends the state."""
        if not self._is_asking:
            self._is_asking = True
            self.sign_later(None, (), self._spoke)
        return True

    def _spoke(self, outcome: Signatures | Malformed | Unavailable) -> None:
        self._is_asking = False
        if isinstance(outcome, list):
            self._conditions.leave(Reason.SIGNER, self)

    def _send(self, request: bytes) -> None:
        """Send a request. All that the pipeline has without an answer fit into the buffer of the socket."""
        try:
            self._source.groups.sendall(request)
        except OSError:
            return  # it died: its successor gets all requests without an answer

    def _readable(self, source: _Process) -> None:
        """Read from the process, and handle the complete answers."""
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
            return
        self._received += received
        while len(self._received) >= ANSWER.size:
            number, status, length = ANSWER.unpack_from(self._received)
            end = ANSWER.size + length
            if len(self._received) < end:
                return
            content, self._received = self._received[ANSWER.size : end], self._received[end:]
            self._restarts = 0
            if not self._pending or self._pending[0].number != number:
                self._on_broken(RuntimeError("the signer answered another request"))
                return
            pending = self._pending.popleft()
            outcome: Signatures | Malformed | Unavailable
            try:
                _, outcome = _answered(pending.name, status, content, pending.public_key)
            except (Malformed, Unavailable) as error:
                outcome = error
                if isinstance(error, Malformed):
                    self._restart(self._source)  # it may keep the wrong key
            pending.done(outcome)

    def _restart(self, dead: _Process) -> None:
        with self._call_lock:
            if self._process is dead:  # otherwise a call that waited has replaced it
                try:
                    self._replace(dead)
                except Unavailable as error:
                    self._on_broken(error)


def _request(number: int, name: str, digests: Sequence[bytes] | None) -> bytes:
    if digests is None:
        return REQUEST.pack(number, name.encode("ascii"), CHECK_FILE)
    return REQUEST.pack(number, name.encode("ascii"), len(digests)) + b"".join(digests)


def _answered(name: str, status: int, content: bytes, expected: bytes | None) -> tuple[bytes, Signatures]:
    """The public key and the signatures of an answer. Raises the error that it states.

    Raises `Malformed` if it is not from the expected key, whose file may have been replaced.
    """
    if status == SIGNED:
        public_key, starts = content[:PUBLIC_KEY_BYTES], range(PUBLIC_KEY_BYTES, len(content), SIGNATURE_BYTES)
        if expected not in (None, public_key):
            raise Malformed(name, "it does not match the public key in hub-identity.json")
        return public_key, [content[at : at + SIGNATURE_BYTES] for at in starts]
    text = content.decode(errors="replace")
    if status == MALFORMED:
        raise Malformed(name, text)
    number, _, text = text.partition(" ")
    raise Unavailable(text) from (OSError(int(number), os.strerror(int(number))) if number != "0" else None)


def _receive(channel: socket.socket, size: int) -> bytes:
    if not (data := receive(channel, size)) and size:
        raise ConnectionResetError
    return data
