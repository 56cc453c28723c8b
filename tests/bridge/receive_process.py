"""A receiver that is killed: `python -m tests.bridge.receive_process NODE TOKEN HUB DIR INBOX MOMENT`.

It is killed at MOMENT, as `Fuse` defines it, counted from when it begins to receive. With 0 it runs to its end and
prints the number of calls.
"""

import asyncio
import sys
from pathlib import Path

import veen.bridge
from tests.bridge.kill_at_call import Fuse
from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer
from veen.bridge.veil_gossip.exchange import Receiver
from veen.bridge.veil_gossip.gossip_inbox import Inbox
from veen.bridge.veil_gossip.gossip_items import GossipGroup
from veen.bridge.veil_gossip.veil_node import VeilNode
from veen.client import ClientDir
from veen.client.client import Client

_OURS = Path(veen.bridge.__file__).parent


async def receive(node: str, token: str, hub: str, folder: ClientDir, path: Path, fuse: Fuse) -> None:
    async with Client(hub, folder, allow_caught=True) as client, VeilNode(node, token) as veil:
        meeting = await GossipGroup.enter(veil, client.hub_id)
        with Inbox(path, client.hub_id) as inbox:
            receiver = Receiver(meeting, inbox, CheckpointComparer(folder, client.contact.trust.known, client))
            with fuse.burning():
                async for _ in receiver.receive():
                    pass


def main(node: str, token: str, hub: str, folder: str, inbox: str, moment: str) -> None:
    fuse = Fuse(moment, _OURS)
    with ClientDir.open(Path(folder)) as opened:
        asyncio.run(receive(node, token, hub, opened, Path(inbox), fuse))
    sys.stdout.write(f"{fuse.seen}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
