"""Protocol violations end the link of the sender, and other links continue."""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.veil.lane_fixture import ALICE, BOB, EVE, LINK_LANES, Listener, connect, run
from veil import veil_limits
from veil.lanes import Lane, LaneLink, Unavailable, session
from veil.lanes.session import AuthenticatedLane, Banlist, FrameKind, LinkSession
from veil.veil_errors import Malformed, Unverified, VeilError

each_lane = pytest.mark.parametrize("name", LINK_LANES)


async def raw_link(alice: Lane, listener: Listener) -> LaneLink:
    assert isinstance(alice, AuthenticatedLane)
    return await alice._lane.dial(listener.endpoint, BOB.public_key)


async def proved(alice: Lane, listener: Listener) -> LaneLink:
    """Eve's authenticated link to Bob, on which she can send any message."""
    link = await raw_link(alice, listener)
    met = await session.dial(link, EVE, BOB.public_key)
    assert isinstance(met, LinkSession)
    return link


async def ends(link: LaneLink) -> None:
    """Wait until Bob closes the link."""
    with suppress(VeilError):
        while True:
            await link.receive()
    await link.close()


# Messages after the handshake.
BROKEN: dict[str, Callable[[], bytes]] = {
    "garbage": lambda: b"\xff" + os.urandom(200),
    "no kind": lambda: b"\x00",
    "hello again": lambda: bytes((FrameKind.HELLO,)) + session.Hello.make().encode(),
    "took in what was never sent": lambda: bytes((FrameKind.RECEIVED,)) + (7).to_bytes(8, "big"),
    "a count of another length": lambda: bytes((FrameKind.RECEIVED,)) + b"\x01",
    "a ping with something in it": lambda: bytes((FrameKind.PING, 1)),
    "ready with something in it": lambda: bytes((FrameKind.READY, 1)),
    "a frame too large": lambda: bytes((FrameKind.FRAME,)) + bytes(veil_limits.MAX_FRAME_BYTES + 1),
    "a message too large by far": lambda: bytes((FrameKind.FRAME,)) + bytes(3 * veil_limits.MAX_FRAME_BYTES),
}
# Messages instead of the handshake.
RUDE = {
    "garbage": b"\xff" + bytes(100),
    "a frame": bytes((FrameKind.FRAME,)) + b"frame",
    "an old version": bytes((FrameKind.HELLO, 0)) + bytes(32),
    "half a hello": bytes((FrameKind.HELLO, session.VERSION)) + bytes(31),
    "a proof first": bytes((FrameKind.PROOF,)) + bytes(96),
    "too much": bytes((FrameKind.HELLO,)) + bytes(3 * veil_limits.MAX_FRAME_BYTES),
}

# WebRTC takes a second to set up, and the code after that is the same.
SLOW_LANE, FEW = "webrtc", {"garbage", "a frame too large", "a message too large by far", "too much"}
CASES = [(name, case) for name in LINK_LANES for case in BROKEN if name != SLOW_LANE or case in FEW]
RUDE_CASES = [(name, case) for name in LINK_LANES for case in RUDE if name != SLOW_LANE or case in FEW]


@pytest.mark.parametrize(("name", "broken"), CASES)
def test_a_protocol_violation_ends_only_the_session_of_its_sender(name: str, broken: str, tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        ours, theirs = await connect(alice, listener)
        eve = await proved(alice, listener)
        judged = await listener.ends.get()
        with suppress(Unavailable):
            await eve.send(BROKEN[broken]())
        assert isinstance(await judged.ended(), Malformed)
        assert judged.session.health.strikes == 1
        assert judged.incoming == []
        await ends(eve)
        ours.send(b"still here")
        assert await theirs.until(1) == [b"still here"]

    run(name, tmp_path, work)


@pytest.mark.parametrize(("name", "rude"), RUDE_CASES)
def test_a_link_without_handshake_is_closed(name: str, rude: str, tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        link = await raw_link(alice, listener)
        with suppress(Unavailable):
            await link.send(RUDE[rude])
        await ends(link)
        assert listener.ends.empty()
        ours, theirs = await connect(alice, listener)
        ours.send(b"heard")
        assert await theirs.until(1) == [b"heard"]

    run(name, tmp_path, work)


@pytest.mark.parametrize("name", ["quic", "wss", "tls", "tor"])
def test_random_data_on_the_port_changes_nothing(name: str, tmp_path: Path) -> None:
    """Bytes that are invalid for the transport: random datagrams, and connections without TLS."""

    async def work(alice: Lane, listener: Listener) -> None:
        ours, theirs = await connect(alice, listener)
        place = (listener.endpoint.host, listener.endpoint.port)
        if name == "quic":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                for size in (0, 1, 20, 1200, 1500) * 40:
                    out.sendto(b"\xc0\x00\x00\x00\x01" + os.urandom(size), place)
                    out.sendto(os.urandom(size), place)
        else:
            for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4000), b"\x16\x03\x01\xff\xff"):
                reader, writer = await asyncio.open_connection(*place)
                writer.write(noise)
                writer.write_eof()
                with suppress(OSError):
                    await reader.read()
                writer.close()
        ours.send(b"still here")
        assert await theirs.until(1) == [b"still here"]

    run(name, tmp_path, work)


@each_lane
def test_a_proof_of_another_link_proves_nothing(name: str, tmp_path: Path) -> None:
    """Eve sends Bob a signature that Alice made for Eve's certificate."""

    async def work(alice: Lane, listener: Listener) -> None:
        link = await raw_link(alice, listener)
        hello = session.Hello.make()
        await link.send(bytes((FrameKind.HELLO,)) + hello.encode())
        answered = (await link.receive())[1:]
        _, transcript = session.check_answer(answered, hello, link.binding, BOB.public_key)
        elsewhere = bytes(32) + transcript[len(link.binding) :]
        await link.send(bytes((FrameKind.PROOF,)) + session.proof(elsewhere, ALICE))
        await ends(link)
        assert listener.ends.empty()

    run(name, tmp_path, work)


def test_unauthenticated_links_are_bounded(tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        bob = listener.lane
        assert isinstance(bob, AuthenticatedLane)
        links = [await raw_link(alice, listener) for _ in range(veil_limits.MAX_UNAUTHENTICATED)]
        while bob.unauthenticated < veil_limits.MAX_UNAUTHENTICATED:
            await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await alice.dial(listener.endpoint, BOB.public_key, None)
        for link in links:
            await link.close()
        while bob.unauthenticated:
            await asyncio.sleep(0)
        ours, _ = await connect(alice, listener)
        assert ours.session.peer == BOB.public_key

    run("tls", tmp_path, work)


def test_an_address_with_repeated_violations_is_banned(tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        for _ in range(veil_limits.MAX_STRIKES):
            link = await raw_link(alice, listener)
            await link.send(b"\xff")
            await ends(link)
        with pytest.raises(Unavailable):
            await alice.dial(listener.endpoint, BOB.public_key, None)

    run("tls", tmp_path, work)


def test_an_onion_peer_with_violations_does_not_ban_others(tmp_path: Path) -> None:
    async def work(alice: Lane, listener: Listener) -> None:
        for _ in range(2 * veil_limits.MAX_STRIKES):
            link = await raw_link(alice, listener)
            await link.send(b"\xff")
            await ends(link)
        ours, theirs = await connect(alice, listener)
        ours.send(b"welcome")
        await theirs.until(1)
        assert theirs.incoming == [b"welcome"]

    run("tor", tmp_path, work)


def test_bans_end_and_are_bounded() -> None:
    now = [0.0]
    banlist = Banlist(lambda: now[0])
    for _ in range(veil_limits.MAX_STRIKES - 1):
        banlist.strike("192.0.2.1")
    assert not banlist.is_banned("192.0.2.1")
    banlist.strike("192.0.2.1")
    assert banlist.is_banned("192.0.2.1")
    assert not banlist.is_banned("192.0.2.2")
    now[0] += veil_limits.BAN_SECONDS + 1
    assert not banlist.is_banned("192.0.2.1")
    banlist.strike("192.0.2.1")
    assert not banlist.is_banned("192.0.2.1")
    for number in range(2 * veil_limits.MAX_BANS):
        banlist.strike(f"2001:db8::{number:x}")
    assert len(banlist) == veil_limits.MAX_BANS


def test_data_in_flight_never_exceeds_the_window(tmp_path: Path) -> None:
    """A peer that reads but never confirms gets one window of frames, and no more are pulled."""

    async def work(alice: Lane, listener: Listener) -> None:
        eve = await proved(alice, listener)
        judged = await listener.ends.get()
        judged.send(*[bytes(8)] * (4 * veil_limits.WINDOW_FRAMES))
        for _ in range(veil_limits.WINDOW_FRAMES):
            assert (await eve.receive())[0] == FrameKind.FRAME
        assert len(judged.outgoing) == 3 * veil_limits.WINDOW_FRAMES
        await eve.send(bytes((FrameKind.RECEIVED,)) + (1).to_bytes(8, "big"))
        assert (await eve.receive())[0] == FrameKind.FRAME
        assert len(judged.outgoing) == 3 * veil_limits.WINDOW_FRAMES - 1
        await eve.close()
        await judged.ended()
        assert judged.session.health.frames_lost == veil_limits.WINDOW_FRAMES

    run("quic", tmp_path, work)


def test_the_handshake_detects_another_certificate() -> None:
    hello = session.Hello.make()
    answered, transcript = session.answer_hello(hello, BOB, bytes(32))
    with pytest.raises(Unverified):
        session.check_answer(answered, hello, b"\x01" * 32, BOB.public_key)
    with pytest.raises(Unverified):
        session.check_answer(answered, session.Hello.make(), bytes(32), BOB.public_key)
    assert session.check_answer(answered, hello, bytes(32), None) == (BOB.public_key, transcript)


@pytest.mark.parametrize("at", range(0, 128, 9))
def test_no_bit_of_an_answer_may_change(at: int) -> None:
    hello = session.Hello.make()
    answered, _ = session.answer_hello(hello, BOB, bytes(32))
    changed = bytes(byte ^ (index == at) for index, byte in enumerate(answered))
    with pytest.raises(Unverified):
        session.check_answer(changed, hello, bytes(32), None)


@pytest.mark.parametrize("length", [0, 1, 95, 97])
def test_a_proof_has_one_length(length: int) -> None:
    with pytest.raises(Malformed):
        session.check_proof(bytes(length), bytes(128))
