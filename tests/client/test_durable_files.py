"""Files, folders and locks of a client: changes are atomic, and errors name the file."""

import os
import stat
import threading
from pathlib import Path

import pytest

from tests.client.ledger import Ledger, messages
from veen.client import Busy, ClientDir, cbor_sequence, local_files
from veen.client.local_files import DISK, scaffold
from veen.client.writer_keys import WriterRequest
from veen.core import Malformed, Msg, Receipt, Unavailable


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_and_private(place: Path) -> None:
    DISK.write_file(place / "a", b"old")
    DISK.write_file(place / "a", (b"ne", b"", b"w"))
    assert (place / "a").read_bytes() == b"new"
    assert stat.S_IMODE((place / "a").stat().st_mode) == 0o600
    assert names(place) == ["a"]


def test_a_write_that_fails_in_the_middle_leaves_the_old_file(place: Path) -> None:
    DISK.write_file(place / "a", b"old")

    def parts() -> object:
        yield b"n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DISK.write_file(place / "a", parts())  # type: ignore[arg-type]
    assert (place / "a").read_bytes() == b"old"
    assert names(place) == ["a"]


def test_a_fault_names_the_file(place: Path) -> None:
    missing = place / "missing" / "a"
    for act in (
        lambda: DISK.write_file(missing, b"x"),
        lambda: DISK.make_folder(missing),
        lambda: DISK.sync_folder(missing),
        lambda: DISK.replace(missing, missing),
        lambda: local_files.read_file(missing, 1),
        lambda: local_files.check_private(missing),
    ):
        with pytest.raises(Unavailable, match="missing/a: No such file or directory"):
            act()


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
def test_no_more_of_a_file_is_read_than_it_may_have(place: Path, size: int, fits: bool) -> None:
    (place / "a").write_bytes(bytes(size))
    if fits:
        assert local_files.read_file(place / "a", 10) == bytes(size)
    else:
        with pytest.raises(Unavailable, match="is longer than 10 bytes"):
            local_files.read_file(place / "a", 10)


def test_a_lock_can_be_waited_for(place: Path) -> None:
    order: list[str] = []
    held, waiting = threading.Event(), threading.Event()

    def hold() -> None:
        with local_files.locked(place / "lock", "it"):
            held.set()
            waiting.wait()
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with pytest.raises(Busy, match=f"it is in use by process {os.getpid()}"), local_files.locked(place / "lock", "it"):
        pytest.fail("both have it")
    waiting.set()
    with local_files.locked(place / "lock", "it", wait=True):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_scaffold_that_is_being_built_in_is_left_alone(place: Path) -> None:
    with scaffold(place / "a", DISK) as one:
        (one / "part").write_text("one")
        with scaffold(place / "b", DISK) as two:
            assert one.exists()
            assert two.exists()
        with pytest.raises(Unavailable, match="not empty"):
            _build_and_lose(place / "a")
        assert one.exists()
        (place / "a" / "someone").unlink()
    assert (place / "a" / "part").read_text() == "one"
    assert names(place) == ["a", "b"]


def _build_and_lose(path: Path) -> None:
    """Build a folder whose target is created meanwhile by someone else."""
    with scaffold(path, DISK):
        path.mkdir()
        (path / "someone").write_text("was quicker")


def test_what_fails_while_it_is_built_is_gone(place: Path) -> None:
    with pytest.raises(ZeroDivisionError), scaffold(place / "a", DISK) as folder:
        (folder / "part").write_text(str(1 // 0))
    assert names(place) == []


def test_a_sequence_reads_back_however_long_it_is(place: Path, client: ClientDir) -> None:
    ledger = Ledger()
    writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=0))
    given = tuple(ledger.take_all(messages(writer, 50)))
    data = cbor_sequence.encode(given)
    (place / "receipts").write_bytes(data)
    assert cbor_sequence.decode(Receipt, data) == given
    for block in (max(len(each.encode()) for each in given), 1_000, 1 << 20):
        assert tuple(cbor_sequence.read_file(Receipt, place / "receipts", block)) == given


def test_an_empty_sequence_holds_nothing(place: Path) -> None:
    (place / "none").write_bytes(b"")
    assert cbor_sequence.decode(Receipt, b"") == ()
    assert tuple(cbor_sequence.read_file(Receipt, place / "none")) == ()


def test_a_bad_object_of_a_sequence_is_named_by_its_number(place: Path, client: ClientDir) -> None:
    ledger = Ledger()
    writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=0))
    data = cbor_sequence.encode(ledger.take_all(messages(writer, 3)))
    for spoiled, number in ((data[:-1], 3), (data + b"\0", 4), (b"\x80" + data, 1)):
        (place / "bad").write_bytes(spoiled)
        with pytest.raises(Malformed, match=f"receipt {number}: "):
            cbor_sequence.decode(Receipt, spoiled)
        with pytest.raises(Malformed, match=f"receipt {number}: "):
            tuple(cbor_sequence.read_file(Receipt, place / "bad"))
    with pytest.raises(Malformed, match="msg 1"):
        cbor_sequence.decode(Msg, data)
