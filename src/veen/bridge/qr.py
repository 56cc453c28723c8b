"""A bundle as a set of QR codes, for gaps that no storage medium may cross.

    VEEN1/digest of the file/part number/number of parts/digest of the part/data

The text uses QR's alphanumeric mode with base45 data. Parts are joined in any order. Missing, damaged and foreign parts
are reported by number. This module does not check that the file is a bundle; its bundle_id does.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from plumbing.cli import install_hint
from veen.core import Malformed, Unavailable
from veen.core.hashing import h

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:"
_BASE = len(ALPHABET)
_VALUES = {character: value for value, character in enumerate(ALPHABET)}


def encode(data: bytes) -> str:
    """Base45: two bytes become three characters, a single last byte two; least significant first."""
    found = []
    for start in range(0, len(data), 2):
        pair = data[start : start + 2]
        number = int.from_bytes(pair, "big")
        for _ in range(len(pair) + 1):
            number, digit = divmod(number, _BASE)
            found.append(ALPHABET[digit])
    return "".join(found)


def decode(text: str) -> bytes:
    """The inverse of `encode`. Raises `Malformed` for text that `encode` cannot produce."""
    found = bytearray()
    for start in range(0, len(text), 3):
        digits = text[start : start + 3]
        if len(digits) == 1 or any(character not in _VALUES for character in digits):
            raise Malformed("base45", f"{digits!r} is not valid base45")
        number = sum(_VALUES[character] * _BASE**place for place, character in enumerate(digits))
        try:
            found += number.to_bytes(len(digits) - 1, "big")
        except OverflowError:
            raise Malformed("base45", f"{digits!r} is not valid base45") from None
    return bytes(found)


MAX_PARTS = 10_000
MAX_PART_BYTES = 2_000
DEFAULT_PART_BYTES = 600  # a code of 97 by 97 modules at level M, which printers and phones can handle
_FILE_DIGITS, _PART_DIGITS = 24, 12
_PART_PATTERN = re.compile(
    rf"VEEN1/([0-9A-F]{{{_FILE_DIGITS}}})/([1-9]\d*)/([1-9]\d*)/([0-9A-F]{{{_PART_DIGITS}}})/(.+)", re.ASCII
)


def split(data: bytes, part_bytes: int = DEFAULT_PART_BYTES) -> list[str]:
    """The texts of the codes. Raises `ValueError` if there would be more than MAX_PARTS."""
    if not 1 <= part_bytes <= MAX_PART_BYTES:
        raise ValueError(f"a part has 1 to {MAX_PART_BYTES} bytes, not {part_bytes}")
    total = -(-len(data) // part_bytes)
    if not 1 <= total <= MAX_PARTS:
        raise ValueError(f"{len(data)} bytes need {total} codes, but 1 to {MAX_PARTS} are allowed")
    digest = _file_digest(data)
    pieces = [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]
    return [
        f"VEEN1/{digest}/{number}/{total}/{_part_digest(digest, number, total, piece)}/{encode(piece)}"
        for number, piece in enumerate(pieces, 1)
    ]


def join(texts: Iterable[str]) -> bytes:
    """The file that the codes contain. Raises `Malformed` with the missing or damaged parts."""
    parts: dict[int, bytes] = {}
    file, total = "", 0
    for text in texts:
        digest, number, count, piece = _read(text)
        if parts and (digest, count) != (file, total):
            raise Malformed("qr code", f"part {number} belongs to another file")
        if parts.setdefault(number, piece) != piece:
            raise Malformed("qr code", f"two different codes claim to be part {number}")
        file, total = digest, count
    missing = [number for number in range(1, total + 1) if number not in parts]
    if missing or not parts:
        shown = ", ".join(map(str, missing[:20])) + (" …" if len(missing) > 20 else "")
        raise Malformed("qr code", f"{len(missing)} of {total} parts are missing: {shown}" if parts else "no parts")
    data = b"".join(parts[number] for number in range(1, total + 1))
    if _file_digest(data) != file:
        raise Malformed("qr code", "the joined parts do not match the digest of the file")
    return data


def _read(text: str) -> tuple[str, int, int, bytes]:
    form = _PART_PATTERN.fullmatch(text)
    if form is None:
        raise Malformed("qr code", "not a part of a bundle")
    digest, number, total, check, encoded = form.groups()
    if max(len(number), len(total)) > len(str(MAX_PARTS)) or not int(number) <= int(total) <= MAX_PARTS:
        raise Malformed("qr code", f"invalid part number {number[:20]} of {total[:20]}")
    piece = decode(encoded)
    if _part_digest(digest, int(number), int(total), piece) != check:
        raise Malformed("qr code", f"part {number} is damaged")
    return digest, int(number), int(total), piece


def _file_digest(data: bytes) -> str:
    return h(data).hex().upper()[:_FILE_DIGITS]


def _part_digest(file: str, number: int, total: int, piece: bytes) -> str:
    return h(f"{file}/{number}/{total}/".encode() + piece).hex().upper()[:_PART_DIGITS]


# Images.


def write(texts: Sequence[str], folder: Path, form: str = "png", scale: int = 4) -> list[Path]:
    """Write one PNG or SVG image per code, named by number."""
    try:
        import segno
    except ImportError:
        raise _not_installed("segno") from None
    if form not in ("png", "svg"):
        raise ValueError(f"image format {form!r} is neither png nor svg")
    digits = len(str(len(texts)))
    paths = []
    for number, text in enumerate(texts, 1):
        path = folder / f"{number:0{digits}}-of-{len(texts)}.{form}"
        segno.make_qr(text, error="m", mode="alphanumeric").save(str(path), kind=form, scale=scale, border=4)
        paths.append(path)
    return paths


def scan(paths: Iterable[Path]) -> list[str]:
    """Every bundle code in these images. An image may contain several codes; other codes are ignored."""
    try:
        import zxingcpp
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise _not_installed("zxing-cpp and pillow") from None
    texts = []
    for path in paths:
        try:
            with Image.open(path) as image:
                found: list[Any] = zxingcpp.read_barcodes(image.convert("L"))
        except (OSError, UnidentifiedImageError) as error:
            raise Unavailable(f"{path}: {error}") from None
        texts += [one.text for one in found if one.text.startswith("VEEN1/")]
    return texts


def _not_installed(what: str) -> Unavailable:
    return Unavailable(f"{what} must be installed for QR codes: " + install_hint("airgap"))
