"""Reads of pending entries, entries in catch-up and the log; proofs; and all of it during catch-up."""

import os
import random
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from tests.core.trees import Tree
from tests.storage.hubs import Client, History, Hub, label_of, leaf_of, receipts
from veen.core import Unavailable
from veen.storage.directory_reader import LogReader, chunk_entries
from veen.storage.frame import AcceptedEntry, CommitGroup, JournalTail
from veen.storage.store import Store


class Full:
    """A hub with one label, with entries in the log, in catch-up and pending."""

    def __init__(self, root: Path, history: History, sizes: tuple[int, int, int]) -> None:
        self.hub = Hub(history.fresh(root))
        self.label = label_of(self.hub.rules, "one")
        client = Client("dan", self.hub.rules)
        self.messages = [client.message(self.label, body=40 + 97 * (n % 9)) for n in range(sum(sizes))]
        self.tree = Tree()
        for message in self.messages:
            self.tree.append(leaf_of(message))
        logged, catching, pending = sizes
        self.sent = 0
        self.send(logged)
        self.hub.catch_up()
        self.send(catching)
        self.tail = self.hub.store.begin_catching_up()
        self.send(pending)

    def send(self, count: int) -> None:
        todo = self.messages[self.sent : self.sent + count]
        self.sent += count
        for at in range(0, count, 7):
            receipts(self.hub.submit(todo[at : at + 7]))


@pytest.mark.parametrize(
    "sizes", [(40, 0, 0), (0, 0, 40), (0, 20, 20), (20, 0, 20), (14, 9, 17), (1, 1, 1), (70, 3, 4)]
)
def test_any_range_is_found_wherever_its_entries_are(
    place: Path, history: History, sizes: tuple[int, int, int]
) -> None:
    full = Full(place / "hub", history, sizes)
    last = sum(sizes)
    rng = random.Random(7)
    assert full.hub.lookup.size(full.label) == last
    for _ in range(150):
        a, b = rng.randint(1, last + 2), rng.randint(0, last + 3)
        found = list(full.hub.lookup.entries(full.label, a, b))
        assert [entry.msg for entry in found] == full.messages[a - 1 : b]
        assert [entry.stream_seq for entry in found] == list(range(a, min(b, last) + 1))
    assert list(full.hub.lookup.entries(bytes(32), 1, 9)) == []
    assert full.hub.lookup.entry(full.label, last + 1) is None
    full.hub.abandon()


@pytest.mark.parametrize("sizes", [(40, 0, 0), (0, 0, 40), (14, 9, 17), (32, 1, 0)])
def test_a_proof_at_any_size_is_that_of_a_tree_in_memory(
    place: Path, history: History, sizes: tuple[int, int, int]
) -> None:
    full = Full(place / "hub", history, sizes)
    for size in range(1, sum(sizes) + 1):
        assert full.hub.lookup.root(full.label, size) == full.tree.roots[size - 1]
        for seq in {1, size, (size + 1) // 2, max(1, size - 3)}:
            found = full.hub.lookup.prove(full.label, seq, size)
            assert found == full.tree.prove(seq, size)
    full.hub.abandon()


def test_a_tree_that_is_not_here_is_unavailable(place: Path, history: History) -> None:
    full = Full(place / "hub", history, (3, 0, 0))
    with pytest.raises(Unavailable, match="are missing"):
        full.hub.lookup.root(bytes(32), 1)
    full.hub.close()
    with LogReader(place / "hub") as reader, pytest.raises(Unavailable, match="are missing"):
        reader.prove(bytes(32), 1, 1)


def test_reading_never_misses_an_entry_while_the_log_catches_up(place: Path, history: History) -> None:
    """One thread reads ranges and proofs while this one commits and catches up."""
    full = Full(place / "hub", history, (0, 0, 0))
    client = Client("eve", full.hub.rules)
    messages = [client.message(full.label) for _ in range(400)]
    wrong: list[object] = []
    sent, stop = [0], threading.Event()

    def read() -> None:
        rng = random.Random(1)
        while not stop.is_set() and not wrong:
            last = sent[0]
            if not last:
                continue
            a = rng.randint(1, last)
            found = [entry.msg for entry in full.hub.lookup.entries(full.label, a, last)]
            if found != messages[a - 1 : last]:
                wrong.append((a, last, len(found)))
            found_proof = full.hub.lookup.prove(full.label, a, last)
            if found_proof.leaf_hash != leaf_of(messages[a - 1]):
                wrong.append((a, last, "proof"))

    thread = threading.Thread(target=read)
    thread.start()
    for at in range(0, len(messages), 5):
        receipts(full.hub.submit(messages[at : at + 5]))
        sent[0] = at + 5
        full.hub.catch_up()
    stop.set()
    thread.join()
    assert wrong == []
    full.hub.close()


def test_a_tail_is_never_seen_twice_nor_empty() -> None:
    """The moment when pending entries are set aside for catch-up."""

    class Between(Store):
        def __init__(self) -> None:
            """Without a directory: only `tails` is used."""
            self.pending = self.catching = JournalTail()

    assert len(Between().tails()) == 1
    tail = JournalTail()
    tail.add_group(CommitGroup([AcceptedEntry(bytes(32), 1, b"", b"", [], b"", 1, 0, 0)]), 1)
    assert [len(records) for records in tail.labels.values()] == [1]


READER = """
import sys
from hashlib import sha256
from pathlib import Path
from veen.storage.directory_reader import LogReader, chunk_entries
label = bytes.fromhex(sys.argv[2])
with LogReader(Path(sys.argv[1])) as reader:
    for line in sys.stdin:
        entries = list(reader.entries(label, 1, 1000))
        root = reader.peaks(label, len(entries))[0] if len(entries).bit_count() == 1 else b""
        digest = sha256(b"".join(entry.msg for entry in entries)).hexdigest()
        sys.stdout.write(f"{reader.head(label).size} {digest} {root.hex()}\\n")
        sys.stdout.flush()
"""


def test_a_reader_in_another_process_sees_what_the_log_has_while_the_hub_runs(place: Path, history: History) -> None:
    full = Full(place / "hub", history, (32, 0, 9))
    command = [sys.executable, "-c", READER, str(place / "hub"), full.label.hex()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as reader:
        assert reader.stdin
        assert reader.stdout
        for size in (32, 41):
            reader.stdin.write("look\n")
            reader.stdin.flush()
            digest = sha256(b"".join(full.messages[:size])).hexdigest()
            root = full.tree.roots[31].hex() if size == 32 else ""
            assert reader.stdout.readline().split() == [str(size), digest, *([root] if root else [])]
            full.hub.catch_up()
        reader.stdin.close()
    full.hub.close()


def test_a_reader_plans_chunks_with_what_verifies_each(place: Path, history: History) -> None:
    full = Full(place / "hub", history, (40, 0, 0))
    full.hub.close()
    with LogReader(place / "hub") as reader:
        chunks = reader.chunks(full.label)
        assert [ref.start_seq for ref in chunks] == sorted(ref.start_seq for ref in chunks)
        assert sum(ref.size for ref in chunks) == sum(ref.path.stat().st_size for ref in chunks)
        for ref in chunks:
            summary = reader.summary(ref)
            if ref.end_seq is None:
                assert summary is None
                continue
            assert summary is not None
            signed = reader.checkpoint(full.label, ref.end_seq)
            assert signed is not None
            assert signed.mmr_root == summary.mmr_root_end == full.tree.roots[ref.end_seq - 1]
        assert reader.checkpoint(full.label, 1) is None
        assert reader.chunks(bytes(32)) == []


def test_a_reader_says_that_no_hub_has_run_yet(place: Path, history: History) -> None:
    with LogReader(history.fresh(place / "hub")) as reader, pytest.raises(Unavailable):
        list(reader.labels())


@pytest.mark.parametrize("kept", ["history", "packed_history"])
def test_a_planned_chunk_is_read_by_itself_also_after_it_was_closed(
    place: Path, request: pytest.FixtureRequest, kept: str
) -> None:
    full = Full(place / "hub", request.getfixturevalue(kept), (18, 0, 15))
    with LogReader(place / "hub") as reader:
        chunks = reader.chunks(full.label)
    assert chunks[-1].end_seq is None
    before = [entry.msg for ref in chunks for entry in chunk_entries(ref)]
    full.hub.catch_up()  # the open chunk is closed, and others follow
    full.hub.close()
    assert not chunks[-1].path.exists()
    assert [entry.msg for ref in chunks for entry in chunk_entries(ref)] == before == full.messages[:18]
    with LogReader(place / "hub") as reader:
        assert [entry.msg for ref in reader.chunks(full.label) for entry in chunk_entries(ref)] == full.messages


def test_a_chunk_that_is_gone_is_unavailable(place: Path, history: History) -> None:
    full = Full(place / "hub", history, (9, 0, 0))
    full.hub.close()
    with LogReader(place / "hub") as reader:
        ref = reader.chunks(full.label)[0]
    ref.path.unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        list(chunk_entries(ref))
