"""Compressed chunks round-trip byte for byte, one frame at a time, and no file makes us decompress more."""

import io
import random
import struct
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from itertools import accumulate

import pytest
import zstandard

from veen.core import Malformed
from veen.core.limits import ENTRY_OVERHEAD_BYTES, MAX_MSG_BYTES
from veen.storage import chunk_reader, frame
from veen.storage.chunk_reader import PackedChunk

FRAME_BYTES = 2000


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_reader, "FRAME_BYTES", FRAME_BYTES)


def chunk(sizes: list[int], seed: int = 1) -> bytes:
    """Entries with messages of these sizes, half of each a repeated byte."""
    rng = random.Random(seed)
    return b"".join(
        frame.write(bytes(32), number, bytes(size // 2) + rng.randbytes(size - size // 2), rng.randbytes(150))[0]
        for number, size in enumerate(sizes, 1)
    )


SIZES = [300, 10, 1900, 2500, 40, 40, 40, 700, 700, 700, 700, 9000, 1]


def packed_file(data: bytes, level: int = 3) -> bytes:
    return b"".join(chunk_reader.pack(data, level))


def rebuilt(frames: list[bytes], plains: list[int]) -> bytes:
    """A file of these frames with a matching digest and seek table."""
    body = b"".join(frames)
    digest = struct.pack("<II", 0x184D2A50, 32) + sha256(body).digest()
    rows = [*zip(map(len, frames), plains, strict=True), (len(digest), 0)]
    table = b"".join(struct.pack("<II", *row) for row in rows) + struct.pack("<IBI", len(rows), 0, 0x8F92EAB1)
    return body + digest + struct.pack("<II", 0x184D2A5E, len(table)) + table


def frames_of(data: bytes) -> list[bytes]:
    """The zstd frames of a compressed file, split by its seek table."""
    count = struct.unpack_from("<I", data, len(data) - 9)[0]
    start = len(data) - 9 - 8 * count
    ends = list(accumulate(struct.unpack_from("<II", data, start + 8 * row)[0] for row in range(count - 1)))
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("sizes", [SIZES, [1], [5000], [0] * 40, [400] * 33])
@pytest.mark.parametrize("level", [1, 3, 19])
def test_what_was_packed_is_unpacked(sizes: list[int], level: int) -> None:
    data = chunk(sizes)
    found = PackedChunk(packed_file(data, level))
    found.check_digest()
    assert found.size == len(data)
    assert b"".join(block for block, _ in found.blocks()) == data


def test_any_zstd_reader_unpacks_it() -> None:
    data = chunk(SIZES)
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed_file(data)), read_across_frames=True)
    assert reader.read() == data


def test_every_frame_holds_whole_entries_and_no_more_than_it_must() -> None:
    data = chunk(SIZES)
    blocks = [block for block, _ in PackedChunk(packed_file(data)).blocks()]
    assert len(blocks) > 4
    for block in blocks:
        *_, last = frame.read_all(block)
        assert len(block) - last.size < FRAME_BYTES
        assert len(block) >= FRAME_BYTES or block is blocks[-1]


def test_an_entry_is_found_by_its_offset_in_what_was_packed() -> None:
    data = chunk(SIZES)
    found, at = PackedChunk(packed_file(data)), 0
    for entry in frame.read_all(data):
        block, pos = next(found.blocks(at))
        assert frame.read(block, pos)[0] == entry
        assert b"".join(rest[begin:] for rest, begin in found.blocks(at)) == data[at:]
        at += entry.size
    assert list(found.blocks(at)) == []
    assert list(found.blocks(at + 99)) == []


def test_reading_one_entry_unpacks_one_frame() -> None:
    """A damaged frame only affects reads of its own entries."""
    data = chunk(SIZES)
    frames, plains = frames_of(packed_file(data)), [len(block) for block, _ in PackedChunk(packed_file(data)).blocks()]
    for broken in range(len(frames)):
        file = rebuilt([bytes(len(f)) if n == broken else f for n, f in enumerate(frames)], plains)
        for number, start in enumerate([0, *accumulate(plains[:-1])]):
            blocks = PackedChunk(file).blocks(start)
            if number == broken:
                with pytest.raises(Malformed):
                    next(blocks)
            else:
                assert next(blocks)[0] == data[start : start + plains[number]]


def test_the_same_entries_are_packed_the_same_way() -> None:
    assert packed_file(chunk(SIZES)) == packed_file(chunk(SIZES))


# Invalid files.


def checked(file: bytes) -> bytes:
    """Every operation on a file."""
    found = PackedChunk(file)
    found.check_digest()
    return b"".join(block for block, _ in found.blocks())


def test_every_flipped_bit_is_noticed() -> None:
    data = chunk(SIZES[:4])
    sound = packed_file(data)
    assert checked(sound) == data
    unnoticed = []
    for at in range(len(sound)):
        for bit in range(0, 8, 1 if at > len(sound) - 120 or at < 40 else 3):
            flipped = bytearray(sound)
            flipped[at] ^= 1 << bit
            try:
                checked(bytes(flipped))
            except Malformed:
                continue
            unnoticed.append((at, bit))
    assert unnoticed == []


def test_a_file_that_is_cut_short_is_refused_wherever_it_is_cut() -> None:
    sound = packed_file(chunk(SIZES[:6]))
    for end in range(len(sound)):
        with pytest.raises(Malformed):
            PackedChunk(sound[:end])


FAULTS: dict[str, Callable[[list[bytes], list[int]], bytes]] = {
    "nothing": lambda frames, plains: b"",
    "no frames": lambda frames, plains: rebuilt([], []),
    "bytes after it": lambda frames, plains: rebuilt(frames, plains) + b"\0",
    "bytes before it": lambda frames, plains: b"\0" + rebuilt(frames, plains),
    "a frame left out of its table": lambda frames, plains: frames[0] + rebuilt(frames[1:], plains[1:]),
    "an empty frame": lambda frames, plains: rebuilt([zstandard.compress(b""), *frames], [0, *plains]),
    "a frame that claims more": lambda frames, plains: rebuilt(frames, [plains[0] + 1, *plains[1:]]),
    "a frame that claims less": lambda frames, plains: rebuilt(frames, [plains[0] - 1, *plains[1:]]),
    "two frames as one": lambda frames, plains: rebuilt(
        [frames[0] + frames[1], *frames[2:]], [plains[0] + plains[1], *plains[2:]]
    ),
    "no zstd at all": lambda frames, plains: rebuilt([b"x" * 50, *frames[1:]], plains),
    "more frames than a chunk can have": lambda frames, plains: rebuilt(frames[:1] * 20_000, plains[:1] * 20_000),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_no_hub_writes_is_refused(fault: str) -> None:
    data = chunk(SIZES)
    plains = [len(block) for block, _ in PackedChunk(packed_file(data)).blocks()]
    assert checked(rebuilt(frames_of(packed_file(data)), plains)) == data
    with pytest.raises(Malformed):
        checked(FAULTS[fault](frames_of(packed_file(data)), plains))


def _streamed(data: bytes) -> bytes:
    """A frame that does not declare its size."""
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return packer.compress(data) + packer.flush()


BOMB_BYTES = 1 << 26
MOST_PLAIN = chunk_reader.FRAME_BYTES + MAX_MSG_BYTES + ENTRY_OVERHEAD_BYTES


@pytest.mark.parametrize("made", [zstandard.compress, _streamed], ids=["honest header", "no size in its header"])
@pytest.mark.parametrize("claimed", [100, MOST_PLAIN - 1, MOST_PLAIN, BOMB_BYTES])
def test_a_bomb_is_refused_before_it_goes_off(made: Callable[[bytes], bytes], claimed: int) -> None:
    bomb = made(bytes(BOMB_BYTES))
    assert len(bomb) < BOMB_BYTES // 1000
    file = rebuilt([bomb], [claimed])
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            checked(file)
        assert tracemalloc.get_traced_memory()[1] < BOMB_BYTES // 8
    finally:
        tracemalloc.stop()


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    """The header agrees with the seek table; the content is larger."""
    honest = zstandard.compress(bytes(70_000))
    header = zstandard.frame_header_size(honest)
    said = zstandard.compress(bytes(66_000))
    forged = said[: zstandard.frame_header_size(said)] + honest[header:]
    with pytest.raises(Malformed):
        checked(rebuilt([forged], [66_000]))
