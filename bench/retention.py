"""Prune nine tenths of a large log while a hub serves it: `python -m bench.retention [ENTRIES] [SECONDS]`.

It builds a log, saves receipts, proofs and a checkpoint, and starts a real hub. It measures how many messages the hub
accepts per second without and with a retention run, then prunes payloads and later receipts, verifies every saved
statement again, and prints bytes per entry.
"""

import http.client
import os
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread

from bench.big_log import BORN, BigLog
from veen.bench.hub_process import HubProcess
from veen.core import Checkpoint, MmrProof, Receipt, SigningKey, msg, naming, proof
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ProofAtRequest,
    ProofAtResponse,
    ReceiptRequest,
    ReceiptResponse,
)
from veen.core.proof import Leaf
from veen.core.retention import RetentionPolicy, RetentionReport, RetentionRequest
from veen.storage import metadata
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders

TOKEN = "operator-of-the-benchmark"
SAVED = 200
_PER_SEC = 50  # of BigLog
_BATCH = 200
_CBOR = {"content-type": "application/cbor"}


class Api:
    """Requests to the hub on one connection."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port)

    def post(self, path: str, body: bytes) -> bytes:
        self._http.request("POST", path, body, {**_CBOR, "authorization": f"Bearer {TOKEN}"})
        answer = self._http.getresponse()
        data = answer.read()
        assert answer.status == 200, (path, answer.status, data)
        return data


class Load:
    """A client that sends batches until it is stopped."""

    def __init__(self, port: int, found: HubMetadata, label: bytes) -> None:
        self._api = Api(port)
        self._profile, self._label = found.profile, label
        self._key, self._seq = SigningKey.generate(), 0
        self._stop = Event()
        self.accepted = 0
        self._thread = Thread(target=self._run)

    def rate(self, seconds: float) -> float:
        """Messages per second over a time from now on."""
        before, start = self.accepted, time.monotonic()
        time.sleep(seconds)
        return (self.accepted - before) / (time.monotonic() - start)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._api.post("/tooling/submit-batch", b"".join(self._message() for _ in range(_BATCH)))
            self.accepted += _BATCH

    def _message(self) -> bytes:
        self._seq += 1
        sealed = os.urandom(32) + (16).to_bytes(4, "big") + (400).to_bytes(4, "big") + os.urandom(416)
        return msg.sign(
            self._key,
            profile_id=self._profile.profile_id(),
            label=self._label,
            client_seq=self._seq,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed + bytes(-len(sealed) % self._profile.pad_block),
        ).encode()


def saved(api: Api, label: bytes, size: int) -> tuple[Checkpoint, list[tuple[Receipt, MmrProof]]]:
    """A checkpoint of everything, and receipts with their proofs in it, evenly over the log."""
    signed = CheckpointResponse.decode(api.post("/v1/checkpoint", CheckpointRequest(label, size).encode())).checkpoint
    found = []
    for seq in range(1, size + 1, max(1, size // SAVED)):
        receipt = ReceiptResponse.decode(api.post("/v1/receipt", ReceiptRequest(label, seq).encode())).receipt
        found.append((receipt, proved(api, label, seq, size)))
    return signed, found


def proved(api: Api, label: bytes, seq: int, size: int) -> MmrProof:
    return ProofAtResponse.decode(api.post("/tooling/proof", ProofAtRequest(label, seq, size).encode())).mmr_proof


def log_bytes(root: Path, label: bytes) -> int:
    names = [f"chunk-{label.hex()}-*", f"manifest-{label.hex()}*"]
    return sum(path.stat().st_size for name in names for path in (root / "log").glob(name))


def prune(api: Api, policy: RetentionPolicy) -> tuple[RetentionReport, float]:
    api.post("/tooling/retention/policy", policy.encode())
    start = time.monotonic()
    report = RetentionReport.decode(api.post("/tooling/retention/run", RetentionRequest(False).encode()))
    return report, time.monotonic() - start


def main(entries: int, seconds: float, folder: Path) -> None:
    BigLog(folder / "hub").grow(entries)
    measure(folder / "hub", entries, seconds)


def measure(root: Path, entries: int, seconds: float) -> None:
    found = metadata.read_metadata(Folders(root))
    label, other = (naming.label(found.identity.routing_key, naming.stream_id(one), 0) for one in ("stream 0", "load"))
    os.environ["VEEN_OPERATOR_TOKEN"] = TOKEN
    ages = time.time() - BORN - entries * 0.9 / _PER_SEC
    with HubProcess(root, "--max-start-gap", str(1 << 31)) as hub:
        api = Api(hub.port)
        signed, before = saved(api, label, entries)
        sizes = [log_bytes(root, label)]
        with Load(hub.port, found, other) as load:
            load.rate(2.0)
            normal = load.rate(seconds)
            runs: list[tuple[RetentionReport, float]] = []
            worker = Thread(target=lambda: runs.append(prune(Api(hub.port), RetentionPolicy(int(ages)))))
            start, first = time.monotonic(), load.accepted
            worker.start()
            worker.join()
            during = (load.accepted - first) / (time.monotonic() - start)
            again = load.rate(seconds)
        sizes.append(log_bytes(root, label))
        report, took = runs[0]
        api = Api(hub.port)  # the hub closes a connection that was idle during the run
        prune(api, RetentionPolicy(int(ages), int(ages)))
        sizes.append(log_bytes(root, label))
        for receipt, inclusion in before:
            found.identity.verify_receipt(receipt)
            proof.verify_inclusion(inclusion, Leaf.of(receipt), signed)
            proof.verify_inclusion(proved(api, label, receipt.stream_seq, entries), Leaf.of(receipt), signed)
        found.identity.verify_checkpoint(signed, found.profile)
    pruned = sum(one.end_seq - one.start_seq + 1 for one in report.ranges)
    print(f"entries                        {entries}")
    print(f"pruned                         {pruned} ({pruned / entries:.0%}) in {took:.0f} s")
    for what, size in zip(("before", "without payloads", "without receipts"), sizes, strict=True):
        print(f"bytes per entry, {what:<14}{size / entries:.0f}")
    print(f"messages per second            {normal:.0f} before, {during:.0f} during, {again:.0f} after the run")
    print(f"during / mean of before, after {during / ((normal + again) / 2):.2f}")
    print(f"receipts and proofs verified   {len(before)} saved ones, and as many new proofs")


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:3]]
    with tempfile.TemporaryDirectory(prefix="veen-retention-") as place:
        main(given[0] if given else 1_000_000, given[1] if len(given) > 1 else 10.0, Path(place))
