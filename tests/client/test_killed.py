"""A client that is killed at any moment uses no place for two messages, and every successful send is in the log."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.client.pair import STREAM, Pair, pair, read_all
from tests.client.recorder import Recorder
from tests.hub.client import Hub, make_dir, running
from veen.client.client import Client
from veen.client.trust import Pin
from veen.core import Msg, Place, SigningKey, msg


def check_after_kills(place: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    succeeded: list[bytes] = []
    with pair(place) as people, running(make_dir(place)) as hub:
        with Recorder(hub.port) as recorder:
            for number in range(kills):
                # First after a fixed time, so that it may die before any success; later after some successes.
                after = 0 if number % 3 == 0 else moments.randrange(1, 60)
                succeeded += _one_life(people, hub, recorder, number, after, moments.uniform(0.0, 0.05))
        entries = asyncio.run(_afterwards(people, hub))
    assert len(succeeded) > kills
    assert len(entries) == len(set(entries)), "a message is in the log twice"
    assert not set(succeeded) - set(entries), "a message that was reported as sent is not in the log"
    _check_places(recorder.messages)


def _one_life(people: Pair, hub: Hub, recorder: Recorder, number: int, after: int, seconds: float) -> list[bytes]:
    """The successes that one process reported. It is killed after `after` successes and `seconds`."""
    hub_id = hub.service.hub_metadata.identity.hub_id.hex()
    url = f"http://127.0.0.1:{recorder.port}"
    command = [sys.executable, "-m", "tests.client.sending_process", url, str(people.writer_dir.path), hub_id]
    process = subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        said = "".join(process.stdout.readline() for _ in range(after))
        timer = threading.Timer(seconds, process.send_signal, [signal.SIGKILL])
        timer.start()
        said += process.stdout.read()
        timer.join()
    assert process.returncode == -signal.SIGKILL
    # An incomplete last line was cut off by the kill and does not count as reported.
    return [line.encode() for line in said.split("\n")[:-1]]


async def _afterwards(people: Pair, hub: Hub) -> list[bytes]:
    """The log after the outbox of the last process was sent."""
    people.url, people.pin = f"http://127.0.0.1:{hub.port}", Pin(key=hub.service.hub_metadata.identity.hub_id)
    async with people.writer() as writer, people.reader() as reader:
        await writer.recover()
        assert people.writer_dir.outbox.places() == ()
        assert (await writer.resync(STREAM)).size == await _size(reader)
        return [entry.body or b"" for entry in await read_all(reader)]


async def _size(client: Client) -> int:
    return await client.follower(STREAM).end()


def _check_places(sent: list[bytes]) -> None:
    """No key used a pair of client_seq and nonce for two messages."""
    places: dict[tuple[bytes, int, bytes], set[bytes]] = {}
    seqs: dict[tuple[bytes, bytes, int], set[bytes]] = {}
    for encoded in set(sent):
        message = Msg.decode(encoded)
        nonce = Place.of(message).nonce()
        places.setdefault((message.client_id, message.client_seq, nonce), set()).add(encoded)
        seqs.setdefault((message.label, message.client_id, message.client_seq), set()).add(encoded)
    assert places
    assert {len(found) for found in places.values()} == {1}
    assert {len(found) for found in seqs.values()} == {1}


def test_a_place_used_for_two_messages_would_be_noticed() -> None:
    key = SigningKey(b"\x01" * 32)
    one, other = (
        msg.sign(
            key,
            profile_id=bytes(32),
            label=bytes(32),
            client_seq=1,
            prev_ack=0,
            auth_ref=None,
            ciphertext=bytes([fill]) * 300,
        ).encode()
        for fill in (1, 2)
    )
    _check_places([one, one])
    with pytest.raises(AssertionError):
        _check_places([one, other])


def test_a_killed_client_never_uses_a_place_twice(place: Path) -> None:
    check_after_kills(place, kills=3, seed=1)


@pytest.mark.slow
def test_a_client_that_is_killed_a_hundred_times_never_uses_a_place_twice(place: Path) -> None:
    seed = int(os.environ.get("VEEN_KILL_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")  # shown if the test fails
    check_after_kills(place, kills=100, seed=seed)
