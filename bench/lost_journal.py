"""Kill a hub under load, harm its journal, start it again: `python -m bench.lost_journal [RUNS] [FIRST_SEED]`.

Each run starts a real hub process, sends messages and keeps every receipt, kills the hub, and harms the journal in one
of four ways. A hub that starts must have every entry. One that does not start is recovered. Then messages are sent
again, and all receipts are compared: no key may have signed two entries for one place. The program prints a table, and
exits with status 1 if a run failed.
"""

import http.client
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from plumbing.durable import Disk
from veen.bench.hub_process import HubProcess
from veen.core import Msg, Receipt, SigningKey, Unavailable, msg, naming
from veen.core.envelopes import ReceiptRequest, ReceiptResponse, SubmitRequest, SubmitResponse
from veen.storage import journal, metadata, recovery
from veen.storage.index import Index
from veen.storage.paths import Folders

KINDS = ("kill", "cut", "delete", "roll back")
STREAMS = 3
_OPTIONS = ("--workers", "0")
_SHOWN_EVERY = 20  # runs
_MEMORY = Path("/dev/shm")  # a killed process loses nothing there, and a sync takes no time


class Writer:
    """A client that keeps every receipt."""

    def __init__(self, rng: random.Random, data_dir: Path) -> None:
        found = metadata.read_metadata(Folders(data_dir))
        self._rng = rng
        self._profile_id, self._pad = found.profile.profile_id(), found.profile.pad_block
        routing = found.identity.routing_key
        self.labels = [naming.label(routing, naming.stream_id(f"stream {n}"), 0) for n in range(STREAMS)]
        self._key = SigningKey(rng.randbytes(32))
        self._seqs = Counter[bytes]()
        self.receipts: list[Receipt] = []

    def send(self, hub: HubProcess, count: int) -> None:
        """Send messages one by one on one connection."""
        connection = http.client.HTTPConnection("127.0.0.1", hub.port)
        for _ in range(count):
            message = self._message(self._rng.choice(self.labels))
            connection.request("POST", "/v1/submit", SubmitRequest(message).encode(), _CBOR)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            self.receipts.append(SubmitResponse.decode(body).receipt)
        connection.close()

    def new_key(self) -> None:
        """Continue as another client: the hub may have lost messages of this one."""
        self._key, self._seqs = SigningKey(self._rng.randbytes(32)), Counter()

    def _message(self, label: bytes) -> Msg:
        self._seqs[label] += 1
        size = self._rng.choice((40, 40, 400, 4000))
        sealed = self._rng.randbytes(32) + (16).to_bytes(4, "big") + size.to_bytes(4, "big")
        sealed += self._rng.randbytes(16 + size)
        sealed += bytes(-len(sealed) % self._pad) if self._pad else b""
        return msg.sign(
            self._key,
            profile_id=self._profile_id,
            label=label,
            client_seq=self._seqs[label],
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed,
        )


_CBOR = {"content-type": "application/cbor"}


def run(seed: int, place: Path) -> tuple[str, str, int]:
    """One run. Returns how the journal was harmed, what became of the hub, and how many entries were lost."""
    rng = random.Random(seed)
    data_dir, older = HubProcess.init(place / "hub"), place / "older"
    writer = Writer(rng, data_dir)
    hub = HubProcess(data_dir, *_OPTIONS)
    writer.send(hub, rng.randrange(1, 60))
    shutil.copytree(data_dir, older)
    if rng.random() < 0.5:
        _wait_for_catch_up(data_dir)
    writer.send(hub, rng.randrange(1, 60))
    hub.kill()
    kind = harm(rng, data_dir, older)
    outcome, lost = "started", 0
    try:
        hub = HubProcess(data_dir, *_OPTIONS)
    except Unavailable:
        done = recovery.recover(Disk(), data_dir, int(time.time()), isolated=False)
        outcome, lost = "refused", len(writer.receipts) - done.entries
        hub = HubProcess(data_dir, *_OPTIONS)
    else:
        _check_all(hub, writer.receipts)
    writer.new_key()
    writer.send(hub, 20)
    hub.stop()
    _check_keys(data_dir, writer.receipts)
    return kind, outcome, lost


def _wait_for_catch_up(data_dir: Path) -> None:
    while not any((data_dir / "log").iterdir()):
        time.sleep(0.01)


def harm(rng: random.Random, data_dir: Path, older: Path) -> str:
    """Lose a part of the journal. `older` is a copy of the directory from before. Returns how."""
    kind = rng.choice(KINDS)
    paths = [path for _, path in journal.segments(data_dir / "journal")]
    match kind:
        case "cut":
            os.truncate(paths[-1], rng.randrange(paths[-1].stat().st_size))
        case "delete":
            for path in rng.sample(paths, rng.randint(1, len(paths))):
                path.unlink()
        case "roll back":
            shutil.rmtree(data_dir / "journal")
            shutil.copytree(older / "journal", data_dir / "journal")
            # If the log has nothing that the older journal lacks, this is the older directory: only clients can notice.
            if rng.random() < 0.5 and _applied(data_dir) > _last_group(older):
                shutil.copy(older / "journal.mark", data_dir / "journal.mark")
    if rng.random() < 0.3:
        shutil.rmtree(data_dir / "index")
    return kind


def _applied(data_dir: Path) -> int:
    """The last group that the log has."""
    index = Index(data_dir / "index", readonly=True)
    try:
        with index.read() as rows:
            return rows.number("applied")
    finally:
        index.close()


def _last_group(data_dir: Path) -> int:
    """The last group that the journal or the log of a copy has."""
    groups = (found for found in journal.read(data_dir / "journal", 0) if not isinstance(found, journal.Torn))
    return max((group for group, _ in groups), default=_applied(data_dir))


def _check_all(hub: HubProcess, receipts: list[Receipt]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", hub.port)
    for receipt in receipts:
        request = ReceiptRequest(receipt.label, receipt.stream_seq).encode()
        connection.request("POST", "/v1/receipt", request, _CBOR)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, f"entry {receipt.stream_seq} is lost: {body!r}"
        assert ReceiptResponse.decode(body).receipt == receipt, f"entry {receipt.stream_seq} is another one"
    connection.close()


def _check_keys(data_dir: Path, receipts: list[Receipt]) -> None:
    identity = metadata.read_metadata(Folders(data_dir)).identity
    signed: dict[tuple[bytes, int, bytes], bytes] = {}
    for receipt in receipts:
        place = receipt.label, receipt.stream_seq, identity.verify_receipt(receipt).key_id
        assert signed.setdefault(place, receipt.leaf_hash) == receipt.leaf_hash, f"two entries {receipt.stream_seq}"


def main(runs: int = 200, first_seed: int = 0) -> int:
    rows: Counter[tuple[str, str]] = Counter()
    lost: Counter[str] = Counter()
    failed = 0
    for done, seed in enumerate(range(first_seed, first_seed + runs), 1):
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
            try:
                kind, outcome, count = run(seed, Path(folder))
            except AssertionError as error:
                failed += 1
                print(f"seed {seed}: {error}")
            else:
                rows[kind, outcome] += 1
                lost[kind] += count
        if done % _SHOWN_EVERY == 0 or done == runs:
            _show(rows, lost)
            print(f"{done} runs, {failed} failed", flush=True)
    return 1 if failed else 0


def _show(rows: Counter[tuple[str, str]], lost: Counter[str]) -> None:
    print(f"{'harm':10} {'runs':>5} {'nothing lost':>13} {'start refused':>14} {'lost and stated':>16}")
    for kind in KINDS:
        started, refused = rows[kind, "started"], rows[kind, "refused"]
        print(f"{kind:10} {started + refused:5} {started:13} {refused:14} {lost[kind]:16}")


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
