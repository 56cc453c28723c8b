"""Entries on disk: §4.8.1."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import Malformed, limits
from veen.storage import frame

LABEL = bytes(range(32))
BODIES = st.binary(max_size=300)


@given(st.lists(st.tuples(BODIES, st.binary(max_size=frame.MAX_RECEIPT_BYTES)), max_size=5))
def test_entries_come_back_as_they_went_in(pairs: list[tuple[bytes, bytes]]) -> None:
    data = b""
    for seq, (msg, receipt) in enumerate(pairs, 1):
        framed, digest = frame.write(LABEL, seq, msg, receipt)
        assert digest == sha256(b"veen/entry" + msg + receipt).digest()
        assert frame.length_at(data + framed, len(data)) == len(framed)
        data += framed
    found = list(frame.read_all(data))
    assert [(entry.msg, entry.receipt) for entry in found] == pairs
    assert [entry.stream_seq for entry in found] == list(range(1, len(pairs) + 1))
    assert sum(entry.size for entry in found) == len(data)


def test_the_header_is_that_of_the_spec() -> None:
    framed, digest = frame.write(LABEL, 258, b"message", b"receipt")
    expected = b"\x01\x00" + LABEL + (258).to_bytes(8, "big") + (7).to_bytes(4, "big") * 2 + digest
    assert framed == expected + b"messagereceipt"


def test_every_single_bit_of_an_entry_but_its_place_is_checked() -> None:
    framed, _ = frame.write(LABEL, 1, b"message", b"receipt")
    place = range(2, 42)  # label and stream_seq: bound by the receipt, not by the hash
    for at in range(len(framed)):
        for bit in range(8):
            broken = bytearray(framed)
            broken[at] ^= 1 << bit
            if at in place:
                entry, _ = frame.read(bytes(broken))
                assert (entry.label, entry.stream_seq) != (LABEL, 1)
            else:
                with pytest.raises(Malformed):
                    frame.read(bytes(broken))


@pytest.mark.parametrize("cut", [1, frame.HEADER_BYTES - 1, frame.HEADER_BYTES, frame.HEADER_BYTES + 13])
def test_an_entry_that_ends_early_is_malformed(cut: int) -> None:
    framed, _ = frame.write(LABEL, 1, b"message", b"receipt")
    with pytest.raises(Malformed):
        frame.read(framed[:cut])


@pytest.mark.parametrize(
    ("msg", "receipt"),
    [(limits.MAX_MSG_BYTES + 1, 0), (0, frame.MAX_RECEIPT_BYTES + 1)],
)
def test_an_entry_above_its_bounds_is_malformed(msg: int, receipt: int) -> None:
    framed, _ = frame.write(LABEL, 1, bytes(msg), bytes(receipt))
    with pytest.raises(Malformed):
        frame.read(framed)
