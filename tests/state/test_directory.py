"""State from a data directory: everything is verified, and damage is reported."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.pair import STREAM, Pair, pair
from tests.hub.client import START, Clock, Hub, make_dir, running
from tests.hub.disks import QuickDisk
from tests.state.hubs import SMALL, at_a_hub, say
from veen.client import ClientDir, evidence
from veen.client.trust import Pin
from veen.core import Limits, Malformed, Msg, Receipt, Unavailable, Unverified, VeenError, naming
from veen.overlays import At
from veen.overlays.kv import KV, Write
from veen.state import DirectorySource, StateView, prove, verify_state
from veen.state.state_view import cache_folder
from veen.storage import frame
from veen.storage.directory_reader import LogReader, chunk_entries

SIZE = 11


def made(place: Path, limits: Limits = SMALL, size: int = SIZE) -> Path:
    """A directory whose hub has stopped; the reader has never met it."""

    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer:
            await say(writer, *(Write(b"k%d" % (number % 3), 0, b"%d" % number) for number in range(size)))

    return at_a_hub(place, work, limits=limits)


def told(data_dir: Path, folder: ClientDir, at: At | None = None, *, cached: bool = True) -> tuple[At, bytes | None]:
    """The end of the log, and one key."""

    async def look() -> tuple[At, bytes | None]:
        async with (
            StateView(DirectorySource(data_dir, folder), STREAM, KV, cached=cached) as view,
            view.reading(at) as reading,
        ):
            return reading.upto, reading.state(b"k1").value

    return asyncio.run(look())


@pytest.mark.parametrize("limits", [SMALL, Limits(), Limits(max_checkpoint_interval=4, chunk_zstd_level=3)])
@pytest.mark.parametrize("index", [True, False])
def test_a_directory_gives_the_state_with_and_without_its_index(place: Path, limits: Limits, index: bool) -> None:
    data_dir = made(place, limits)
    if not index:
        shutil.rmtree(data_dir / "index")
    with ClientDir.open(place / "reader") as folder:
        for _ in range(2):
            assert told(data_dir, folder) == (At(0, SIZE), b"10")
        assert told(data_dir, folder, At(0, 5)) == (At(0, SIZE), b"4")
        assert told(data_dir, folder, At(0, 1), cached=False) == (At(0, SIZE), None)


def test_a_directory_can_be_read_while_its_hub_runs(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer:
            for number in range(1, 12):
                await say(writer, Write(b"k1", 0, b"%d" % number))
                source = DirectorySource(hub.data_dir, people.reader_dir)
                async with StateView(source, STREAM, KV) as view, view.reading() as reading:
                    assert reading.upto == At(0, number)
                    assert reading.state(b"k1").value == b"%d" % number

    at_a_hub(place, work, limits=SMALL)


def test_hub_and_directory_share_a_cache(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await say(writer, Write(b"k1", 0, b"a"))
            async with StateView.of(reader, STREAM, KV) as view:
                await view.sync()
            await say(writer, Write(b"k1", 0, b"b"))
            source = DirectorySource(hub.data_dir, people.reader_dir)
            async with StateView(source, STREAM, KV) as view, view.reading() as reading:
                assert reading.state(b"k1").value == b"b"
                before = reading.state_hash()
            async with StateView.of(reader, STREAM, KV) as view, view.reading(fresh=False) as reading:
                assert reading.upto == At(0, 2)
                assert reading.state_hash() == before

    at_a_hub(place, work)


def test_an_older_copy_is_folded_in_memory_and_leaves_the_cache_unchanged(place: Path) -> None:
    data_dir = make_dir(place, None, SMALL, START)
    with pair(place, now=START) as people:
        _written(data_dir, people, b"1", b"2", read=False)
        shutil.copytree(data_dir, place / "copy")
        _written(data_dir, people, b"3", read=False)
        folder = people.reader_dir
        assert told(data_dir, folder) == (At(0, 3), b"3")
        assert told(place / "copy", folder) == (At(0, 2), b"2")
        assert told(data_dir, folder) == (At(0, 3), b"3")


def test_entries_that_are_only_in_the_journal_count(place: Path) -> None:
    """A receipt that left the hub is on disk: what a killed hub had no time to move to its log is in the journal."""
    copy = place / "copy"

    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer:
            await say(writer, Write(b"k1", 0, b"1"))
            hub.do(_still(hub))
            shutil.copytree(hub.data_dir, copy)

    at_a_hub(place, work)
    for chunk in (copy / "log").iterdir():
        chunk.unlink()
    with ClientDir.open(place / "reader") as folder:
        assert told(copy, folder) == (At(0, 1), b"1")


async def _still(hub: Hub) -> None:
    """Nothing: when the hub's loop comes to it, the group before it is on disk."""


# Damage.


def _chunks(data_dir: Path) -> list[Path]:
    """The chunk files of the label that has most of them: the stream's, and not the control stream's."""
    by_label: dict[str, list[Path]] = {}
    for path in sorted((data_dir / "log").glob("chunk-*.log*")):
        by_label.setdefault(path.name.split("-")[1], []).append(path)
    return max(by_label.values(), key=len)


def _first_chunk(data_dir: Path) -> Path:
    return _chunks(data_dir)[0]


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _forget_journal(data_dir: Path) -> None:
    for path in (data_dir / "journal").iterdir():
        path.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], None], type[VeenError], str]] = {
    "a bit of an entry": (lambda at: _flip(_first_chunk(at), 300), Malformed, "do not match the entry hash"),
    "a bit of a header": (lambda at: _flip(_first_chunk(at), 0), Malformed, "version"),
    "a chunk is missing": (lambda at: _chunks(at)[1].unlink(), Malformed, "expected entry 5"),
    "a chunk is cut": (lambda at: _cut(_chunks(at)[1]), Malformed, "entry"),
    "two chunks are swapped": (lambda at: _swap(at), Malformed, "expected entry"),
    "the identity": (lambda at: _flip(at / "hub-identity.json", 30), VeenError, "identity"),
    "the signature": (lambda at: _flip(at / "hub-identity.sig", 60), VeenError, "identity"),
    "the profile": (lambda at: (at / "profile.json").unlink(), Unavailable, "profile.json"),
    "the log folder is missing": (lambda at: shutil.rmtree(at / "log"), Unavailable, "cannot be read"),
}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _swap(data_dir: Path) -> None:
    one, other = _chunks(data_dir)[:2]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_reported_and_no_state_is_returned(place: Path, what: str) -> None:
    damage, kind, said = DAMAGE[what]
    data_dir = made(place)
    _forget_journal(data_dir)
    damage(data_dir)
    with ClientDir.open(place / "reader") as folder, pytest.raises(kind, match=said):
        told(data_dir, folder)


def test_damage_before_the_cached_place_stops_only_readers_without_a_cache(place: Path) -> None:
    data_dir = made(place)
    with ClientDir.open(place / "reader") as folder:
        told(data_dir, folder)
        _forget_journal(data_dir)
        _flip(_first_chunk(data_dir), 300)
        assert told(data_dir, folder) == (At(0, SIZE), b"10")
        with pytest.raises(Malformed, match="do not match the entry hash"):
            told(data_dir, folder, cached=False)


def test_a_forged_entry_with_correct_hashes_is_rejected(place: Path) -> None:
    data_dir = made(place)
    _forget_journal(data_dir)
    chunk = _first_chunk(data_dir)
    with LogReader(data_dir) as reader:
        (ref,) = [ref for ref in reader.chunks() if ref.path == chunk]
        frames = list(chunk_entries(ref))
    forged = []
    for one in frames:
        message, receipt = Msg.decode(one.msg), Receipt.decode(one.receipt)
        message = replace(message, sig=bytes(64)) if one.stream_seq == 2 else message
        forged.append(frame.write(one.label, one.stream_seq, message.encode(), receipt.encode())[0])
    chunk.write_bytes(b"".join(forged))
    with ClientDir.open(place / "reader") as folder, pytest.raises(Unverified, match="entry 2"):
        told(data_dir, folder)


def test_the_directory_of_another_hub_than_the_pinned_one_is_rejected(place: Path) -> None:
    data_dir = made(place)
    with ClientDir.open(place / "reader") as folder:
        with pytest.raises(Unverified):
            DirectorySource(data_dir, folder, bytes(32))
        own = DirectorySource(data_dir, folder).known.identity.hub_id
        assert DirectorySource(data_dir, folder, own).known.identity.hub_id == own


def test_a_directory_that_contradicts_the_hub_is_rejected(place: Path) -> None:
    """The hub goes back to an old copy and takes other entries: who has seen the first ones sees it."""
    data_dir = make_dir(place, None, SMALL, START)
    (place / "others").mkdir()
    with pair(place, now=START) as people, pair(place / "others", now=START) as others:
        shutil.copytree(data_dir, place / "before")
        _written(data_dir, people, b"1", read=True)
        shutil.rmtree(data_dir)
        shutil.copytree(place / "before", data_dir)
        _written(data_dir, others, b"other", read=False)
        with pytest.raises(Unverified, match="another log up to here"):
            told(data_dir, people.reader_dir, cached=False)


def _written(data_dir: Path, people: Pair, *values: bytes, read: bool) -> None:
    """One run of a hub, in which values are written and perhaps read."""
    with running(data_dir, Clock(), QuickDisk()) as hub:
        people.url, people.pin = f"http://127.0.0.1:{hub.port}", Pin(key=hub.service.hub_metadata.identity.hub_id)

        async def work() -> None:
            async with people.writer() as writer:
                await say(writer, *(Write(b"k1", 0, value) for value in values))
            if read:
                async with people.reader() as reader, StateView.of(reader, STREAM, KV, cached=False) as view:
                    await view.sync()

        asyncio.run(work())


# Evidence without the hub.


@pytest.mark.parametrize("nodes", [True, False])
def test_evidence_from_a_directory_is_valid_with_and_without_its_node_files(place: Path, nodes: bool) -> None:
    data_dir = made(place)
    if not nodes:
        shutil.rmtree(data_dir / "index")
    with ClientDir.open(place / "reader") as folder:

        async def shown() -> tuple[bytes, bytes, bytes]:
            source = DirectorySource(data_dir, folder)
            async with StateView(source, STREAM, KV) as view, view.reading(At(0, 9)) as reading:
                file = (await prove(view, reading, b"k1")).encode()
                return file, source.known.identity.hub_id, reading.state_hash(b"k1")

        file, hub_id, hashed = asyncio.run(shown())
    assert evidence.verify(file, hub_id).contradictions == ()
    found = verify_state(file, KV, STREAM, b"k1", pin=hub_id)
    assert found.states[b"k1"].value == b"7"
    assert found.state_hash == hashed
    with pytest.raises(Unverified, match="not of this stream"):
        verify_state(file, KV, "another stream", b"k1", pin=hub_id)


def test_a_cache_of_a_directory_is_the_readers_own(place: Path) -> None:
    data_dir = made(place)
    with ClientDir.open(place / "reader") as folder:
        told(data_dir, folder)
        hub_id = DirectorySource(data_dir, folder).known.identity.hub_id
        path = cache_folder(folder, hub_id, KV, naming.stream_id(STREAM))
        assert path.is_relative_to((place / "reader").resolve())
        assert path.stat().st_mode & 0o077 == 0
