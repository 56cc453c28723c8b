"""A verification worker process: reads signatures to check from a socket, and answers each under its number.

It has no key and no state, so it may die at any time: its successor gets the unanswered checks again.
"""

import socket
import struct
import sys

from veen.core.signing import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, is_valid

DIGEST_BYTES = 32
ITEM_BYTES = PUBLIC_KEY_BYTES + DIGEST_BYTES + SIGNATURE_BYTES
NUMBER_BYTES = 8
REQUEST_BYTES = NUMBER_BYTES + ITEM_BYTES
ANSWER = struct.Struct(">QB")  # the number of the check, and INVALID or VALID
INVALID, VALID = 0, 1
_READ_BYTES = 512 * REQUEST_BYTES
_SIG_AT = PUBLIC_KEY_BYTES + DIGEST_BYTES
# Answer in small batches, so that the sequencer can start while the last signatures are still being checked.
_ANSWER_EVERY = 16


def answer_to(request: bytes) -> bytes:
    """The number of the check, and its result."""
    number, item = request[:NUMBER_BYTES], request[NUMBER_BYTES:]
    valid = is_valid(item[:PUBLIC_KEY_BYTES], item[PUBLIC_KEY_BYTES:_SIG_AT], item[_SIG_AT:])
    return number + bytes((VALID if valid else INVALID,))


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
    with socket.socket(fileno=int(sys.argv[1])) as given:
        try:
            serve(given)
        except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
            sys.exit(0)
