"""The registry: built-in overlays and those of other distributions."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.overlays.logs import log
from tests.vectors_files import FOLDER, load
from veen.core import Unavailable
from veen.overlays import ENTRY_POINT_GROUP, Overlay, Registry, fold, registry
from veen.overlays.crdt import LWW, Write
from veen.overlays.kv import KV
from veen.overlays.registry import BUILTIN, decoded_event

BROUGHT = """
from veen.overlays.kv import Kv

class Copy(Kv):
    CLASS = "example.copy"

COPY = Copy()
SAME = Kv()
NOTHING = 7
"""


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, as a package manager leaves one; the entry points are the test's to write."""
    (tmp_path / "brought_overlay.py").write_text(BROUGHT)
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "brought_overlay", raising=False)
    return info


def points(info: Path, *lines: str) -> None:
    (info / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *lines, ""]))


def test_all_builtin_overlays_are_registered_by_class() -> None:
    assert {overlay.CLASS for overlay in registry()} >= {overlay.CLASS for overlay in BUILTIN}
    for overlay in BUILTIN:
        assert registry().of_class(overlay.CLASS) is overlay
        for schema in overlay.schemas:
            assert overlay in registry().of_schema(schema)


def test_two_overlays_may_read_one_schema() -> None:
    assert set(registry().of_schema(Write.SCHEMA)) == {LWW, KV}


def test_an_unknown_schema_has_no_overlay() -> None:
    assert registry().of_class("none") is None
    assert registry().of_schema(bytes(32)) == ()


def test_an_overlay_of_another_distribution_applies_to_old_logs(distribution: Path) -> None:
    points(distribution, "copy = brought_overlay:COPY")
    brought = registry().of_class("example.copy")
    assert brought is not None
    assert fold(brought, log(Write(b"k", 0, b"v"))).states[b"k"].value == b"v"
    assert brought in registry().of_schema(Write.SCHEMA)


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ("a = brought_overlay:NOTHING", "is not an Overlay"),
        ("a = brought_overlay:MISSING", "cannot be loaded"),
        ("a = no_such_module:COPY", "cannot be loaded"),
        ("a = brought_overlay:SAME", "two installed overlays have the class kv"),
    ],
)
def test_a_broken_entry_point_is_named_in_the_error(distribution: Path, point: str, reason: str) -> None:
    points(distribution, point)
    with pytest.raises(Unavailable, match=reason):
        registry()


def test_a_registry_of_two_with_one_class_is_refused() -> None:
    twice: list[Overlay[Any, Any]] = [KV, KV]
    with pytest.raises(Unavailable, match="class kv"):
        Registry(twice)


@pytest.mark.parametrize("path", sorted((FOLDER / "overlays").glob("*.json")), ids=lambda path: path.stem)
def test_each_event_of_the_vectors_is_shown_with_its_name_and_fields(path: Path) -> None:
    for entry in load(f"overlays/{path.name}").get("entries", ()):
        if not entry.get("payload_hdr") or entry.get("body") is None:
            continue
        found = decoded_event(bytes.fromhex(entry["payload_hdr"]["schema"]), bytes.fromhex(entry["body"]))
        if found is not None:
            assert found.name
            assert found.fields or found.fault or entry["body"] == "a0"
            assert not any(name.isdecimal() for name in found.fields)
