"""A hub that is killed at any moment: what it acknowledged is there when it comes back."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from veen.core import Msg, Receipt, SigningKey, msg, naming
from veen.core.envelopes import ErrorEnvelope, ReceiptRequest, ReceiptResponse, SubmitRequest, SubmitResponse
from veen.storage import fsck
from veen.storage.reader import LogReader

WRITERS = 4
COMMAND = [sys.executable, "-m", "veen.cli", "hub"]


@dataclass
class Writer:
    """One client that keeps sending, and remembers every receipt it was given."""

    key: SigningKey
    label: bytes
    profile_id: bytes
    receipts: list[tuple[Msg, Receipt]] = field(default_factory=list)
    waiting: Msg | None = None  # sent, and perhaps accepted, when the hub died

    def message(self) -> Msg:
        """The one that may or may not have arrived, or else the next."""
        if self.waiting is None:
            lengths = (16).to_bytes(4, "big") * 2
            self.waiting = msg.sign(
                self.key,
                profile_id=self.profile_id,
                label=self.label,
                client_seq=len(self.receipts) + 1,
                prev_ack=self.receipts[-1][1].stream_seq if self.receipts else 0,
                auth_ref=None,
                ciphertext=os.urandom(32) + lengths + os.urandom(32),
            )
        return self.waiting

    def write_until_it_dies(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            while True:
                self.send(connection)
        except (OSError, http.client.HTTPException):
            connection.close()

    def send(self, connection: http.client.HTTPConnection) -> None:
        sent = self.message()
        status, body = _post(connection, "/v1/submit", SubmitRequest(sent).encode())
        if status == 200:
            receipt = SubmitResponse.decode(body).receipt
        else:
            # It was accepted before the hub died, and the reply was lost: the receipt can be fetched.
            refused = ErrorEnvelope.decode(body).refused()
            assert refused.detail_enum == "DUPLICATE", refused
            receipt = fetched(connection, self.label, int(refused.detail["stream_seq"]))
        receipt.check_binds(sent)
        self.receipts.append((sent, receipt))
        self.waiting = None


def _post(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, bytes]:
    connection.request("POST", path, body, {"content-type": "application/cbor"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def fetched(connection: http.client.HTTPConnection, label: bytes, stream_seq: int) -> Receipt:
    status, body = _post(connection, "/v1/receipt", ReceiptRequest(label, stream_seq).encode())
    assert status == 200, ErrorEnvelope.decode(body)
    return ReceiptResponse.decode(body).receipt


def start(data_dir: Path) -> tuple[subprocess.Popen[str], int]:
    options = ["--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--admission", "open", "--workers", "0"]
    command = [*COMMAND, "start", "--foreground", *options]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(data_dir.parent)}  # what a killed process leaves is the test's own
    hub = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env)
    assert hub.stderr is not None
    line = hub.stderr.readline()
    assert line, "the hub did not start"
    return hub, int(json.loads(line)["listen"].rpartition(":")[2])


def ended(hub: subprocess.Popen[str]) -> int:
    with hub:  # closes its pipe
        return hub.wait()


def kill_again_and_again(folder: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    data_dir = folder / "hub"
    init = [*COMMAND, "init", "--data-dir", str(data_dir), "--json"]
    made = subprocess.run(init, check=True, capture_output=True, text=True)
    routing_key = naming.routing_key(bytes.fromhex(json.loads(made.stdout)["hub_id"]))
    profile_id = _profile_id(data_dir)
    writers = [
        Writer(SigningKey.generate(), naming.label(routing_key, naming.stream_id(f"s{n % 2}"), 0), profile_id)
        for n in range(WRITERS)
    ]
    for _ in range(kills):
        hub, port = start(data_dir)
        check_receipts(port, writers, moments)
        threads = [threading.Thread(target=writer.write_until_it_dies, args=(port,)) for writer in writers]
        for thread in threads:
            thread.start()
        threads[0].join(timeout=moments.uniform(0.0, 0.4))
        hub.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()
        ended(hub)
    hub, port = start(data_dir)
    check_receipts(port, writers, moments, everything=True)
    hub.send_signal(signal.SIGTERM)
    assert ended(hub) == 0
    report = fsck.check(data_dir)
    assert not report.findings, report.findings[:3]
    assert sum(len(writer.receipts) for writer in writers) > kills


def check_receipts(port: int, writers: list[Writer], moments: random.Random, *, everything: bool = False) -> None:
    """Every acknowledged receipt, or a sample and the newest, as the hub has it now."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for writer in writers:
        known = writer.receipts if everything else writer.receipts[-5:] + writer.receipts[: moments.randrange(0, 5)]
        for _, receipt in known:
            assert fetched(connection, writer.label, receipt.stream_seq) == receipt
    connection.close()


def _profile_id(data_dir: Path) -> bytes:
    with LogReader(data_dir) as reader:
        return reader.papers.profile.profile_id()


def test_acknowledged_messages_survive_kill_9(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, kills=4, seed=1)


@pytest.mark.slow
def test_acknowledged_messages_survive_two_hundred_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("VEEN_KILL_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")  # pytest shows it where the test fails
    kill_again_and_again(tmp_path, kills=200, seed=seed)
