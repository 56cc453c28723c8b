"""A reader of deterministic CBOR, RFC 8949 §4.2.1. It rejects every encoding that the writer would not produce."""

from typing import NoReturn

from plumbing.cbor_heads import BSTR, UINT, InvalidHead, read_head
from veil.veil_errors import Malformed


class Reader:
    """Reads values in order and raises `Malformed` at the first invalid one. `what` names the input in errors."""

    __slots__ = ("at", "data", "what")

    def __init__(self, data: bytes, what: str, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.what = what

    def fail(self, reason: str) -> NoReturn:
        raise Malformed(self.what, f"{reason} (at byte {self.at})")

    def head(self, major: int, most: int) -> int:
        """The value of a head of one major type, at most `most`."""
        try:
            found, value, end = read_head(self.data, self.at)
        except InvalidHead as error:
            raise Malformed(self.what, str(error)) from None
        if found != major:
            self.fail(f"CBOR major type {found}, not {major}")
        if value > most:
            self.fail(f"{value} is more than {most}")
        self.at = end
        return value

    def uint(self, most: int) -> int:
        return self.head(UINT, most)

    def exactly(self, major: int, value: int) -> None:
        found = self.head(major, value)
        if found != value:
            self.fail(f"{found}, not {value}")

    def byte_string(self, most: int) -> bytes:
        return self.take(self.head(BSTR, most))

    def fixed(self, length: int) -> bytes:
        """A byte string of one length."""
        self.exactly(BSTR, length)
        return self.take(length)

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            self.fail("truncated")
        data = self.data[self.at : end]
        self.at = end
        return data

    def end(self) -> None:
        if self.at != len(self.data):
            self.fail("trailing bytes")
