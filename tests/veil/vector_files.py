"""The vector files of VEIL."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "vectors" / "veil"


def load(name: str) -> dict[str, Any]:
    """Load a vector file. A missing or empty file fails the test."""
    found: dict[str, Any] = json.loads((FOLDER / name).read_text("utf-8"))
    assert found, name
    return found


DIALECT = load("dialect.json")


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)
