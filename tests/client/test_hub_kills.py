"""A hub that is killed repeatedly while clients keep running: nothing is lost, and the hub is not accused of a lie."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.pair import STREAM, Pair, pair, read_all
from tests.hub.client import own_port
from veen.client.client import Client
from veen.client.transport import RetryPolicy
from veen.client.trust import Pin

HUB = [sys.executable, "-m", "veen.cli", "hub"]
PATIENT = RetryPolicy(attempts=2_000, first_wait_s=0.01, longest_wait_s=0.1)


class KilledHub:
    """A hub process on one port."""

    def __init__(self, data_dir: Path, port: int) -> None:
        self._data_dir, self._port = data_dir, port
        subprocess.run([*HUB, "init", "--no-root", "--data-dir", str(data_dir)], check=True, capture_output=True)
        self.start()

    def start(self) -> None:
        options = ["--foreground", "--data-dir", str(self._data_dir), "--admission", "open", "--workers", "0"]
        command = [*HUB, "start", *options, "--listen", f"127.0.0.1:{self._port}"]
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self._data_dir.parent)}  # keep its leftovers in the test folder
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        assert self._process.stderr is not None
        assert json.loads(self._process.stderr.readline())["event"] == "started"

    def kill(self) -> None:
        with self._process:  # closes its pipe
            self._process.send_signal(signal.SIGKILL)


async def _write(client: Client, name: str, done: asyncio.Event) -> list[bytes]:
    sent: list[bytes] = []
    while not done.is_set():
        body = f"{name}-{len(sent)}".encode()
        await client.send(STREAM, body)
        sent.append(body)
    return sent


async def _follow(client: Client, heard: list[bytes]) -> None:
    async for entry in client.read(STREAM, follow=True):
        heard.append(entry.body or b"")


async def _under_fire(people: Pair, hub: KilledHub, kills: int, moments: random.Random) -> None:
    heard: list[bytes] = []
    done = asyncio.Event()
    async with people.writer(retry_policy=PATIENT) as one, people.reader(retry_policy=PATIENT) as other:
        writing = [asyncio.create_task(_write(client, name, done)) for client, name in ((one, "a"), (other, "b"))]
        following = asyncio.create_task(_follow(other, heard))
        for _ in range(kills):
            await asyncio.wait([following, *writing], timeout=moments.uniform(0.1, 0.6))
            await asyncio.to_thread(hub.kill)
            await asyncio.to_thread(hub.start)
        done.set()
        sent = [body for bodies in await asyncio.gather(*writing) for body in bodies]
        # The follower must receive the last message as well.
        while set(sent) - set(heard) and not following.done():
            await asyncio.wait([following], timeout=0.05)
        following.cancel()
        await asyncio.wait([following])
        assert following.cancelled()
        log = [entry.body for entry in await read_all(other)]
        assert len(log) == len(set(log))
        assert not set(sent) - set(log)
        assert heard == log[: len(heard)]
        assert list(people.writer_dir.evidence.iterdir()) == list(people.reader_dir.evidence.iterdir()) == []


def check_after_kills(place: Path, kills: int, seed: int) -> None:
    with own_port() as port:
        hub = KilledHub(place / "hub", port)
        try:
            with pair(place) as people:
                people.url = f"http://127.0.0.1:{port}"
                people.pin = Pin.of_file(place / "hub")
                asyncio.run(_under_fire(people, hub, kills, random.Random(seed)))
        finally:
            hub.kill()


def test_a_killed_hub_is_waited_for_and_not_accused(place: Path) -> None:
    check_after_kills(place, kills=2, seed=1)


@pytest.mark.slow
def test_a_hub_that_is_killed_thirty_times_is_waited_for_and_not_accused(place: Path) -> None:
    seed = int(os.environ.get("VEEN_KILL_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")  # shown if the test fails
    check_after_kills(place, kills=30, seed=seed)
