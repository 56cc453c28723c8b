"""docs/wire.md is up to date, covers every wire object, and has the formulas of the core."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import veen.core
from tools import wire_page
from veen.core import mmr, proof
from veen.core.cbor import Array, Constant, DeferredFaults, FieldType, Wire
from veen.core.hashing import h
from veen.core.profile import Profile

TEXT = wire_page.page()
LINES = TEXT.splitlines()
CORE = Path(veen.core.__file__).parent
MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(veen.core.__path__, "veen.core.")
    if found.name != Wire.__module__
]
WIRES = [
    wire
    for module in (*MODULES, *wire_page.GROUPS["Evidence"], *wire_page.GROUPS["Query results"])
    for wire in wire_page.objects(module)
]


def section(wire: type[Wire]) -> list[str]:
    """The lines of the page between an object's heading and the next."""
    start = LINES.index(f"### {wire_page.heading(wire)}") + 1
    end = next((at for at in range(start, len(LINES)) if LINES[at].startswith("#")), len(LINES))
    return LINES[start:end]


def test_the_page_on_disk_is_up_to_date() -> None:
    assert wire_page.PAGE.read_bytes().decode() == TEXT
    assert wire_page.main(["--check"]) == 0


def test_every_wire_object_of_the_core_and_of_evidence_has_exactly_one_section() -> None:
    headings = [line for line in LINES if re.fullmatch(r"### .* \(`\w+`\)", line)]
    assert len(WIRES) > 20
    assert sorted(headings) == sorted(f"### {wire_page.heading(wire)}" for wire in WIRES)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.__name__)
def test_every_field_of_an_object_is_one_row_in_order(wire: type[Wire]) -> None:
    rows = [line.split(" | ") for line in section(wire) if line.startswith("| ")][1:]
    assert [row[1] for row in rows] == [f"`{kind.name}`" for kind in wire.LAYOUT.kinds]
    assert [row[3].startswith("yes") for row in rows] == [kind.optional for kind in wire.LAYOUT.kinds]
    assert {len(row) for row in rows} == {4}


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.__name__)
def test_a_section_says_how_the_object_is_encoded(wire: type[Wire]) -> None:
    array, maps = "A CBOR array of ", ("A CBOR map with integer keys", "A canonical JSON object with text keys")
    expected = array if isinstance(wire.LAYOUT, Array) else maps
    assert len([line for line in section(wire) if line.startswith(expected)]) == 1


def test_every_object_with_a_rule_has_it_on_the_page() -> None:
    assert set(wire_page.RULES) == {wire for wire in WIRES if wire.flaw is not Wire.flaw}


def test_the_fixed_texts_of_the_profile_are_shown() -> None:
    rows = "\n".join(section(Profile))
    fixed = [kind.text for kind in Profile.LAYOUT.kinds if isinstance(kind, Constant)]
    assert len(fixed) == 6
    assert all(f"tstr, always `{text}`" in rows for text in fixed)


def test_the_page_names_every_tag_of_the_core_and_no_other() -> None:
    tag = re.compile(r"veen/[a-z_-]+")
    source = "\n".join(path.read_text("utf-8") for path in CORE.rglob("*.py"))
    source += " veen/card veen/card-client veen/prekey"  # of the cards of clients, which evidence contains
    source += " veen/query"  # of the ids of query results
    assert set(tag.findall(TEXT)) == set(tag.findall(source))


def test_every_link_within_the_page_has_a_heading() -> None:
    anchors = [wire_page.anchor(line.lstrip("# ")) for line in LINES if line.startswith("#")]
    links = set(re.findall(r"\]\((#[^)]+)\)", TEXT))
    assert len(links) > 5
    assert links <= set(anchors)
    assert len(set(anchors)) == len(anchors)


@pytest.mark.parametrize("size", range(1, 40))
def test_a_proof_has_the_shape_and_the_old_peaks_the_page_gives_it(size: int) -> None:
    tree, nodes = mmr.Mmr(), list[bytes]()
    roots = []
    for number in range(size):
        nodes += tree.append(h(number.to_bytes(8, "big")))
        roots.append(tree.root())
    for place in range(1, size + 1):
        index = place - 1
        height = (index ^ size).bit_length() - 1
        rank = (size & ((1 << height) - 1)).bit_count()
        made = proof.prove(nodes.__getitem__, place, size)
        assert [step.dir for step in made.path] == [index >> k & 1 for k in range(height)]
        running = [made.leaf_hash]
        for step in made.path:
            pair = step.sib + running[-1] if step.dir else running[-1] + step.sib
            running.append(h(b"veen/mmr-node\x00" + pair))
        assert [*made.peaks_after[:rank], running[-1], *made.peaks_after[rank:]] == tree.peaks
        zeros = (place & -place).bit_length() - 1
        turned = [step.sib for step in made.path[zeros:] if step.dir == 1]
        assert mmr.root_of([running[zeros], *turned, *made.peaks_after[rank:]]) == roots[index]


def test_a_field_type_without_a_description_is_an_error() -> None:
    class Novel(FieldType):
        __slots__ = ()

        def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[None, int]:
            return None, pos

        def write(self, field: object) -> bytes:
            return b""

    kind = Novel(name="novel")
    with pytest.raises(TypeError) as caught:
        wire_page.type_of(kind)
    assert "Novel" in str(caught.value)


def test_a_written_page_passes_the_check(tmp_path: Path) -> None:
    path = tmp_path / "wire.md"
    assert wire_page.main([], path) == 0
    assert wire_page.main(["--check"], path) == 0


@pytest.mark.parametrize("text", ["", TEXT + "\n", TEXT.replace("\n", "\r\n")])
def test_check_reports_an_outdated_page_and_does_not_change_it(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wire.md"
    path.write_bytes(text.encode())
    assert wire_page.main(["--check"], path) == 1
    assert path.read_bytes() == text.encode()
    assert "out of date" in capsys.readouterr().err


def test_check_reports_a_missing_page(tmp_path: Path) -> None:
    assert wire_page.main(["--check"], tmp_path / "wire.md") == 1
