"""Inputs that once ended in an error other than a rejection. They are rejected now."""

import pytest

from fuzz.decoder import Decoder
from fuzz.outer_decoders import saved
from fuzz.test_decoders import DECODERS, accepts

BY_NAME: dict[str, Decoder] = {decoder.name: decoder for decoder in DECODERS}
DEEP = b"[" * 20_000

FOUND = [
    # SystemError in protobuf, and so a response 500 of the recorder, for a name that is half a surrogate pair.
    ("OTLP JSON", b'{"resourceLogs":[{"\\ud800":1}]}'),
    ("OTLP JSON", b'{"\\ud800":1}'),
    # TypeError and AttributeError for fields of another type: the query service ended.
    ("query tokens", b'{"version":1,"principals":[{"name":"ada","client_id":1}]}'),
    ("query tokens", b'{"version":1,"principals":[5]}'),
    # RecursionError for deep nesting.
    ("table commit", b'{"a":' + DEEP),
    ("event in JSON", DEEP),
    ("VEIL settings", b'{"listen":' + DEEP),
    ("VEIL identity", b'{"name":' + DEEP),
    # AttributeError and TypeError for endpoints that are no text; ValueError for a number with too many digits.
    ("VEIL settings", b'{"listen":[{}]}'),
    ("VEIL settings", b'{"stun":[1]}'),
    ("VEIL settings", b'{"api":"127.0.0.1:' + b"1" * 5_000 + b'"}'),
    # UnicodeDecodeError for a file that is no UTF-8, and RecursionError.
    ("hub configuration", b'role = "\xff"'),
    ("hub configuration", b"role = " + DEEP),
    # ValueError for a kind of destination that does not exist.
    ("VEIL item", bytes.fromhex("8600400102191388477061796c6f6164")),
    # ValueError for a response that grants no token, and for an unknown status.
    ("time stamp", bytes.fromhex("30053003020100")),
    ("verified time stamp", bytes.fromhex("30053003020109")),
    # InvalidVersion of a library for a certificate in the token.
    ("verified time stamp", saved("time-stamp")[1].replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x10")),
    # AttributeError of a library that answers a description without a data channel, or closes one of a strange bundle.
    ("VEIL WebRTC offer", saved("webrtc")[0].replace(b"m=application", b"a=m=application")),
    ("VEIL WebRTC offer", saved("webrtc")[0].replace(b"BUNDLE 0", b"BUNDLE BUNDLE 0")),
]


@pytest.mark.parametrize(("name", "data"), FOUND, ids=[f"{number}-{name}" for number, (name, _) in enumerate(FOUND)])
def test_an_input_that_once_crashed_a_decoder_is_rejected(name: str, data: bytes) -> None:
    assert not accepts(BY_NAME[name], data)
