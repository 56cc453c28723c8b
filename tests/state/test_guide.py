"""The Python of docs/state.md does what the page says."""

import re
import time
from pathlib import Path

from tests.hub.client import make_dir, running
from tests.hub.disks import QuickDisk
from veen.client import ClientDir

PAGE = (Path(__file__).parents[2] / "docs" / "state.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_page_runs_in_order(place: Path) -> None:
    assert len(BLOCKS) == 2
    now = int(time.time())
    with ClientDir.create(place / "alice", None, now) as alice:
        for stream in ("settings", "letters"):
            alice.stream_keys.create(stream)
    with running(make_dir(place, now=now - 60), time.time, QuickDisk()) as hub:
        hub_id = hub.service.hub_metadata.identity.hub_id.hex()
        given: dict[str, object] = {
            "folder": place / "alice",
            "url": f"http://127.0.0.1:{hub.port}",
            "hub_id": hub_id,
        }
        for block in BLOCKS:
            exec(compile(block, "docs/state.md", "exec"), given)
