"""A verification worker: reads signatures to check from a socket, answers each under the number it was asked by.

It holds no key and no state, so it may die at any time: what it had not answered is asked again of the next one.
"""

import socket
import struct
import sys

from veen.core.signing import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, is_valid

DIGEST_BYTES = 32
ITEM_BYTES = PUBLIC_KEY_BYTES + DIGEST_BYTES + SIGNATURE_BYTES
NUMBER_BYTES = 8
QUESTION_BYTES = NUMBER_BYTES + ITEM_BYTES
ANSWER = struct.Struct(">QB")  # the number of the question, and FAILS or HOLDS
FAILS, HOLDS = 0, 1
_READ_BYTES = 512 * QUESTION_BYTES
_SIG_AT = PUBLIC_KEY_BYTES + DIGEST_BYTES
# So few at a time that the sequencer has the first answers while the last are still being checked.
_ANSWER_EVERY = 16


def holds(item: bytes) -> bool:
    return is_valid(item[:PUBLIC_KEY_BYTES], item[PUBLIC_KEY_BYTES:_SIG_AT], item[_SIG_AT:])


def answer_to(question: bytes) -> bytes:
    """The number of the question, and its answer."""
    return question[:NUMBER_BYTES] + bytes((HOLDS if holds(question[NUMBER_BYTES:]) else FAILS,))


def serve(channel: socket.socket) -> None:
    """Answer until the other end closes."""
    rest = b""
    while received := channel.recv(_READ_BYTES):
        data = rest + received
        whole = len(data) - len(data) % QUESTION_BYTES
        answers = bytearray()
        for at in range(0, whole, QUESTION_BYTES):
            answers += answer_to(data[at : at + QUESTION_BYTES])
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
