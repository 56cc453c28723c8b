"""docs/overlays.md: its Python runs and its table lists every overlay."""

import re
from pathlib import Path

from veen.overlays.registry import BUILTIN

PAGE = (Path(__file__).parents[2] / "docs" / "overlays.md").read_text("utf-8")


def test_the_python_of_the_guide_runs_from_top_to_bottom() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 4
    shared: dict[str, object] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "docs/overlays.md", "exec"), shared)


def test_the_guide_lists_every_overlay_with_its_module() -> None:
    told = dict(re.findall(r"^\| `(\S+)` \| `(\S+)` \|", PAGE, re.MULTILINE))
    assert sorted(told) == sorted(overlay.CLASS for overlay in BUILTIN)
    for overlay in BUILTIN:
        assert type(overlay).__module__.startswith(told[overlay.CLASS])
