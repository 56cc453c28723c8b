"""A reader in a process of its own: brings a cache up to date again and again, and says what it saw."""

import asyncio
import sys
from pathlib import Path

from tests.client.pair import STREAM
from veen.client import ClientDir
from veen.overlays.kv import KV
from veen.state import DirectorySource, StateView


async def looks(data_dir: Path, client: Path, number: int) -> None:
    with ClientDir.open(client) as folder:
        for _ in range(number):
            async with StateView(DirectorySource(data_dir, folder), STREAM, KV) as view, view.reading() as reading:
                sys.stdout.write(f"{reading.upto.stream_seq} {reading.state_hash().hex()}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(looks(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
