"""A client that is killed at any moment never uses a place for two messages, and keeps every message that it sent."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.client.killable import BOUNDS, frame, read_frame
from tests.client.ledger import Ledger
from veen.client import ClientDir
from veen.client.writer_keys import WriterRequest
from veen.core import Mmr, Msg

LONGEST_LIFE_SEC = 0.12


class Hub:
    """The other end of the pipes: records all messages of the client, and answers them."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.left: dict[tuple[bytes, int], bytes] = {}  # every message that was sent, by its place
        self.leaves: dict[bytes, int] = {}  # stream_seq by leaf_hash
        self.roots: list[bytes] = [Mmr().root()]

    def serve(self, out: int, into: int, sending: threading.Event) -> None:
        """Serve until the client ends. Everything that it wrote before it was killed counts as sent."""
        while (data := read_frame(out)) is not None:
            sending.set()
            answer = self._take(data)
            try:
                os.write(into, frame(answer))
            except BrokenPipeError:
                continue
        sending.set()

    def _take(self, data: bytes) -> bytes:
        message = Msg.decode(data)
        assert self.left.setdefault((message.client_id, message.client_seq), data) == data, "a place was used twice"
        leaf = message.leaf_hash()
        if leaf not in self.leaves:
            self.leaves[leaf] = self.ledger.take(message).stream_seq
            self.roots.append(self.ledger.tree.root())
        return self.ledger.receipts[self.leaves[leaf] - 1].encode()

    def check(self, client: ClientDir) -> None:
        """Check that the client's state matches what it sent and received."""
        place = (self.ledger.hub_id, self.ledger.label)
        waiting = client.outbox.pending(*place)
        places = [(each.msg.client_id, each.msg.client_seq) for each in waiting]
        assert len(set(places)) == len(places)
        for each, key in zip(waiting, places, strict=True):
            assert self.left.get(key, each.encoded) == each.encoded
        known = client.state.label(*place)
        size = known.size if known else 0
        assert size <= self.ledger.tree.size
        assert known is None or known.root == self.roots[size]
        answered = set(self.left) - set(places)
        assert len(answered) == size
        for client_id, client_seq in self.left:
            assert client.writers.state(*place, client_id).last_client_seq >= client_seq
        for receipt in self.ledger.receipts[:size]:
            assert client.state.receipt(*place, receipt.stream_seq) == receipt.encode()
        writer = client.writer(WriterRequest(*place, self.ledger.stream_id, now=0))
        assert (writer.client_id, writer.next_client_seq) not in self.left


def live(hub: Hub, path: Path, rng: random.Random, least: int) -> None:
    """Run a client and kill it while it starts, or after it has sent at least `least` messages."""
    ledger = hub.ledger
    command = [sys.executable, "-m", "tests.client.killable", str(path), ledger.hub_id.hex(), ledger.label.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        sending, failed = threading.Event(), []

        def serve(out: int, into: int) -> None:
            try:
                hub.serve(out, into, sending)
            except BaseException as error:  # noqa: BLE001
                failed.append(error)
                sending.set()

        thread = threading.Thread(target=serve, args=(child.stdout.fileno(), child.stdin.fileno()))
        thread.start()
        if rng.random() < 0.9:
            sending.wait()
        try:
            child.wait(rng.uniform(0, LONGEST_LIFE_SEC))
        except subprocess.TimeoutExpired:
            while len(hub.left) < least and thread.is_alive():
                thread.join(0.01)
            child.kill()
        child.wait()
        thread.join()
        assert failed == []
        assert child.returncode == -signal.SIGKILL


def check_after_kills(path: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    hub = Hub()
    enough = 1 + max(kills, BOUNDS.max_msgs_per_client_id_per_label)
    ClientDir.create(path, None, 0, bounds=BOUNDS).close()
    # The last run lasts until the client needs a second key, because a slow machine sends few messages in a short run.
    for life in range(1, kills + 1):
        live(hub, path, rng, enough if life == kills else 0)
        with ClientDir.open(path, bounds=BOUNDS) as client:
            hub.check(client)
    # Nothing is lost: the outbox has the messages that the hub has not received or not answered.
    assert len(hub.left) > kills
    assert len({client_id for client_id, _ in hub.left}) > 1
    with ClientDir.open(path, bounds=BOUNDS) as client:
        waiting = client.outbox.pending(hub.ledger.hub_id, hub.ledger.label)
        hub.ledger.take_all([each for each in waiting if each.leaf_hash not in hub.leaves])
        known = client.state.label(hub.ledger.hub_id, hub.ledger.label)
        assert hub.ledger.tree.size == (known.size if known else 0) + len(waiting)


def test_no_place_is_used_twice_when_the_client_is_killed(tmp_path: Path) -> None:
    check_after_kills(tmp_path / "client", kills=4, seed=1)


@pytest.mark.slow
def test_no_place_is_used_twice_however_often_the_client_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("VEEN_KILL_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")  # shown if the test fails
    check_after_kills(tmp_path / "client", kills=100, seed=seed)
