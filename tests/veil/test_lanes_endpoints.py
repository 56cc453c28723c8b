"""Endpoints and contacts: one text form each, and altered contacts are rejected."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil.lane_fixture import ALICE, EVE
from veil.lanes import Endpoint
from veil.runtime.contacts import MAX_CONTACT_BYTES, MAX_ENDPOINTS, MAX_NAME_BYTES, PREFIX, Contact
from veil.veil_errors import Malformed, Unverified, VeilError

WRITTEN = [
    "quic://192.0.2.1:4433",
    "quic://[2001:db8::1]:4433",
    "wss://node.example:443/veil",
    "tls://node.example:1",
    "tor://abcdefghijklmnop.onion:4433",
    "file:///media/stick",
    "webrtc:///media/stick",
    "webrtc://",
]
NOT_ENDPOINTS = [
    "",
    "quic",
    "quic://",
    "quic://:1",
    "quic://h:99999",
    "quic://h:x",
    "quic://h:1/path",
    "quic://user@h:1",
    "quic://h:1?q",
    "quic://h:1#f",
    "http://h:1",
    "file://host/folder",
    "file://",
    "file:relative",
    "quic://h:1\n",
    "quic://h :1",
    "quic://" + "h" * 600 + ":1",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_an_endpoint_round_trips_through_its_text(text: str) -> None:
    assert str(Endpoint.parse(text)) == text


@pytest.mark.parametrize("text", NOT_ENDPOINTS)
def test_an_invalid_endpoint_is_rejected(text: str) -> None:
    with pytest.raises(Malformed):
        Endpoint.parse(text)


def contact(**given: object) -> Contact:
    fields: dict[str, object] = {
        "delivery_pubkey": bytes(range(32)),
        "pin": b"\x07" * 32,
        "made_ms": 1_700_000_000_000,
        "name": "alice",
        "endpoints": tuple(map(Endpoint.parse, WRITTEN[:3])),
    }
    return Contact.make(ALICE, **{**fields, **given})  # type: ignore[arg-type]


def test_a_contact_round_trips_through_its_text() -> None:
    made = contact()
    assert Contact.from_text(made.text()) == made
    assert Contact.from_text(f"  {made.text()}\n") == made
    assert Contact.decode(made.encode()) == made


def test_a_contact_fits_a_qr_code() -> None:
    segno = pytest.importorskip("segno")
    places = tuple(Endpoint.parse(f"quic://[2001:db8:1111:2222:3333:4444:5555:{n:x}]:65535") for n in range(8))
    assert len(segno.make(contact(name="x" * 64, endpoints=places).text(), error="l").matrix) <= 177


@given(st.data())
def test_a_contact_with_any_changed_byte_is_rejected(data: st.DataObject) -> None:
    encoded = bytearray(contact().encode())
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(VeilError):
        Contact.decode(bytes(encoded))


@given(st.binary(max_size=400))
def test_bytes_are_a_contact_or_malformed(data: bytes) -> None:
    try:
        found = Contact.decode(data)
    except (Malformed, Unverified):
        return
    assert found.encode() == data


def test_a_contact_signed_by_another_is_refused() -> None:
    forged = contact().encode()[:-64] + Contact.make(EVE, bytes(32), bytes(32), 1, "", ()).signature
    with pytest.raises(Unverified):
        Contact.decode(forged)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "x" * (MAX_NAME_BYTES + 1)},
        {"name": "a\nb"},
        {"endpoints": (Endpoint("quic", "h", 1),) * (MAX_ENDPOINTS + 1)},
    ],
)
def test_a_contact_beyond_a_bound_is_rejected(given: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        contact(**given)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "veil:",
        "veil:!!",
        "http://x",
        "veil:" + "A" * (2 * MAX_CONTACT_BYTES + 1),
        contact().text() + "A",
        contact().text() + "=",
        contact().text().removeprefix(PREFIX),
        PREFIX + base64.b64encode(contact().encode() + b"\x00").decode(),
    ],
)
def test_an_invalid_contact_text_is_rejected(text: str) -> None:
    with pytest.raises(Malformed):
        Contact.from_text(text)
