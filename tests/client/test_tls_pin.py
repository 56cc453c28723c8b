"""TLS with a pinned certificate: only that certificate is accepted, and it is compared before any data is sent."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from ssl import PEM_cert_to_DER_cert

import pytest

from tests.client.pair import STREAM, Pair, bodies, pair, read_all
from tests.http.certificates import write_certificate
from tests.hub.client import Hub, make_dir, running
from veen.client.trust import Pin, UntrustedCertificate, fingerprint_of
from veen.core import Malformed, Unavailable, Unverified


@contextmanager
def over_tls(place: Path) -> Iterator[tuple[Hub, Pair, Path]]:
    folder = place / "tls"
    folder.mkdir()
    cert, key = write_certificate(folder)
    with pair(place) as people, running(make_dir(place), tls_cert=cert, tls_key=key) as hub:
        people.url = f"https://127.0.0.1:{hub.port}"
        yield hub, people, cert


@pytest.mark.parametrize("http2", [False, True])
def test_a_hub_is_met_by_its_certificate(place: Path, http2: bool) -> None:
    async def work() -> None:
        async with people.writer(http2=http2) as writer, people.reader(http2=http2) as reader:
            await writer.send(STREAM, b"1")
            assert bodies(await read_all(reader)) == [b"1"]
            follow = reader.read(STREAM, follow=True)
            assert (await anext(follow)).body == b"1"
            await writer.send(STREAM, b"2")
            assert (await anext(follow)).body == b"2"
            await follow.aclose()

    with over_tls(place) as (_, people, cert):
        people.pin = Pin.parse(str(cert))
        asyncio.run(work())
        people.pin = Pin.parse(f"cert:{fingerprint_of(cert.read_bytes()).hex()}")
        asyncio.run(_look(people))


async def _look(people: Pair) -> None:
    async with people.reader() as reader:
        await reader.status()


def test_another_certificate_is_rejected_before_data_is_sent(place: Path) -> None:
    with over_tls(place) as (_, people, _):
        people.pin = Pin(certificate=bytes(32))
        with pytest.raises(Unverified, match="not the pinned"):
            asyncio.run(_look(people))
        assert people.reader_dir.state.hub_of(people.url) is None


def test_an_untrusted_certificate_is_rejected_without_a_certificate_pin(place: Path) -> None:
    with over_tls(place) as (hub, people, _):
        people.pin = Pin(key=hub.service.hub_metadata.identity.hub_id)
        with pytest.raises(UntrustedCertificate, match="not trusted: self-signed certificate"):
            asyncio.run(_look(people))


def test_a_pinned_certificate_is_required_from_then_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with over_tls(place) as (hub, people, cert):
        people.pin = Pin.parse(str(cert))
        asyncio.run(_look(people))
        people.pin = None
        asyncio.run(_look(people))
        people.reader_dir.state.put_certificate_of(people.url, bytes(32))
        with pytest.raises(UntrustedCertificate, match="not the pinned"):
            asyncio.run(_look(people))
        # A pin that is given is used instead.
        monkeypatch.setenv("VEEN_TLS_CA", str(cert))
        people.url = f"https://localhost:{hub.port}"
        people.pin = Pin(key=hub.service.hub_metadata.identity.hub_id)
        asyncio.run(_look(people))


def test_a_certificate_pin_needs_https(place: Path) -> None:
    with pair(place) as people, running(make_dir(place)) as hub:
        people.url, people.pin = f"http://127.0.0.1:{hub.port}", Pin(certificate=bytes(32))
        with pytest.raises(Unverified, match="not an https address"):
            asyncio.run(_look(people))


def test_no_tls_at_the_other_end_is_unavailable(place: Path) -> None:
    with pair(place) as people, running(make_dir(place)) as hub:
        people.url, people.pin = f"https://127.0.0.1:{hub.port}", Pin(certificate=bytes(32))
        with pytest.raises(Unavailable):
            asyncio.run(_look(people))


def test_the_fingerprint_is_that_of_the_first_certificate(place: Path) -> None:
    cert, key = write_certificate(place)
    pem = cert.read_bytes()
    assert fingerprint_of(pem + pem) == sha256(PEM_cert_to_DER_cert(pem.decode())).digest()
    with pytest.raises(Malformed):
        fingerprint_of(key.read_bytes())
    with pytest.raises(Malformed):
        fingerprint_of(b"\xff")


# Other pins.


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "cert:00", "cert:", "nothing-there", "00" * 31, "00" * 33])
def test_an_invalid_pin_is_rejected(text: str) -> None:
    with pytest.raises(Malformed):
        Pin.parse(text or "\0")


def test_a_pin_has_exactly_one_field() -> None:
    with pytest.raises(ValueError, match="one of"):
        Pin()
    with pytest.raises(ValueError, match="one of"):
        Pin(key=bytes(32), certificate=bytes(32))


@pytest.mark.parametrize("how", ["hub_id", "fingerprint", "directory", "file"])
def test_a_hub_is_met_by_any_pin_it_answers_to(place: Path, how: str) -> None:
    with pair(place) as people, running(make_dir(place)) as hub:
        record = hub.service.hub_metadata.identity
        people.url = f"http://127.0.0.1:{hub.port}"
        people.pin = {
            "hub_id": lambda: Pin.parse(record.hub_id.hex()),
            "fingerprint": lambda: Pin.parse(sha256(record.newest.hub_pk).hexdigest()),
            "directory": lambda: Pin.parse(str(hub.data_dir)),
            "file": lambda: Pin.parse(str(hub.data_dir / "hub-identity.json")),
        }[how]()
        asyncio.run(_look(people))
        assert people.reader_dir.state.hub_of(people.url) == record.hub_id


def test_an_identity_file_that_was_altered_is_no_pin(place: Path) -> None:
    data_dir = make_dir(place)
    path = data_dir / "hub-identity.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"valid_from":175', b'"valid_from":176'))
    with pytest.raises(Unverified):
        Pin.parse(str(data_dir))
    path.write_bytes(text + b" ")
    with pytest.raises(Malformed):
        Pin.parse(str(data_dir))
    path.unlink()
    with pytest.raises(Unavailable):
        Pin.parse(str(data_dir))
