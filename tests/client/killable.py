"""A client that sends until it is killed. It writes messages to standard output and reads receipts from standard input.

out   length (u32be), encoded MSG
in    length (u32be), encoded RECEIPT
"""

import os
import random
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.client.ledger import STREAM, messages
from veen.client import ClientDir, KeyBounds, LabelState, Pending
from veen.client.writer_keys import WriterRequest
from veen.core import Mmr, Receipt

BOUNDS = KeyBounds(max_client_id_lifetime_sec=1 << 40, max_msgs_per_client_id_per_label=40)
_LENGTH = struct.Struct(">I")
_AT_ONCE = 12


def frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def read_frame(fd: int) -> bytes | None:
    """The next frame; None at the end of the input."""
    head = _exactly(fd, _LENGTH.size)
    return None if head is None else _exactly(fd, _LENGTH.unpack(head)[0])


def _exactly(fd: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        block = os.read(fd, size - len(data))
        if not block:
            return None
        data += block
    return data


def send_for_ever(client: ClientDir, hub_id: bytes, label: bytes) -> None:
    while True:
        waiting = client.outbox.pending(hub_id, label, _AT_ONCE)
        if waiting:
            _send(client, hub_id, label, waiting)
        elif random.random() < 0.05:
            client.writers.retire(client.writers.current().generation)
        else:
            writer = client.writer(WriterRequest(hub_id, label, STREAM, now=0))
            client.outbox.put(writer, messages(writer, min(random.randint(1, _AT_ONCE), writer.room)))
            assert client.outbox.pending(hub_id, label, 1)


def _send(client: ClientDir, hub_id: bytes, label: bytes, waiting: Sequence[Pending]) -> None:
    for each in waiting:
        os.write(1, frame(each.encoded))
    before = client.state.label(hub_id, label)
    tree = before.tree() if before else Mmr()
    given = []
    for each in waiting:
        data = read_frame(0)
        if data is None:
            sys.exit()
        receipt = Receipt.decode(data)
        assert receipt.leaf_hash == each.leaf_hash
        if receipt.stream_seq > tree.size:
            tree.append(receipt.leaf_hash)
            assert (tree.size, tree.root()) == (receipt.stream_seq, receipt.mmr_root)
        given.append(receipt)
    new = LabelState(bytes(32), tree.size, tree.root(), tuple(tree.peaks), given[-1].encode())
    done = [each.leaf_hash for each in waiting]
    client.state.advance(hub_id, label, new, after=before, receipts=given, done=done)


if __name__ == "__main__":
    with ClientDir.open(Path(sys.argv[1]), bounds=BOUNDS) as opened, opened.sending():
        send_for_ever(opened, bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3]))
