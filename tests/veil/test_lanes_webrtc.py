"""WebRTC: offers travel through a folder or another lane, and altered offers are useless."""

import asyncio
import builtins
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.veil.lane_fixture import ALICE, BOB, Listener
from veil import veil_limits
from veil.lanes import Certificate, Endpoint, Unavailable
from veil.lanes.lane import library
from veil.lanes.session import AuthenticatedLane
from veil.lanes.webrtc import Answer, CarriedSignalling, WebRtcLane, _binding
from veil.veil_errors import Malformed, VeilError

PLACE = Endpoint("webrtc")
Alter = Callable[[bytes], bytes]


def check_carried(folder: Path, alter: Alter = lambda data: data) -> None:
    """Alice dials Bob with descriptions changed by `alter`, and both send a frame."""

    async def work() -> None:
        ends: dict[bytes, CarriedSignalling] = {}

        def carry(sender: bytes) -> Callable[[bytes, bytes], bool]:
            def pass_on(peer: bytes, data: bytes) -> bool:
                ends[peer].arrived(sender, alter(data))
                return True

            return pass_on

        for key in (ALICE, BOB):
            ends[key.public_key] = CarriedSignalling(carry(key.public_key))
        bob = AuthenticatedLane(WebRtcLane(ends[BOB.public_key], (PLACE,)), BOB)
        alice = AuthenticatedLane(WebRtcLane(ends[ALICE.public_key]), ALICE)
        listener = Listener(bob, Certificate.load_or_make(folder / "pem"))
        await bob.start(listener.accept)
        await alice.start(lambda met: None)
        try:
            ours = listener.start(await alice.dial(PLACE, BOB.public_key, None))
            theirs = await listener.ends.get()
            ours.send(b"there")
            theirs.send(b"back")
            assert await theirs.until(1) == [b"there"]
            assert await ours.until(1) == [b"back"]
        finally:
            for end in listener.running:
                await end.session.close()
                await end.ended()
            await alice.stop()
            await bob.stop()

    asyncio.run(work())


def test_another_lane_can_carry_the_descriptions(tmp_path: Path) -> None:
    check_carried(tmp_path)


@pytest.mark.parametrize(
    "alter",
    [
        lambda data: data.replace(b"m=application", b"m=audio") if data[:1] == b"A" else data,
        lambda data: data.replace(b"a=fingerprint:sha-256", b"a=nothing") if data[:1] == b"A" else data,
        lambda data: data[:200] if data[:1] == b"A" else data,
        lambda data: data[:17] + b"\xff" * 100 if data[:1] == b"A" else data,
    ],
)
def test_an_invalid_answer_is_rejected(alter: Alter, tmp_path: Path) -> None:
    with pytest.raises(VeilError):
        check_carried(tmp_path, alter)


def test_an_offer_without_a_session_to_carry_it_is_reported() -> None:
    async def work() -> None:
        signalling = CarriedSignalling(lambda peer, data: False)
        lane = WebRtcLane(signalling)
        with pytest.raises(Unavailable, match="no session on another lane"):
            await lane.dial(PLACE, BOB.public_key)

    asyncio.run(work())


@pytest.mark.parametrize("data", [b"", b"A", b"O", b"X" + bytes(16), b"A" + bytes(16) + b"x", b"O" + bytes(10)])
def test_invalid_signal_data_is_ignored(data: bytes) -> None:
    sent: list[bytes] = []

    def send(peer: bytes, data: bytes) -> bool:
        sent.append(data)
        return True

    async def work() -> None:
        signalling = CarriedSignalling(send)
        signalling.arrived(BOB.public_key, data)
        await asyncio.sleep(0)
        await signalling.stop()

    asyncio.run(work())
    assert sent == []


class Offers:
    """Signalling that hands offers to a lane."""

    async def start(self, answer: Answer) -> None:
        self.answer = answer

    async def exchange(self, endpoint: Endpoint, peer: bytes, offer: str) -> str:
        return await self.answer(offer)

    async def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    "alter",
    [
        lambda offer: offer.replace("a=fingerprint:sha-256", "a=nothing"),
        lambda offer: offer.replace("\r\nm=application", "\r\na=m=application"),
        lambda offer: offer.replace("m=application", "mm=application"),
        lambda offer: offer.replace("BUNDLE 0", "BUNDLE 1 0"),
        lambda offer: "m=application",
    ],
)
def test_invalid_offers_are_malformed_and_take_no_place_of_valid_ones(
    alter: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(veil_limits, "MAX_UNAUTHENTICATED", 2)

    async def work() -> None:
        offers, carried = Offers(), Offers()
        bob, alice = WebRtcLane(offers), WebRtcLane(carried)
        await bob.start(lambda link: None)
        seen = list[str]()

        async def read(offer: str) -> str:
            seen.append(offer)
            raise Unavailable("test", "only the offer is of interest")

        carried.answer = read
        with pytest.raises(Unavailable):
            await alice.dial(PLACE, BOB.public_key)
        for _ in range(3):
            with pytest.raises(Malformed):
                await offers.answer(alter(seen[0]))
        assert "m=application " in await offers.answer(seen[0])
        await bob.stop()

    asyncio.run(work())


LINE = "a=fingerprint:sha-256 " + ":".join(["AB"] * 32)
OTHER = "a=fingerprint:sha-256 " + ":".join(["CD"] * 32)


@pytest.mark.parametrize("text", ["", "a=fingerprint:sha-256 AB", f"{LINE}\n{OTHER}"])
def test_a_description_names_one_key(text: str) -> None:
    with pytest.raises(Malformed):
        _binding(text, LINE)
    with pytest.raises(Malformed):
        _binding(LINE, text)


def test_both_keys_are_bound() -> None:
    assert len({_binding(LINE, OTHER), _binding(OTHER, LINE), _binding(LINE, LINE)}) == 3


def test_a_library_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("aiortc"):
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(Unavailable, match="aiortc is not installed") as missing:
        library("aiortc", "webrtc")
    assert "pip install" in missing.value.__notes__[0]
