"""Every shipped program runs, defaults are as documented, and messages to absent peers are not lost.

Another implementation has programs that no longer build, a test that expects another default, and a probe whose frames
its own lane drops while it reports them as sent.
"""

import asyncio
import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest

import veil
from bench import veil_codec, veil_node
from tests.veil.api_hosts import make, running
from tests.veil.node.net import FEED, Net, drained, feed_object
from veil import ErasureMode, publish_feed
from veil.node import Destination, Subscription
from veil.runtime.data_directory import Settings
from veil.store import DiskStore, MemoryStore
from veil.veil_errors import Malformed

ROOT = Path(__file__).parents[2]
MODULES = [found.name for found in pkgutil.walk_packages(veil.__path__, "veil.") if not found.name.endswith("__main__")]


def test_every_module_imports_and_defines_its_public_names() -> None:
    assert len(MODULES) > 40
    for name in MODULES:
        module = importlib.import_module(name)
        assert [one for one in getattr(module, "__all__", ()) if not hasattr(module, one)] == [], name


def test_types_are_checked_of_every_program_measurement_and_test() -> None:
    """The type checker finds uses of removed names."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    assert (settings["strict"], settings["files"]) == (True, ["."])
    assert settings["exclude"] == ["^build/", "^dist/"]
    excused = [name for one in settings.get("overrides", ()) for name in one["module"]]
    assert not [name for name in excused if name.startswith(("veil", "bench", "tests", "fuzz", "tools"))]


@pytest.mark.parametrize("mode", ErasureMode)
def test_the_measurement_of_objects_runs(mode: ErasureMode) -> None:
    payload = bytes(range(256)) * 256
    made = veil_codec.encode(payload, mode)
    assert veil_codec.decode(made.shards[-made.of.shape.k :]) == payload


@pytest.mark.parametrize("count", [2, 3])
def test_the_measurement_of_a_node_runs_in_memory_and_on_disk(count: int, tmp_path: Path) -> None:
    objects = [publish_feed(bytes([n]) * 6_000, veil_node.SIGNER, 1, veil_node.EPOCH) for n in range(4)]
    for store in (MemoryStore(), DiskStore(tmp_path / "n")):
        assert veil_node.shards_per_second(objects, count, store) > 0


def test_a_node_with_default_settings_listens_only_for_its_owner(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(make(tmp_path, "quiet", Settings())) as node:
            assert node.url.startswith("http://127.0.0.1:")
            assert all(not one["endpoints"] for one in await node.get("/v1/lanes"))

    asyncio.run(work())


@pytest.mark.parametrize("api", ["0.0.0.0:7788", "[::]:7788", "192.0.2.1:7788"])
def test_the_local_api_is_not_put_on_a_network(api: str) -> None:
    with pytest.raises(Malformed, match="needs a loopback address"):
        Settings(api=api).check()


def test_a_message_to_an_absent_peer_stays_queued_and_is_not_reported_as_sent() -> None:
    net = Net()
    node = net.add("a")
    node.publish(Destination.feed(1), b"hello")
    assert node.take("fast", "server") == node.take("any", "any") == ()
    node.note_sent("fast", "server", ok=True)
    assert (len(node.outbound()), net.events("a", "sent")) == (1, [])
    net.add("b").subscribe(Subscription.feed(FEED, 1))
    net.nodes["b"].receive("fast", "server", feed_object().shards[0])
    assert net.nodes["b"].metrics()["frames_in"] == 0
    net.connect("a", "b")
    assert {peer for peer, _ in drained(node)} == {"b"}
