"""The cost of a page of checkpoints does not depend on the number of checkpoints."""

from pathlib import Path

from tests.hub.client import make_dir, running
from veen.core import Limits
from veen.core.envelopes import CheckpointList
from veen.storage.artifacts import CheckpointIndex

INTERVAL = 4


def test_a_page_of_checkpoints_is_found_without_reading_the_list_of_all(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path, limits=Limits(max_checkpoint_interval=INTERVAL))
    with running(data_dir) as hub:
        writer = hub.writer()
        writer.send_many(3 * INTERVAL)
    path = data_dir / "log" / f"checkpoint-index-{writer.label.hex()}.cbor"
    assert [row.upto_seq for row in CheckpointIndex.decode(path.read_bytes()).checkpoints] == [4, 8, 12]
    with running(data_dir) as hub:
        path.write_bytes(b"this is not read")
        page = hub.get(f"/tooling/checkpoints?label={writer.label.hex()}&from=5").read(CheckpointList)
        assert [one.upto_seq for one in page.checkpoints] == [8, 12]
