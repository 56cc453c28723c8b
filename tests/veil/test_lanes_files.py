"""The file lane: parcels have one sender and one recipient, and are removed only after a commit."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbing.durable import replace_file
from plumbing.sodium import SigningKey
from tests.veil.lane_fixture import ALICE, BOB, EVE, End
from veil import veil_limits
from veil.lanes import Endpoint, Unavailable, file_lane
from veil.lanes.file_lane import SUFFIX, FileLane
from veil.lanes.lane import Session
from veil.veil_errors import Malformed, Unverified

FRAMES = (b"one", bytes(2048), os.urandom(veil_limits.MAX_FRAME_BYTES))


def packed() -> bytes:
    return file_lane.pack(ALICE, BOB.public_key, FRAMES)


def test_a_parcel_round_trips_for_its_recipient() -> None:
    found = file_lane.unpack(packed(), BOB.public_key)
    assert (found.sender, found.recipient, found.frames) == (ALICE.public_key, BOB.public_key, FRAMES)


@pytest.mark.parametrize("at", [0, 14, 46, 80, 82, 200, -65, -64, -1])
def test_a_changed_parcel_is_refused(at: int) -> None:
    changed = bytearray(packed())
    changed[at] ^= 1
    with pytest.raises((Malformed, Unverified)):
        file_lane.unpack(bytes(changed), BOB.public_key)


@pytest.mark.parametrize("cut", [0, 1, 60, 150, 2000])
def test_part_of_a_parcel_is_refused(cut: int) -> None:
    with pytest.raises((Malformed, Unverified)):
        file_lane.unpack(packed()[:cut], BOB.public_key)


def test_a_parcel_for_another_is_refused() -> None:
    with pytest.raises(Unverified, match="addressed to another node"):
        file_lane.unpack(packed(), EVE.public_key)


@pytest.mark.parametrize("frame", [b"", bytes(veil_limits.MAX_FRAME_BYTES + 1)])
def test_an_empty_or_oversized_frame_is_rejected(frame: bytes) -> None:
    with pytest.raises(Malformed):
        file_lane.unpack(file_lane.pack(ALICE, BOB.public_key, [frame]), BOB.public_key)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_not_a_parcel(data: bytes) -> None:
    with pytest.raises((Malformed, Unverified)):
        file_lane.unpack(file_lane.MAGIC + data, BOB.public_key)


def put(folder: Path, name: str, data: bytes) -> Path:
    inbox = folder / BOB.public_key.hex()
    inbox.mkdir(exist_ok=True)
    replace_file(inbox / name, data)
    return inbox / name


def parcel_name(number: int, sender: bytes = ALICE.public_key) -> str:
    return f"{sender.hex()}-{number:020d}{SUFFIX}"


async def taken(folder: Path, settle: list[int]) -> tuple[FileLane, list[Session]]:
    """Bob's lane after one scan of a folder."""
    sessions: list[Session] = []
    lane = FileLane(BOB, folder, lambda: settle.append(sum(1 for _ in (folder / BOB.public_key.hex()).iterdir())))
    lane._accept = sessions.append
    lane.scan()
    return lane, sessions


def test_a_parcel_is_removed_only_after_its_frames_are_committed(tmp_path: Path) -> None:
    async def work() -> None:
        put(tmp_path, parcel_name(1), packed())
        settled: list[int] = []
        _, (met,) = await taken(tmp_path, settled)
        end = End(met).start()
        assert await end.until(3) == list(FRAMES)
        await met.close()
        await end.ended()
        assert settled == [1]  # the parcel still existed at the commit
        assert list((tmp_path / BOB.public_key.hex()).iterdir()) == []

    asyncio.run(work())


def test_a_parcel_stays_while_its_frames_cannot_be_committed(tmp_path: Path) -> None:
    def full() -> None:
        raise Unavailable("store", "the node cannot write")

    async def work() -> None:
        put(tmp_path, parcel_name(1), packed())
        sessions: list[Session] = []
        lane = FileLane(BOB, tmp_path, full)
        lane._accept = sessions.append
        lane.scan()
        with pytest.raises(Unavailable):
            await sessions[0].run(lambda most: (), lambda frame: None)
        _, (met,) = await taken(tmp_path, [])
        end = End(met).start()
        assert await end.until(3) == list(FRAMES), "there is room again: it is taken in"
        await met.close()
        await end.ended()

    asyncio.run(work())


BAD = {
    "garbage": os.urandom(500),
    "empty": b"",
    "for another": file_lane.pack(ALICE, EVE.public_key, FRAMES),
    "by another than its name": file_lane.pack(EVE, BOB.public_key, FRAMES),
    "cut short": packed()[:-1],
    "too large": packed() + bytes(file_lane.MAX_FILE_BYTES),
}


@pytest.mark.parametrize("bad", BAD)
def test_an_invalid_parcel_starts_no_session_and_is_removed(bad: str, tmp_path: Path) -> None:
    """Anyone can put the key of a trusted node into a file name."""

    async def work() -> None:
        path = put(tmp_path, parcel_name(1), BAD[bad])
        lane, sessions = await taken(tmp_path, [])
        assert (sessions, path.exists()) == ([], False)
        put(tmp_path, parcel_name(2), packed())
        lane.scan()
        assert [met.peer for met in sessions] == [ALICE.public_key]

    asyncio.run(work())


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("known", [False, True])
def test_a_pipe_or_directory_in_the_folder_does_not_block(
    make: Callable[[Path], None], known: bool, tmp_path: Path
) -> None:
    async def work() -> None:
        if known:
            put(tmp_path, parcel_name(0), file_lane.pack(ALICE, BOB.public_key, [b"first"]))
        inbox = tmp_path / BOB.public_key.hex()
        inbox.mkdir(exist_ok=True)
        make(inbox / parcel_name(1))
        put(tmp_path, parcel_name(2), file_lane.pack(ALICE, BOB.public_key, [b"good"]))
        lane, (met,) = await taken(tmp_path, [])
        end = End(met).start()
        assert await end.until(1 + known) == [b"first", b"good"][not known :]
        lane.scan()
        await met.close()
        await end.ended()
        assert len(end.incoming) == 1 + known

    asyncio.run(work())


def test_junk_that_cannot_be_removed_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    async def work() -> None:
        for number in range(veil_limits.NEW_SENDERS_PER_SCAN):
            put(tmp_path, parcel_name(number, bytes([number]) * 32), b"junk")
        monkeypatch.setattr(Path, "unlink", refuse)
        lane, sessions = await taken(tmp_path, [])
        monkeypatch.undo()
        put(tmp_path, parcel_name(1), packed())
        lane.scan()
        assert [met.peer for met in sessions] == [ALICE.public_key]

    asyncio.run(work())


def test_one_scan_verifies_a_bounded_number_of_parcels_from_new_senders(tmp_path: Path) -> None:
    async def work() -> None:
        names = [parcel_name(1, number.to_bytes(32, "big")) for number in range(3 * veil_limits.NEW_SENDERS_PER_SCAN)]
        for name in names:
            put(tmp_path, name, b"junk")
        lane, sessions = await taken(tmp_path, [])
        left = [len(names) - veil_limits.NEW_SENDERS_PER_SCAN]
        for _ in range(3):
            lane.scan()
            left.append(sum(1 for _ in (tmp_path / BOB.public_key.hex()).iterdir()))
        assert (left, sessions) == ([32, 16, 0, 0], [])

    asyncio.run(work())


def test_new_senders_are_bounded_and_dialled_sessions_stay(tmp_path: Path) -> None:
    async def work() -> None:
        lane, sessions = await taken(tmp_path, [])
        dialled = await lane.dial(Endpoint("file", path=str(tmp_path)), ALICE.public_key, None)
        unauthenticated = [SigningKey.generate() for _ in range(veil_limits.MAX_UNAUTHENTICATED + 10)]
        for number, stranger in enumerate(unauthenticated):
            signed = file_lane.pack(stranger, BOB.public_key, [b"x"])
            path = put(tmp_path, parcel_name(number, stranger.public_key), signed)
            lane.scan()
            path.unlink()
        assert [met.closed.is_set() for met in sessions] == [True] * 10 + [False] * veil_limits.MAX_UNAUTHENTICATED
        assert not dialled.closed.is_set()

    asyncio.run(work())


@pytest.mark.parametrize("bad", BAD)
def test_an_invalid_parcel_in_a_session_is_counted_and_others_are_read(bad: str, tmp_path: Path) -> None:
    async def work() -> None:
        put(tmp_path, parcel_name(0), file_lane.pack(ALICE, BOB.public_key, [b"first"]))
        put(tmp_path, parcel_name(1), BAD[bad])
        put(tmp_path, parcel_name(2), file_lane.pack(ALICE, BOB.public_key, [b"good"]))
        _, (met,) = await taken(tmp_path, [])
        end = End(met).start()
        assert await end.until(2) == [b"first", b"good"]
        assert met.health.strikes == 1
        await met.close()
        await end.ended()
        assert list((tmp_path / BOB.public_key.hex()).iterdir()) == []

    asyncio.run(work())


@pytest.mark.parametrize(
    "name", ["x.parcel", "zz-1.parcel", "00-1.parcel", f"{ALICE.public_key.hex()}-1.txt", ".x.part"]
)
def test_a_file_of_another_name_is_left_alone(name: str, tmp_path: Path) -> None:
    async def work() -> None:
        path = put(tmp_path, name, packed())
        _, sessions = await taken(tmp_path, [])
        assert sessions == []
        assert path.exists()

    asyncio.run(work())


def test_a_parcel_that_cannot_be_removed_is_not_processed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    async def work() -> None:
        put(tmp_path, parcel_name(1), packed())
        lane, (met,) = await taken(tmp_path, [])
        monkeypatch.setattr(Path, "unlink", refuse)
        end = End(met).start()
        await end.until(3)
        lane.scan()
        met.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(end.incoming) == 3
        await met.close()
        await end.ended()

    asyncio.run(work())


def test_no_more_parcels_are_left_than_the_bound(tmp_path: Path) -> None:
    async def work() -> None:
        outbox = tmp_path / BOB.public_key.hex()
        outbox.mkdir()
        for number in range(veil_limits.MAX_PARCELS):
            (outbox / parcel_name(number)).touch()
        lane = FileLane(ALICE)
        end = End(await lane.dial(Endpoint("file", path=str(tmp_path)), BOB.public_key, None))
        end.send(b"waits")
        end.start()
        await asyncio.sleep(0.05)
        assert end.outgoing == [b"waits"]
        next(outbox.iterdir()).unlink()
        end.session.wake()
        while end.outgoing:
            await asyncio.sleep(0)
        await end.session.close()
        await end.ended()

    asyncio.run(work())


def test_dialling_a_missing_folder_reports_it(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(Unavailable, match="folder does not exist"):
            await FileLane(ALICE).dial(Endpoint("file", path=str(tmp_path / "stick")), BOB.public_key, None)

    asyncio.run(work())


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    replace_file(path, b"old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "folder", b"new")
    assert path.read_bytes() == b"old"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "x"]
    assert path.stat().st_mode & 0o777 == 0o600
