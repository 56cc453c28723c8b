"""With epochs every stream, also the control stream, has a label per epoch; the rebuilt index is the same."""

import shutil
from pathlib import Path

from tests.storage.hubs import NOW, Client, Hub, create, index_rows, label_of, node_files, receipts
from veen.core import Profile, Rate, naming
from veen.storage import fsck

EPOCH_SEC = 3600


def test_a_hub_with_epochs_is_clean_and_comes_back_without_its_index(place: Path) -> None:
    root = create(place / "hub", profile=Profile(epoch_sec=EPOCH_SEC))
    hub = Hub(root)
    client = Client("ann", hub.rules)
    for number in range(6):
        hub.clock.now = NOW + number * EPOCH_SEC // 2
        stream = naming.stream_id(f"stream {number}")
        token = client.cap([stream, naming.stream_id("stream 0")], Rate(1, 9))
        receipts(hub.submit([token, stream]))
        epoch = hub.hub_metadata.profile.epoch(hub.clock.now)
        for name in {f"stream {number}", "stream 0"}:
            label = label_of(hub.rules, name, epoch)
            receipts(hub.submit([client.message(label, auth_ref=token.auth_ref()) for _ in range(4)]))
        hub.catch_up()
    rows, nodes = index_rows(hub), node_files(root)
    assert len(rows["caps"]) == 6
    assert len(rows["streams"]) == 6
    hub.close()
    assert fsck.check(root, isolated=False).findings == []
    shutil.rmtree(root / "index")
    again = Hub(root)
    assert index_rows(again) == rows
    assert node_files(root) == nodes
    again.close()
