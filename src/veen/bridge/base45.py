"""Base45: bytes in the characters of a QR code's alphanumeric mode. RFC 9285."""

from veen.core import Malformed

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:"
_BASE = len(ALPHABET)
_VALUES = {character: value for value, character in enumerate(ALPHABET)}


def encode(data: bytes) -> str:
    """Two bytes are three characters, a last one is two; the least significant first."""
    found = []
    for start in range(0, len(data), 2):
        pair = data[start : start + 2]
        number = int.from_bytes(pair, "big")
        for _ in range(len(pair) + 1):
            number, digit = divmod(number, _BASE)
            found.append(ALPHABET[digit])
    return "".join(found)


def decode(text: str) -> bytes:
    """The bytes whose one encoding this is. Raises `Malformed`."""
    found = bytearray()
    for start in range(0, len(text), 3):
        digits = text[start : start + 3]
        if len(digits) == 1 or any(character not in _VALUES for character in digits):
            raise Malformed("base45", f"no bytes are written {digits!r}")
        number = sum(_VALUES[character] * _BASE**place for place, character in enumerate(digits))
        try:
            found += number.to_bytes(len(digits) - 1, "big")
        except OverflowError:
            raise Malformed("base45", f"no bytes are written {digits!r}") from None
    return bytes(found)
