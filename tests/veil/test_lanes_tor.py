"""The Tor lane sends its proxy only the host name, and reports the errors of the proxy."""

import asyncio
from pathlib import Path

import pytest

from tests.veil.lane_fixture import ALICE, BOB, Listener
from tests.veil.lanes_proxy import Socks5, socks5_server
from veil.lanes import Certificate, Endpoint, Unavailable, tls_lane
from veil.lanes.session import AuthenticatedLane
from veil.lanes.tls_lane import TorLane
from veil.veil_errors import Malformed

ONION = "pg6mmjiyjmcrsslvykfwnntlaru7p5svn6y2ymmju6nubxndf4pscryd.onion"


def dial(folder: Path, reply: int = 0, proxies: list[Socks5] | None = None) -> None:
    """Alice dials Bob's onion address twice, through a proxy that answers with `reply`."""

    async def work() -> None:
        certificate = Certificate.load_or_make(folder / "pem")
        async with socks5_server() as proxy:
            proxy.reply = reply
            bob = AuthenticatedLane(TorLane(certificate, proxy.address, Endpoint("tor", "127.0.0.1", 0)), BOB)
            listener = Listener(bob, certificate)
            await bob.start(listener.accept)
            alice = AuthenticatedLane(TorLane(certificate, proxy.address, isolate=True), ALICE)
            try:
                for _ in range(2):
                    place = Endpoint("tor", ONION, listener.endpoint.port)
                    met = await alice.dial(place, BOB.public_key, certificate.pin)
                    await met.close()
            finally:
                for end in listener.running:
                    await end.session.close()
                    await end.ended()
                await bob.stop()
                if proxies is not None:
                    proxies.append(proxy)

    asyncio.run(work())


def test_only_the_proxy_resolves_the_host_name(tmp_path: Path) -> None:
    proxies: list[Socks5] = []
    dial(tmp_path, proxies=proxies)
    assert {host for host, _ in proxies[0].requests} == {ONION}


def test_each_dial_has_a_circuit_of_its_own(tmp_path: Path) -> None:
    proxies: list[Socks5] = []
    dial(tmp_path, proxies=proxies)
    assert len(set(proxies[0].names)) == 2


@pytest.mark.parametrize(
    ("reply", "why"), [(1, "failure of the proxy"), (4, "host unreachable"), (5, "refused"), (99, "99")]
)
def test_a_refusal_of_the_proxy_is_reported_with_its_reason(reply: int, why: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=why):
        dial(tmp_path, reply)


def test_a_missing_proxy_is_reported(tmp_path: Path) -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()[:2]
        server.close()
        await server.wait_closed()
        lane = TorLane(Certificate.load_or_make(tmp_path / "pem"), address)
        with pytest.raises(Unavailable, match="does not answer") as refused:
            await lane.dial(Endpoint("tor", ONION, 1), BOB.public_key)
        assert "start Tor" in refused.value.__notes__[0]

    asyncio.run(work())


def talk(*answers: bytes) -> list[bytes]:
    """The bytes sent to a proxy with these answers."""
    steps = tls_lane.connect("a.onion", 443)
    said = [next(steps)[0]]
    for answer in answers:
        try:
            said.append(steps.send(answer)[0])
        except StopIteration:
            break
    return said


def test_the_socks_dialogue_follows_rfc_1928() -> None:
    assert talk(b"\x05\x00", b"\x05\x00\x00\x01", bytes(6)) == [
        b"\x05\x01\x00",
        b"\x05\x01\x00\x03\x07a.onion\x01\xbb",
        b"",
    ]


@pytest.mark.parametrize(
    "answers",
    [
        [b"\x04\x00"],
        [b"HT"],
        [b"\x05\xff"],
        [b"\x05\x02"],
        [b"\x05\x00", b"\x04\x00\x00\x01"],
        [b"\x05\x00", b"\x05\x00\x00\x09"],
    ],
)
def test_a_server_that_is_not_a_socks_proxy_is_rejected(answers: list[bytes]) -> None:
    with pytest.raises(Unavailable):
        talk(*answers)


@pytest.mark.parametrize("host", ["", "x" * 256])
def test_a_host_name_too_long_for_socks_is_rejected(host: str) -> None:
    with pytest.raises(Malformed):
        next(tls_lane.connect(host, 1))
