"""Parsers of option values: accepted forms and rejected ones."""

from collections.abc import Callable

import pytest

from veen.cli.kit import values
from veen.cli.kit.values import Address, LabelPlace, Setting

KEY = "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:37411", Address("127.0.0.1", 37411)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, expected: Address) -> None:
    assert values.address(text) == expected


@pytest.mark.parametrize("text", ["", "x", ":1", "x:", "x:65536", "x:-1", "x:1a", "::1:80", "[::1:80", "x:\u0661"])
def test_any_other_text_is_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        values.address(text)


def test_a_key_and_a_label_are_64_hex_digits() -> None:
    assert values.public_key(KEY) == values.label(KEY) == bytes.fromhex(KEY)
    assert values.label(KEY.upper()) == bytes.fromhex(KEY)


@pytest.mark.parametrize(
    "text", ["", "zz" * 32, KEY[:-1], KEY[:-2], KEY + "00", KEY[:-2] + " a", " ".join([KEY[:32]] * 2)]
)
@pytest.mark.parametrize("read", [values.public_key, values.label])
def test_any_other_text_is_neither_key_nor_label(text: str, read: Callable[[str], bytes]) -> None:
    with pytest.raises(ValueError, match="64 hex digits"):
        read(text)


def test_a_place_is_a_label_and_an_entry() -> None:
    assert values.label_place(f"{KEY}:7") == LabelPlace(bytes.fromhex(KEY), 7)


@pytest.mark.parametrize("text", ["", KEY, f"{KEY}:", f"{KEY}:0", f"{KEY}:-1", f"{KEY}:x", "ab:1", ":1"])
def test_any_other_text_is_not_a_place(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        values.label_place(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("https://hub.example/", "https://hub.example"),
        ("127.0.0.1:1", "http://127.0.0.1:1"),
        ("http://[::1]:1", "http://[::1]:1"),
    ],
)
def test_the_url_of_a_hub_has_no_path(text: str, expected: str) -> None:
    assert values.url(text) == expected


@pytest.mark.parametrize(
    ("scheme", "host", "expected"),
    [
        ("http", "127.0.0.1", "http://127.0.0.1:5"),
        ("https", "hub.example", "https://hub.example:5"),
        ("http", "0.0.0.0", "http://127.0.0.1:5"),
        ("http", "::", "http://[::1]:5"),
        ("http", "fe80::1", "http://[fe80::1]:5"),
    ],
)
def test_the_url_of_a_hub_that_listens_everywhere_is_loopback(scheme: str, host: str, expected: str) -> None:
    assert values.origin(scheme, host, 5) == expected


def test_a_setting_is_a_name_and_a_number() -> None:
    assert values.setting("max=5") == Setting("max", 5)


@pytest.mark.parametrize("text", ["", "max", "=5", "max=", "max=-1", "max=five", "max=5=6"])
def test_any_other_text_is_not_a_setting(text: str) -> None:
    with pytest.raises(ValueError, match="is not NAME=NUMBER"):
        values.setting(text)
