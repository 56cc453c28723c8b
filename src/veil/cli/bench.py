"""`veil bench`: the speed of encoding, decoding and shard intake on this machine."""

import os
import random
import time
from collections.abc import Callable
from typing import Annotated

import typer

from plumbing.cli import durations
from plumbing.cli.command import command, single
from veil import (
    NATIVE,
    Address,
    Inbox,
    NamespacePolicy,
    SharedKey,
    SigningKey,
    open_object,
    publish,
    publish_feed,
    receive,
)
from veil.cli import output
from veil.cli.exit_status import MISSED_STATUS
from veil.cli.options import JsonOption
from veil.store import MemoryStore
from veil.tags import feed_tag

app = single("bench")

_MIB = 1 << 20
PROMISED_MIB_S = 50.0
PROMISED_SHARDS_S = 5_000.0
_INTAKE_SHARDS = 2_000


def _per_second(work: Callable[[], object], seconds: float) -> float:
    """Runs per second of CPU time of this process, so other processes do not change the result."""
    count, started = 0, time.process_time()
    while (spent := time.process_time() - started) < seconds or not count:
        work()
        count += 1
    return count / spent


@command(app, "bench", "veil bench", "veil bench --seconds 3 --json")
def bench(
    seconds: Annotated[float, durations.option("--seconds", least=0.1, most=60, help="CPU time per measurement")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Measure encoding, decoding and shard intake on this machine.

    The measurements use one core, in this process. The exit status is 9 if a measurement is below the promised rate.
    """

    encode, decode = _codec(seconds)
    rows = [
        ("encode objects of 64 KiB", round(encode, 1), "MiB/s", PROMISED_MIB_S),
        ("decode objects of 64 KiB", round(decode, 1), "MiB/s", PROMISED_MIB_S),
        ("receive shards of 4 KiB", round(_intake(), 0), "shards/s", PROMISED_SHARDS_S),
    ]
    output.table(("what", "measured", "unit", "promised"), rows, as_json)
    if any(measured < promised for _, measured, _, promised in rows):
        raise typer.Exit(MISSED_STATUS)


def _codec(seconds: float) -> tuple[float, float]:

    payload, address, key = os.urandom(64 << 10), Address(os.urandom(32), 40, 20_000), SharedKey.generate()
    made = publish(payload, address, key)

    def decode() -> None:
        inbox, whole = Inbox(NATIVE), None
        for shard in made.shards[-made.of.shape.k :]:
            whole = inbox.add(NATIVE.decode_shard(shard), 0) or whole
        assert whole is not None
        open_object(receive(whole.of, whole.encoded, NamespacePolicy()), key)

    size = len(payload) / _MIB
    return size * _per_second(lambda: publish(payload, address, key), seconds), size * _per_second(decode, seconds)


def _intake() -> float:
    """Shards per second of CPU time that a node receives from a peer, of signed objects in a subscribed feed."""

    from veil.node import Identity, LaneSpec, Node, NodeConfig, Subscription

    signer, now = SigningKey.generate(), time.time()
    config = NodeConfig(lanes=(LaneSpec("bench"),))
    frames: list[bytes] = []
    while len(frames) < _INTAKE_SHARDS:
        frames.extend(publish_feed(os.urandom(6 << 10), signer, 1, config.epochs.at(now)).shards)
    node = Node(config, MemoryStore(), Identity.generate(), clock=lambda: now, random=random.Random(1))
    node.subscribe(Subscription.feed(feed_tag(signer.public_key, 1), 1))
    node.connected("bench", "peer")
    started = time.process_time()
    for frame in frames:
        node.receive("bench", "peer", frame)
    spent = time.process_time() - started
    assert node.metrics()["objects_delivered"] == len(frames) // 3
    return len(frames) / spent
