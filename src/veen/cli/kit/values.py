"""Bytes as people write them: text as it is, anything else after hex: or from a file after @."""

from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from plumbing.cli.command import Misuse

_HEX, _FILE = "hex:", "@"


def data_of(text: str) -> bytes:
    """The bytes that a word stands for."""
    if not text.startswith(_HEX):
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix(_HEX))
    except ValueError:
        raise Misuse(f"{text!r} is not hex", "give hex: and an even number of hex digits") from None


def content_of(text: str) -> bytes:
    """The same, or a file's content after @."""
    return Path(text[1:]).read_bytes() if text.startswith(_FILE) else data_of(text)


def id_of(text: str, what: str) -> bytes:
    """32 bytes in hex: a message, a wallet, a task."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise Misuse(f"{text!r} is not {what}: 64 hex digits", "commands that list them show them whole with --json")
    return found


_KEY_BYTES = 32
_MAX_PORT = 0xFFFF
_TIMES = 1 << 64  # seconds since 1970 that can be written
_LONGEST_AMOUNT = 100  # what no event has room for is told apart from what is no number
_MOST_DIGITS = 19  # below that, a number fits everywhere


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int


Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Setting:
    """A number under a name."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """An entry of a log."""

    label: bytes
    stream_seq: int


@dataclass(frozen=True, slots=True)
class RateBound:
    """How many a second, and how many at once."""

    per_sec: int
    burst: int


def address(text: str) -> Address:
    """HOST:PORT; an IPv6 host is in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r} is not HOST:PORT; an IPv6 host stands in brackets")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def network(text: str) -> Network:
    """A network, as in 10.0.0.0/8 or fd00::/8; an address alone is one of its own."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a network: {error}") from None


def realm(text: str) -> bytes:
    """A realm by its name, or by its id in hex."""
    from veen.core import naming

    if not text:
        raise ValueError("a realm has a name, or an id of 64 hex digits")
    return naming.realm_id(text)


def public_key(text: str) -> bytes:
    """A public key in hex."""
    return _hex(text, "a public key")


def card_key(text: str, base: Path = Path()) -> bytes:
    """A public key in hex, or that of a client directory or card; a path is relative to `base`."""
    try:
        return public_key(text)
    except ValueError:
        path = base / text
        if not path.exists():
            raise ValueError(
                f"{text!r} is no public key of {2 * _KEY_BYTES} hex digits, client directory or card"
            ) from None
    from veen.cli.kit import key_files

    return key_files.read_card(path).id_sign


def label(text: str) -> bytes:
    """A label in hex."""
    return _hex(text, "a label")


def label_place(text: str) -> LabelPlace:
    """LABEL:SEQ, a place in a log."""
    named, _, seq = text.rpartition(":")
    if not seq.isascii() or not seq.isdigit() or int(seq) == 0:
        raise ValueError(f"{text!r} is not LABEL:SEQ")
    return LabelPlace(label(named), int(seq))


def moment(text: str) -> int:
    """A time: seconds since 1970, or a date like 2030-01-31 or 2030-01-31T12:00:00Z."""
    if text.isascii() and text.isdigit():
        found = int(text)
    else:
        try:
            read = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is neither seconds since 1970 nor a date like 2030-01-31T12:00:00Z") from None
        found = int((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())
    if not 0 <= found < _TIMES:
        raise ValueError(f"{text!r} is not a time that can be written")
    return found


def url(text: str) -> str:
    """Where a hub is, without a path."""
    parts = urlsplit(text if "//" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.path not in ("", "/"):
        raise ValueError(f"{text!r} is not the address of a hub, like http://127.0.0.1:37411")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{text!r} has more to it than the address of a hub")
    return f"{parts.scheme}://{parts.netloc}"


def origin(scheme: str, host: str, port: int) -> str:
    """The address at which a hub that listens on `host` is reached from its own machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{reached}]:{port}" if ":" in reached else f"{scheme}://{reached}:{port}"


def setting(text: str) -> Setting:
    """NAME=NUMBER."""
    name, _, number = text.partition("=")
    if not name or not number.isascii() or not number.isdigit():
        raise ValueError(f"{text!r} is not NAME=NUMBER")
    return Setting(name, int(number))


def rate(text: str) -> RateBound:
    """PER_SEC,BURST."""
    per_sec, _, burst = text.partition(",")
    if not all(part.isascii() and part.isdigit() and len(part) < _MOST_DIGITS for part in (per_sec, burst)):
        raise ValueError(f"{text!r} is not PER_SEC,BURST, like 100,500")
    return RateBound(int(per_sec), int(burst))


def amount(text: str) -> int:
    """How much: a whole number, 0 or more."""
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_AMOUNT):
        raise ValueError(f"{text!r} is no amount: a whole number of the smallest unit, 0 or more")
    return int(text)


def _hex(text: str, what: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != _KEY_BYTES or len(text) != 2 * _KEY_BYTES:
        raise ValueError(f"{text!r} is not {what}: {2 * _KEY_BYTES} hex digits")
    return found
