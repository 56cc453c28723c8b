"""The lengths of HTTP/2 frames, however they are cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from veen.http.frames import MAX_FRAME_BYTES, PREFACE, FrameMeter


def frame(length: int) -> bytes:
    return length.to_bytes(3) + bytes(6 + length)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


LENGTHS = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([MAX_FRAME_BYTES - 1, MAX_FRAME_BYTES])), max_size=5)
CUTS = st.lists(st.integers(min_value=0), max_size=12)


@given(LENGTHS, CUTS)
def test_frames_of_the_offered_length_pass(lengths: list[int], cuts: list[int]) -> None:
    meter = FrameMeter()
    assert not any(meter.finds_overlong(piece) for piece in pieces(PREFACE + b"".join(map(frame, lengths)), cuts))


@given(LENGTHS, st.integers(MAX_FRAME_BYTES + 1, (1 << 24) - 1), CUTS)
def test_a_longer_one_is_found_at_its_header(lengths: list[int], length: int, cuts: list[int]) -> None:
    meter = FrameMeter()
    data = PREFACE + b"".join(map(frame, lengths)) + length.to_bytes(3) + bytes(6)
    assert any(meter.finds_overlong(piece) for piece in pieces(data, cuts))
