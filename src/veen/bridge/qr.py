"""A bundle as a set of QR images, for gaps that no medium may cross: numbered parts, each with a digest of its own.

    VEEN1/digest of the file/number/of how many/digest of the part/data

All of it is in the alphanumeric mode, the data in base45. Parts are put together in any order; what is missing, of
another file or damaged is named. Whether the file is a bundle is for its own id to show.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from plumbing.cli.extras import install_hint
from veen.core import Malformed, Unavailable
from veen.core.hashing import h

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


MAX_PARTS = 10_000
MAX_PART_BYTES = 2_000
DEFAULT_PART_BYTES = 600  # a code of 97 by 97 at level M: a printer and a phone manage it
_FILE_DIGITS, _PART_DIGITS = 24, 12
_FORM = re.compile(
    rf"VEEN1/([0-9A-F]{{{_FILE_DIGITS}}})/([1-9]\d*)/([1-9]\d*)/([0-9A-F]{{{_PART_DIGITS}}})/(.+)", re.ASCII
)


def split(data: bytes, part_bytes: int = DEFAULT_PART_BYTES) -> list[str]:
    """The texts of the codes. Raises `ValueError` where there would be too many."""
    if not 1 <= part_bytes <= MAX_PART_BYTES:
        raise ValueError(f"a part has 1 to {MAX_PART_BYTES} bytes")
    total = -(-len(data) // part_bytes)
    if not 1 <= total <= MAX_PARTS:
        raise ValueError(f"{len(data)} bytes would be {total} codes, and there are at most {MAX_PARTS}")
    digest = _file_digest(data)
    pieces = [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]
    return [
        f"VEEN1/{digest}/{number}/{total}/{_part_digest(digest, number, total, piece)}/{encode(piece)}"
        for number, piece in enumerate(pieces, 1)
    ]


def join(texts: Iterable[str]) -> bytes:
    """The file that these codes are of. Raises `Malformed`, naming what is missing or damaged."""
    parts: dict[int, bytes] = {}
    file, total = "", 0
    for text in texts:
        digest, number, count, piece = _read(text)
        if parts and (digest, count) != (file, total):
            raise Malformed("qr code", f"part {number} is of another file than the others")
        if parts.setdefault(number, piece) != piece:
            raise Malformed("qr code", f"there are two different parts {number}")
        file, total = digest, count
    missing = [number for number in range(1, total + 1) if number not in parts]
    if missing or not parts:
        shown = ", ".join(map(str, missing[:20])) + (" …" if len(missing) > 20 else "")
        raise Malformed("qr code", f"{len(missing)} of {total} parts are missing: {shown}" if parts else "no parts")
    data = b"".join(parts[number] for number in range(1, total + 1))
    if _file_digest(data) != file:
        raise Malformed("qr code", "the parts do not make the file that they name")
    return data


def _read(text: str) -> tuple[str, int, int, bytes]:
    form = _FORM.fullmatch(text)
    if form is None:
        raise Malformed("qr code", "it is no part of a bundle")
    digest, number, total, check, encoded = form.groups()
    if max(len(number), len(total)) > len(str(MAX_PARTS)) or not int(number) <= int(total) <= MAX_PARTS:
        raise Malformed("qr code", f"part {number[:20]} of {total[:20]}")
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
    """One image for each, PNG or SVG, named by number."""
    try:
        import segno
    except ImportError:
        raise _absent("segno") from None
    if form not in ("png", "svg"):
        raise ValueError("an image is png or svg")
    digits = len(str(len(texts)))
    paths = []
    for number, text in enumerate(texts, 1):
        path = folder / f"{number:0{digits}}-of-{len(texts)}.{form}"
        segno.make_qr(text, error="m", mode="alphanumeric").save(str(path), kind=form, scale=scale, border=4)
        paths.append(path)
    return paths


def scan(paths: Iterable[Path]) -> list[str]:
    """Every code that is in these images: photographs and scans may have several. Others' codes are passed by."""
    try:
        import zxingcpp
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise _absent("zxing-cpp and pillow") from None
    texts = []
    for path in paths:
        try:
            with Image.open(path) as image:
                found: list[Any] = zxingcpp.read_barcodes(image.convert("L"))
        except (OSError, UnidentifiedImageError) as error:
            raise Unavailable(f"{path}: {error}") from None
        texts += [one.text for one in found if one.text.startswith("VEEN1/")]
    return texts


def _absent(what: str) -> Unavailable:
    return Unavailable(f"{what} must be installed for QR codes: " + install_hint("airgap"))
