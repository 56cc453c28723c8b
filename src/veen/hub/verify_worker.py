"""A verification worker process: reads signatures to check from a socket, and answers each under its number.

It has no key and no state, so it may die at any time: its successor gets the unanswered checks again.
"""

import os
import socket
import struct
import sys
from contextlib import suppress

from veen.core.signing import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, is_valid

DIGEST_BYTES = 32
ITEM_BYTES = PUBLIC_KEY_BYTES + DIGEST_BYTES + SIGNATURE_BYTES
NUMBER_BYTES = 8
_REQUEST = struct.Struct(f">{NUMBER_BYTES}s{PUBLIC_KEY_BYTES}s{DIGEST_BYTES}s{SIGNATURE_BYTES}s")
REQUEST_BYTES = _REQUEST.size
ANSWER = struct.Struct(">QB")  # the number of the check, and INVALID or VALID
INVALID, VALID = 0, 1
_READ_BYTES = 512 * REQUEST_BYTES
# Answer in small batches, so that the sequencer can start while the last signatures are still being checked.
_ANSWER_EVERY = 16


def answer_to(request: bytes) -> bytes:
    """The number of the check, and its result."""
    number, public_key, digest, signature = _REQUEST.unpack(request)
    return bytes(number) + bytes((VALID if is_valid(public_key, digest, signature) else INVALID,))


def serve(channel: socket.socket) -> None:
    """Answer until the peer closes the socket."""
    rest = b""
    while received := channel.recv(_READ_BYTES):
        data = rest + received
        whole = len(data) - len(data) % REQUEST_BYTES
        answers = bytearray()
        for at in range(0, whole, REQUEST_BYTES):
            answers += answer_to(data[at : at + REQUEST_BYTES])
            if len(answers) == _ANSWER_EVERY * ANSWER.size:
                channel.sendall(answers)
                answers.clear()
        if answers:
            channel.sendall(answers)
        rest = data[whole:]


if __name__ == "__main__":
    if sys.platform == "linux":
        with suppress(OSError):  # a request must not take the core from the hub that sends it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with socket.socket(fileno=int(sys.argv[1])) as given:
        try:
            serve(given)
        except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
            sys.exit(0)
