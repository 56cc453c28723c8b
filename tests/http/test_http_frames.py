"""The lengths of HTTP/2 frames, however the input is split."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from plumbing.http.http2 import MAX_FRAME_BYTES, PREFACE, FrameMeter

HEADERS, RST_STREAM, PRIORITY = 1, 3, 2
ALL = 1 << 30


def frame(length: int, kind: int = 0) -> bytes:
    return length.to_bytes(3) + bytes([kind]) + bytes(5 + length)


def portions(meter: FrameMeter, data: bytes, most: int) -> list[bytes] | None:
    """The portions that a connection would process per turn; None if a frame is too long."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        end = meter.portion(data, at, most)
        if end is None:
            return None
        assert at < end <= len(data)
        found.append(data[at:end])
        at = end
    return found


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


LENGTHS = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([MAX_FRAME_BYTES - 1, MAX_FRAME_BYTES])), max_size=5)
CUTS = st.lists(st.integers(min_value=0), max_size=12)


@given(LENGTHS, CUTS)
def test_frames_of_the_offered_length_pass(lengths: list[int], cuts: list[int]) -> None:
    meter = FrameMeter()
    assert None not in (meter.portion(piece, 0, ALL) for piece in pieces(PREFACE + b"".join(map(frame, lengths)), cuts))


@given(LENGTHS, st.integers(MAX_FRAME_BYTES + 1, (1 << 24) - 1), CUTS)
def test_a_longer_one_is_found_at_its_header(lengths: list[int], length: int, cuts: list[int]) -> None:
    meter = FrameMeter()
    data = PREFACE + b"".join(map(frame, lengths)) + length.to_bytes(3) + bytes(6)
    assert None in (meter.portion(piece, 0, ALL) for piece in pieces(data, cuts))


@given(LENGTHS, CUTS, st.integers(1, 4))
def test_portions_are_what_came_however_it_was_cut(lengths: list[int], cuts: list[int], most: int) -> None:
    meter = FrameMeter()
    data = PREFACE + b"".join(map(frame, lengths))
    taken = [portions(meter, piece, most) for piece in pieces(data, cuts)]
    assert b"".join(part for found in taken for part in found or ()) == data


@given(LENGTHS, CUTS, st.integers(MAX_FRAME_BYTES + 1, (1 << 24) - 1), st.integers(1, 4))
def test_a_longer_one_is_found_in_its_portion(lengths: list[int], cuts: list[int], length: int, most: int) -> None:
    meter = FrameMeter()
    data = PREFACE + b"".join(map(frame, lengths)) + length.to_bytes(3) + bytes(6)
    assert None in [portions(meter, piece, most) for piece in pieces(data, cuts)]


def met() -> FrameMeter:
    meter = FrameMeter()
    meter.portion(PREFACE, 0, 1)
    return meter


def test_a_portion_is_so_many_frames_and_ends_with_one() -> None:
    found = portions(met(), frame(5, PRIORITY) * 10, 4)
    assert found == [frame(5, PRIORITY) * 4, frame(5, PRIORITY) * 4, frame(5, PRIORITY) * 2]


def test_a_head_counts_for_several() -> None:
    found = portions(met(), frame(20, HEADERS) * 5, 8)
    assert found == [frame(20, HEADERS) * 2, frame(20, HEADERS) * 2, frame(20, HEADERS)]


def test_what_takes_a_request_back_goes_with_it() -> None:
    pair = frame(20, HEADERS) + frame(4, RST_STREAM)
    assert portions(met(), pair * 3, 4) == [pair] * 3


def test_a_flood_of_resets_does_not_go_with_one_request() -> None:
    found = portions(met(), frame(20, HEADERS) + frame(4, RST_STREAM) * 100, 4)
    assert found is not None
    assert len(found[0]) == len(frame(20, HEADERS) + frame(4, RST_STREAM) * 4)
