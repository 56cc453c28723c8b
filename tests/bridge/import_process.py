"""An importer that kills itself: `python -m tests.bridge.import_process URL DIR PIN SOURCE FILE MOMENT`.

MOMENT is that of `KillAtCall`, counted from the intake announcement. With 0 it runs to its end and prints the number of
calls.
"""

import asyncio
import sys
from pathlib import Path

import veen
from tests.bridge.kill_at_call import KillAtCall
from veen.bridge.bundle_import import Importer
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.trust import Pin

_COUNTED_FOLDER = Path(veen.__file__).parent


async def take(url: str, folder: ClientDir, pin: str, source: str, data: bytes, killer: KillAtCall) -> bool:
    async with Client(url, folder, pin=Pin.parse(pin)) as client:
        importer = Importer(client, {bytes.fromhex(source)}, operator="killed")
        with killer.armed():
            outcome = await importer.take(data)
        return outcome.ok


def main(url: str, folder: str, pin: str, source: str, file: str, moment: str) -> None:
    killer = KillAtCall(moment, _COUNTED_FOLDER, since="_announce")
    with ClientDir.open(Path(folder)) as opened:
        assert asyncio.run(take(url, opened, pin, source, Path(file).read_bytes(), killer))
    sys.stdout.write(f"{killer.seen}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
