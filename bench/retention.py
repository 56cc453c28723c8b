"""Prune nine tenths of a large log while a hub serves it: `python -m bench.retention [ENTRIES] [SECONDS] [RUNS]`.

It builds a log of several streams and starts a real hub. It saves receipts, proofs, checkpoints and evidence as files.
Then it prunes one stream after the other under load, and measures the accepted messages per second during each run and
for some seconds before and after it, because the speed of a machine changes. It prunes receipts, too, verifies every
saved file, and prints bytes per entry.
"""

import http.client
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from threading import Event, Thread

from bench.big_log import BORN, BigLog
from veen.bench.hub_process import HubProcess
from veen.client import evidence
from veen.client.evidence import Exhibit, Tie
from veen.client.trust import HubRecord
from veen.core import Checkpoint, Limits, MmrProof, Receipt, SigningKey, msg, naming, proof
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ClockAcceptance,
    ProofAtRequest,
    ProofAtResponse,
    StreamRequest,
    StreamResponse,
)
from veen.core.proof import Leaf
from veen.core.retention import RetentionPolicy, RetentionReport, RetentionRequest
from veen.storage import metadata
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders, pruned_range

TOKEN = "operator-of-the-benchmark"
SAVED = 20  # of each stream
_PER_SEC = 5  # so slow that nothing else becomes due while this runs
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


def saved(api: Api, found: HubMetadata, labels: list[bytes], sizes: dict[bytes, int], place: Path) -> None:
    """Files that clients may have: receipts, proofs and evidence evenly over each log, and a checkpoint of each."""
    known = HubRecord(found.identity, found.signature, found.profile, found.limits)
    place.mkdir()
    for label in labels:
        size = sizes[label]
        request = CheckpointRequest(label, size)
        signed = CheckpointResponse.decode(api.post("/v1/checkpoint", request.encode())).checkpoint
        folder = place / label.hex()
        folder.mkdir()
        (folder / "checkpoint").write_bytes(signed.encode())
        for seq in range(1, size + 1, max(1, size // SAVED)):
            page = StreamResponse.decode(
                api.post("/v1/stream", StreamRequest(label, seq, seq, with_receipts=True).encode())
            )
            (item,) = page.items
            assert item.receipt is not None
            made = proved(api, label, seq, size)
            exhibit, tie = Exhibit(seq, item.msg), Tie(label, seq, size, made)
            shown = evidence.make_evidence(known, "saved", [item.receipt, signed], ties=[tie], exhibits=[exhibit])
            (folder / f"{seq}.receipt").write_bytes(item.receipt.encode())
            (folder / f"{seq}.proof").write_bytes(made.encode())
            (folder / f"{seq}.evidence").write_bytes(shown.encode())


def verified(api: Api, found: HubMetadata, place: Path) -> dict[str, int]:
    """Verify every saved file, and a new proof of each entry. Returns how many files of each kind there are."""
    counts: Counter[str] = Counter()
    for folder in sorted(place.iterdir()):
        signed = Checkpoint.decode((folder / "checkpoint").read_bytes())
        found.identity.verify_checkpoint(signed, found.profile)
        counts["checkpoints"] += 1
        for path in sorted(folder.glob("*.receipt")):
            receipt = Receipt.decode(path.read_bytes())
            found.identity.verify_receipt(receipt)
            old = MmrProof.decode(path.with_suffix(".proof").read_bytes())
            proof.verify_inclusion(old, Leaf.of(receipt), signed)
            new = proved(api, receipt.label, receipt.stream_seq, signed.upto_seq)
            proof.verify_inclusion(new, Leaf.of(receipt), signed)
            report = evidence.verify(path.with_suffix(".evidence").read_bytes(), found.identity.hub_id)
            assert (report.pinned, len(report.entries), report.contradictions) == (True, 1, ()), report
            for kind in ("receipts", "proofs", "new proofs", "evidence files"):
                counts[kind] += 1
    return dict(counts)


def proved(api: Api, label: bytes, seq: int, size: int) -> MmrProof:
    return ProofAtResponse.decode(api.post("/tooling/proof", ProofAtRequest(label, seq, size).encode())).mmr_proof


def log_bytes(root: Path, labels: list[bytes], upto: int) -> int:
    """The bytes of chunks, pruned chunks and manifests up to an entry of each label."""
    total = 0
    for label in labels:
        for path in (root / "log").glob(f"*{label.hex()}*"):
            name, left = ChunkName.parse(path.name), pruned_range(path.name)
            end = (name.end_seq if name else left[2] if left else None) or upto + 1
            if end <= upto or path.name.startswith("manifest-"):
                total += path.stat().st_size
    return total


def run(port: int, label: bytes | None = None) -> tuple[RetentionReport, float]:
    start = time.monotonic()
    api = Api(port)  # the hub closes connections that are idle for long
    report = RetentionReport.decode(api.post("/tooling/retention/run", RetentionRequest(False, label).encode()))
    return report, time.monotonic() - start


def main(entries: int, seconds: float, runs: int, folder: Path) -> None:
    limits = Limits(max_checkpoint_interval=max(1, entries // (10 * runs)))
    log = BigLog(folder / "hub", streams=runs, limits=limits, per_sec=_PER_SEC)
    log.grow(entries)
    measure(folder, log.labels, entries, seconds)


def measure(folder: Path, labels: list[bytes], entries: int, seconds: float) -> None:
    root = folder / "hub"
    found = metadata.read_metadata(Folders(root))
    size, upto = entries // len(labels), entries // len(labels) * 9 // 10
    load_label = naming.label(found.identity.routing_key, naming.stream_id("load"), 0)
    os.environ["VEEN_OPERATOR_TOKEN"] = TOKEN
    age = int(time.time() - BORN - entries * 0.9 / _PER_SEC)
    with HubProcess(root, "--max-start-gap", str(1 << 31)) as hub:
        api = Api(hub.port)
        api.post("/tooling/clock", ClockAcceptance(int(time.time())).encode())
        saved(api, found, labels, dict.fromkeys(labels, size), folder / "saved")
        sizes = [log_bytes(root, labels, upto)]
        api.post("/tooling/retention/policy", RetentionPolicy(age).encode())
        pruned, took, normal, during = 0, 0.0, list[float](), list[float]()
        with Load(hub.port, found, load_label) as load:
            load.rate(2.0)
            normal.append(load.rate(seconds))
            for label in labels:
                start, first = time.monotonic(), load.accepted
                report, one_took = run(hub.port, label)
                during.append((load.accepted - first) / (time.monotonic() - start))
                normal.append(load.rate(seconds))
                pruned += sum(one.end_seq - one.start_seq + 1 for one in report.ranges)
                took += one_took
        sizes.append(log_bytes(root, labels, upto))
        api = Api(hub.port)
        api.post("/tooling/retention/policy", RetentionPolicy(age, age).encode())
        run(hub.port)
        sizes.append(log_bytes(root, labels, upto))
        counts = verified(Api(hub.port), found, folder / "saved")
    ratios = [one * 2 / sum(normal[at : at + 2]) for at, one in enumerate(during)]
    print(f"entries                        {entries} in {len(labels)} streams")
    print(f"pruned                         {pruned} ({pruned / entries:.0%}) in {took:.0f} s")
    for what, total in zip(("before", "without payloads", "without receipts"), sizes, strict=True):
        print(f"bytes per entry, {what:<18}{total / (upto * len(labels)):.0f}")
    print(f"messages per second, normal    {' '.join(f'{one:.0f}' for one in normal)}")
    print(f"messages per second, pruning   {' '.join(f'{one:.0f}' for one in during)}")
    print(f"pruning / normal around it     {' '.join(f'{one:.2f}' for one in ratios)}; median {median(ratios):.2f}")
    print(f"files verified after the runs  {', '.join(f'{count} {kind}' for kind, count in counts.items())}")


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:4]] + [1_000_000, 10, 10][len(sys.argv) - 1 :]
    with tempfile.TemporaryDirectory(prefix="veen-retention-") as place:
        main(given[0], given[1], given[2], Path(place))
