"""A hub that is killed at any moment: everything it acknowledged is there after a restart."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from tests.hub.client import TOKEN, until
from veen.core import CapToken, HubIdentity, Msg, Receipt, SigningKey, cap_token, msg, naming, proof
from veen.core.cbor import Wire
from veen.core.envelopes import (
    AuthorizeResponse,
    ErrorEnvelope,
    ProofAtRequest,
    ProofAtResponse,
    ReceiptRequest,
    ReceiptResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.hashing import U64_MAX, h
from veen.core.retention import Level, RetentionPolicy, RetentionReport, RetentionRequest, Tombstone
from veen.storage import fsck, retention_check
from veen.storage.directory_reader import LogReader
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders
from veen.storage.pruned_chunk import read_manifest

WRITERS = 4
COMMAND = [sys.executable, "-m", "veen.cli", "hub"]
ISSUER = SigningKey.generate()
UPLOAD_EVERY = 8  # messages
UPLOAD_BYTES = 100_000


@dataclass(frozen=True)
class Setting:
    """Settings of a hub to kill. Chunks are closed often, so that some kills happen meanwhile."""

    limits: tuple[str, ...] = ("max_checkpoint_interval=8",)
    by_capability: bool = False
    workers: tuple[int | None, ...] = (0,)  # per run; None is the default

    def init_options(self) -> list[str]:
        return [option for limit in self.limits for option in ("--limit", limit)]

    def start_options(self, life: int) -> list[str]:
        admission = ["capability", "--issuer", ISSUER.public_key.hex()] if self.by_capability else ["open"]
        workers = self.workers[life % len(self.workers)]
        return ["--admission", *admission, *([] if workers is None else ["--workers", str(workers)])]


CHUNK = 8  # entries
PLAIN = Setting()
PACKED = replace(PLAIN, limits=(*PLAIN.limits, "chunk_zstd_level=3"))
SETTINGS = {
    "plain": PLAIN,
    "compressed": PACKED,
    "by capability": replace(PLAIN, by_capability=True),
    "with workers": replace(PLAIN, workers=(None,)),
}
EVERYTHING = replace(PACKED, by_capability=True, workers=(0, None))


@dataclass
class Writer:
    """A client that keeps sending and records every receipt."""

    key: SigningKey
    hub_id: bytes
    label: bytes
    profile_id: bytes
    token: CapToken | None = None
    receipts: list[tuple[Msg, Receipt]] = field(default_factory=list)
    waiting: Msg | None = None  # in flight when the hub died
    uploads: list[bytes] = field(default_factory=list)  # acknowledged

    def message(self) -> Msg:
        """The message that was in flight, or else the next."""
        if self.waiting is None:
            lengths = (16).to_bytes(4, "big") * 2
            self.waiting = msg.sign(
                self.key,
                profile_id=self.profile_id,
                label=self.label,
                client_seq=len(self.receipts) + 1,
                prev_ack=self.receipts[-1][1].stream_seq if self.receipts else 0,
                auth_ref=self.token.auth_ref() if self.token else None,
                ciphertext=os.urandom(32) + lengths + os.urandom(32),
            )
        return self.waiting

    def write_until_it_dies(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            self.authorize(connection)
            while True:
                self.send(connection)
                if not self.token and len(self.receipts) % UPLOAD_EVERY == 0:
                    self.upload(connection)
        except (OSError, http.client.HTTPException):
            connection.close()

    def authorize(self, connection: http.client.HTTPConnection) -> None:
        """In every run, independent of earlier ones."""
        if self.token:
            shown = cap_token.present(ISSUER, self.token, self.hub_id, U64_MAX)
            status, body = _ask(connection, "POST", "/tooling/authorize", shown.encode())
            assert status == 200, ErrorEnvelope.decode(body)
            assert AuthorizeResponse.decode(body).auth_ref == self.token.auth_ref()

    def upload(self, connection: http.client.HTTPConnection) -> None:
        sealed = os.urandom(UPLOAD_BYTES)
        status, _ = _ask(connection, "PUT", _upload_path(sealed), sealed)
        assert status in (201, 503)  # the state must not be a full disk
        if status == 201:
            self.uploads.append(sealed)

    def send(self, connection: http.client.HTTPConnection) -> None:
        sent = self.message()
        status, body = _ask(connection, "POST", "/v1/submit", SubmitRequest(sent).encode())
        if status == 200:
            receipt = SubmitResponse.decode(body).receipt
        else:
            # It was accepted before the hub died, and the reply was lost: fetch the receipt.
            refused = ErrorEnvelope.decode(body).refused()
            assert refused.detail_enum == "DUPLICATE", refused
            receipt = fetched(connection, self.label, int(refused.detail["stream_seq"]))
        receipt.check_binds(sent)
        self.receipts.append((sent, receipt))
        self.waiting = None


def _upload_path(sealed: bytes) -> str:
    return f"/tooling/attachments/{h(sealed).hex()}"


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection.request(method, path, body, {"content-type": "application/cbor"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def fetched(connection: http.client.HTTPConnection, label: bytes, stream_seq: int) -> Receipt:
    status, body = _ask(connection, "POST", "/v1/receipt", ReceiptRequest(label, stream_seq).encode())
    assert status == 200, ErrorEnvelope.decode(body)
    return ReceiptResponse.decode(body).receipt


def start(data_dir: Path, options: list[str] | None = None) -> tuple[subprocess.Popen[str], int]:
    # Logs that other tests wrote with a clock of their own end long ago.
    options = [*(options or PLAIN.start_options(0)), "--max-start-gap", "9999d"]
    command = [*COMMAND, "start", "--foreground", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", *options]
    env = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(data_dir.parent),
        "VEEN_OPERATOR_TOKEN": TOKEN,
    }  # files of a killed process are cleaned up by the test
    hub = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env)
    assert hub.stderr is not None
    line = hub.stderr.readline()
    assert line.startswith("{"), f"the hub did not start: {line}"
    return hub, int(json.loads(line)["listen"].rpartition(":")[2])


def ended(hub: subprocess.Popen[str]) -> int:
    with hub:  # closes its pipe
        return hub.wait()


def check_after_kills(folder: Path, setting: Setting, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    data_dir = folder / "hub"
    init = [*COMMAND, "init", "--no-root", "--data-dir", str(data_dir), *setting.init_options(), "--json"]
    made = subprocess.run(init, check=True, capture_output=True, text=True)
    writers = [_writer(setting, bytes.fromhex(json.loads(made.stdout)["hub_id"]), data_dir, n) for n in range(WRITERS)]
    for life in range(1, kills + 1):
        hub, port = start(data_dir, setting.start_options(life))
        check_receipts(port, writers, moments)
        threads = [threading.Thread(target=writer.write_until_it_dies, args=(port,)) for writer in writers]
        for thread in threads:
            thread.start()
        threads[0].join(timeout=moments.uniform(0.0, 0.4))
        # A slow machine acknowledges little in a short run: the last one runs until something was acknowledged.
        while life == kills and acknowledged(writers) <= kills and threads[0].is_alive():
            threads[0].join(timeout=0.01)
        hub.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()
        ended(hub)
        check_files(data_dir)
    hub, port = start(data_dir, setting.start_options(0))
    check_receipts(port, writers, moments, everything=True)
    hub.send_signal(signal.SIGTERM)
    assert ended(hub) == 0
    report = fsck.check(data_dir)
    assert not report.findings, report.findings[:3]
    assert acknowledged(writers) > kills


def _writer(setting: Setting, hub_id: bytes, data_dir: Path, number: int) -> Writer:
    key, stream = SigningKey.generate(), naming.stream_id(f"s{number % 2}")
    token = cap_token.mint(ISSUER, key.public_key, [stream], 1 << 20) if setting.by_capability else None
    return Writer(key, hub_id, naming.label(naming.routing_key(hub_id), stream, 0), _profile_id(data_dir), token)


def check_files(data_dir: Path) -> None:
    """A killed hub leaves a sound directory: fsck is clean without a restart in between."""
    report = fsck.check(data_dir, isolated=False)
    assert report.verdict is fsck.FsckVerdict.CLEAN, report.first


def acknowledged(writers: list[Writer]) -> int:
    return sum(len(writer.receipts) for writer in writers)


def check_receipts(port: int, writers: list[Writer], moments: random.Random, *, everything: bool = False) -> None:
    """Every acknowledged receipt, or a sample and the newest, as the hub returns it now."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for writer in writers:
        known = writer.receipts if everything else writer.receipts[-5:] + writer.receipts[: moments.randrange(0, 5)]
        for _, receipt in known:
            assert fetched(connection, writer.label, receipt.stream_seq) == receipt
        for sealed in writer.uploads if everything else writer.uploads[-1:]:
            assert _ask(connection, "GET", _upload_path(sealed)) == (200, sealed)
    connection.close()


def _profile_id(data_dir: Path) -> bytes:
    with LogReader(data_dir) as reader:
        return reader.hub_metadata.profile.profile_id()


def test_acknowledged_messages_survive_kill_9(tmp_path: Path) -> None:
    check_after_kills(tmp_path, EVERYTHING, kills=4, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_acknowledged_messages_survive_two_hundred_kills(tmp_path: Path, name: str) -> None:
    """Fifty runs of each setting, ten per directory: everything is read again after each."""
    seed = int(os.environ.get("VEEN_KILL_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")  # pytest prints it if the test fails
    for turn in range(5):
        (tmp_path / str(turn)).mkdir()
        check_after_kills(tmp_path / str(turn), SETTINGS[name], kills=10, seed=seed + turn)


MESSAGES_PER_LIFE = 20  # of each writer
PAYLOADS, RECEIPTS = RetentionPolicy(0), RetentionPolicy(0, 0)


def operate(port: int, path: str, request: Wire) -> bytes:
    """What the hub answers to its operator. Raises `OSError` or `HTTPException` if it dies meanwhile."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        headers = {"content-type": "application/cbor", "authorization": f"Bearer {TOKEN}"}
        connection.request("POST", path, request.encode(), headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, ErrorEnvelope.decode(body)
        return body
    finally:
        connection.close()


def planned(port: int) -> RetentionReport:
    return RetentionReport.decode(operate(port, "/tooling/retention/run", RetentionRequest(True)))


def is_due(port: int) -> bool:
    """Whether the log has closed chunks that a run would prune."""
    return planned(port).range_count > 0


@dataclass
class KilledRuns:
    """Retention runs of a hub that is killed meanwhile."""

    interrupted: int = 0
    completed: int = 0

    def run(self, port: int) -> None:
        try:
            operate(port, "/tooling/retention/run", RetentionRequest(False))
            self.completed += 1
        except (OSError, http.client.HTTPException):
            self.interrupted += 1


def check_pruned(port: int, writers: list[Writer], identity: HubIdentity) -> None:
    """Every acknowledged message has its receipt, or its place is proved by the tombstone of a pruned range."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for writer in writers:
        for sent, receipt in writer.receipts:
            seq = receipt.stream_seq
            status, body = _ask(connection, "POST", "/v1/receipt", ReceiptRequest(writer.label, seq).encode())
            if status == 200:
                assert ReceiptResponse.decode(body).receipt == receipt
                continue
            refused = ErrorEnvelope.decode(body).refused()
            assert refused.detail_enum == "pruned", refused
            tombstone = Tombstone.decode(bytes.fromhex(str(refused.detail["tombstone"])))
            tombstone.verify(identity)
            segment = tombstone.segment
            assert segment.start_seq <= seq <= segment.end_seq
            asked = ProofAtRequest(writer.label, seq, segment.end_seq)
            status, body = _ask(connection, "POST", "/tooling/proof", asked.encode())
            assert status == 200, ErrorEnvelope.decode(body)
            shown = ProofAtResponse.decode(body).mmr_proof
            proof.verify_leaf(shown, sent.leaf_hash(), seq, segment.end_seq, segment.mmr_root_end)
    connection.close()


def check_retention_after_kills(folder: Path, kills: int, seed: int) -> KilledRuns:
    moments = random.Random(seed)
    data_dir, runs = folder / "hub", KilledRuns()
    init = [*COMMAND, "init", "--no-root", "--data-dir", str(data_dir), *PLAIN.init_options(), "--json"]
    made = subprocess.run(init, check=True, capture_output=True, text=True)
    writers = [_writer(PLAIN, bytes.fromhex(json.loads(made.stdout)["hub_id"]), data_dir, n) for n in range(2)]
    identity = read_metadata(Folders(data_dir)).identity
    for _ in range(kills):
        hub, port = start(data_dir)
        check_pruned(port, writers, identity)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for writer in writers:
            for _ in range(MESSAGES_PER_LIFE):
                writer.send(connection)
        connection.close()
        operate(port, "/tooling/retention/policy", moments.choice((PAYLOADS, RECEIPTS)))
        until(partial(is_due, port))
        run = threading.Thread(target=runs.run, args=(port,))
        run.start()
        run.join(timeout=moments.uniform(0.0, 0.3))
        hub.send_signal(signal.SIGKILL)
        run.join()
        ended(hub)
        report = fsck.check(data_dir, isolated=False)
        assert not [one for one in report.findings if one.severity is fsck.Severity.DAMAGED], report.findings[:3]
        assert [one.faults for one in retention_check.check_manifests(data_dir) if one.faults] == []
    hub, port = start(data_dir)
    check_pruned(port, writers, identity)
    operate(port, "/tooling/retention/policy", RECEIPTS)
    ends = {writer.label: writer.receipts[-1][1].stream_seq // CHUNK * CHUNK for writer in writers}

    def is_pruned() -> bool:
        operate(port, "/tooling/retention/run", RetentionRequest(False))
        manifests = (read_manifest(Folders(data_dir), label) for label in ends)
        last = [one.segments[-1] for one in manifests if one]  # may be a whole chunk that was closed since the plan
        return [(one.end_seq, one.level) for one in last] == [(end, Level.RECEIPTS) for end in ends.values()]

    until(is_pruned)
    assert planned(port).range_count == 0
    check_pruned(port, writers, identity)
    hub.send_signal(signal.SIGTERM)
    assert ended(hub) == 0
    assert not fsck.check(data_dir).findings
    checked = retention_check.check_manifests(data_dir)
    assert {writer.label for writer in writers} <= {one.label for one in checked}
    assert {(one.unfinished, one.faults) for one in checked} == {(0, ())}, checked
    return runs


def test_a_retention_run_survives_kill_9(tmp_path: Path) -> None:
    check_retention_after_kills(tmp_path, kills=3, seed=1)


@pytest.mark.slow
def test_a_retention_run_survives_a_hundred_kills(tmp_path: Path) -> None:
    """Ten directories: everything is verified again after each kill."""
    seed = int(os.environ.get("VEEN_KILL_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")  # pytest prints it if the test fails
    found = []
    for turn in range(10):
        (tmp_path / str(turn)).mkdir()
        found.append(check_retention_after_kills(tmp_path / str(turn), kills=10, seed=seed + turn))
    interrupted = sum(one.interrupted for one in found)
    print(f"{interrupted} of 100 kills interrupted a run")
    assert interrupted >= 10, "kill earlier"
