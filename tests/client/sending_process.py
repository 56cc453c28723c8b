"""A client that sends until it is killed: `python -m tests.client.sending_process URL DIR PIN NUMBER`.

It prints `ready` when it is connected, and the body of every message once its send has succeeded.
"""

import asyncio
import random
import sys
from functools import partial
from pathlib import Path

from tests.client.pair import STREAM
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.sender import Draft, Sent
from veen.client.transport import RetryPolicy
from veen.client.trust import Pin


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def send_for_ever(url: str, folder: ClientDir, pin: Pin, number: int) -> None:
    chance = random.Random(number)
    async with Client(url, folder, pin=pin, retry_policy=RetryPolicy(attempts=20, first_wait_s=0.01)) as client:
        say("ready")
        sender = client.sender(STREAM)
        count = 0
        while True:
            burst = chance.choice((1, 1, 3, 40))
            futures = []
            for _ in range(burst):
                count += 1
                body = f"{number}-{count}"
                future = sender.put(Draft(body.encode()))
                future.add_done_callback(partial(_told, body))
                futures.append(future)
            await asyncio.wait(futures)


def _told(body: str, done: "asyncio.Future[Sent]") -> None:
    done.result()
    say(body)


def main(url: str, folder: str, pin: str, number: str) -> None:
    with ClientDir.open(Path(folder)) as opened:
        asyncio.run(send_for_ever(url, opened, Pin.parse(pin), int(number)))


if __name__ == "__main__":
    main(*sys.argv[1:])
