"""A VEIL node that receives shards of 4 KiB: request, forward, reassemble, open, deliver, store."""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

from veen.bench.bench_report import BenchReport, BenchRow
from veil import Published, SigningKey, publish_feed
from veil.node import Identity, Node, NodeConfig, Subscription, Tier
from veil.store import DiskStore, MemoryStore, Store
from veil.tags import feed_tag

LEAST_SHARDS_S = 5_000
OBJECTS = 1_000
ROUNDS = 5
PAYLOAD_BYTES = 6 * 1024  # cut into three shards of 4 KiB; any two restore it
EPOCH = 20_000
NOW = EPOCH * 86_400.0 + 43_200.0
_PEERS = ("a", "b", "c", "d")
SIGNER = SigningKey.generate()
_TICK_EVERY = 64


def node(store: Store) -> Node:
    """A node with four peers that reads one feed. Its clock runs in real time."""
    started = perf_counter()
    config, chance = NodeConfig(), random.Random(1)
    made = Node(config, store, Identity.generate(), clock=lambda: NOW + perf_counter() - started, random=chance)
    made.set_tier(SIGNER.public_key, Tier.TRUSTED)
    made.subscribe(Subscription.feed(feed_tag(SIGNER.public_key, 1), 1))
    for peer in _PEERS:
        made.connected("fast", peer, SIGNER.public_key)
    return made


def shards_per_second(objects: list[Published], count: int, store: Store) -> float:
    """Shards received per CPU second, with `count` shards of each object from random peers."""
    one, chance = node(store), random.Random(2)
    frames = [(chance.choice(_PEERS), shard) for made in objects for shard in chance.sample(made.shards, count)]
    started = process_time()
    for number, (peer, frame) in enumerate(frames):
        one.receive("fast", peer, frame)
        if not number % _TICK_EVERY:
            one.tick()
            for link in one.ready():
                one.take(*link)
    spent = process_time() - started
    assert one.metrics()["objects_delivered"] == len(objects)
    one.close()
    return len(frames) / spent


def measure() -> BenchReport:
    chance = random.Random(3)
    objects = [publish_feed(chance.randbytes(PAYLOAD_BYTES), SIGNER, 1, EPOCH) for _ in range(OBJECTS)]
    shape = objects[0].of.shape
    assert shape.bucket_size == 4 * 1024

    def rounds(count: int, store: Callable[[], Store]) -> list[float]:
        return [shards_per_second(objects, count, store()) for _ in range(ROUNDS)]

    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(2 * ROUNDS))
        on_disk = [rounds(count, lambda: DiskStore(Path(folder) / str(next(numbers)))) for count in (shape.n, shape.k)]
    rows = (
        BenchRow.of("all shards of each object, in memory", rounds(shape.n, MemoryStore), "/s", least=LEAST_SHARDS_S),
        BenchRow.of("all shards of each object, on disk", on_disk[0], "/s"),
        BenchRow.of("only as many as are needed, in memory", rounds(shape.k, MemoryStore), "/s", least=LEAST_SHARDS_S),
        BenchRow.of("only as many as are needed, on disk", on_disk[1], "/s"),
    )
    notes = (f"{OBJECTS} signed objects of {PAYLOAD_BYTES} bytes, passed on to peers; seconds are those of one core",)
    return BenchReport("veil-node", rows, notes)
