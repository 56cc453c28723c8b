"""TLS: what is offered, what is rejected, and that everything above it works the same."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from plumbing.http import HttpSettings, Response, tls_context
from tests.http.certificates import client_context, write_certificate
from tests.http.h2client import H2Client
from tests.http.loopback import PATIENCE_S, Client, Echo, House, get, house, post, run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


def test_http_1_1_is_spoken_over_tls(files: tuple[Path, Path]) -> None:
    async def test() -> None:
        async with house(tls=tls_context(*files)) as home:
            for protocols in [(), ("http/1.1",)]:
                client = await home.connect(client_context(files[0], *protocols))
                client.send(get("/later/1") + post("/echo", b"body"))
                await home.app.waits(1)
                home.app.later.pop()[1](Response(200, b"first"))
                assert (await client.answer()).body == b"first"
                assert (await client.answer()).body == b"POST /echo  body"

    run(test)


def test_http_2_is_chosen_by_alpn(files: tuple[Path, Path]) -> None:
    async def test() -> None:
        async with house(tls=tls_context(*files), app=Echo(big=b"x" * 500_000)) as home:
            raw = await home.connect(client_context(files[0], "h2", "http/1.1"))
            tls: ssl.SSLObject = raw.writer.get_extra_info("ssl_object")
            assert tls.selected_alpn_protocol() == "h2"
            client = H2Client(raw)
            assert (await client.reply(client.ask("POST", "/echo", b"body"))).body == b"POST /echo  body"
            assert (await client.reply(client.ask("GET", "/big"))).body == b"x" * 500_000

    run(test)


def test_an_early_refusal_ends_a_tls_connection(files: tuple[Path, Path]) -> None:
    async def test() -> None:
        async with house(HttpSettings(linger_s=0.05), tls=tls_context(*files)) as home:
            client = await home.connect(client_context(files[0]))
            answer = await client.ask(post("/large", b"x" * 100_000))
            assert answer.status == 413
            assert await client.ended() == b""

    run(test)


def test_stop_drains_tls_connections(files: tuple[Path, Path]) -> None:
    async def test() -> None:
        async with house(tls=tls_context(*files)) as home:
            idle = await home.connect(client_context(files[0]))
            waiting = await home.connect(client_context(files[0], "h2"))
            client = H2Client(waiting)
            stream_id = client.ask("GET", "/later")
            await home.app.waits(1)
            assert (await idle.ask(get("/"))).status == 200
            stopping = asyncio.create_task(home.server.stop(PATIENCE_S))
            assert await idle.ended() == b""
            home.app.later[0][1](Response(200, b"answer"))
            while client.goaway is None:
                assert await client.turn()
            await waiting.close()
            await stopping
            assert stream_id == 1

    run(test)


async def silent_in(home: House) -> Client:
    """An accepted connection that sends nothing."""
    silent = await home.connect()
    while home.server.connections == 0:
        await asyncio.sleep(0.001)
    return silent


def test_a_handshake_that_does_not_come_holds_a_place_only_for_a_while(files: tuple[Path, Path]) -> None:
    async def test() -> None:
        async with house(HttpSettings(max_connections=1), tls=tls_context(*files)) as home:
            await silent_in(home)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await home.connect(client_context(files[0]))
        async with house(HttpSettings(max_connections=1, header_timeout_s=0.2), tls=tls_context(*files)) as home:
            silent = await silent_in(home)
            assert await silent.ended() == b""
            while home.server.connections:
                await asyncio.sleep(0.001)
            client = None
            while client is None:  # this one also has 0.2 s for its handshake; a busy machine may take longer
                with suppress(ConnectionError, ssl.SSLError):
                    client = await home.connect(client_context(files[0]))
            assert (await client.ask(get("/"))).status == 200

    run(test)


def test_stop_does_not_wait_for_a_handshake(files: tuple[Path, Path]) -> None:
    async def test() -> None:
        async with house(tls=tls_context(*files)) as home:
            silent = await home.connect()
            while home.server.connections == 0:
                await asyncio.sleep(0.001)
            await home.server.stop(PATIENCE_S)
            assert await silent.ended() == b""

    run(test)


def test_plain_http_on_a_tls_port_gets_nothing(files: tuple[Path, Path]) -> None:
    async def test() -> None:
        async with house(tls=tls_context(*files)) as home:
            client = await home.connect()
            client.send(get("/"))
            assert b"HTTP/1.1" not in await client.ended()
            assert home.app.handled == []

    run(test)


@pytest.mark.parametrize("suite", ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA"])
def test_a_suite_without_authenticated_encryption_is_refused(files: tuple[Path, Path], suite: str) -> None:
    async def test() -> None:
        async with house(tls=tls_context(*files)) as home:
            context = client_context(files[0])
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers(suite)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await home.connect(context)

    run(test)


def test_only_modern_tls_is_offered(files: tuple[Path, Path]) -> None:
    context = tls_context(*files)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert all(suite["aead"] for suite in context.get_ciphers())


def test_tls_1_2_is_accepted(files: tuple[Path, Path]) -> None:
    async def test() -> None:
        async with house(tls=tls_context(*files)) as home:
            context = client_context(files[0])
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            client = await home.connect(context)
            assert (await client.ask(get("/"))).status == 200

    run(test)
