"""The Python code of docs/recorder.md runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "recorder.md"


def test_the_code_of_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), {})
