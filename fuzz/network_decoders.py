"""The decoders of what a connection carries and of what other programs make: frames, descriptions, tokens, anchors.

Some of them read from an event loop; then each input has one of its own. None opens a socket.
"""

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

from aiortc import RTCPeerConnection

from fuzz.damage import (
    EDGES,
    Sown,
    Span,
    der_spans,
    exchange_element,
    exchange_line,
    exchange_token,
    json_spans,
    line_spans,
    pick,
)
from fuzz.decoder import Decoder, cbor_decoder, raw_decoder
from fuzz.outer_decoders import CORPUS, VECTORS, anything, in_file, saved, texts
from tests.core.wire_strategies import barest, fullest
from tests.overlays import test_identity_gateway as gateway_tests
from veen.bridge import anchor_backends, anchors
from veen.bridge.anchors import Anchored, AnchorRef, AnchorStatement
from veen.core.errors import Malformed, Unverified
from veen.overlays import identity_auth
from veen.overlays.identity_auth import Subject
from veen.query import result_evidence
from veen.recorder import syslog
from veil import VeilError
from veil.lanes import webrtc
from veil.lanes.lane import Endpoint
from veil.lanes.session import FrameKind, LinkSession
from veil.lanes.tls_lane import StreamLink

PEER = bytes(range(32))


def reader_of(data: bytes, limit: int, cut: int = 0) -> asyncio.StreamReader:
    """A reader of `data` that arrives in two parts, and then the end."""
    reader = asyncio.StreamReader(limit=limit)
    if cut:
        reader.feed_data(data[:cut])

    def rest() -> None:
        reader.feed_data(data[cut:])
        reader.feed_eof()

    asyncio.get_running_loop().call_soon(rest)
    return reader


# Syslog over TCP: octet counting and lines, mixed.

_SYSLOG_PART = re.compile(rb"\d+ |\n|[^\d\n]+|\d+")


def syslog_frames(data: bytes, cut: int = 0) -> list[bytes]:
    async def work() -> list[bytes]:
        reader, found = reader_of(data, syslog.MAX_SYSLOG_BYTES + 2, cut), list[bytes]()
        while (frame := await syslog._frame(reader, syslog.IDLE_S, syslog.MESSAGE_S)) is not None:
            found.append(frame)
        return found

    return asyncio.run(work())


def are_the_frames(found: list[bytes], data: bytes) -> None:
    """The frames do not depend on where the input was split, and none is longer than permitted."""
    for cut in {1, len(data) // 2, max(len(data) - 1, 0)}:
        assert syslog_frames(data, cut) == found
    assert all(len(frame) <= syslog.MAX_SYSLOG_BYTES + 3 for frame in found)
    counted = [frame for frame in found if frame]
    assert syslog_frames(b"".join(b"%d %s" % (len(frame), frame) for frame in counted)) == counted


def syslog_spans(data: bytes) -> list[Span]:
    return [(part.start(), part.start(), part.end()) for part in _SYSLOG_PART.finditer(data)]


def exchange_frame(rng: Random, sown: Sown, other: Sown) -> bytes:
    """One count, text or end of a line dropped, doubled, replaced, or given another count."""
    data = sown.data
    start, _, end = pick(rng, sown.spans)
    match int(rng.random() * 6):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:end] + data[start:]
        case 2:
            return data[:start] + b"%d " % pick(rng, EDGES) + data[end:]
        case 3:
            return data[:start] + b"%d " % (len(data) - end + int(rng.random() * 3) - 1) + data[end:]
        case 4:
            return (
                data[:start] + pick(rng, [b"\n", b"\r\n", b"0", b" ", b"00001 ", b"999999 ", b"9999999 "]) + data[end:]
            )
    other_start, _, other_end = pick(rng, other.spans)
    return data[:start] + other.data[other_start:other_end] + data[end:]


def syslog_decoders() -> Iterator[Decoder]:
    made = raw_decoder(
        "syslog over TCP",
        syslog_frames,
        are_the_frames,
        partial(saved, "syslog-tcp"),
        ValueError,
        asyncio.IncompleteReadError,
        entry="veen.recorder.syslog:_frame",
    )
    yield replace(made, spans=syslog_spans, exchange=exchange_frame)


# VEIL: messages of an authenticated session, and WebRTC.


class Discard(asyncio.Transport):
    """A connection whose other end reads nothing."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._closed = False

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._protocol.connection_lost(None)

    abort = close


def message(kind: int, body: bytes = b"") -> bytes:
    return (1 + len(body)).to_bytes(4, "big") + bytes((kind,)) + body


def session_seeds() -> list[bytes]:
    kinds = FrameKind
    quiet = message(kinds.READY) + message(kinds.PING) + message(kinds.PONG) + message(kinds.RECEIVED, bytes(8))
    frames = message(kinds.FRAME, b"a frame") + message(kinds.SIGNAL, b"O" + bytes(16) + b"v=0") + message(kinds.FRAME)
    return [quiet + frames + message(kinds.BYE), frames + quiet + frames + message(kinds.BYE)]


def session_spans(data: bytes) -> list[Span]:
    found, at = list[Span](), 0
    while at + 4 < len(data):
        end = min(at + 4 + int.from_bytes(data[at : at + 4], "big"), len(data))
        found.append((at, at + 4, end))
        at = max(end, at + 4)
    return found or [(0, 0, len(data))]


def exchange_message(rng: Random, sown: Sown, other: Sown) -> bytes:
    """One message dropped, doubled, replaced, or given another kind, length or count."""
    data = sown.data
    start, body, end = pick(rng, sown.spans)
    match int(rng.random() * 6):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:end] + data[start:]
        case 2:
            return data[:body] + bytes((int(rng.random() * 14),)) + data[body + 1 :]
        case 3:
            return data[:start] + (pick(rng, EDGES) & 0xFFFFFFFF).to_bytes(4, "big") + data[body:]
        case 4:
            count = pick(rng, EDGES).to_bytes(8, "big")[int(rng.random() * 2) :]
            return data[:start] + message(FrameKind.RECEIVED, count) + data[end:]
    other_start, _, other_end = pick(rng, other.spans)
    return data[:start] + other.data[other_start:other_end] + data[end:]


Heard = tuple[list[bytes], list[bytes]]


def session_messages(data: bytes) -> Heard:
    """The frames and the signals of a session up to its BYE."""

    async def work() -> Heard:
        reader = reader_of(data, 1 << 16)
        protocol = asyncio.StreamReaderProtocol(reader)
        writer = asyncio.StreamWriter(Discard(protocol), protocol, reader, asyncio.get_running_loop())
        session, frames, signals = LinkSession(StreamLink(reader, writer, b""), PEER), list[bytes](), list[bytes]()
        session.on_signal = signals.append
        await session.run(lambda room: (), frames.append)
        return frames, signals

    return asyncio.run(work())


def is_what_was_sent(found: Heard, data: bytes) -> None:
    messages = (data[body:end] for _, body, end in session_spans(data))
    sent = list(takewhile(lambda one: one[0] != FrameKind.BYE, messages))
    frames, signals = ([one[1:] for one in sent if one[0] == kind] for kind in (FrameKind.FRAME, FrameKind.SIGNAL))
    assert found == (frames, signals)


PENDING = b"name of an offer"  # stands for the name of the offer that waits for an answer
Signalled = tuple[list[bytes], str | None]


def signalled(data: bytes) -> Signalled:
    """What is sent back for SIGNAL data, and the answer that an offer of ours got."""

    async def work() -> Signalled:
        sent = list[bytes]()

        def carry(_: bytes, content: bytes) -> bool:
            sent.append(content)
            return True

        async def answer(offer: str) -> str:
            return offer[::-1]

        signalling = webrtc.CarriedSignalling(carry)
        await signalling.start(answer)
        asking = asyncio.ensure_future(signalling.exchange(Endpoint("webrtc"), PEER, "offer"))
        await asyncio.sleep(0)
        name = sent.pop()[1:17]
        is_answer = data[:17] == b"A" + PENDING
        signalling.arrived(PEER, b"A" + name + data[17:] if is_answer else data)
        for _ in range(2):  # a future wakes its task in the next turn
            await asyncio.sleep(0)
        answered = asking.result() if asking.done() else None
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await signalling.stop()
        return sent, answered

    return asyncio.run(work())


def is_its_reply(found: Signalled, data: bytes) -> None:
    text = data[17:].decode(errors="replace")
    is_offer = data[:1] == b"O" and len(data) >= 17
    assert found[0] == ([b"A" + data[1:17] + text[::-1].encode()] if is_offer else [])
    assert found[1] == (text if data[:17] == b"A" + PENDING else None)


def answered_offer(offer: str) -> str:
    """The answer to an offer. aiortc opens sockets when it becomes the local description, which is left out."""

    async def work() -> str:
        connection = RTCPeerConnection()
        try:
            return (await webrtc._answer_to(connection, offer)).sdp
        finally:
            await connection.close()

    return asyncio.run(work())


def is_an_answer(found: str, _: bytes) -> None:
    assert [line[:14] for line in found.splitlines() if line.startswith("m=")] == ["m=application "]


OFFER_LINE = "a=fingerprint:sha-256 " + ":".join(["AB"] * 32)


def is_bound_to_both(found: bytes, data: bytes) -> None:
    text = data.decode()
    assert found == webrtc._binding(OFFER_LINE, text + "\n" + text) != webrtc._binding(text, OFFER_LINE)


def veil_decoders() -> Iterator[Decoder]:
    made = raw_decoder(
        "VEIL session messages",
        session_messages,
        is_what_was_sent,
        session_seeds,
        VeilError,
        entry="veil.lanes.tls_lane:StreamLink.receive",
    )
    yield replace(made, spans=session_spans, exchange=exchange_message)
    offers = partial(saved, "webrtc")
    yield raw_decoder(
        "VEIL WebRTC signal",
        signalled,
        is_its_reply,
        lambda: [kind + PENDING + offer for kind in (b"O", b"A") for offer in offers()],
        entry="veil.lanes.webrtc:CarriedSignalling.arrived",
    )
    for name, decode, check, entry in (
        ("VEIL WebRTC offer", answered_offer, is_an_answer, "_apply_description"),
        ("VEIL WebRTC fingerprints", partial(webrtc._binding, OFFER_LINE), is_bound_to_both, "_binding"),
    ):
        made = raw_decoder(name, texts(decode), check, offers, VeilError, Malformed, entry=f"veil.lanes.webrtc:{entry}")
        yield replace(made, spans=line_spans, exchange=exchange_line)


# Made by others: time stamps, tokens of an identity provider, anchors, results of queries.


def statement() -> AnchorStatement:
    return fullest(AnchorStatement)


def verified_stamp(data: bytes) -> int:
    backend = anchor_backends.TimeStampingAuthority(None, CORPUS / "time-stamp-roots" / "root.pem")
    return asyncio.run(backend.verify(statement(), data))


def is_the_stamped_time(found: int, data: bytes) -> None:
    assert found == int(anchor_backends._decode_token(data).tst_info.gen_time.timestamp())


def is_refused_or_has_a_time(token: Any, _: bytes) -> None:
    assert anchor_backends._refusal(token) or (token.tst_info.gen_time and token.tst_info.nonce is not PEER)


def token_seeds() -> list[bytes]:
    return [gateway_tests.token().encode(), gateway_tests.token(nonce="n", more=[1, {"a": None}]).encode()]


def exchange_claim(rng: Random, sown: Sown, other: Sown) -> bytes:
    """A token with another header or other claims, mostly signed by the provider again."""
    parts = [part + b"=" * (-len(part) % 4) for part in sown.data.split(b".")[:2]]
    try:
        texts = [base64.urlsafe_b64decode(part) for part in parts]
    except ValueError:
        return other.data
    at = int(rng.random() * len(texts))
    one = Sown(texts[at], json_spans(texts[at]))
    texts[at] = exchange_token(rng, one, one) if one.spans else b"{}"
    signed = ".".join(map(gateway_tests.packed, texts)).encode()
    signature = gateway_tests.KEY.sign(signed if rng.random() < 0.9 else b"")
    return signed + b"." + gateway_tests.packed(signature).encode()


def is_its_subject(found: Subject, data: bytes) -> None:
    claims = data.split(b".")[1]
    said = json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))
    assert found.external_sub == said["sub"] != ""
    assert found.attributes == (("email", said["email"]),)


def anchored(path: Path) -> Anchored:
    found = anchors.read_anchor(path)
    assert found.ref.encode() == found.anchor_ref
    return found


def anchored_seeds() -> list[bytes]:
    return [replace(sample(Anchored), anchor_ref=sample(AnchorRef).encode()).encode() for sample in (fullest, barest)]


def same_anchor(found: Anchored, data: bytes) -> None:
    assert found.encode() == data


def result_seeds() -> list[bytes]:
    files = json.loads((VECTORS / "query-results.json").read_bytes())["files"]
    return [bytes.fromhex(one["cbor"]) for one in files if one["outcome"] == "holds"]


def foreign_decoders() -> Iterator[Decoder]:
    stamps = partial(saved, "time-stamp")
    for name, decode, check in (
        ("time stamp", anchor_backends._decode_token, is_refused_or_has_a_time),
        ("verified time stamp", verified_stamp, is_the_stamped_time),
    ):
        entry = "veen.bridge.anchor_backends:_decode_token"
        made = raw_decoder(name, decode, check, stamps, Malformed, Unverified, entry=entry)
        yield replace(made, spans=der_spans, exchange=exchange_element)
    made = raw_decoder(
        "id token",
        texts(partial(identity_auth.validate, gateway_tests.PROVIDER, now=gateway_tests.NOW)),
        is_its_subject,
        token_seeds,
        Malformed,
        Unverified,
        entry="veen.overlays.identity_auth:validate",
    )
    yield replace(made, exchange=exchange_claim)
    yield cbor_decoder(
        "anchor file",
        in_file("one.anchor", anchored),
        same_anchor,
        anchored_seeds,
        entry="veen.bridge.anchors:read_anchor",
    )
    yield cbor_decoder(
        "verified query result",
        result_evidence.verify,
        anything,
        result_seeds,
        Malformed,
        Unverified,
        entry="veen.query.result_evidence:verify",
    )


def network_decoders() -> Iterator[Decoder]:
    yield from syslog_decoders()
    yield from veil_decoders()
    yield from foreign_decoders()
