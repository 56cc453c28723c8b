"""The blocks of docs/tables.md run, and the page is complete."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from tests.pipeline.tables.logs import DOORS, begun, writes
from veen.pipeline.decoding.decoder import QuarantineKind
from veen.pipeline.tables import Table

PAGE = (Path(__file__).parents[3] / "docs" / "tables.md").read_text("utf-8")


def test_the_blocks_of_the_page_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    made = begun(place, streams=(DOORS,))
    made.log.say(writes(9))
    made.log.key_file(DOORS, place).rename(place / "doors.key")
    monkeypatch.chdir(place)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["answer"].row_count == 5


def test_the_page_names_every_table_and_every_kind_of_quarantine() -> None:
    assert all(f"`{name}`" in PAGE for name in (*Table, *QuarantineKind))
