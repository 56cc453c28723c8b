"""What a hub costs when its log is a hundred times longer: one label of 10^4 entries beside the same label at 10^6."""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from bench import load, messages
from bench.messages import Target
from bench.report import Ratio
from veen.core import Checkpoint, Limits, Msg, Profile, SigningKey, checkpoint, msg, naming
from veen.core.tooling import ProofAtRequest
from veen.hub.rules import Admission, Rules
from veen.hub.sequencer import Outcome, Sequencer, Submission
from veen.hub.signer import Signer
from veen.storage import directory
from veen.storage.durable import Disk
from veen.storage.folders import Folders
from veen.storage.store import Store

SMALL, LARGE = 10_000, 1_000_000
CLIENTS = 64
GROUP = 256
PROOFS = 300
SUBMITS_PER_CLIENT = 150


@dataclass(frozen=True, slots=True)
class Reading:
    """One hub at one size."""

    restart_s: float
    submit_s: float
    proof_s: float
    resident_bytes: int


class Filler:
    """Writes entries into a data directory as a hub would, without the network."""

    def __init__(self, root: Path) -> None:
        self.folders = Folders(root)
        self.papers = directory.read_papers(self.folders)
        self.keys = [SigningKey.generate() for _ in range(CLIENTS)]
        self.label = naming.label(naming.routing_key(self.papers.identity.hub_id), naming.stream_id("growth"), 0)
        self._written = 0

    def fill(self, upto: int) -> None:
        signer, control_key = Signer(self.folders, self.papers.identity), directory.read_control_key(self.folders)
        rules = Rules.of(
            self.papers.identity.hub_id,
            self.papers.profile,
            self.papers.limits,
            Admission.OPEN,
            control_key.public_key,
        )

        def sign(label: bytes, upto_seq: int, root: bytes, hub_ts: int) -> Checkpoint:
            key = signer.at(hub_ts)
            return checkpoint.sign(key, label_prev=label, label_curr=label, upto_seq=upto_seq, mmr_root=root, epoch=0)

        store = Store(Disk(), self.folders, self.papers.limits, sign)
        sequencer = Sequencer(store, rules, signer, control_key)
        sequencer.replay()
        while self._written < upto:
            sequencer.decide([self._submission(rules.profile_id) for _ in range(GROUP)])
            group = sequencer.take()
            store.committed(group.batch, store.commit(group.batch))
            sequencer.keep()
            if len(store.pending.batch.records) >= 16 * GROUP or self._written >= upto:
                tail = store.begin_catching_up()
                assert tail is not None
                store.catch_up(tail)
                store.end_catching_up()
        store.close()

    def _submission(self, profile_id: bytes) -> Submission:
        client, round_ = self._written % CLIENTS, self._written // CLIENTS
        self._written += 1
        sealed = os.urandom(32) + (51).to_bytes(4, "big") + (316).to_bytes(4, "big") + os.urandom(367) + bytes(105)
        message: Msg = msg.sign(
            self.keys[client],
            profile_id=profile_id,
            label=self.label,
            client_seq=round_ + 1,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed,
        )
        return Submission(message, message.encode(), _nobody)


def _nobody(outcome: Outcome) -> None:
    assert isinstance(outcome, bytes), outcome


def read(root: Path, filler: Filler, size: int) -> Reading:
    """Start a hub on the directory and measure."""
    command = [sys.executable, "-m", "veen.hub", "start", "--data-dir", str(root)]
    started = time.perf_counter()
    hub = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--admission", "open"], stderr=subprocess.PIPE, text=True
    )
    assert hub.stderr is not None
    try:
        port = int(json.loads(hub.stderr.readline())["listen"].rpartition(":")[2])
        restart = time.perf_counter() - started
        identity = filler.papers.identity
        target = Target(naming.routing_key(identity.hub_id), filler.papers.profile.profile_id())
        made = messages.signed(target, 32, SUBMITS_PER_CLIENT, 1, stream="growth")
        found = load.drive(port, [messages.submits(one) for one in made])
        assert not found.refused
        proof = _proof_seconds(port, filler.label, size)
        resident = _resident_bytes(hub.pid)
    finally:
        hub.terminate()
        hub.wait()
        hub.stderr.close()
    return Reading(restart, found.seconds / found.requests, proof, resident)


def _proof_seconds(port: int, label: bytes, size: int) -> float:
    """The best of many: a request for the proof of a leaf anywhere, in the tree as it is."""
    chosen = random.Random(1)
    best = float("inf")
    for _ in range(PROOFS):
        body = ProofAtRequest(label, chosen.randrange(1, size + 1), size).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/tooling/proof", body, {"content-type": "application/cbor"}
        )
        start = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            answer.read()
        best = min(best, time.perf_counter() - start)
    return best


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def measure() -> tuple[dict[str, float], list[Ratio]]:
    with tempfile.TemporaryDirectory(prefix="veen-bench-") as folder:
        root = Path(folder) / "hub"
        directory.create(Disk(), root, Profile(), Limits(), int(time.time()))
        filler = Filler(root)
        filler.fill(SMALL)
        small = read(root, filler, SMALL)
        filler.fill(LARGE)
        large = read(root, filler, LARGE)
    times = {
        "submit at 10^4": small.submit_s,
        "submit at 10^6": large.submit_s,
        "proof at 10^4": small.proof_s,
        "proof at 10^6": large.proof_s,
        "restart at 10^4": small.restart_s,
        "restart at 10^6": large.restart_s,
    }
    grown = (large.resident_bytes - small.resident_bytes) / (1 << 20)
    return times, [
        Ratio("submit at 10^6 entries", large.submit_s / small.submit_s, "of submit at 10^4", 1.1),
        Ratio("proof of any leaf at 10^6", large.proof_s / small.proof_s, "of proof at 10^4", 3),
        Ratio("restart at 10^6 entries", large.restart_s, "seconds", 2),
        Ratio("resident memory from 10^4 to 10^6", grown, "MiB more", 64),
    ]
