"""Parsers of command arguments: bytes, ids, keys, addresses, times and amounts.

Bytes are written as text, as hex digits after `hex:`, or as the name of a file after `@`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from plumbing.cli.command import Misuse, option

_HEX_PREFIX, _FILE_PREFIX = "hex:", "@"
_KEY_BYTES = 32


def data_of(text: str) -> bytes:
    """Parse text or `hex:` and hex digits."""
    if not text.startswith(_HEX_PREFIX):
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix(_HEX_PREFIX))
    except ValueError:
        raise Misuse(f"{text!r} is not hex", "give hex: and an even number of hex digits") from None


def content_of(text: str) -> bytes:
    """Parse like `data_of`, or read the file that is named after `@`."""
    return Path(text[1:]).read_bytes() if text.startswith(_FILE_PREFIX) else data_of(text)


def id_of(text: str, what: str) -> bytes:
    """Parse a 32-byte id in hex, such as that of a message, a wallet or a task."""
    found = hex_id(text)
    if found is None:
        raise Misuse(f"{text!r} is not {what}: give 64 hex digits", "a list command with --json prints whole ids")
    return found


def hex_id(text: str) -> bytes | None:
    """Parse 32 bytes in hex; None if the text is something else."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) == _KEY_BYTES else None


def id_parser(what: str) -> Callable[[str], bytes]:
    """The parser of an argument or option that is such an id."""
    return lambda text: id_of(text, what)


_MAX_PORT = 0xFFFF
_TIME_LIMIT = 1 << 64  # seconds since 1970; the wire format has 64 bits
# Amounts above 64 bits but below this many digits parse here; the event then rejects them as too large.
_MAX_AMOUNT_DIGITS = 100
_RATE_DIGITS_LIMIT = 19  # a number with fewer digits fits into 64 bits


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class WitnessValue:
    """A witness: its key, and its address if the hub asks it."""

    witness_pk: bytes
    url: str | None = None


Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """The place of an entry."""

    label: bytes
    stream_seq: int


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """The number of an entry, and its epoch if it is named."""

    epoch: int | None
    seq: int


@dataclass(frozen=True, slots=True)
class RateBound:
    """The rate limit of a capability."""

    per_sec: int
    burst: int


def address(text: str) -> Address:
    """Parse HOST:PORT. An IPv6 host is in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r} is not HOST:PORT: write an IPv6 host in brackets")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def listen_option(default: str) -> Any:
    """The option --listen of a server."""
    return option("--listen HOST:PORT", "address to listen on", show_default=default, parser=address)


def network(text: str) -> Network:
    """Parse a network such as 10.0.0.0/8 or fd00::/8. A single address is a network of one host."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a network: {error}") from None


def realm(text: str) -> bytes:
    """Parse a realm name, or a realm id in hex."""
    from veen.core import naming

    if not text:
        raise ValueError("the realm is empty: give its name, or its id of 64 hex digits")
    return naming.realm_id(text)


def public_key(text: str) -> bytes:
    return key_of(text, "a public key")


def card_key(text: str, base: Path = Path()) -> bytes:
    """Parse a public key in hex, or read it from a client directory or card. A path is relative to `base`."""
    try:
        return public_key(text)
    except ValueError:
        path = base / text
        if not path.exists():
            raise ValueError(
                f"{text!r} is neither a public key of {2 * _KEY_BYTES} hex digits, nor a client directory or card"
            ) from None
    from veen.cli.kit import key_files

    return key_files.read_card(path).id_sign


def witness(text: str) -> WitnessValue:
    """Parse a witness: its public key, or URL=KEY."""
    address, equals, key = text.rpartition("=")
    if not equals:
        return WitnessValue(public_key(text))
    return WitnessValue(public_key(key), url(address))


def label(text: str) -> bytes:
    return key_of(text, "a label")


def coid(text: str) -> bytes:
    return key_of(text, "a coid")


def label_place(text: str) -> LabelPlace:
    """Parse LABEL:SEQ."""
    named, _, seq = text.rpartition(":")
    if not seq.isascii() or not seq.isdigit() or int(seq) == 0:
        raise ValueError(f"{text!r} is not LABEL:SEQ")
    return LabelPlace(label(named), int(seq))


def entry_place(text: str) -> EntryPlace:
    """Parse [EPOCH:]SEQ."""
    epoch, colon, seq = text.rpartition(":")
    numbers = (epoch, seq) if colon else (seq,)
    if not all(part.isascii() and part.isdigit() and len(part) <= _RATE_DIGITS_LIMIT for part in numbers):
        raise ValueError(f"{text!r} is not the number of an entry: give SEQ, or EPOCH:SEQ")
    if int(seq) < 1:
        raise ValueError(f"{text!r}: entries are numbered from 1")
    return EntryPlace(int(epoch) if colon else None, int(seq))


def epoch_of(place: EntryPlace, epoch: int | None) -> int | None:
    """The epoch of a place, or that of --epoch. Raises `Misuse` if they differ."""
    if None not in (place.epoch, epoch) and place.epoch != epoch:
        raise Misuse(f"entry {place.epoch}:{place.seq} is not in epoch {epoch}", "leave out --epoch")
    return epoch if place.epoch is None else place.epoch


def moment(text: str) -> int:
    """Parse a time: seconds since 1970, or a date like 2030-01-31 or 2030-01-31T12:00:00Z."""
    if text.isascii() and text.isdigit():
        found = int(text)
    else:
        try:
            read = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is neither seconds since 1970 nor a date like 2030-01-31T12:00:00Z") from None
        found = int((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())
    if not 0 <= found < _TIME_LIMIT:
        raise ValueError(f"{text!r} is not a time between 1970 and 2^64 seconds later")
    return found


def url(text: str) -> str:
    """Parse the address of a hub: http or https, without a path."""
    parts = urlsplit(text if "//" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.path not in ("", "/"):
        raise ValueError(f"{text!r} is not the address of a hub, like http://127.0.0.1:37411")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{text!r} must not have a user, query or fragment")
    return f"{parts.scheme}://{parts.netloc}"


def origin(scheme: str, host: str, port: int) -> str:
    """Return the URL at which a hub that listens on `host` is reached from its own machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{reached}]:{port}" if ":" in reached else f"{scheme}://{reached}:{port}"


def setting(text: str) -> Setting:
    """Parse NAME=NUMBER."""
    name, _, number = text.partition("=")
    if not name or not number.isascii() or not number.isdigit():
        raise ValueError(f"{text!r} is not NAME=NUMBER")
    return Setting(name, int(number))


def rate(text: str) -> RateBound:
    """Parse PER_SEC,BURST."""
    per_sec, _, burst = text.partition(",")
    if not all(part.isascii() and part.isdigit() and len(part) < _RATE_DIGITS_LIMIT for part in (per_sec, burst)):
        raise ValueError(f"{text!r} is not PER_SEC,BURST, like 100,500")
    return RateBound(int(per_sec), int(burst))


def amount(text: str) -> int:
    """Parse an amount of the smallest unit."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_AMOUNT_DIGITS):
        raise ValueError(f"{text!r} is not an amount: give a whole number of the smallest unit, 0 or more")
    return int(text)


def key_parser(what: str) -> Callable[[str], bytes]:
    """The parser of an option that is such a key; the error names the option."""
    return lambda text: key_of(text, what)


def key_of(text: str, what: str) -> bytes:
    """Parse 32 bytes in hex, such as a key, a label or the id of a hub."""
    found = hex_id(text)
    if found is None or len(text) != 2 * _KEY_BYTES:
        raise ValueError(f"{text!r} is not {what}: {2 * _KEY_BYTES} hex digits")
    return found
