"""Long responses are sent while the peer reads, in order, and a file is not read into memory."""

import asyncio
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from plumbing.http import HttpSettings, Response
from plumbing.http.connection import Connection
from tests.http.h2client import connected
from tests.http.loopback import PATIENCE_S, Client, Echo, House, get, house, run

MIB = 1 << 20
PIECE = 1 << 16


@pytest.fixture
def file(tmp_path: Path) -> Iterator[mmap.mmap]:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (MIB // 256) * 12)
    with path.open("rb") as opened:
        yield mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def place(home: House) -> Connection:
    (only,) = home.server._service.roster.connections  # type: ignore[union-attr]
    return only


async def pending(home: House, *answers: Response) -> Client:
    """A client with one request per response, all of which are given; and one more, answered at once."""
    client = await home.connect()
    client.send(b"".join(get(f"/later/{number}") for number in range(len(answers))) + get("/end"))
    await home.app.waits(len(answers))
    for (_, respond), answer in reversed(list(zip(home.app.later, answers, strict=True))):
        respond(answer)
    return client


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE + 7])
def test_answers_of_any_length_keep_their_order(size: int) -> None:
    async def test() -> None:
        async with house() as home:
            bodies = [bytes([number]) * (size if number % 2 else 3) for number in range(8)]
            client = await pending(home, *(Response(200, body) for body in bodies))
            assert [(await client.answer()).body for _ in bodies] == bodies
            assert (await client.answer()).body == b"GET /end  "

    run(test)


def test_a_mapped_file_is_an_answer_in_both_protocols(file: mmap.mmap) -> None:
    async def test() -> None:
        async with house() as home:
            client = await pending(home, Response(200, file))
            assert (await client.answer()).body == file[:]
            other = await connected(home)
            asked = other.ask("GET", "/later/h2")
            await home.app.waits(2)
            home.app.later[1][1](Response(200, file))
            assert (await other.reply(asked)).body == file[:]

    run(test)


def test_a_small_file_is_an_answer_too(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "small"
        path.write_bytes(b"small")
        with path.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        async with house() as home:
            client = await pending(home, Response(200, mapped))
            assert (await client.answer()).body == b"small"

    run(test)


def test_the_answer_to_head_has_the_length_of_the_file(file: mmap.mmap) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/later").replace(b"GET", b"HEAD") + get("/end"))
            await home.app.waits(1)
            home.app.later[0][1](Response(200, file))
            assert (await client.answer(bodiless=True)).headers["content-length"] == str(len(file))
            assert (await client.answer()).body == b"GET /end  "

    run(test)


def test_answers_to_a_peer_that_does_not_read_do_not_pile_up(file: mmap.mmap) -> None:
    async def test() -> None:
        high = 100_000
        async with house(HttpSettings(write_high_bytes=high)) as home:
            client = await pending(home, *[Response(200, file)] * 8)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            other = await home.connect()
            for _ in range(5):
                await other.ask(get("/time-passes"))
            await other.close()
            while home.server.connections == 2:
                await asyncio.sleep(0.001)
            assert place(home).transport.get_write_buffer_size() <= high + PIECE
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(8):
                assert (await client.answer()).body == file[:]
            assert (await client.answer()).body == b"GET /end  "

    run(test)


def test_a_peer_may_leave_amid_a_long_answer(file: mmap.mmap) -> None:
    async def test() -> None:
        async with house(HttpSettings(write_high_bytes=100_000)) as home:
            client = await pending(home, *[Response(200, file)] * 3)
            await client.reader.readexactly(1000)
            client.writer.transport.abort()
            while home.server.connections:
                await asyncio.sleep(0.001)
            assert home.faults == []

    run(test)


def test_a_long_answer_may_be_the_last(file: mmap.mmap) -> None:
    async def test() -> None:
        async with house(HttpSettings(write_high_bytes=100_000)) as home:
            client = await home.connect()
            client.send(get("/later", "connection: close"))
            await home.app.waits(1)
            home.app.later[0][1](Response(200, file))
            answer = await client.answer()
            assert (answer.headers["connection"], answer.body) == ("close", file[:])
            assert await client.ended() == b""

    run(test)


def test_a_stop_lets_a_long_answer_finish(file: mmap.mmap) -> None:
    async def test() -> None:
        async with house(HttpSettings(write_high_bytes=100_000), app=Echo()) as home:
            client = await home.connect()
            client.send(get("/later"))
            await home.app.waits(1)
            home.app.later[0][1](Response(200, file))
            stopping = asyncio.create_task(home.server.stop(PATIENCE_S))
            assert (await client.answer()).body == file[:]
            await client.close()
            await stopping

    run(test)


def test_a_client_that_has_shut_its_side_still_gets_a_long_answer(file: mmap.mmap) -> None:
    async def test() -> None:
        async with house(HttpSettings(write_high_bytes=100_000)) as home:
            client = await home.connect()
            client.send(get("/later"))
            await home.app.waits(1)
            home.app.later[0][1](Response(200, file))
            client.writer.write_eof()
            assert (await client.answer()).body == file[:]
            assert await client.ended() == b""

    run(test)


def test_a_peer_that_takes_a_long_answer_too_slowly_is_given_up_though_it_reads() -> None:
    async def test() -> None:
        hasty = HttpSettings(write_high_bytes=100_000, write_timeout_s=1.0, min_bytes_per_s=1 << 40)
        async with house(hasty, app=Echo(big=bytes(64 * MIB))) as home:
            client = await home.connect()
            client.send(get("/big"))
            taken = 0
            try:
                while piece := await client.reader.read(PIECE):
                    taken += len(piece)
                    await asyncio.sleep(0.005)  # the time limit is for the whole body, not per piece
            except ConnectionError:
                pass
            assert taken < 64 * MIB

    run(test)


def test_time_is_granted_for_what_was_taken(file: mmap.mmap) -> None:
    async def test() -> None:
        patient = HttpSettings(write_high_bytes=100_000, write_timeout_s=0.2, min_bytes_per_s=1)
        async with house(patient, app=Echo(big=file[:])) as home:
            client = await home.connect()
            client.send(get("/big"))
            await client.reader.readuntil(b"\r\n\r\n")
            await client.reader.readexactly(6 * MIB)
            await asyncio.sleep(0.5)  # longer than the timeout, with little data read
            assert len(await client.reader.readexactly(6 * MIB)) == 6 * MIB

    run(test)
