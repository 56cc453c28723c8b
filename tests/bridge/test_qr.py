"""A bundle survives the way through QR images, and missing or damaged parts are named."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.bridge import qr
from veen.core import Malformed, Unavailable

SEED = 45
ENDLESS = f"VEEN1/{'A' * 24}/1/{'9' * 5_000}/{'B' * 12}/00"


# RFC 9285 §4.3 and §4.4.
@pytest.mark.parametrize(
    ("data", "text"), [(b"AB", "BB8"), (b"Hello!!", "%69 VD92EX0"), (b"base-45", "UJCLQE7W581"), (b"ietf!", "QED8WEX0")]
)
def test_base45_matches_the_rfc(data: bytes, text: str) -> None:
    assert qr.encode(data) == text
    assert qr.decode(text) == data


@given(st.binary(max_size=200))
def test_base45_round_trips(data: bytes) -> None:
    assert qr.decode(qr.encode(data)) == data


@pytest.mark.parametrize("text", ["GGW", ":::", "A", "::", "a00", "BB8A"])
def test_invalid_base45_is_rejected(text: str) -> None:
    with pytest.raises(Malformed):
        qr.decode(text)


@given(st.binary(min_size=1, max_size=400), st.integers(1, 60), st.randoms(use_true_random=False))
def test_parts_join_in_any_order(data: bytes, part_bytes: int, chance: Random) -> None:
    texts = qr.split(data, part_bytes)
    chance.shuffle(texts)
    assert qr.join(texts + texts[:1]) == data


def test_missing_parts_are_named() -> None:
    texts = qr.split(bytes(100), 10)
    with pytest.raises(Malformed, match="2 of 10 parts are missing: 3, 7"):
        qr.join([text for number, text in enumerate(texts, 1) if number not in (3, 7)])
    with pytest.raises(Malformed, match="no parts"):
        qr.join([])


def test_a_damaged_part_is_named() -> None:
    texts = qr.split(bytes(100), 10)
    texts[4] = texts[4][:-1] + ("1" if texts[4][-1] != "1" else "2")
    with pytest.raises(Malformed, match="part 5 is damaged"):
        qr.join(texts)


def test_a_part_that_claims_another_number_is_damaged() -> None:
    first, second = qr.split(bytes(range(20)), 10)
    with pytest.raises(Malformed, match="damaged"):
        qr.join([first, second.replace("/2/2/", "/1/2/")])


def test_parts_of_two_files_do_not_mix() -> None:
    with pytest.raises(Malformed, match="another file"):
        qr.join([qr.split(bytes(20), 10)[0], qr.split(bytes(21), 10)[1]])


@pytest.mark.parametrize(
    "text", ["", "VEEN1/", "HELLO", "VEEN1/AB/1/1/CD/00", f"VEEN1/{'A' * 24}/2/1/{'B' * 12}/00", ENDLESS]
)
def test_other_codes_are_rejected(text: str) -> None:
    with pytest.raises(Malformed):
        qr.join([text])


@pytest.mark.parametrize("part_bytes", [0, qr.MAX_PART_BYTES + 1])
def test_part_sizes_are_bounded(part_bytes: int) -> None:
    with pytest.raises(ValueError, match="part"):
        qr.split(b"x", part_bytes)


def test_the_number_of_codes_is_bounded() -> None:
    with pytest.raises(ValueError, match="codes"):
        qr.split(bytes(qr.MAX_PARTS + 1), 1)


def test_a_file_survives_images(tmp_path: Path) -> None:
    data = Random(SEED).randbytes(2_500)
    paths = qr.write(qr.split(data), tmp_path)
    assert [path.name for path in paths] == [f"{number}-of-5.png" for number in range(1, 6)]
    assert qr.join(qr.scan(reversed(paths))) == data


def test_the_largest_part_fits_into_a_code(tmp_path: Path) -> None:
    data = Random(SEED).randbytes(qr.MAX_PART_BYTES)
    assert qr.join(qr.scan(qr.write(qr.split(data, qr.MAX_PART_BYTES), tmp_path))) == data


def test_one_image_may_contain_several_codes(tmp_path: Path) -> None:
    from PIL import Image

    data = Random(SEED).randbytes(500)
    images = [Image.open(path) for path in qr.write(qr.split(data, 300), tmp_path)]
    sheet = Image.new("L", (sum(one.width for one in images), max(one.height for one in images)), 255)
    left = 0
    for one in images:
        sheet.paste(one, (left, 0))
        left += one.width
        one.close()
    sheet.save(tmp_path / "sheet.png")
    assert qr.join(qr.scan([tmp_path / "sheet.png"])) == data


def test_an_svg_is_written_as_well(tmp_path: Path) -> None:
    (path,) = qr.write(qr.split(b"x"), tmp_path, "svg")
    assert b"<svg" in path.read_bytes()


def test_a_file_that_is_not_an_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"no image")
    with pytest.raises(Unavailable, match=r"x\.png"):
        qr.scan([tmp_path / "x.png"])
