"""Kill a hub under load, harm its journal, start it again: `python -m bench.lost_journal [RUNS] [FIRST_SEED]`.

Each run starts a real hub process. Several senders send at once and keep every receipt. The hub is killed while their
messages are in flight, and the journal is harmed in one of four ways. A hub that starts must have every entry that it
acknowledged. A hub that does not start is recovered, and an entry must be missing then if and only if it is beyond the
size that the recovery states for its label. A message without an answer is either whole in the log, with a valid
receipt, or absent. Then messages are sent again, and all receipts are compared: no key may have signed two entries for
one place. The program prints a table, and exits with status 1 if a run failed.
"""

import http.client
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from plumbing.durable import Disk
from veen.bench.hub_process import HubProcess
from veen.core import Msg, Receipt, SigningKey, Unavailable, msg, naming
from veen.core.envelopes import ErrorEnvelope, ReceiptRequest, ReceiptResponse, SubmitRequest, SubmitResponse
from veen.storage import journal, metadata, recovery
from veen.storage.index import Index
from veen.storage.paths import Folders

KINDS = ("kill", "cut", "delete", "roll back")
STREAMS = 3
SENDERS = 8
_OPTIONS = ("--workers", "0")
_SHOWN_EVERY = 20  # runs


class Sender:
    """A client that keeps every receipt, and the message whose answer did not arrive."""

    def __init__(self, seed: int, data_dir: Path) -> None:
        found = metadata.read_metadata(Folders(data_dir))
        self._rng = rng = random.Random(seed)
        self._profile_id, self._pad = found.profile.profile_id(), found.profile.pad_block
        routing = found.identity.routing_key
        self.labels = [naming.label(routing, naming.stream_id(f"stream {n}"), 0) for n in range(STREAMS)]
        self._key = SigningKey(rng.randbytes(32))
        self._seqs = Counter[bytes]()
        self.receipts: list[Receipt] = []
        self.unanswered: Msg | None = None

    def send(self, hub: HubProcess, count: int | None = None) -> None:
        """Send messages one after another on one connection: so many, or until the hub is killed."""
        connection = http.client.HTTPConnection("127.0.0.1", hub.port)
        while count is None or count > 0:
            message = self._message(self._rng.choice(self.labels))
            try:
                connection.request("POST", "/v1/submit", SubmitRequest(message).encode(), _CBOR)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException):
                if count is not None:
                    raise
                self.unanswered = message
                break
            assert answer.status == 200, body
            self.receipts.append(SubmitResponse.decode(body).receipt)
            count = None if count is None else count - 1
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


class Load:
    """Senders that send at once, each in its own thread, until the hub is killed."""

    def __init__(self, hub: HubProcess, senders: Sequence[Sender]) -> None:
        self._hub = hub
        self._senders = senders
        self._pool = ThreadPoolExecutor(len(senders))
        self._running = [self._pool.submit(sender.send, hub) for sender in senders]

    def kill_after(self, receipts: int) -> None:
        """Kill the hub while messages are in flight, once the senders have that many receipts."""
        try:
            while sum(len(sender.receipts) for sender in self._senders) < receipts:
                ended = [one for one in self._running if one.done()]
                for one in ended:
                    one.result()
                assert not ended, "the hub ended before it was killed"
                time.sleep(0.001)
        finally:
            self._hub.kill()
            self._pool.shutdown()
        for one in self._running:
            one.result()


_CBOR = {"content-type": "application/cbor"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run."""

    kind: str  # how the journal was harmed
    started: bool  # whether the hub started after that, and not only after a recovery
    lost: int  # acknowledged entries that a recovery stated as lost
    unanswered: int  # messages in flight at the kill
    kept: int  # of those, in the log


def run(seed: int, place: Path) -> Outcome:
    """One run. Raises `AssertionError` if the hub lost or changed what it acknowledged."""
    rng = random.Random(seed)
    data_dir, older = HubProcess.init(place / "hub"), place / "older"
    senders = [Sender(rng.getrandbits(64), data_dir) for _ in range(SENDERS)]
    hub = HubProcess(data_dir, *_OPTIONS)
    for sender in senders:
        sender.send(hub, rng.randrange(1, 60 // SENDERS))
    shutil.copytree(data_dir, older)
    if rng.random() < 0.5:
        _wait_for_catch_up(data_dir)
    Load(hub, senders).kill_after(len(_receipts(senders)) + rng.randrange(1, 60))
    acknowledged = _receipts(senders)
    kind = harm(rng, data_dir, older)
    started, stated = True, None
    try:
        hub = HubProcess(data_dir, *_OPTIONS)
    except Unavailable:
        recovered = recovery.recover(Disk(), data_dir, int(time.time()), isolated=False)
        hub, started = HubProcess(data_dir, *_OPTIONS), False
        stated = {row.label: row.size for row in recovered.log.labels}
    with hub:
        lost = _check_lost(hub, acknowledged, stated)
        kept = _check_unanswered(hub, data_dir, senders, stated)
        unanswered = sum(sender.unanswered is not None for sender in senders)
        for sender in senders:
            sender.new_key()
            sender.send(hub, 20 // SENDERS)
    _check_keys(data_dir, _receipts(senders))
    return Outcome(kind, started, lost, unanswered, kept)


def _receipts(senders: Sequence[Sender]) -> list[Receipt]:
    return [receipt for sender in senders for receipt in list(sender.receipts)]


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


def _check_lost(hub: HubProcess, receipts: list[Receipt], stated: dict[bytes, int] | None) -> int:
    """The number of acknowledged entries that are not in the log: none, or after a recovery those that it states."""
    missing = _missing(hub, receipts)
    for receipt in receipts:
        is_stated = stated is not None and receipt.stream_seq > stated.get(receipt.label, 0)
        lost = "lost" if receipt in missing else "not lost"
        assert (receipt in missing) == is_stated, f"entry {receipt.stream_seq} is {lost}; the recovery states {stated}"
    return len(missing)


def _missing(hub: HubProcess, receipts: list[Receipt]) -> set[Receipt]:
    """The receipts of entries that are not in the log. Every other one has the receipt that the hub gave."""
    connection, missing = http.client.HTTPConnection("127.0.0.1", hub.port), set()
    for receipt in receipts:
        request = ReceiptRequest(receipt.label, receipt.stream_seq).encode()
        connection.request("POST", "/v1/receipt", request, _CBOR)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status == 200:
            assert ReceiptResponse.decode(body).receipt == receipt, f"entry {receipt.stream_seq} is another one"
        else:
            assert ErrorEnvelope.decode(body).code == "E.NOT_FOUND", body
            missing.add(receipt)
    connection.close()
    return missing


def _check_unanswered(
    hub: HubProcess, data_dir: Path, senders: Sequence[Sender], stated: dict[bytes, int] | None
) -> int:
    """Each message without an answer is whole in the log, or absent. Returns how many are in it.

    Its sender sent nothing else after it, and no receipt names it, so it is the only entry with its leaf hash. The hub
    answers a repeated message with its place. An absent one is accepted now, unless a recovery lost an earlier message
    of its sender: then its `client_seq` is not the next.
    """
    connection = http.client.HTTPConnection("127.0.0.1", hub.port)
    identity, kept = metadata.read_metadata(Folders(data_dir)).identity, 0
    for sender in senders:
        message = sender.unanswered
        if message is None:
            continue
        size = None if stated is None else stated.get(message.label, 0)
        earlier = [one.stream_seq for one in sender.receipts if one.label == message.label]
        follows_lost = size is not None and max(earlier, default=0) > size
        connection.request("POST", "/v1/submit", SubmitRequest(message).encode(), _CBOR)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status == 200:  # it was absent, and is accepted now
            receipt = SubmitResponse.decode(body).receipt
            assert not follows_lost, "a message was accepted although one before it is lost"
            assert size is None or receipt.stream_seq > size, f"the recovery states entry {receipt.stream_seq}"
        else:
            refused = ErrorEnvelope.decode(body).refused()
            if follows_lost and refused.detail_enum == "CLIENT_SEQ":
                continue
            assert refused.detail_enum == "DUPLICATE", f"an unanswered message is neither whole nor absent: {body!r}"
            place = ReceiptRequest(message.label, int(refused.detail["stream_seq"]))
            connection.request("POST", "/v1/receipt", place.encode(), _CBOR)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, f"the entry of an unanswered message is lost: {body!r}"
            receipt, kept = ReceiptResponse.decode(body).receipt, kept + 1
            assert size is None or receipt.stream_seq <= size, f"the recovery states no entry {receipt.stream_seq}"
        receipt.check_binds(message)
        identity.verify_receipt(receipt)
        sender.receipts.append(receipt)
    connection.close()
    return kept


def _check_keys(data_dir: Path, receipts: list[Receipt]) -> None:
    identity = metadata.read_metadata(Folders(data_dir)).identity
    signed: dict[tuple[bytes, int, bytes], bytes] = {}
    for receipt in receipts:
        place = receipt.label, receipt.stream_seq, identity.verify_receipt(receipt).key_id
        assert signed.setdefault(place, receipt.leaf_hash) == receipt.leaf_hash, f"two entries {receipt.stream_seq}"


def main(runs: int = 200, first_seed: int = 0) -> int:
    found: list[Outcome] = []
    failed = 0
    for done, seed in enumerate(range(first_seed, first_seed + runs), 1):
        # On a disk: a sync takes time there, so that messages are in the journal while their answers are not sent.
        with tempfile.TemporaryDirectory() as folder:
            try:
                found.append(run(seed, Path(folder)))
            except AssertionError as error:
                failed += 1
                print(f"seed {seed}: {error}")
        if done % _SHOWN_EVERY == 0 or done == runs:
            _show(found)
            print(f"{done} runs, {failed} failed", flush=True)
    return 1 if failed else 0


def _show(found: Sequence[Outcome]) -> None:
    """Print the table. The column "lost and stated" counts acknowledged entries."""
    print(
        f"{'harm':10} {'runs':>5} {'nothing lost':>13} {'start refused':>14} {'lost and stated':>16} "
        f"{'in flight':>10} {'of those kept':>14}"
    )
    for kind in KINDS:
        some = [one for one in found if one.kind == kind]
        started = [one for one in some if one.started]
        print(
            f"{kind:10} {len(some):5} {len(started):13} {len(some) - len(started):14} "
            f"{sum(one.lost for one in some):16} {sum(one.unanswered for one in some):10} "
            f"{sum(one.kept for one in some):14}"
        )


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
