"""A verification worker: reads signatures to check from a socket, answers one byte each, in order.

It holds no key and no state, so it may die at any time: what it had not answered is asked again of the next one.
"""

import socket
import sys

from veen.core.signing import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, is_valid

DIGEST_BYTES = 32
ITEM_BYTES = PUBLIC_KEY_BYTES + DIGEST_BYTES + SIGNATURE_BYTES
_READ_BYTES = 512 * ITEM_BYTES
_SIG_AT = PUBLIC_KEY_BYTES + DIGEST_BYTES
# So few at a time that the sequencer has the first answers while the last are still being checked.
_ANSWER_EVERY = 16


def holds(item: bytes) -> bool:
    return is_valid(item[:PUBLIC_KEY_BYTES], item[PUBLIC_KEY_BYTES:_SIG_AT], item[_SIG_AT:])


def serve(channel: socket.socket) -> None:
    """Answer until the other end closes."""
    rest = b""
    while received := channel.recv(_READ_BYTES):
        data = rest + received
        whole = len(data) - len(data) % ITEM_BYTES
        answers = bytearray()
        for at in range(0, whole, ITEM_BYTES):
            answers.append(holds(data[at : at + ITEM_BYTES]))
            if len(answers) == _ANSWER_EVERY:
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
