"""Real nodes in one process, with a manual clock and links whose losses the test controls."""

from collections.abc import Callable
from random import Random

from veil import DeliveryKey, NamespacePolicy, Published, SigningKey, publish_feed
from veil.node import Event, Identity, Node, NodeConfig, StoreFault, Subscription
from veil.store import MemoryStore, Store
from veil.tags import feed_tag

EPOCH = 20_000
START = EPOCH * 86_400.0 + 43_200.0
SIGNER = SigningKey(b"\x33" * 32)
FEED = feed_tag(SIGNER.public_key, 1)
POLICY = NamespacePolicy()
Lose = Callable[[str, str, str, bytes], bool]


def identity(number: int) -> Identity:
    return Identity(SigningKey(bytes([number]) * 32), DeliveryKey(bytes([number + 100]) * 32))


def feed_object(payload: bytes = b"hello", namespace: int = 1) -> Published:
    return publish_feed(payload, SIGNER, namespace, EPOCH)


def payload_of(size: int, number: int = 0) -> bytes:
    return Random(number).randbytes(size)


class Net:
    """Nodes by name, with one clock."""

    def __init__(self) -> None:
        self.now = START
        self.nodes: dict[str, Node] = {}
        self.stores: dict[str, Store] = {}
        self.identities: dict[str, Identity] = {}
        self.sent: list[tuple[str, str, str, bytes]] = []
        self.lose: Lose = lambda source, to, lane, frame: False

    def add(
        self,
        name: str,
        config: NodeConfig | None = None,
        store: Store | None = None,
        on_store: Callable[[StoreFault | None], None] | None = None,
    ) -> Node:
        self.stores[name] = store or MemoryStore()
        self.identities.setdefault(name, identity(len(self.identities) + 1))
        settings = config or NodeConfig()
        rng = Random(name)
        node = Node(
            settings,
            self.stores[name],
            self.identities[name],
            clock=lambda: self.now,
            random=rng,
            on_store=on_store,
        )
        self.nodes[name] = node
        return node

    def connect(self, one: str, other: str, lane: str = "fast") -> None:
        self.nodes[one].connected(lane, other, self.identities[other].signing.public_key)
        self.nodes[other].connected(lane, one, self.identities[one].signing.public_key)

    def disconnect(self, one: str, other: str, lane: str = "fast") -> None:
        self.nodes[one].disconnected(lane, other)
        self.nodes[other].disconnected(lane, one)

    def pump(self) -> None:
        """Transfer frames until no node has any."""
        busy = True
        while busy:
            busy = False
            for name, node in list(self.nodes.items()):
                for lane, peer in node.ready():
                    for frame in node.take(lane, peer):
                        busy = True
                        self.sent.append((name, peer, lane, frame))
                        if peer in self.nodes and not self.lose(name, peer, lane, frame):
                            self.nodes[peer].receive(lane, name, frame)

    def advance(self, seconds: float, step: float = 0.25) -> None:
        end = self.now + seconds
        self.pump()
        while self.now < end:
            self.now = min(self.now + step, end)
            for node in list(self.nodes.values()):
                node.tick()
            self.pump()

    def delivered(self, name: str) -> list[bytes]:
        return [payload(event) for event in self.events(name, "delivered")]

    def events(self, name: str, kind: str) -> list[Event]:
        return [event for event in self.nodes[name].events(0, 10_000) if event.kind == kind]


def payload(event: Event) -> bytes:
    found = event.data["payload"]
    assert isinstance(found, bytes)
    return found


def reader_node(config: NodeConfig | None = None, store: Store | None = None) -> tuple[Net, Node]:
    """A node `n` that subscribes to a feed, with peers p, q, r and s. The test sends and receives their frames."""
    net = Net()
    node = net.add("n", config, store)
    node.subscribe(Subscription.feed(FEED, 1))
    for name in ("p", "q", "r", "s"):
        node.connected("fast", name)
    drained(node)
    return net, node


def drained(node: Node) -> list[tuple[str, bytes]]:
    """All frames that a node sends now, with their peers."""
    sent: list[tuple[str, bytes]] = []
    while node.ready():
        sent += [(peer, frame) for lane, peer in node.ready() for frame in node.take(lane, peer)]
    return sent
