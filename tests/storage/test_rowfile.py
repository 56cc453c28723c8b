"""Rows matched by a byte pattern are exactly those that the decoder accepts, and a new row is inserted in order."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.hubs import NOW, QuickDisk, create
from veen.core import Malformed, checkpoint
from veen.core.cbor import Wire
from veen.storage import artifacts, checkpoint_files, metadata
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding, CheckpointIndex, IndexedCheckpoint
from veen.storage.checkpoint_files import BindingFile
from veen.storage.paths import Folders

LABEL, HUB = b"\x07" * 32, b"\x05" * 32
ENDS = st.lists(
    st.sampled_from([1, 23, 24, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1])
    | st.integers(1, 1 << 63),
    min_size=1,
    max_size=6,
    unique=True,
).map(sorted)


def index_rows(ends: list[int]) -> tuple[IndexedCheckpoint, ...]:
    starts = [1, *(end + 1 for end in ends)]
    return tuple(
        IndexedCheckpoint(end, end.to_bytes(32, "big"), start, end, end)
        for start, end in zip(starts, ends, strict=False)
    )


def bound_rows(ends: list[int]) -> tuple[BoundCheckpoint, ...]:
    labels = (LABEL, b"\x08" * 32)
    return tuple(BoundCheckpoint(label, end, end >> 3, b"\x58\x20" * 16, HUB) for label in labels for end in ends)


KINDS: dict[str, tuple[re.Pattern[bytes], bytes, Callable[[list[int]], Wire]]] = {
    "checkpoint index": (checkpoint_files._INDEX_ROW, LABEL, lambda ends: CheckpointIndex(LABEL, index_rows(ends))),
    "checkpoint binding": (checkpoint_files._BINDING_ROW, HUB, lambda ends: CheckpointBinding(HUB, bound_rows(ends))),
}


def head_of(name: bytes) -> bytes:
    return b"\xa3\x01\x01\x02\x58\x20" + name + b"\x03"


@pytest.mark.parametrize("kind", KINDS)
@given(ENDS)
def test_the_rows_of_a_file_are_found_and_make_the_same_file_again(kind: str, ends: list[int]) -> None:
    pattern, name, make = KINDS[kind]
    whole = make(ends)
    found = artifacts.split(whole.encode(), head_of(name), pattern)
    assert found is not None
    rows = [row[0] for row in found]
    assert rows == [row.encode() for row in whole.checkpoints]  # type: ignore[attr-defined]
    assert artifacts.joined(head_of(name), rows) == whole.encode()


@pytest.mark.parametrize("kind", KINDS)
@given(ENDS, st.data())
def test_what_the_decoder_refuses_has_no_rows_but_where_they_are_out_of_order(
    kind: str, ends: list[int], data: st.DataObject
) -> None:
    pattern, name, make = KINDS[kind]
    whole = make(ends)
    sound = whole.encode()
    at, byte = data.draw(st.integers(0, len(sound))), data.draw(st.binary(min_size=1, max_size=1))
    change = data.draw(st.sampled_from(["replace", "insert", "remove", "cut"]))
    keep = {"replace": 1, "insert": 0, "remove": 1, "cut": len(sound)}[change]
    wrong = sound[:at] + (byte if change in ("replace", "insert") else b"") + sound[at + keep :]
    fault = None
    try:
        type(whole).decode(wrong)
    except Malformed as error:
        fault = str(error)
    if fault and "ascend" not in fault:
        assert artifacts.split(wrong, head_of(name), pattern) is None


@given(ENDS)
def test_an_integer_is_read_as_it_was_written(ends: list[int]) -> None:
    found = artifacts.split(
        CheckpointIndex(LABEL, index_rows(ends)).encode(), head_of(LABEL), checkpoint_files._INDEX_ROW
    )
    assert [artifacts.uint(row[1]) for row in found or ()] == ends


@pytest.mark.parametrize("longer", ["1817", "1900ff", "1a0000ffff", "1b00000000ffffffff", "00"])
def test_an_integer_that_is_longer_than_it_need_be_or_nothing_makes_no_row(longer: str) -> None:
    uint = bytes.fromhex(longer)
    row = b"\xa5\x01" + uint + b"\x02\x58\x20" + bytes(32) + b"\x03\x01\x04" + uint + b"\x05" + uint
    assert artifacts.split(artifacts.joined(head_of(LABEL), [row]), head_of(LABEL), checkpoint_files._INDEX_ROW) is None


# The checkpoint index.


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(create(tmp_path / "hub"))


def test_one_more_row_is_added_without_decoding_the_others(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = index_rows([4, 8, 300, 70_000])
    monkeypatch.setattr(CheckpointIndex, "decode", classmethod(lambda *_: pytest.fail("it was decoded")))
    for upto in range(len(rows)):
        if upto:
            folders.checkpoint_index(LABEL).write_bytes(CheckpointIndex(LABEL, rows[:upto]).encode())
            made = checkpoint_files.index_with_row(folders, LABEL, rows[upto])
            assert made == CheckpointIndex(LABEL, rows[: upto + 1]).encode()


def test_rows_that_a_crash_left_behind_the_new_one_are_written_over(folders: Folders) -> None:
    rows = index_rows([4, 8, 12])
    folders.checkpoint_index(LABEL).write_bytes(CheckpointIndex(LABEL, rows).encode())
    assert checkpoint_files.index_with_row(folders, LABEL, rows[1]) == CheckpointIndex(LABEL, rows[:2]).encode()


WRONG_INDEXES: dict[str, Callable[[tuple[IndexedCheckpoint, ...]], CheckpointIndex]] = {
    "another label's": lambda rows: CheckpointIndex(b"\x09" * 32, rows[:2]),
    "one missing in the middle": lambda rows: CheckpointIndex(LABEL, rows[1:2]),
    "the last missing": lambda rows: CheckpointIndex(LABEL, rows[:1]),
    "a gap": lambda rows: CheckpointIndex(LABEL, (rows[0], replace(rows[1], chunk_start=6))),
    "peaks of another place": lambda rows: CheckpointIndex(LABEL, (rows[0], replace(rows[1], peaks_ref=7))),
    "the end of another chunk": lambda rows: CheckpointIndex(LABEL, (rows[0], replace(rows[1], chunk_end=7))),
}


@pytest.mark.parametrize("wrong", WRONG_INDEXES)
def test_no_row_is_added_to_an_index_that_is_not_whole(folders: Folders, wrong: str) -> None:
    rows = index_rows([4, 8, 12])
    folders.checkpoint_index(LABEL).write_bytes(WRONG_INDEXES[wrong](rows).encode())
    assert checkpoint_files._encoded_before(folders, head_of(LABEL), LABEL, rows[2].chunk_start) is None


# The binding.


def test_a_binding_is_not_read_before_there_is_a_row_to_add(folders: Folders) -> None:
    hub_metadata = metadata.read_metadata(folders)
    sound = folders.binding.read_bytes()
    folders.binding.write_bytes(sound + b"garbage behind its head")
    bound = BindingFile(QuickDisk(), folders, hub_metadata)
    bound.save()
    assert folders.binding.read_bytes() == sound + b"garbage behind its head"


def test_a_row_is_put_where_it_belongs_without_decoding_the_others(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_metadata = metadata.read_metadata(folders)
    signing_key = metadata.read_signing_key(folders, hub_metadata.identity.newest.key_id)
    bound, expected = BindingFile(QuickDisk(), folders, hub_metadata), {}
    decode = CheckpointBinding.decode
    monkeypatch.setattr(CheckpointBinding, "decode", classmethod(lambda *_: pytest.fail("it was decoded")))
    for label in (b"\x05" * 32, b"\x02" * 32, b"\x09" * 32):
        for upto in (300, 5, 70_000, 24, 1 << 40, 24, 23):
            one = checkpoint.sign(
                signing_key, label_prev=label, label_curr=label, upto_seq=upto, mmr_root=label, epoch=upto % 7
            )
            expected[label, upto] = BoundCheckpoint(label, upto, upto % 7, label, hub_metadata.identity.newest.key_id)
            bound.add(one)
            if upto % 2:
                bound.save()
        bound.save()
    whole = CheckpointBinding(hub_metadata.identity.hub_id, tuple(expected[place] for place in sorted(expected)))
    assert folders.binding.read_bytes() == whole.encode()
    assert decode(folders.binding.read_bytes()) == whole


def test_a_row_that_says_otherwise_is_replaced(folders: Folders) -> None:
    hub_metadata = metadata.read_metadata(folders)
    signing_key = metadata.read_signing_key(folders, hub_metadata.identity.newest.key_id)
    for root in (b"\x01" * 32, b"\x02" * 32):
        bound = BindingFile(QuickDisk(), folders, hub_metadata)
        bound.add(
            checkpoint.sign(signing_key, label_prev=LABEL, label_curr=LABEL, upto_seq=9, mmr_root=root, epoch=NOW)
        )
        bound.save()
    found = CheckpointBinding.decode(folders.binding.read_bytes()).checkpoints
    assert [row.mmr_root for row in found] == [b"\x02" * 32]
