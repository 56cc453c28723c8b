"""An importer that is killed: `python -m tests.bridge.importing_process URL DIR PIN SOURCE FILE CALLS`.

It ends by SIGKILL at the CALLS-th call of a function of ours from the moment it begins to write; with 0 it runs to its
end and says how many there were.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from veen.bridge.importing import Importer
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.trust import Pin

_OURS = f"{os.sep}veen{os.sep}"


class Fuse:
    """Counts calls, and ends the process at one of them."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.seen = 0
        self.writes = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _OURS in frame.f_code.co_filename:
            self.writes = self.writes or frame.f_code.co_name == "_announce"
            self.seen += self.writes
            if self.calls and self.seen == self.calls:
                os.kill(os.getpid(), signal.SIGKILL)


async def take(url: str, folder: ClientDir, pin: str, source: str, data: bytes, fuse: Fuse) -> bool:
    async with Client(url, folder, pin=Pin.parse(pin)) as client:
        importer = Importer(client, {bytes.fromhex(source)}, operator="killed")
        sys.setprofile(fuse)
        try:
            return (await importer.take(data)).ok
        finally:
            sys.setprofile(None)


def main(url: str, folder: str, pin: str, source: str, file: str, calls: str) -> None:
    fuse = Fuse(int(calls))
    with ClientDir.open(Path(folder)) as opened:
        assert asyncio.run(take(url, opened, pin, source, Path(file).read_bytes(), fuse))
    sys.stdout.write(f"{fuse.seen}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
