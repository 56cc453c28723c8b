"""A receiver that is killed: `python -m tests.bridge.carriage_process NODE TOKEN HUB DIR INBOX CALLS`.

It ends by SIGKILL at the CALLS-th call of a function of ours from the moment it begins to receive; with 0 it runs to
its end and says how many there were.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from veen.bridge.carriage.holding import Holder
from veen.bridge.carriage.inbox import Inbox
from veen.bridge.carriage.meeting import Meeting
from veen.bridge.carriage.node import VeilNode
from veen.bridge.carriage.receiving import Receiver
from veen.client import ClientDir
from veen.client.client import Client

_OURS = f"{os.sep}veen{os.sep}bridge{os.sep}"


class Fuse:
    """Counts calls, and ends the process at one of them."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.seen = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _OURS in frame.f_code.co_filename:
            self.seen += 1
            if self.calls and self.seen == self.calls:
                os.kill(os.getpid(), signal.SIGKILL)


async def receive(node: str, token: str, hub: str, folder: ClientDir, path: Path, fuse: Fuse) -> None:
    async with Client(hub, folder) as client, VeilNode(node, token) as veil:
        meeting = await Meeting.enter(veil, client.hub_id)
        with Inbox(path, client.hub_id) as inbox:
            receiver = Receiver(meeting, inbox, Holder(folder, client.contact.trust.known, client))
            sys.setprofile(fuse)
            try:
                async for _ in receiver.receive():
                    pass
            finally:
                sys.setprofile(None)


def main(node: str, token: str, hub: str, folder: str, inbox: str, calls: str) -> None:
    fuse = Fuse(int(calls))
    with ClientDir.open(Path(folder)) as opened:
        asyncio.run(receive(node, token, hub, opened, Path(inbox), fuse))
    sys.stdout.write(f"{fuse.seen}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
