"""The signer: a process that holds the hub's secret keys and signs digests for it. It reads nothing from the network.

A request names a key file and carries digests; without digests it only asks for the public key. With `CHECK_FILE`
instead of a count it asks for the public key in the file as it is on disk now. Requests come over socket pairs that
only the hub has, and are answered in order:

    request    number (u64be) | name of the key, padded with zeros (32) | count (u32be) | count digests of 32 bytes
    answer     number of the request | status (u8) | length (u32be) | public key and a signature for each digest, or the
               text of an error, which begins with the error number if the key cannot be read

A key is loaded when it is first named, and kept. The hub checks that it has the public key of its identity record. The
process ends when the hub closes the sockets, also if the hub was killed. It also ends after it reported that a
token failed, because sessions with a token do not survive its removal. The hub starts another.
"""

import ctypes
import os
import selectors
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from plumbing.sodium import DigestSigner
from veen.storage import secret_keys

REQUEST = struct.Struct(">Q32sI")
ANSWER = struct.Struct(">QBI")
DIGEST_BYTES = 32
MAX_DIGESTS = 4096
CHECK_FILE = 0xFFFFFFFF
SIGNED, UNREADABLE, MALFORMED = range(3)
_PR_SET_DUMPABLE = 4
_TOKEN_ERROR = b"0 "  # errors of tokens have no number


class SigningServer:
    """Answers requests with the keys of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys: dict[str, DigestSigner] = {}

    def answer(self, name: str, digests: list[bytes]) -> tuple[int, bytes]:
        """The status and content of the answer to a request."""
        try:
            key = self._keys.get(name)
            if key is None:
                key = self._keys[name] = secret_keys.load(self._folder, name)
            return SIGNED, key.public_key + b"".join(key.sign_many(digests))
        except OSError as error:
            return _unreadable(error)
        except ValueError as error:
            return MALFORMED, str(error).encode()

    def check_file(self, name: str) -> tuple[int, bytes]:
        """Read a key file again, as `veen fsck` does, for the scrubber. The keys in use stay as they are."""
        try:
            return SIGNED, secret_keys.public_key_of(secret_keys.key_path(self._folder, name))
        except (secret_keys.ExposedKeyError, ValueError) as error:
            return MALFORMED, str(error).encode()
        except OSError as error:
            return _unreadable(error)

    def serve_one(self, channel: socket.socket) -> bool:
        """Answer the next request of a channel. Returns False if the process must end: the hub closed it, or a
        token failed. A session with a token that was removed stays invalid; a new process opens another."""
        head = receive(channel, REQUEST.size)
        if not head:
            return False
        number, padded, count = REQUEST.unpack(head)
        name = padded.rstrip(b"\0").decode("ascii")
        if count == CHECK_FILE:
            status, content = self.check_file(name)
        elif count <= MAX_DIGESTS:
            digests = receive(channel, count * DIGEST_BYTES)
            parts = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
            status, content = self.answer(name, parts)
        else:
            return False
        channel.sendall(ANSWER.pack(number, status, len(content)) + content)
        return status != UNREADABLE or not content.startswith(_TOKEN_ERROR)


def _unreadable(error: OSError) -> tuple[int, bytes]:
    where = f"{error.filename} cannot be read: {error.strerror}" if error.filename else str(error)
    return UNREADABLE, f"{error.errno or 0} {where}".encode()


def receive(channel: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes; empty if the peer closed the channel before."""
    data = bytearray()
    while len(data) < size:
        received = channel.recv(size - len(data))
        if not received:
            return b""
        data += received
    return bytes(data)


def main(folder: str, *descriptors: str) -> None:
    """Serve until one of the channels is closed, or a token failed."""
    # The hub stops this process by closing the channels. Ctrl-C in a terminal reaches the whole process group.
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)  # other processes of the user cannot read its memory
        with suppress(OSError):  # a request must not take the core from the hub that sends it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    server = SigningServer(Path(folder))
    with selectors.DefaultSelector() as ready:
        for descriptor in descriptors:
            ready.register(socket.socket(fileno=int(descriptor)), selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                assert isinstance(key.fileobj, socket.socket)
                if not server.serve_one(key.fileobj):
                    return


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(0)
