"""Overlays use no file, no clock and no randomness; only `kept_fold_lmdb` does I/O."""

import ast
from pathlib import Path

import veen.overlays

FOLDER = Path(veen.overlays.__file__).parent
OUTSIDE = {
    "asyncio", "datetime", "glob", "io", "lmdb", "logging", "os", "pathlib", "random", "secrets", "shutil", "socket",
    "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def test_only_the_lmdb_module_does_io() -> None:
    with_io = {path.name for path in FOLDER.rglob("*.py") if imported(path) & OUTSIDE}
    assert with_io == {"kept_fold_lmdb.py"}


def test_the_public_names_are_these() -> None:
    assert veen.overlays.__all__ == [
        "AnyOverlay", "Applied", "At", "ENTRY_POINT_GROUP", "Event", "EventFault", "FaultKind", "Fold", "FoldEntry",
        "FoldLookup", "FoldStep", "LawBroken", "MergeOverlay", "Outcome", "Overlay", "Registry", "ShippedSummary",
        "Summary", "WalkOverlay", "check_laws", "draft", "encode_states", "first_places", "fold", "merge",
        "merge_first_places", "preview", "receive", "registry", "run", "ship", "state_hash", "summarise",
    ]  # fmt: skip
    assert all(hasattr(veen.overlays, name) for name in veen.overlays.__all__)
