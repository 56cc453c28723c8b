"""A receiver that kills itself: `python -m tests.bridge.receive_process NODE TOKEN HUB DIR INBOX MOMENT`.

MOMENT is that of `KillAtCall`, counted from the start of receiving. With 0 it runs to its end and prints the number of
calls.
"""

import asyncio
import sys
from pathlib import Path

import veen.bridge
from tests.bridge.kill_at_call import KillAtCall
from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer
from veen.bridge.veil_gossip.exchange import Receiver
from veen.bridge.veil_gossip.gossip_inbox import Inbox
from veen.bridge.veil_gossip.gossip_items import GossipGroup
from veen.bridge.veil_gossip.veil_node import VeilNode
from veen.client import ClientDir
from veen.client.client import Client

_COUNTED_FOLDER = Path(veen.bridge.__file__).parent


async def receive(node: str, token: str, hub: str, folder: ClientDir, path: Path, killer: KillAtCall) -> None:
    async with Client(hub, folder, allow_caught=True) as client, VeilNode(node, token) as veil:
        group = await GossipGroup.join(veil, client.hub_id)
        with Inbox(path, client.hub_id) as inbox:
            receiver = Receiver(group, inbox, CheckpointComparer(folder, client.session.trust.known, client))
            with killer.armed():
                async for _ in receiver.receive():
                    pass


def main(node: str, token: str, hub: str, folder: str, inbox: str, moment: str) -> None:
    killer = KillAtCall(moment, _COUNTED_FOLDER)
    with ClientDir.open(Path(folder)) as opened:
        asyncio.run(receive(node, token, hub, opened, Path(inbox), killer))
    sys.stdout.write(f"{killer.seen}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
