"""The vector files as a reader in any language finds them: JSON with bytes in hex."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "vectors"


def load(name: str) -> dict[str, Any]:
    found = json.loads((FOLDER / name).read_bytes())
    assert isinstance(found, dict)
    assert found
    return found


def entries(name: str, *path: str) -> list[dict[str, Any]]:
    """The list at `path` of a file. A missing or empty one fails, because it would test nothing."""
    found: Any = load(name)
    for part in path:
        found = found[part]
    if not isinstance(found, list) or not found:
        raise LookupError(f"{name} has no cases at {'/'.join(path)}")
    return found


def unhex(text: str) -> bytes:
    """Strict: lowercase, without the white space that `bytes.fromhex` skips."""
    data = bytes.fromhex(text)
    assert data.hex() == text
    return data


def maybe(text: str | None) -> bytes | None:
    return None if text is None else unhex(text)
