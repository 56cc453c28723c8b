"""The rules of RFC 9113 and RFC 7541, section by section, against a real server: what each violation ends.

An error of a connection ends it with GOAWAY; an error of a stream resets that stream, and the next request is answered.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Decoder

from tests.http.loopback import Client, house, run

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM, END_HEADERS, PADDED, PRIORITY_FLAG, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
LAST = 99  # the stream of the request that ends each case
MAX_FRAME = 1 << 14
WINDOW = (1 << 31) - 1


class Kind(IntEnum):
    DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)


def frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def field(name: bytes, value: bytes) -> bytes:
    """A literal without indexing, so that a case does not depend on another."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def head(*more: tuple[bytes, bytes], method: bytes = b"GET", path: bytes = b"/x") -> bytes:
    pseudo = ((b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"hub"))
    return b"".join(field(*one) for one in (*pseudo, *more))


def request(stream: int, block: bytes | None = None, flags: int = END_STREAM | END_HEADERS) -> bytes:
    return frame(Kind.HEADERS, stream, head() if block is None else block, flags)


def post(stream: int, *more: tuple[bytes, bytes]) -> bytes:
    return request(stream, head(*more, method=b"POST"), END_HEADERS)


def setting(code: int, value: int) -> bytes:
    return struct.pack(">HI", code, value)


@dataclass(frozen=True)
class Outcome:
    """How a case ended: GOAWAY with a code, or the answer to the last request and the streams that were reset."""

    goaway: int | None
    resets: tuple[tuple[int, int], ...]
    answered: tuple[int, ...]


def received(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    at = 0
    while len(data) - at >= 9:
        length = int.from_bytes(data[at : at + 3], "big")
        if len(data) - at - 9 < length:
            return
        stream = int.from_bytes(data[at + 5 : at + 9], "big")
        yield data[at + 3], data[at + 4], stream, data[at + 9 : at + 9 + length]
        at += 9 + length


def is_over(data: bytes) -> bool:
    """Whether the server said goodbye, or answered or reset the last request."""
    return any(
        kind == Kind.GOAWAY or (stream == LAST and (kind == Kind.RST_STREAM or flags & END_STREAM))
        for kind, flags, stream, _ in received(data)
        if kind in (Kind.GOAWAY, Kind.DATA, Kind.HEADERS, Kind.RST_STREAM)
    )


async def outcome(client: Client, case: bytes) -> Outcome:
    client.send(PREFACE + frame(Kind.SETTINGS, 0) + case + request(LAST))
    data = b""
    while not is_over(data):
        try:
            more = await client.reader.read(1 << 16)
        except ConnectionError:
            break
        if not more:
            break
        data += more
    goaway, resets, answered, decoder = None, [], [], Decoder()
    for kind, _, stream, payload in received(data):
        if kind == Kind.GOAWAY:
            goaway = int.from_bytes(payload[4:8], "big")
        elif kind == Kind.RST_STREAM:
            resets.append((stream, int.from_bytes(payload, "big")))
        elif kind == Kind.HEADERS:
            decoder.decode(payload)
            answered.append(stream)
    return Outcome(goaway, tuple(resets), tuple(answered))


PROTOCOL, SIZE, FLOW = ErrorCodes.PROTOCOL_ERROR, ErrorCodes.FRAME_SIZE_ERROR, ErrorCodes.FLOW_CONTROL_ERROR
# RFC 9113 section 4.3 wants COMPRESSION_ERROR, and section 6.5 FRAME_SIZE_ERROR for an acknowledgement with settings.
# The library h2 ends the connection with PROTOCOL_ERROR instead.
COMPRESSION = ACK_SIZE = PROTOCOL

# Section, violation, frames, the code of the GOAWAY.
CONNECTION_ERRORS = [
    ("4.2", "DATA above the maximum size", post(1) + frame(Kind.DATA, 1, bytes(MAX_FRAME + 1)), SIZE),
    ("4.2", "HEADERS above the maximum size", request(1, head() + bytes(MAX_FRAME)), SIZE),
    ("4.3", "a field block that cannot be decompressed", request(1, b"\xff\xff\xff\xff\xff"), COMPRESSION),
    (
        "4.3",
        "a field block with another frame in between",
        request(1, flags=1) + frame(Kind.PING, 0, bytes(8)),
        PROTOCOL,
    ),
    ("4.3", "a field block with another stream in between", request(1, flags=1) + request(3), PROTOCOL),
    ("5.1", "DATA on an idle stream", frame(Kind.DATA, 1, b"x"), PROTOCOL),
    ("5.1", "RST_STREAM on an idle stream", frame(Kind.RST_STREAM, 1, bytes(4)), PROTOCOL),
    ("5.1", "WINDOW_UPDATE on an idle stream", frame(Kind.WINDOW_UPDATE, 1, b"\x00\x00\x00\x01"), PROTOCOL),
    ("5.1.1", "a stream with an even number", request(2), PROTOCOL),
    ("5.1.1", "a stream with a lower number", request(5) + request(3), PROTOCOL),
    ("6.1", "DATA on stream 0", frame(Kind.DATA, 0, b"x"), PROTOCOL),
    ("6.1", "padding longer than the payload", post(1) + frame(Kind.DATA, 1, b"\x09x", PADDED), PROTOCOL),
    ("6.2", "HEADERS on stream 0", request(0), PROTOCOL),
    ("6.2", "padding longer than HEADERS", frame(Kind.HEADERS, 1, b"\xff" + head(), PADDED | END_HEADERS), PROTOCOL),
    ("6.3", "PRIORITY on stream 0", frame(Kind.PRIORITY, 0, bytes(5)), PROTOCOL),
    ("6.4", "RST_STREAM on stream 0", frame(Kind.RST_STREAM, 0, bytes(4)), PROTOCOL),
    ("6.4", "RST_STREAM of another length", post(1) + frame(Kind.RST_STREAM, 1, bytes(3)), SIZE),
    ("6.5", "an acknowledgement with settings", frame(Kind.SETTINGS, 0, setting(1, 0), ACK), ACK_SIZE),
    ("6.5", "SETTINGS on a stream", frame(Kind.SETTINGS, 1), PROTOCOL),
    ("6.5", "SETTINGS of another length", frame(Kind.SETTINGS, 0, bytes(5)), SIZE),
    ("6.5.2", "ENABLE_PUSH above 1", frame(Kind.SETTINGS, 0, setting(SettingCodes.ENABLE_PUSH, 2)), PROTOCOL),
    ("6.5.2", "a window above the limit", frame(Kind.SETTINGS, 0, setting(4, WINDOW + 1)), FLOW),
    ("6.5.2", "a frame size below the limit", frame(Kind.SETTINGS, 0, setting(5, MAX_FRAME - 1)), PROTOCOL),
    ("6.5.2", "a frame size above the limit", frame(Kind.SETTINGS, 0, setting(5, 1 << 24)), PROTOCOL),
    ("6.6", "PUSH_PROMISE of a client", frame(Kind.PUSH_PROMISE, 1, bytes(4) + head(), END_HEADERS), PROTOCOL),
    ("6.7", "PING on a stream", frame(Kind.PING, 1, bytes(8)), PROTOCOL),
    ("6.7", "PING of another length", frame(Kind.PING, 0, bytes(7)), SIZE),
    ("6.8", "GOAWAY on a stream", frame(Kind.GOAWAY, 1, bytes(8)), PROTOCOL),
    ("6.9", "WINDOW_UPDATE of 0 for the connection", frame(Kind.WINDOW_UPDATE, 0, bytes(4)), PROTOCOL),
    ("6.9", "WINDOW_UPDATE of another length", frame(Kind.WINDOW_UPDATE, 0, bytes(3)), SIZE),
    (
        "6.9.1",
        "a window of the connection above the limit",
        frame(Kind.WINDOW_UPDATE, 0, WINDOW.to_bytes(4, "big")),
        FLOW,
    ),
    ("6.10", "CONTINUATION without HEADERS", frame(Kind.CONTINUATION, 1, head(), END_HEADERS), PROTOCOL),
    (
        "6.10",
        "CONTINUATION after the end of the fields",
        post(1) + frame(Kind.CONTINUATION, 1, b"", END_HEADERS),
        PROTOCOL,
    ),
    ("6.10", "CONTINUATION on stream 0", request(1, flags=1) + frame(Kind.CONTINUATION, 0, b"", END_HEADERS), PROTOCOL),
    ("7541 2.3.3", "an index beyond the tables", request(1, b"\xff\x00"), COMPRESSION),
    ("7541 4.2", "a table size update at the end", request(1, head() + b"\x20"), COMPRESSION),
    ("7541 5.2", "Huffman padding of zeros", request(1, head() + b"\x00\x01x\x81\x00"), COMPRESSION),
    ("7541 6.1", "index 0", request(1, b"\x80"), COMPRESSION),
    ("7541 6.3", "a table size update above the setting", request(1, b"\x3f\xff\xff\xff\x0f" + head()), COMPRESSION),
]

# The stream is reset, and the next request is answered.
STREAM_ERRORS = [
    ("5.1", "DATA after the end of the stream", request(1) + frame(Kind.DATA, 1, b"x"), ErrorCodes.STREAM_CLOSED),
    (
        "6.9.1",
        "a window of a stream above the limit",
        post(1) + frame(Kind.WINDOW_UPDATE, 1, b"\x7f\xff\xff\xff"),
        FLOW,
    ),
]

# Errors of a stream that the library h2 treats as errors of the connection, as RFC 9113 section 5.4 permits.
MALFORMED = [
    ("6.9", "WINDOW_UPDATE of 0 for a stream", post(1) + frame(Kind.WINDOW_UPDATE, 1, bytes(4))),
    (
        "8.1.1",
        "a body shorter than its length",
        post(1, (b"content-length", b"5")) + frame(Kind.DATA, 1, b"x", END_STREAM),
    ),
    (
        "8.1.1",
        "a body longer than its length",
        post(1, (b"content-length", b"1")) + frame(Kind.DATA, 1, b"xy", END_STREAM),
    ),
    ("8.2.1", "an upper case name", request(1, head((b"X-A", b"1")))),
    ("8.2.1", "a line break in a value", request(1, head((b"x", b"a\r\nb: c")))),
    ("8.2.2", "a connection field", request(1, head((b"connection", b"close")))),
    ("8.2.2", "transfer-encoding", request(1, head((b"transfer-encoding", b"chunked")))),
    ("8.2.2", "te other than trailers", request(1, head((b"te", b"gzip")))),
    ("8.3", "an unknown pseudo-header field", request(1, head((b":x", b"1")))),
    ("8.3", "a pseudo-header field of responses", request(1, head((b":status", b"200")))),
    ("8.3", "a pseudo-header field after others", request(1, field(b"x", b"1") + head())),
    ("8.3.1", "no method", request(1, head()[len(field(b":method", b"GET")) :])),
    ("8.3.1", "two methods", request(1, field(b":method", b"GET") + head())),
    ("8.3.1", "an empty path", request(1, head(path=b""))),
]

ACCEPTED = [
    ("4.1", "a frame of an unknown type", frame(0xBB, 0, b"x")),
    ("4.1", "unknown flags", frame(Kind.PING, 0, bytes(8), 0xFE)),
    ("5.3.2", "PRIORITY on an idle stream", frame(Kind.PRIORITY, 1, bytes(5))),
    ("6.1", "padded DATA", post(1) + frame(Kind.DATA, 1, b"\x02x\x00\x00", PADDED | END_STREAM)),
    ("6.2", "padded HEADERS with a priority", request(1, b"\x01" + bytes(5) + head() + b"\x00", 0x2D)),
    ("6.5.2", "an unknown setting", frame(Kind.SETTINGS, 0, setting(0xFF, 7))),
    (
        "6.10",
        "many CONTINUATION frames",
        request(1, head()[:9], END_STREAM) + frame(Kind.CONTINUATION, 1, head()[9:], 4),
    ),
    ("8.1", "trailers", post(1) + frame(Kind.DATA, 1, b"x") + request(1, field(b"x", b"y"))),
]


def ids(rows: list[tuple[object, ...]]) -> list[str]:
    return [f"{row[0]} {row[1]}" for row in rows]


def outcome_of(case: bytes) -> Outcome:
    found: list[Outcome] = []

    async def test() -> None:
        async with house() as home:
            found.append(await outcome(await home.connect(), case))
            assert home.faults == []

    run(test)
    return found[0]


@pytest.mark.parametrize(("_section", "_name", "case", "code"), CONNECTION_ERRORS, ids=ids([*CONNECTION_ERRORS]))
def test_an_error_of_the_connection_ends_it(_section: str, _name: str, case: bytes, code: int) -> None:
    found = outcome_of(case)
    assert (found.goaway, LAST in found.answered) == (code, False)


@pytest.mark.parametrize(("_section", "_name", "case", "code"), STREAM_ERRORS, ids=ids([*STREAM_ERRORS]))
def test_an_error_of_a_stream_resets_it(_section: str, _name: str, case: bytes, code: int) -> None:
    found = outcome_of(case)
    assert (found.goaway, found.resets, LAST in found.answered) == (None, ((1, code),), True)


@pytest.mark.parametrize(("_section", "_name", "case"), MALFORMED, ids=ids([*MALFORMED]))
def test_a_malformed_request_ends_the_connection(_section: str, _name: str, case: bytes) -> None:
    found = outcome_of(case)
    assert (found.goaway, LAST in found.answered) == (PROTOCOL, False)


@pytest.mark.parametrize(("_section", "_name", "case"), ACCEPTED, ids=ids([*ACCEPTED]))
def test_what_the_rules_permit_is_accepted(_section: str, _name: str, case: bytes) -> None:
    found = outcome_of(case)
    assert (found.goaway, found.resets, LAST in found.answered) == (None, (), True)
