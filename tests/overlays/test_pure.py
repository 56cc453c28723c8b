"""Overlays read no file, no clock and no randomness; `cache` alone touches a disk."""

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


def test_no_module_but_the_cache_reaches_outside() -> None:
    reaching = {path.name for path in FOLDER.rglob("*.py") if imported(path) & OUTSIDE}
    assert reaching == {"cache.py"}


def test_the_public_names_are_these() -> None:
    assert veen.overlays.__all__ == [
        "AnyOverlay", "Applied", "At", "Book", "Entry", "Event", "Fault", "FaultKind", "Fold", "GROUP",
        "LawBroken", "MergeOverlay", "Outcome", "Overlay", "Registry", "ShippedSummary", "Step", "Summary",
        "WalkOverlay", "check_laws", "draft", "encode_states", "firsts", "fold", "foresee", "merge",
        "merge_firsts", "receive", "registry", "run", "ship", "state_hash", "summarise",
    ]  # fmt: skip
    assert all(hasattr(veen.overlays, name) for name in veen.overlays.__all__)
