"""Every lane carries frames in both directions between two authenticated nodes."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.veil.lane_fixture import ALICE, ALL_LANES, BOB, EVE, LINK_LANES, Listener, connect, run
from veil import veil_limits
from veil.lanes import Lane
from veil.veil_errors import Unverified

each_lane = pytest.mark.parametrize("name", ALL_LANES)
each_link_lane = pytest.mark.parametrize("name", LINK_LANES)


@each_lane
def test_frames_arrive_whole_both_ways(name: str, tmp_path: Path) -> None:
    sent = [os.urandom(size) for size in (1, 100, 2048, veil_limits.MAX_FRAME_BYTES)]

    async def work(alice: Lane, listener: Listener) -> None:
        ours, theirs = await connect(alice, listener)
        ours.send(*sent)
        theirs.send(*reversed(sent))
        assert sorted(await theirs.until(4)) == sorted(sent)
        assert sorted(await ours.until(4)) == sorted(sent)

    run(name, tmp_path, work)


@each_lane
def test_each_end_knows_the_other(name: str, tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        ours, theirs = await connect(alice, listener)
        assert ours.session.peer == BOB.public_key
        assert theirs.session.peer == ALICE.public_key

    run(name, tmp_path, work)


@each_lane
def test_more_than_a_window_of_frames_arrives(name: str, tmp_path: Path) -> None:
    sent = [number.to_bytes(4, "big") + bytes(4092) for number in range(3 * veil_limits.WINDOW_FRAMES)]

    async def work(alice: Lane, listener: Listener) -> None:
        ours, theirs = await connect(alice, listener)
        ours.send(*sent)
        assert sorted(await theirs.until(len(sent))) == sent

    run(name, tmp_path, work)


@each_link_lane
def test_a_session_ends_at_both_ends(name: str, tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        ours, theirs = await connect(alice, listener)
        await ours.session.close()
        await theirs.ended()
        assert theirs.session.closed.is_set()

    run(name, tmp_path, work)


@each_link_lane
def test_another_node_than_was_dialled_is_refused(name: str, tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        if name == "webrtc":  # Bob answers offers in Eve's folder
            folder = Path(listener.endpoint.path)
            (folder / EVE.public_key.hex()).symlink_to(folder / BOB.public_key.hex())
        with pytest.raises(Unverified, match="another node answered"):
            await alice.dial(listener.endpoint, EVE.public_key, None)
        assert listener.ends.empty()

    run(name, tmp_path, work)


@pytest.mark.parametrize("name", ["quic", "wss", "tls", "tor"])
def test_another_certificate_than_the_contact_names_is_refused(name: str, tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        with pytest.raises(Unverified, match="another certificate"):
            await alice.dial(listener.endpoint, BOB.public_key, bytes(32))
        session = await alice.dial(listener.endpoint, BOB.public_key, listener.certificate.pin)
        await session.close()

    run(name, tmp_path, work)


@each_link_lane
def test_health_counts_delivered_frames(name: str, tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        ours, theirs = await connect(alice, listener)
        ours.send(b"a", b"bc")
        await theirs.until(2)
        while ours.session.health.frames_delivered < 2:
            await asyncio.sleep(0)
        assert ours.session.health.frames_delivered == 2
        assert ours.session.health.frames_lost == 0

    run(name, tmp_path, work)
