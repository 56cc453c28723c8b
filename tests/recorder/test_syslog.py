"""Syslog: parsing of RFC 5424 messages, and the transports."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.full_disk import no_file_longer_than
from tests.http.certificates import write_certificate
from tests.hub.client import PATIENCE_S
from veen.overlays.record import RecordEvent
from veen.recorder import SpoolWriter, spool
from veen.recorder.normalize import Defaults
from veen.recorder.syslog import MAX_SYSLOG_BYTES, NotSyslog, SyslogListener, event_of, parse

DEFAULTS = Defaults("router", "syslog.message")
NOW = 5


def test_an_example_of_the_rfc_is_parsed() -> None:
    found = parse(
        b"<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 "
        b'[exampleSDID@32473 iut="3" eventSource="Application" eventID="1011"] \xef\xbb\xbfAn application event'
    )
    assert (found.facility, found.severity, found.version) == (20, 5, 1)
    assert (found.hostname, found.app_name, found.procid, found.msgid) == (
        "mymachine.example.com",
        "evntslog",
        None,
        "ID47",
    )
    assert found.structured == {"exampleSDID@32473": {"iut": "3", "eventSource": "Application", "eventID": "1011"}}
    assert found.message == "An application event"


@pytest.mark.parametrize(
    ("data", "structured", "message"),
    [
        (b"<0>1 - - - - - -", {}, ""),
        (b"<191>1 - - - - - - x", {}, "x"),
        (b"<34>1 - h a - - [a][b] text", {"a": {}, "b": {}}, "text"),
        (b'<34>1 - h a - - [a x="\\"\\\\\\]"]', {"a": {"x": '"\\]'}}, ""),
        (b'<34>1 - h a - - [a x="\\n"] m', {"a": {"x": "\\n"}}, "m"),
        (b'<34>1 - h a - - [a ip="1" ip="2" ip="3"] m', {"a": {"ip": ["1", "2", "3"]}}, "m"),
        (b"<34>1 - h a - - - \xff\xfe", {}, "\ufffd\ufffd"),
        ('<34>1 - h a - - [a x="ü"] ü'.encode(), {"a": {"x": "ü"}}, "ü"),
    ],
)
def test_every_form_of_structured_data_is_parsed(data: bytes, structured: object, message: str) -> None:
    found = parse(data)
    assert (found.structured, found.message) == (structured, message)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"<34>Oct 11 22:14:15 mymachine su: old style",
        b"<192>1 - - - - - -",
        b"<034>1 - - - - - -",
        b"<34>0 - - - - - -",
        b"<34>1 2003-10-11 - - - - -",
        b"<34>1 2003-13-11T22:14:15Z - - - - -",
        b"<34>1 2003-10-11T22:14:15.1234567Z - - - - -",
        b"<34>1 - - - - -",
        b"<34>1 - - - - - x",
        b"<34>1 - - - - - -x",
        b"<34>1 - - - - - [",
        b"<34>1 - - - - - [a",
        b"<34>1 - - - - - [a x=1]",
        b'<34>1 - - - - - [a x="]"]',
        b'<34>1 - - - - - [a x="1"]x',
        b"<34>1 - - - - - [a][a]",
        b"<34>1 - " + b"h" * 256 + b" - - - -",
    ],
)
def test_a_nonconforming_message_is_recorded_as_raw_text(data: bytes) -> None:
    with pytest.raises(NotSyslog):
        parse(data)
    event, digest = event_of(data, DEFAULTS, NOW)
    value = event.value()
    assert isinstance(value, dict)
    assert value["raw"] == data.decode()
    assert value["malformed"]
    assert (event.event_time, event.subject_id, digest) == (NOW, "router", None)


def test_an_event_has_the_time_and_host_of_its_message() -> None:
    event, _ = event_of(b"<34>1 2003-10-11T22:14:15.003Z web-1 su - - - hi", DEFAULTS, NOW)
    assert (event.event_time, event.subject_id, event.origin) == (1_065_910_455_003, "web-1", "router")
    chosen, _ = event_of(b"<34>1 - web-1 su - - - hi", Defaults("router", "x", "fixed"), NOW)
    assert (chosen.event_time, chosen.subject_id, chosen.event_type) == (NOW, "fixed", "x")


def test_only_a_numbered_message_with_a_time_is_recognized_when_repeated() -> None:
    numbered = b'<34>1 2003-10-11T22:14:15Z h a - - [meta sequenceId="1"] x'
    assert event_of(numbered, DEFAULTS, NOW)[1] is not None
    assert event_of(numbered.replace(b'"1"', b'"2"'), DEFAULTS, NOW)[1] != event_of(numbered, DEFAULTS, NOW)[1]
    assert event_of(numbered.replace(b"meta", b"beta"), DEFAULTS, NOW)[1] is None
    assert event_of(b'<34>1 - h a - - [meta sequenceId="1"] x', DEFAULTS, NOW)[1] is None


def received(place: Path, work: Callable[[int], Awaitable[object]], **options: object) -> list[str]:
    """The messages that a listener stored."""
    folder = place / "spool"

    def messages() -> list[str]:
        found: list[RecordEvent] = []
        for path in spool.segments(folder):
            found += [one for batch in spool.batches(path) for one in batch.events]
        values = [one.value() for one in found]
        return [str(value.get("message", value.get("raw"))) for value in values if isinstance(value, dict)]

    async def run() -> list[str]:
        writer = SpoolWriter(folder)
        async with SyslogListener(writer, DEFAULTS, "127.0.0.1", 0, **options) as listener:  # type: ignore[arg-type]
            wanted = await work(listener.port)
            async with asyncio.timeout(PATIENCE_S):
                while len(messages()) < int(str(wanted)):
                    await asyncio.sleep(0.01)
        writer.close()
        return messages()

    return asyncio.run(run())


def contexts(place: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of a listener and of a sender that trusts it."""
    cert, key = write_certificate(place)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cert)
    return server, client


def msg(text: str) -> bytes:
    return f"<34>1 - h a - - - {text}".encode()


def counted(text: str) -> bytes:
    return b"%d %s" % (len(msg(text)), msg(text))


async def send(port: int, *pieces: bytes, tls: ssl.SSLContext | None = None) -> None:
    _, stream = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    for piece in pieces:
        stream.write(piece)
        await stream.drain()
    stream.close()
    await stream.wait_closed()


def test_counted_messages_and_lines_arrive_over_tcp_in_any_pieces(place: Path) -> None:
    async def work(port: int) -> int:
        data = counted("one") + counted("two\nlines") + msg("three") + b"\r\n" + b"\n" + counted("four") + msg("five")
        await send(port, *(data[at : at + 3] for at in range(0, len(data), 3)))
        return 5

    assert received(place, work) == ["one", "two\nlines", "three", "four", "five"]


def test_datagrams_arrive_over_udp_at_the_same_port(place: Path) -> None:
    async def work(port: int) -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
            wire.sendto(msg("one") + b"\n", ("127.0.0.1", port))
            wire.sendto(b"", ("127.0.0.1", port))
            wire.sendto(msg("two"), ("127.0.0.1", port))
        return 2

    assert received(place, work) == ["one", "two"]


@pytest.mark.parametrize(
    "bad",
    [b"%d " % (MAX_SYSLOG_BYTES + 1) + b"x", b"12x", b"1234567 x", b"<" + b"x" * (MAX_SYSLOG_BYTES + 10)],
)
def test_a_message_that_is_too_long_ends_its_connection_and_no_other(place: Path, bad: bytes) -> None:
    async def work(port: int) -> int:
        reader, stream = await asyncio.open_connection("127.0.0.1", port)
        stream.write(counted("before") + bad)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        stream.close()
        await send(port, counted("after"))
        return 2

    assert received(place, work) == ["before", "after"]


def test_a_broken_connection_keeps_its_complete_messages(place: Path) -> None:
    async def work(port: int) -> int:
        await send(port, counted("whole"), b"100 half")
        await send(port, counted("next"))
        return 2

    assert received(place, work) == ["whole", "next"]


@pytest.mark.parametrize(
    ("begun", "patience"), [(b"", {"idle_s": 0.5}), (b"100 half", {"message_s": 0.01}), (b"<34>", {"message_s": 0.01})]
)
def test_an_idle_connection_is_closed_and_keeps_its_complete_messages(
    place: Path, begun: bytes, patience: dict[str, float]
) -> None:
    async def work(port: int) -> int:
        reader, stream = await asyncio.open_connection("127.0.0.1", port)
        stream.write(counted("whole") + begun)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""  # closed by the listener
        stream.close()
        return 1

    assert received(place, work, **patience) == ["whole"]


def test_a_slow_message_is_closed_at_its_deadline_while_others_are_served(place: Path) -> None:
    async def work(port: int) -> int:
        reader, stream = await asyncio.open_connection("127.0.0.1", port)
        stream.write(counted("whole") + b"8000 ")
        ended = asyncio.ensure_future(reader.read())
        await send(port, counted("other"))
        async with asyncio.timeout(PATIENCE_S):
            while not ended.done():
                stream.write(b"x")
                await asyncio.wait([ended], timeout=0.02)
        with suppress(ConnectionError):
            assert ended.result() == b""
        stream.transport.abort()
        return 2

    assert sorted(received(place, work, message_s=0.5)) == ["other", "whole"]


@pytest.mark.parametrize("secure", [False, True])
def test_a_full_listener_closes_the_connection_without_a_message_for_longest(place: Path, secure: bool) -> None:
    """Over TLS, the silent connections have not started a handshake."""
    server, client = contexts(place) if secure else (None, None)
    notices: list[str] = []

    async def work(port: int) -> int:
        async with asyncio.timeout(PATIENCE_S):
            idle, first = await asyncio.open_connection("127.0.0.1", port)
            _, second = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            second.write(counted("one"))
            _, third = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            third.write(counted("two"))
            with suppress(ConnectionError):
                assert await idle.read() == b""
            second.write(counted("three"))
            for stream in (second, third):
                await stream.drain()
                stream.close()
                await stream.wait_closed()
            first.transport.abort()
        return 3

    found = received(place, work, max_connections=2, tls=server, notify=notices.append)
    assert sorted(found) == ["one", "three", "two"]
    assert notices == ["all 2 connections are in use; each new one closes the one idle for longest"]


def test_a_tls_handshake_that_never_ends_is_closed(place: Path) -> None:
    server, _ = contexts(place)

    async def work(port: int) -> int:
        reader, stream = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        stream.transport.abort()
        return 0

    assert received(place, work, tls=server, handshake_s=0.2) == []


def test_a_message_waits_for_a_full_disk_and_the_operator_is_notified_once(place: Path) -> None:
    notices: list[str] = []

    async def work(port: int) -> int:
        with no_file_longer_than(10):
            await send(port, counted("one"), counted("two"))
            while not notices:
                await asyncio.sleep(0.01)
        return 2

    assert received(place, work, notify=notices.append) == ["one", "two"]
    assert len(notices) == 1


@pytest.mark.parametrize(
    ("data", "shown"), [(b"\xff\xfe no syslog", None), (b"<34>1 - h a - - - caf\xe9", "caf\ufffd")]
)
def test_bytes_that_are_not_text_are_kept_as_hex(data: bytes, shown: str | None) -> None:
    value = event_of(data, DEFAULTS, NOW)[0].value()
    assert isinstance(value, dict)
    assert (value["raw_hex"], value.get("message"), "raw" in value) == (data.hex(), shown, False)


def test_a_name_may_be_repeated_as_often_as_fits() -> None:
    said = parse(b"<34>1 - h a - - [a" + b' x=""' * 12_000 + b"] m").structured["a"]["x"]
    assert said == [""] * 12_000


def test_messages_arrive_over_tls(place: Path) -> None:
    server, client = contexts(place)

    async def work(port: int) -> int:
        await send(port, counted("sealed"), tls=client)
        return 1

    assert received(place, work, tls=server) == ["sealed"]
